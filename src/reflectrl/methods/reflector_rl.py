"""RL of the reflector, with a policy that is fixed or learns as well: PPO (or REINFORCE) on reflections.

Each update plays episodes with sampled reflections, credits every reflection with its episode's reward-to-go (or with
its effect on the policy's choice), and follows the policy gradient of its tokens. Reflect-RL (Zhou et al. 2024) freezes
the reflector; here it learns. A reflection is treated like an utterance in ArCHer (Zhou et al. 2024, arXiv 2402.19446):
it is one action, whose tokens share its advantage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from reflectrl.core.types import named_seed
from reflectrl.methods.shared.reflecting import (
    SETTINGS,
    ReflectingConfig,
    frozen_policy_settings,
    save,
    train_pair,
    trained_pair,
    without_replay,
)
from reflectrl.runs.arms import Arm, policy
from reflectrl.runs.artifact import CHECKPOINT, Build, Input, Plan, Source, artifact

if TYPE_CHECKING:  # these bring torch, which a dry run does without
    from torch import Tensor, nn

    from reflectrl.core.config import RLConfig
    from reflectrl.learn.examples import Example
    from reflectrl.learn.trainer import Log, Metrics, Model, Trainer
    from reflectrl.learn.value import ValueHead
    from reflectrl.methods.shared.reflection_rollouts import ReflectionRollouts, Reflections
    from reflectrl.models.lm import LanguageModel

SECTIONS = {"reflecting": ReflectingConfig}
WRITER = "-reflector"
"""Suffix that turns the name of a jointly trained pair into the name of its reflector's checkpoint."""


# ---- the loop --------------------------------------------------------------------------------------------------------


def train_reflector(
    rollouts: ReflectionRollouts,
    config: RLConfig,
    settings: ReflectingConfig,
    seed: int,
    log: Log,
    state_folder: Path | None = None,
    both: bool = False,
) -> None:
    """Train the reflector of `rollouts` in place. It ends with the weights that did best on validation tasks.

    Args:
        rollouts: source of episodes and evaluations.
        log: callback for metrics (see `Trainer.updates`).
        state_folder: folder in which every evaluation saves the state, so that a killed training can resume.
        both: True if the policy learns too. Both then end with the weights that did best together.
    """
    import torch

    from reflectrl.learn import losses
    from reflectrl.learn.online import update
    from reflectrl.learn.trainer import SCHEDULES, Trainer

    writer, reader = rollouts.speaker.lm, rollouts.lm
    wants_critic = config.baseline == "critic"
    rates = [(writer.parameters(), settings.lr)]
    critics: dict[str, ValueHead] = {}
    if wants_critic:
        critics["reflection_critic"] = new_critic("reflection_critic", writer, config, seed)
    if both:
        rates.append((reader.parameters(), config.lr))
        if wants_critic:
            critics["critic"] = new_critic("critic", reader, config, seed)
    rates += [(list(critic.parameters()), config.critic_lr) for critic in critics.values()]
    groups = [{"params": params, "lr": lr, "initial_lr": lr} for params, lr in rates]
    optimizer = torch.optim.AdamW(groups, weight_decay=config.weight_decay, fused=True)
    references = {"reference": rollouts.reference, "reflector_reference": rollouts.reflector_reference}
    learner: Model = Pair(writer, reader) if both else writer
    trainer = Trainer(learner, [optimizer], config.max_grad_norm, state_folder, {**references, **critics})
    epochs = 1 if config.algorithm in losses.SINGLE_EPOCH else config.update_epochs

    for metrics in trainer.updates(rollouts, config, log):
        if config.schedule != "constant":
            trainer.set_rate(SCHEDULES[config.schedule](trainer.step, config.updates, config.warmup))
        turn, before = whose_turn(trainer.step, settings.alternate if both else 0)
        warming = wants_critic and before < config.critic_warmup
        is_due = (trainer.step + 1) % config.critic_every == 0
        learning = critics if warming or is_due else {}
        batch = rollouts.collect(trainer.step, critics.get("critic"))
        if turn != "policy":
            drawn = rollouts.reflections(critics.get("reflection_critic"))
            critic = learning.get("reflection_critic")
            metrics |= update_reflector(trainer, rollouts, drawn, critic, epochs, warming)
        if both and turn != "reflector":
            metrics |= update(trainer, learning.get("critic"), batch, config, epochs, warming)


