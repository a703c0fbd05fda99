"""Distillation of a pair's choices into a policy that reads no reflections. One linear loop.

In every state s of its episodes, the pair chose by pi(a|s, r) after the reflection r. The policy minimises

    KL(pi(.|s, r) || pi_theta(.|s)) = sum_a pi(a|s, r) (log pi(a|s, r) - log pi_theta(a|s))

over the listed actions. Sources: policy distillation (Rusu et al. 2016, arXiv 1511.06295), and context distillation,
in which the student does not see a part of the teacher's prompt (Snell et al. 2022, arXiv 2209.15189).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from reflectrl.core.config import SFTConfig
from reflectrl.core.types import Episode, Observation, UserError, named_seed
from reflectrl.learn.examples import ACTIVATIONS
from reflectrl.learn.losses import restricted_log_softmax
from reflectrl.learn.optim import make_optimizers
from reflectrl.learn.trainer import Log, Trainer, cosine
from reflectrl.methods.distill.config import DistillConfig
from reflectrl.models.players import Policy
from reflectrl.models.sharing import portions


class Target(NamedTuple):
    """A state and the target probability of each of its actions."""

    observation: Observation
    probs: tuple[float, ...]


def targets(episodes: Iterable[Episode], config: DistillConfig) -> list[Target]:
    """Return the states of a pair's episodes with the pair's choices as targets.

    Raises:
        UserError: no episode is left to learn from.
    """
    rows: list[Target] = []
    for episode in episodes:
        if config.won_only and not episode.success:
            continue
        for step in episode.steps:
            probs: tuple[float, ...] = ()
            if config.target == "soft" and step.choice is not None:
                probs = step.choice.probs
            if not probs:  # all on the chosen action
                probs = tuple(float(i == step.action) for i in range(len(step.observation.actions)))
            rows.append(Target(step.observation, probs))
    if not rows:
        raise UserError("distill: the pair won none of its episodes; leave out distill.won_only")
    return rows


def distillation_loss(logp_NA: Tensor, target_NA: Tensor) -> Tensor:
    """Return KL(target || policy) in nats, averaged over N states. Actions with target probability 0 add nothing.

    Args:
        logp_NA: log-probabilities of the policy, -inf beyond a state's own actions.
        target_NA: probabilities that sum to 1 in each row, 0 beyond a state's own actions.
    """
    terms_NA = torch.xlogy(target_NA, target_NA) - target_NA * logp_NA.masked_fill(target_NA == 0, 0.0)
    return terms_NA.sum(-1).mean()


def train_distilled(
    policy: Policy,
    rows: Sequence[Target],
    config: DistillConfig,
    sft: SFTConfig,
    seed: int,
    log: Log,
    evaluate: Callable[[], dict[str, float]],
    state_folder: Path | None = None,
) -> None:
    """Train the policy in place. It ends with the weights that won most validation tasks.

    Args:
        rows: states with their target probabilities.
        sft: settings of optimiser, learning rates, warm-up and gradient clipping.
        log: receives {"step", "kl", "grad_norm", "eval_success", "eval_return"} once per evaluation.
        evaluate: returns success and return on validation tasks, without reflections.
        state_folder: folder in which every evaluation saves the state, so that a killed training can resume.
    """
    lm = policy.lm
    trainer = Trainer(lm, make_optimizers(lm, sft), sft.max_grad_norm, state_folder)
    if trainer.resumed is None:
        _evaluate(trainer, policy, evaluate, log)  # the first weights are a candidate
    while not trainer.has_ended(config.steps):
        trainer.set_rate(cosine(trainer.step, config.steps, sft.warmup))
        torch.manual_seed(named_seed(seed, "dropout", trainer.step))  # anew at each step, as after a kill
        rng, total = np.random.default_rng(named_seed(seed, "distill", trainer.step)), 0.0
        batch = [rows[i] for i in rng.choice(len(rows), min(config.batch_size, len(rows)), replace=False)]
        with lm.training():
            for part in portions([1] * len(batch), _per_pass(policy, batch)):
                loss = _loss(policy, batch[part], rng) * len(batch[part]) / len(batch)
                loss.backward()
                total += float(loss.detach())
        trainer.update({"kl": total})
        trainer.step += 1
        if trainer.is_due(config.eval_every, config.steps):
            _evaluate(trainer, policy, evaluate, log)
    trainer.finish()
    policy.clear_cache()


def _evaluate(trainer: Trainer, policy: Policy, evaluate: Callable[[], dict[str, float]], log: Log) -> None:
    """Evaluate and log the policy, keep its weights if they are the best so far, and save the state."""
    policy.clear_cache()
    scores = evaluate()
    means = trainer.means() if trainer.step else {}
    trainer.checkpoint(means | scores, [scores["eval_success"], scores["eval_return"]], log)


def _loss(policy: Policy, rows: Sequence[Target], rng: np.random.Generator) -> Tensor:
    """Return the distillation loss of some states. Their actions are permuted if the policy shuffles labels."""
    width = max(len(row.probs) for row in rows)
    prompts, target_NA, legal_NA = [], torch.zeros(len(rows), width), torch.zeros(len(rows), width, dtype=torch.bool)
    for i, (observation, probs) in enumerate(rows):
        order = rng.permutation(len(probs)).tolist() if policy.shuffle_labels else list(range(len(probs)))
        prompts.append(policy.prompt(observation, None, order))
        listed = torch.tensor(probs)[order]
        target_NA[i, : len(probs)], legal_NA[i, : len(probs)] = listed / listed.sum(), True
    logits_NA, _ = policy.logits(prompts, [row.observation.actions for row in rows])
    logp_NA = restricted_log_softmax(logits_NA, legal_NA.to(logits_NA.device))
    return distillation_loss(logp_NA, target_NA.to(logits_NA.device))


def _per_pass(policy: Policy, rows: Sequence[Target]) -> int:
    """Return the number of states per forward pass, from the memory that the longest prompt needs."""
    longest = max(len(policy.prompt(row.observation, None)) for row in rows)
    return max(1, ACTIVATIONS // (longest * policy.lm.activation_bytes + policy.lm.logits_bytes))
