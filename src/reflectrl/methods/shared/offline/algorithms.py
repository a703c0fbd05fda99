"""Algorithms of offline learning: the training items of each, their sampling weights, and the loss.

An algorithm that weights single completions is an entry of `WEIGHTED_LOSSES`. "dpo" and "pro" compare completions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from reflectrl.core.distributed import ALONE, Team
from reflectrl.core.types import UserError
from reflectrl.methods.shared.offline import losses
from reflectrl.methods.shared.offline.completions import Dataset
from reflectrl.methods.shared.offline.config import LogAlgorithm, OfflineConfig
from reflectrl.methods.shared.offline.reference_cache import ReferenceCache
from reflectrl.methods.shared.offline.transitions import logged_steps

BY_REWARD = ("wbc", "r_gold", "r_lol", "r_lol_kl")
A_LOL = ("a_lol", "a_lol_ref_free", "a_lol_seq", "a_lol_kl")
BY_ADVANTAGE = (*A_LOL, "archer")
DPO = ("dpo", "dpo_ref_free")
PREFERENCES = (*DPO, "pro")
"""Algorithms that weight completions by reward R (`BY_REWARD`) or by advantage A (`BY_ADVANTAGE`), and algorithms that
compare completions (`PREFERENCES`), among them two forms of DPO."""
DRAWN = BY_REWARD + A_LOL
"""Algorithms that the key `sampling` applies to. "archer" gives every completion a positive weight and draws from all,
as its source does. With only the few completions of positive advantage, it would forget what the reference knew."""

REFERRING = ("r_lol", "r_lol_kl", *A_LOL, "dpo")
"""Algorithms whose loss or weights depend on the reference."""

LEAST_REWARD = 1e-6
"""Distance from 0 and 1 to which rewards are clamped before their logits are taken, so that these stay finite."""

UNMOVED: dict[LogAlgorithm, LogAlgorithm] = {
    "r_gold": "wbc", "r_lol": "wbc", "a_lol": "a_lol_ref_free", "a_lol_seq": "a_lol_ref_free",
}  # fmt: skip
"""Algorithms whose weights depend on the policy → the same algorithm with constant weights."""

WEIGHTED_LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor, OfflineConfig], Tensor]] = {
    "nll": lambda logp_NT, ref_NT, weights_N, config: losses.nll(logp_NT),
    "wbc": lambda logp_NT, ref_NT, weights_N, config: losses.wbc(logp_NT, weights_N),
    "r_gold": lambda logp_NT, ref_NT, weights_N, config: losses.r_gold(logp_NT, weights_N, config.gold_floor),
    "r_lol": lambda logp_NT, ref_NT, weights_N, config: losses.r_lol(logp_NT, ref_NT, weights_N, config.clip),
    "a_lol": lambda logp_NT, ref_NT, weights_N, config: losses.a_lol(logp_NT, ref_NT, weights_N, config.clip),
    "a_lol_ref_free": lambda logp_NT, ref_NT, weights_N, config: losses.a_lol_ref_free(logp_NT, weights_N),
    "a_lol_seq": lambda logp_NT, ref_NT, weights_N, config: losses.a_lol_seq(logp_NT, ref_NT, weights_N, config.clip),
    "a_lol_kl": lambda logp_NT, ref_NT, weights_N, config: losses.a_lol_kl(
        logp_NT, ref_NT, weights_N, config.kl_beta, config.kl
    ),
    "r_lol_kl": lambda logp_NT, ref_NT, weights_N, config: losses.r_lol_kl(
        logp_NT, ref_NT, weights_N, config.kl_beta, config.kl
    ),
    "archer": lambda logp_NT, ref_NT, weights_N, config: losses.awr(logp_NT, weights_N, config.awr_beta),
}
"""Loss functions by algorithm. Each takes the completions' log-probabilities [N, T] with gradient, the reference's
log-probabilities [N, T], weights [N] (rewards or advantages) and the recipe's [offline]; it returns one loss per
completion, [N]."""


# ---- training items --------------------------------------------------------------------------------------------------


class Item(NamedTuple):
    """A training item, which has one loss: a completion, a pair (better first), or a ranking (best first).

    Attributes:
        rows: indices of the completions in their data set.
        rewards: reward of each completion.
        target: index, within the item, of the completion that PRO also imitates.
    """

    rows: tuple[int, ...]
    rewards: tuple[float, ...]
    target: int = 0


def items_of(data: Dataset, algorithm: str) -> list[Item]:
    """Return the training items of an algorithm: single completions, or preferences between completions of a prompt.

    Raises:
        UserError: the algorithm learns from preferences, and no prompt has two completions of different reward; or it
            learns from episode steps, and the data are texts.
    """
    if algorithm == "archer":
        logged_steps(data)
    if algorithm not in PREFERENCES:
        return [Item((row,), (reward,)) for row, reward in enumerate(data.rewards_N.tolist())]
    ranked = rankings(data)
    if not ranked:
        raise UserError(f"offline: {algorithm} needs a prompt with two completions of different reward; there is none")
    return pairs(ranked) if algorithm in DPO else ranked


def rankings(data: Dataset) -> list[Item]:
    """Rank the distinct completions of each prompt, best first. Prompts whose completions all tie are left out.

    A completion that was logged several times has the mean of its rewards.
    """
    rows_by_answer: dict[str, dict[tuple[int, ...], list[int]]] = defaultdict(lambda: defaultdict(list))
    for row, group in enumerate(data.groups):
        rows_by_answer[group][tuple(data.completions.answers[row])].append(row)
    ranked = []
    for answers in rows_by_answer.values():
        means = [(float(data.rewards_N[rows].mean()), rows[0]) for rows in answers.values()]
        means.sort(key=lambda mean: -mean[0])
        if means[0][0] > means[-1][0]:
            named = [i for i, (_, row) in enumerate(means) if data.imitable and data.imitable[row]]
            # The best is imitated, unless the data marks another one (as Anthropic's HHA does).
            target = named[0] if 0 < len(named) < len(means) else 0
            ranked.append(Item(tuple(row for _, row in means), tuple(mean for mean, _ in means), target))
    return ranked


def pairs(ranked: Iterable[Item]) -> list[Item]:
    """Pair the best completion of each ranking with every completion of lower reward."""
    return [
        Item((item.rows[0], row), (item.rewards[0], reward))
        for item in ranked
        for row, reward in zip(item.rows[1:], item.rewards[1:], strict=True)
        if reward < item.rewards[0]
    ]


def sampling_weights(items: Sequence[Item], cache: ReferenceCache, config: OfflineConfig) -> Tensor:
    """Return the signed sampling weight of each item, (I,): R, R - V (for archer: Q - V), or 1."""
    if config.algorithm in BY_REWARD:
        return torch.tensor([item.rewards[0] for item in items])
    if config.algorithm in BY_ADVANTAGE:
        return cache.advantages_N[[item.rows[0] for item in items]]
    return torch.ones(len(items))


# ---- loss ------------------------------------------------------------------------------------------------------------


def losses_of(
    data: Dataset, cache: ReferenceCache, items: Sequence[Item], config: OfflineConfig
) -> tuple[Tensor, dict[str, float]]:
    """Compute the loss of each item, (I,), with gradient.

    Returns:
        The losses, and metrics of the items' completions: "clip_fraction", the share of clipped importance ratios, and
        "kl", the divergence from the reference (k3 estimator, nats per completion).
    """
    rows = [row for item in items for row in item.rows]
    logp_NT = data.completions.logprobs(rows)
    ref_NT = cache.ref_logp_NT[rows, : logp_NT.shape[1]].to(logp_NT)
    lengths_N = data.completions.lengths(rows).to(logp_NT.device)
    with torch.no_grad():
        by_token = config.algorithm == "a_lol_seq"
        ratios = (losses.token_ratios if by_token else losses.sequence_ratios)(logp_NT, ref_NT)
        count = float(lengths_N.sum()) if by_token else len(rows)
        noted = {"clip_fraction": float(losses.outside(ratios, config.clip).sum()) / count}
        noted["kl"] = float(losses.k3(ref_NT - logp_NT).sum(1).mean())
    if config.algorithm in DPO:
        refs = (None, None) if config.algorithm == "dpo_ref_free" else (ref_NT[::2], ref_NT[1::2])
        return losses.dpo(logp_NT[::2], logp_NT[1::2], config.beta, *refs), noted
    if config.algorithm == "pro":
        sizes = [len(item.rows) for item in items]
        lists = zip(logp_NT.split(sizes), lengths_N.split(sizes), items, strict=True)
        ranked = []
        for logp_KT, lengths_K, item in lists:
            rewards_K = logp_KT.new_tensor(item.rewards)
            if config.pro_logits:
                rewards_K = rewards_K.logit(eps=LEAST_REWARD)
            ranked.append(losses.pro(logp_KT, lengths_K, rewards_K, config.pro_sft, item.target))
        return torch.stack(ranked), noted
    if config.algorithm in BY_REWARD:
        weights_N = logp_NT.new_tensor([item.rewards[0] for item in items])
    else:
        cached_N = cache.advantages_N if config.algorithm == "archer" else cache.weights_N
        weights_N = cached_N[rows].to(logp_NT)
    return WEIGHTED_LOSSES[config.algorithm](logp_NT, ref_NT, weights_N, config), noted


@torch.no_grad()
def mean_loss(
    data: Dataset, cache: ReferenceCache, items: Sequence[Item], config: OfflineConfig, team: Team = ALONE
) -> float:
    """Return the algorithm's mean loss over items, by which checkpoints are compared.

    Weights that depend on the policy are replaced by constant ones (`UNMOVED`). They grow as completions become more
    likely, so the loss would rise while the policy improves.
    """
    size = config.batch_size
    config = replace(config, algorithm=UNMOVED.get(config.algorithm, config.algorithm))
    own = 0.0
    for start in team.part(range(0, len(items), size)):
        loss_N, _ = losses_of(data, cache, items[start : start + size], config)
        own += float(loss_N.sum())
    return team.total(own) / len(items)
