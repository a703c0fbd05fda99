"""Policy gradient as the learner estimates it, beside the exact one in an environment small enough to enumerate.

    python -m benchmarks.gradients --episodes 20000

A tiny language model plays `Treasure`: five rooms, four steps, chance, rewards at every step. All its trajectories can
be listed, so the expected return is a finite sum, and autograd gives its gradient. This is compared with the gradients
that `learn.online.update` hands to the optimiser, averaged over many batches of `learn.rollouts.EpisodeRollouts` with
fixed weights. Losses are means over steps, so estimates are multiplied by the mean length of an episode. A batch
divides by its own number of steps, so the norm is off by about one over the number of its episodes. The columns of a
row are:

- cosine: between the averaged estimate and the exact gradient; noiseless: the same with the average's noise removed;
- norm: of the average without that noise, divided by the norm of the exact gradient;
- variance: the trace of the covariance of a batch's estimate, divided by the squared norm of the average. After so many
  batches, signal and noise are equal.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import torch
import tyro
from torch import Tensor
from transformers.utils import logging

from reflectrl.core.config import ModelConfig, RLConfig
from reflectrl.core.types import named_seed
from reflectrl.learn.batch import Batch
from reflectrl.learn.online import update
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.learn.trainer import Metrics, Trainer
from reflectrl.learn.value import ValueHead, make_critic
from reflectrl.models.load import load_model
from reflectrl.models.players import Policy
from reflectrl.models.scratch import save_scratch

from .measure import report
from .settings import note
from .treasure import ROOMS, Exact, Treasure, exact, flat, seen

# ---- the learner's estimate ------------------------------------------------------------------------------------------


class Recorder(Trainer):
    """Stand-in for the trainer that keeps each gradient and changes no weight."""

    def __init__(self, policy: Policy, critic: ValueHead | None) -> None:
        super().__init__(policy.lm, [], parts={"critic": critic} if critic else None, keep_best=False)
        self.gradients: list[Tensor] = []

    def update(self, metrics: Mapping[str, float]) -> Metrics:
        parameters = self.parts["weights"].parameters()
        self.gradients.append(flat(list(parameters), [p.grad for p in parameters]))
        for part in self.parts.values():
            for p in part.parameters():
                p.grad = None
        return dict(metrics)


def wrong_critic(policy: Policy, seed: int) -> ValueHead:
    """Make a critic with random values in every state, like a critic that was trained on other weights."""
    critic = make_critic(policy.lm.hidden_size, "linear", seed)
    generator = torch.Generator().manual_seed(named_seed(seed, "wrong critic") % 2**63)
    with torch.no_grad():
        critic.out.weight.copy_(0.1 * torch.randn(critic.out.weight.shape, generator=generator))
    return critic


def estimates(
    policy: Policy,
    settings: Mapping[str, Any],
    episodes: int,
    batch: int = 64,
    seed: int = 0,
    spoil: Callable[[Batch], None] | None = None,
) -> Tensor:
    """Return the learner's estimate of the gradient of the *return* from each of several batches, (batches, D).

    Args:
        settings: keys of `RLConfig` beside `PLAIN`.
        spoil: changes each batch before the update, as a broken learner would.
    """
    config = RLConfig(**{**PLAIN, "episodes": batch, **settings})
    critic = wrong_critic(policy, seed) if config.baseline == "critic" else None
    rollouts = EpisodeRollouts(policy, None, Treasure, config, seed)
    trainer, means = Recorder(policy, critic), []
    for index in range(max(2, episodes // batch)):
        collected = rollouts.collect(index, critic)
        if spoil is not None:
            spoil(collected)
        update(trainer, critic, collected, config, epochs=1)
        means.append(-torch.stack(trainer.gradients).mean(0))
        trainer.gradients.clear()
    return torch.stack(means)


class Comparison(NamedTuple):
    """Comparison of an estimator with the exact gradient: the columns of the table."""

    cosine: float
    noiseless: float
    norm: float
    variance: float


def compare(estimates_BD: Tensor, truth: Exact) -> Comparison:
    """Compare an estimator's batches with the exact gradient. The module's docstring explains the figures."""
    mean_D, exact_D = estimates_BD.mean(0), truth.gradient_D
    trace = float(estimates_BD.var(0).sum())
    # The squared norm of the mean contains the mean's own noise, trace / B. Without it, the estimate is unbiased.
    signal = max(1e-30, float(mean_D.square().sum()) - trace / len(estimates_BD))
    along = float(mean_D @ exact_D) / float(exact_D.norm())
    norm = sqrt(signal) * truth.length / float(exact_D.norm())
    return Comparison(along / float(mean_D.norm()), along / sqrt(signal), norm, trace / signal)


# ---- the table -------------------------------------------------------------------------------------------------------

PLAIN: dict[str, Any] = {
    "baseline": "none",
    "normalise": False,
    "entropy_coef": 0.0,
    "kl_coef": 0.0,
    "curriculum": "none",
    "replay": 0,
    "minibatch": 1024,
}
"""Settings of plain REINFORCE, for all keys that a row does not set."""


class Row(NamedTuple):
    """Settings of the learner to compare: name, keys of `RLConfig`, and the bias that they cause."""

    name: str
    settings: Mapping[str, Any]
    bias: str = "none"

    @property
    def unbiased(self) -> bool:
        """Return whether the estimate's expected direction is the direction of the exact gradient."""
        return self.bias in ("none", SCALED)


