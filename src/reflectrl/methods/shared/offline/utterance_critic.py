"""A critic of whole utterances: V of states and Q of actions, learned from a log by temporal differences.

Where reward comes late, the return after a step says little about the step, since other steps decided most of it. Here
each step is judged by the value of the state that it led to. So experience with a state counts in all episodes that
reached it, and the good halves of two lost episodes can be joined to a path to the goal.

Source: Zhou et al. 2024, "ArCHer: Training Language Model Agents via Hierarchical Multi-Turn RL" (arXiv 2402.19446), in
its offline form: implicit Q-learning (Kostrikov et al. 2022) for the critic, advantage-weighted regression (Peng et al.
2019) for the policy. As there, Q reads the state's and the action's features side by side, and learning follows a
target network, a slow copy of the heads. Departures: features are hidden states of the frozen reference, read once,
where the source trains a separate encoder for the critic; the two Q share one V, which follows the lower of them; the
target network that is best on held-out tasks is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from reflectrl.core.types import Episode
from reflectrl.learn.losses import explained_variance
from reflectrl.learn.trainer import Trainer
from reflectrl.methods.shared.critic import UtteranceCritic, follow, make_critic
from reflectrl.methods.shared.offline.completions import Dataset
from reflectrl.methods.shared.offline.config import OfflineConfig
from reflectrl.methods.shared.offline.losses import expectile
from reflectrl.methods.shared.offline.reference_cache import (
    ReferenceCache,
    fingerprints_of,
    load_or_make,
    reference_logprobs,
)
from reflectrl.methods.shared.offline.reference_value import Log, split
from reflectrl.methods.shared.offline.sampling import batches
from reflectrl.methods.shared.offline.transitions import StepFeatures, Transitions, step_features, transitions

CHECKS = 20
"""Number of evaluations of the critic on held-out tasks."""
FEATURES_CODE = ("transitions.py",)
"""Source files that the features depend on, besides the files of `reference_cache.CODE`."""
CODE = ("utterance_critic.py", "losses.py", "../critic.py", *FEATURES_CODE)
"""Source files that this cache depends on, besides the files of `reference_cache.CODE`."""


def fit_critic(
    features: StepFeatures, steps: Transitions, units: Sequence[str], config: OfflineConfig, seed: int, log: Log
) -> UtteranceCritic:
    """Learn Q and V from transitions; return the target network that is best on held-out tasks.

    Args:
        units: task of each step.
        log: receives {"step", "critic_loss", "critic_eval_loss", "explained_variance"} for each of 20 checks. The
            losses are squared errors of both Q plus the expectile loss of V; the explained variance compares the lower
            Q with held-out logged returns.

    Raises:
        UserError: fewer than two tasks have a step with a known successor.
    """
    # What would have come after a truncated step is unknown, so it cannot be learned from.
    usable = (~steps.truncated_N).nonzero()[:, 0]
    train_rows, held_out_rows = split([units[i] for i in usable.tolist()], config.held_out, seed)
    train, held_out = usable[train_rows], usable[held_out_rows]
    critic = make_critic(features.states_ND.shape[1], seed, float(steps.returns_N[train].mean()))
    critic = critic.to(features.states_ND.device)
    target = deepcopy(critic).requires_grad_(False)
    optimizer = torch.optim.AdamW(critic.parameters(), lr=config.critic_lr, fused=True)
    trainer = Trainer(critic, [optimizer], keep_best=False)
    drawn = batches("none", torch.ones(len(train)), config.critic_batch, seed)
    every, checks = max(1, config.critic_steps // CHECKS), list[tuple[int, float, UtteranceCritic]]()
    while trainer.step < config.critic_steps:
        loss = critic_losses(critic, target, features, steps, train[next(drawn)], config).mean()
        loss.backward()
        trainer.update({"loss": float(loss.detach())})
        trainer.step += 1
        follow(target, critic, config.target_rate)
        if trainer.is_due(every, config.critic_steps):
            checks.append((trainer.step, trainer.means()["loss"], deepcopy(target)))

    # All checks are compared by the targets of the last one. By its own targets the first would look best, since a
    # critic that has not yet propagated any reward is consistent with itself.
    best_loss, best = float("inf"), target
    with torch.no_grad():
        for step, train_loss, check in checks:
            held_loss = float(critic_losses(check, target, features, steps, held_out, config).mean())
            lower_N = check.q_values(features.states_ND[held_out], features.actions_ND[held_out]).amin(0).cpu()
            explained = explained_variance(lower_N, steps.returns_N[held_out])
            losses = {"critic_loss": train_loss, "critic_eval_loss": held_loss}
            log({"step": step, **losses, "explained_variance": explained})
            if held_loss < best_loss:
                best_loss, best = held_loss, check
    return best


def critic_losses(
    critic: UtteranceCritic,
    target: UtteranceCritic,
    features: StepFeatures,
    steps: Transitions,
    rows_N: Tensor,
    config: OfflineConfig,
) -> Tensor:
    """Return the loss of some steps, (N,): Q towards r + gamma · V(next state), V towards an expectile of the lower Q.

    Args:
        target: target network, which gives the values on the right-hand side, without gradient. V after an episode's
            last step is 0.
        rows_N: indices of the steps.
    """
    states_ND, actions_ND = features.states_ND[rows_N], features.actions_ND[rows_N]
    with torch.no_grad():
        next_N = steps.next_N[rows_N]
        following_N = target.values(features.states_ND[next_N.clamp_min(0)])
        targets_N = torch.where(next_N >= 0, config.gamma * following_N.cpu(), 0.0) + steps.rewards_N[rows_N]
        lower_N = target.q_values(states_ND, actions_ND).amin(0)
    errors_2N = critic.q_values(states_ND, actions_ND) - targets_N.to(states_ND.device)
    return errors_2N.square().sum(0) + expectile(lower_N - critic.values(states_ND), config.expectile)


# ---- cached values and advantages of a log ---------------------------------------------------------------------------


def cached_critic(
    folder: Path, data: Dataset, episodes: Sequence[Episode], config: OfflineConfig, seed: int, log: Log
) -> ReferenceCache:
    """Load or make a cache of logged steps: the reference's log-probabilities, the critic's V, and Q - V as advantages.

    Args:
        folder: folder of the cache. The features lie beside it, in a folder with the suffix "-features".
        data: steps of the episodes; its model is the reference.
        log: receives the critic's losses while it is fitted.

    Raises:
        UserError: the data are texts, or a folder was made from other inputs (which the error names).
    """
    steps = transitions(data, episodes)
    names = ("gamma", "held_out", "expectile", "target_rate", "critic_steps", "critic_lr", "critic_batch")
    settings = {name: getattr(config, name) for name in names} | {"seed": seed}

    def make() -> ReferenceCache:
        features_folder = folder.with_name(f"{folder.name}-features")
        features = load_or_make(
            features_folder, fingerprints_of(data, {}, FEATURES_CODE), partial(step_features, data), StepFeatures
        )
        features = features.to(data.completions.lm.device)
        critic = fit_critic(features, steps, data.units, config, seed, log)
        with torch.no_grad():
            q_N = critic.q_values(features.states_ND, features.actions_ND).amin(0).cpu()
            values_N = critic.values(features.states_ND).cpu()
        shift = data.affine.shift * data.affine.scale
        return ReferenceCache(reference_logprobs(data), values_N - shift, q_N - values_N)

    fingerprints = fingerprints_of(data, settings, CODE) | {"episodes": steps.fingerprint()}
    return load_or_make(folder, fingerprints, make, ReferenceCache)