def new_critic(name: str, lm: LanguageModel, config: RLConfig, seed: int) -> ValueHead:
    """Make a critic that reads a model's hidden states. Critics of different names begin with different weights."""
    from reflectrl.learn.value import make_critic

    return make_critic(lm.hidden_size, config.critic, named_seed(seed, name)).to(lm.device)


def whose_turn(step: int, alternate: int) -> tuple[str, int]:
    """Return the players that learn in an update: "reflector", "policy", or "all" players that are trained.

    Args:
        alternate: updates per phase; 0 trains all in every update.

    Returns:
        The players, and the number of earlier updates in which they learned.
    """
    if not alternate:
        return "all", step
    turn, rounds = ("reflector", "policy")[step // alternate % 2], step // (2 * alternate)
    return turn, rounds * alternate + step % alternate


def update_reflector(
    trainer: Trainer,
    rollouts: ReflectionRollouts,
    drawn: Reflections,
    critic: ValueHead | None,
    epochs: int,
    warming: bool = False,
) -> Metrics:
    """Take an optimiser step per minibatch and epoch, accumulating its gradient over slices.

    loss = policy loss − entropy_coef · entropy + kl_coef · KL(reflector ‖ reference) + critic_coef · value error.
    The policy loss is a mean over tokens, or over reflections if each has one ratio. Entropy and KL are exact over the
    vocabulary and averaged over tokens. The value error is a mean over reflections.

    Args:
        warming: True if only the critic learns.

    Returns:
        Metrics of the last epoch, with the prefix "reflection_", and the metrics of `drawn`.
    """
    import torch

    from reflectrl.learn import losses
    from reflectrl.learn.trainer import accumulate

    config, settings, lm = rollouts.config, rollouts.settings, rollouts.speaker.lm
    advantages_R = drawn.advantages_R
    if config.centre and drawn.rows:
        advantages_R = advantages_R - advantages_R.mean()
    if config.normalise:
        advantages_R = losses.normalise(advantages_R)
    metrics: Metrics = {}
    if not drawn.rows:
        return drawn.metrics
    for _ in range(epochs):
        metrics = {}
        for slices in drawn.minibatches:
            every = list(chain.from_iterable(slices))
            totals: Metrics = {}
            tokens = sum(len(drawn.old_logp[r]) for r in every)
            for part in slices:
                rows = [drawn.rows[r] for r in part]
                lengths = [len(row.ids) - row.start for row in rows]
                share, token_share = len(part) / len(every), sum(lengths) / tokens
                logp_MV, hidden_MD, labels_M = token_logp(lm, rows, settings.temperature)
                logp_M = logp_MV.gather(1, labels_M[:, None])[:, 0]
                old_logp_M = torch.tensor(list(chain.from_iterable(drawn.old_logp[r] for r in part))).to(logp_M)
                advantages_r = advantages_R[part].to(logp_M)
                terms = policy_terms(logp_M, old_logp_M, advantages_r, lengths, config, settings.ratio)
                # A mean over tokens weighs a slice by its tokens, a mean over reflections by its reflections.
                weight = token_share if settings.ratio == "token" else share
                loss = weight * terms["policy_loss"]
                part_metrics = {name: weight * float(term.detach()) for name, term in terms.items()}
                with torch.set_grad_enabled(settings.entropy_coef > 0):
                    entropy = losses.entropy(logp_MV).mean()
                part_metrics["entropy"] = token_share * float(entropy.detach())
                loss = loss - token_share * settings.entropy_coef * entropy
                if rollouts.reflector_reference is not None:
                    with torch.no_grad():
                        reference_MV, _, _ = token_logp(rollouts.reflector_reference, rows, settings.temperature)
                    kl = losses.categorical_kl(logp_MV, reference_MV).mean()
                    part_metrics["kl"] = token_share * float(kl.detach())
                    loss = loss + token_share * settings.kl_coef * kl
                if critic is not None:
                    firsts = torch.tensor([0, *lengths[:-1]], device=lm.device).cumsum(0)
                    values_R = critic(hidden_MD[firsts].detach())  # state at the prompt's end: blind to the reflection
                    value_loss = losses.value_loss(values_R, drawn.returns_R[part].to(values_R))
                    part_metrics["value_loss"] = share * float(value_loss.detach())
                    loss = (0.0 if warming else loss) + share * config.critic_coef * value_loss
                loss.backward()
                accumulate(totals, part_metrics)
            accumulate(metrics, trainer.update(totals), len(every) / len(drawn.rows))
    return {f"reflection_{name}": value for name, value in metrics.items()} | drawn.metrics


def policy_terms(
    logp_M: Tensor, old_logp_M: Tensor, advantages_R: Tensor, lengths: Sequence[int], config: RLConfig, ratio: str
) -> dict[str, Tensor]:
    """Return the policy loss of R reflections with M tokens in all, and further metrics.

    Args:
        logp_M: log-probabilities of the tokens, with gradient.
        old_logp_M: log-probabilities of the tokens when they were drawn.
        advantages_R: advantages of the reflections, as constants.
        lengths: number of tokens of each reflection.
        ratio: "token" gives each token its own ratio and its reflection's advantage; "reflection" gives each reflection
            one ratio, the geometric mean over its tokens (Zheng et al. 2025, "Group Sequence Policy Optimization").
    """
    import torch

    from reflectrl.core.policy_losses import POLICY_LOSSES

    loss = POLICY_LOSSES[config.algorithm]
    if ratio == "token":
        counts_R = torch.tensor(lengths, device=logp_M.device)
        return loss(logp_M, old_logp_M, advantages_R.repeat_interleave(counts_R), config)
    sizes = list(lengths)
    logp_R = torch.stack([logp_T.mean() for logp_T in logp_M.split(sizes)])
    old_logp_R = torch.stack([logp_T.mean() for logp_T in old_logp_M.split(sizes)])
    return loss(logp_R, old_logp_R, advantages_R, config)


def token_logp(lm: LanguageModel, rows: Sequence[Example], temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the distributions from which the tokens of these reflections were drawn, with gradient.

    Returns:
        For the M tokens of all rows, one row after another: log-probabilities (M, V) at the sampling temperature, the
        hidden states (M, D) that they were computed from, and the tokens themselves (M,).
    """
    from reflectrl.learn.examples import completion_logits
    from reflectrl.models.machine import autocast

    with autocast(lm.device, lm.mixed_play):  # the same precision as in sampling
        logits_MV, hidden_MD, labels_M = completion_logits(lm, rows)
    return (logits_MV / temperature).log_softmax(-1), hidden_MD, labels_M


class Pair:
    """Reflector and policy as one model, so that a trainer keeps and saves the best weights of both together.

    They are two models, or two adapters of one frozen backbone.
    """

    def __init__(self, reflector: LanguageModel, policy: LanguageModel) -> None:
        self.players = {"reflector": reflector, "policy": policy}

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of both players."""
        return [parameter for lm in self.players.values() for parameter in lm.parameters()]

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights of both players. With adapters, the backbone is left out."""
        return {f"{name}:{key}": tensor for name, lm in self.players.items() for key, tensor in lm.weights().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load weights that `state_dict` returned."""
        for name, lm in self.players.items():
            own = {key.partition(":")[2]: tensor for key, tensor in state.items() if key.startswith(f"{name}:")}
            lm.load_weights(own)


# ---- the arms --------------------------------------------------------------------------------------------------------


@artifact("reflecting", "rl", CHECKPOINT, settings=SETTINGS)
def reflector_rl(build: Build, *, reflector: Source, policy: Source) -> None:
    """Train a reflector by reinforcement learning: it learns from what the policy does after its reflections."""
    config = frozen_policy_settings(build.recipe, build.recipe.rl.updates)
    _, reflector_lm = train_pair(build, reflector, policy, config, partial(train_reflector, both=False))
    save(build, reflector_lm)


@artifact("reflecting", "rl", CHECKPOINT, CHECKPOINT.replace("{name}", "{name}" + WRITER), settings=SETTINGS)
def both_rl(build: Build, *, reflector: Source, policy: Source) -> None:
    """Train reflector and policy together by reinforcement learning, and write a checkpoint of each."""
    from reflectrl.learn.checkpoint import write_folder

    config = without_replay(build.recipe.rl)
    policy_lm, reflector_lm = train_pair(
        build, reflector, policy, config, partial(train_reflector, both=True), both=True
    )
    name = build.name + WRITER  # saved first: once the policy's checkpoint exists, both do
    write_folder(build.out.with_name(name), partial(reflector_lm.save, artifact=name, seed=build.seed))
    save(build, policy_lm)


def both_rl_reflector(plan: Plan) -> Input:
    """Plan the reflector of a pair that is trained together."""
    return trained_pair(both_rl, "both-rl", plan).part(1)


ARMS = {
    "reflector-rl": Arm(
        "SFT, then RL of the reflector; the policy stays", policy, partial(trained_pair, reflector_rl, "reflector-rl")
    ),
    "both-rl": Arm("SFT, then RL of both players", partial(trained_pair, both_rl, "both-rl"), both_rl_reflector),
}