SCALED = "none in direction"
GROUPED = {"group": 4}
PPO = {"algorithm": "ppo"}
ROWS = (
    Row("none", {}),
    Row("none, PPO", {**PPO}),
    Row(
        "none, PPO, 4 minibatches, DAPO's and dual clip",
        {**PPO, "steps_per_epoch": 4, "clip_high": 0.28, "dual_clip": 3},
    ),
    Row("none, normalised", {"normalise": True}, SCALED),
    Row("none, temperature 2", {"temperature": 2.0}),
    Row("mean", {"baseline": "mean"}, SCALED),
    Row("mean, normalised, PPO", {"baseline": "mean", "normalise": True, **PPO}, SCALED),
    Row("leave-one-out", {"baseline": "leave-one-out", **GROUPED}),
    Row("leave-one-out, normalised", {"baseline": "leave-one-out", "normalise": True, **GROUPED}, SCALED),
    Row("leave-one-out, 2 refills", {"baseline": "leave-one-out", "refills": 2, **GROUPED}, SCALED),
    Row("dr-grpo", {"baseline": "dr-grpo", **GROUPED}, SCALED),
    Row("dr-grpo, normalised, PPO", {"baseline": "dr-grpo", "normalise": True, **PPO, **GROUPED}, SCALED),
    Row("grpo", {"baseline": "grpo", **GROUPED}, "tasks nearly always won or lost, and short episodes, weigh more"),
    Row("gigpo", {"baseline": "gigpo", **GROUPED}, "a state met once has no comparison: those met often weigh more"),
    Row("critic, wrong, lambda 1", {"baseline": "critic", "gae_lambda": 1.0}),
    Row("critic, wrong, lambda 1, PPO", {"baseline": "critic", "gae_lambda": 1.0, **PPO}),
    Row("critic, wrong, lambda 0.95", {"baseline": "critic", "gae_lambda": 0.95}, "the critic's error, 5 % a step"),
    Row("critic, wrong, lambda 0", {"baseline": "critic", "gae_lambda": 0.0}, "the critic's error, in full"),
    Row("none, gamma 0.9", {"gamma": 0.9}, "later rewards count less"),
    Row("none, gamma 0.5", {"gamma": 0.5}, "later rewards count less"),
    Row("milestones", {"milestone_coef": 0.5}),
    Row("milestones, kept", {"milestone_coef": 0.5, "milestone_at_horizon": "kept"}, "arriving is paid too"),
    Row("counts", {"count_coef": 0.5}, "what is new is paid too"),
)
"""Settings that change the gradient of fresh episodes. Left out are replay and self-imitation, whose episodes come from
other weights, and keys that change which episodes are played (`reverse`, `first_horizon`, `draw`).
"""


@dataclass(frozen=True)
class Settings:
    """Settings of the comparison."""

    episodes: int = 20_000
    """Episodes per row."""
    batch: int = 64
    """Episodes per batch."""
    rows: str = ""
    """Beginning of the names of the rows to compute; all rows if empty."""
    seed: int = 0
    """Seed of the model and the episodes."""
    json: bool = False
    """Print JSON instead of a table."""


def make_policy(folder: Path, seed: int = 0) -> Policy:
    """Make a GPT-2 with a single layer. Its weights are large enough to prefer some actions to others."""
    shape = ModelConfig(layers=1, width=32, heads=2, context=64, vocab=280, mixed_precision="off", device="cpu")
    observations = [seen(treasure, room) for treasure in range(ROOMS) for room in range(ROOMS)]
    save_scratch(
        folder, shape, [f"{observation.state} {' '.join(observation.actions)}" for observation in observations], 3, seed
    )
    policy = Policy(load_model(folder, shape))
    generator = torch.Generator().manual_seed(named_seed(seed, "preferences") % 2**63)
    with torch.no_grad():
        for weight in policy.lm.parameters():
            if weight.ndim == 2:
                weight.copy_(0.1 * torch.randn(weight.shape, generator=generator))
    return policy


def rows(settings: Settings) -> list[dict[str, Any]]:
    """Return a line of the table per setting."""
    with tempfile.TemporaryDirectory() as folder:
        policy, table_rows = make_policy(Path(folder), settings.seed), []
    for row in ROWS:
        if row.name.startswith(settings.rows):
            truth = exact(policy, row.settings.get("temperature", 1.0))
            measured = compare(estimates(policy, row.settings, settings.episodes, settings.batch, settings.seed), truth)
            columns = {name: f"{value:.3f}" for name, value in measured._asdict().items()}
            table_rows.append(note({"key": row.name, **columns, "bias": row.bias}))
    return table_rows


if __name__ == "__main__":
    logging.disable_progress_bar()
    chosen = tyro.cli(Settings, description=(__doc__ or "").split("\n\n")[0])
    print(report(rows(chosen), chosen.json), end="")
