"""Offline learning from completions with rewards: likelihood, A-LoL and relatives, preferences. One linear loop.

It serves text (samples with rewards) and agents (the steps of logged episodes) alike: `completions.py` says how either
is scored. What the reference thinks of the data was computed before (`offline_cache.py`), so one model is in memory.

Source: Baheti et al. 2024; of "archer", Zhou et al. 2024 (`utterance_critic.py`), whose offline form weighs completions
by exp(beta · advantage), without importance ratios, and so it is here. Departures from the released code of the former:
every algorithm of its own works with every way of sampling, the loss does not depend on accumulation, and dropout is
off, so that ratios are 1 before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from reflectrl.config import OfflineConfig
from reflectrl.config.offline import LogAlgorithm
from reflectrl.learn import offline_losses as losses
from reflectrl.learn.checkpoint import (
    load_state,
    optimizer_tensors,
    prefixed,
    restore_optimizer,
    save_state,
    without_prefix,
)
from reflectrl.learn.completions import Dataset
from reflectrl.learn.offline_cache import Appraisal
from reflectrl.learn.optim import make_optimizers, set_rate
from reflectrl.learn.preferences import Item, pairs, rankings, singles
from reflectrl.learn.reference_value import split
from reflectrl.learn.sampling import batches, scaled_steps
from reflectrl.learn.transitions import logged_steps
from reflectrl.models.memory import release_memory
from reflectrl.types import UserError

Log = Callable[[dict[str, float]], None]
Judge = Callable[[], dict[str, float]]
"""Judges the model as it is: what matters most comes first, and more is better."""

BY_REWARD = ("wbc", "r_gold", "r_lol")
A_LOL = ("a_lol", "a_lol_ref_free", "a_lol_seq", "a_lol_kl")
BY_ADVANTAGE = (*A_LOL, "archer")
WEIGHTED, PREFERENCES = BY_REWARD + BY_ADVANTAGE, ("dpo", "pro")
"""Algorithms that weigh completions by R or by A, and those that compare them."""
DRAWN = BY_REWARD + A_LOL
"""Algorithms that `sampling` draws for. "archer" weighs every completion above 0 and draws from all, as its source
does: from the few of positive advantage alone it forgets what the reference knew."""

UNMOVED: dict[LogAlgorithm, LogAlgorithm] = {
    "r_gold": "wbc", "r_lol": "wbc", "a_lol": "a_lol_ref_free", "a_lol_seq": "a_lol_ref_free",
}  # fmt: skip
"""Algorithms whose weights depend on the policy, and the same without."""


def train_offline(
    data: Dataset,
    appraisal: Appraisal,
    config: OfflineConfig,
    seed: int,
    log: Log,
    state_folder: Path | None = None,
    judge: Judge | None = None,
) -> None:
    """Train the model to which the data is bound, in place; it ends with the weights that were judged best.

    Args:
        appraisal: what the reference thinks of the same data.
        log: receives one flat dictionary per evaluation, the first before any step.
        state_folder: where the learner's state is kept between evaluations, so that a killed training goes on.
        judge: None compares losses on held-out prompts (or tasks) instead, which are then not learned from.

    Raises:
        UserError: there is nothing to learn from: no preference, or no completion of positive weight.
    """
    lm = data.completions.lm
    items = items_of(data, config.algorithm)
    train, held_out = (items, []) if judge else _apart(items, data, config, seed)
    weights_N = sampling_weights(train, appraisal, config)
    sampling = config.sampling if config.algorithm in DRAWN else "none"
    steps = scaled_steps(config.steps, sampling, weights_N)
    shared = {"steps": steps, "positive_share": float((weights_N > 0).float().mean())}

    def judged() -> tuple[tuple[float, ...], dict[str, float]]:
        if judge is not None:
            found = judge()
            return tuple(found.values()), found
        loss = mean_loss(data, appraisal, held_out, config)
        return (-loss,), {"eval_loss": loss}

    parameters, optimizers = lm.parameters(), make_optimizers(lm, _rated(config))
    best_weights, step, recent = lm.weights(), 0, list[dict[str, float]]()
    if state_folder is not None and (saved := load_state(state_folder)) is not None:
        tensors, meta = saved
        lm.load_weights(without_prefix("weights", tensors))
        best_weights = without_prefix("best", tensors)
        for i, optimizer in enumerate(optimizers):
            restore_optimizer(optimizer, tensors, f"optimizer{i}")
        best, step = tuple(meta["best"]), meta["step"]
    else:
        best, found = judged()
        log({"step": 0, **found, **shared})

    drawn = batches(sampling, weights_N, config.batch_size, seed, skip=step)
    while step < steps:
        set_rate(optimizers, schedule(step, steps, config.warmup))
        rows, terms = next(drawn), dict[str, float]()
        for part in np.array_split(rows, min(config.accumulate, len(rows))):
            loss_N, noted = losses_of(data, appraisal, [train[i] for i in part], config)
            loss = loss_N.sum() / len(rows)
            loss.backward()
            for name, value in {"loss": float(loss.detach()), **noted}.items():
                weight = 1.0 if name == "loss" else len(part) / len(rows)
                terms[name] = terms.get(name, 0.0) + weight * value
        norm = torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        recent.append({**terms, "grad_norm": float(norm)})
        step += 1
        if step % config.eval_every and step < steps:
            continue

        # ---- judge the present model, and keep the best ----------------------------------------------------------
        score, found = judged()
        if score > best:
            best, best_weights = score, lm.weights()
        means = {name: sum(one[name] for one in recent) / len(recent) for name in recent[0]}
        log({"step": step, **found, **shared, **means})
        recent = []
        release_memory()
        if state_folder is not None:
            tensors = prefixed("weights", lm.weights()) | prefixed("best", best_weights)
            for i, optimizer in enumerate(optimizers):
                tensors |= optimizer_tensors(optimizer, f"optimizer{i}")
            save_state(state_folder, tensors, {"step": step, "best": best})
    lm.load_weights(best_weights)


def _rated(config: OfflineConfig) -> OfflineConfig:
    """The settings with the learning rates of their algorithm."""
    scale = config.preference_lr_scale if config.algorithm in PREFERENCES else 1.0
    return replace(config, lr=config.lr * scale, muon_lr=config.muon_lr * scale)


def schedule(step: int, steps: int, warmup: float) -> float:
    """Share of the peak learning rate at a step (from 0): up linearly in a share `warmup` of them, then down to 0."""
    rising = round(warmup * steps)
    return (step + 1) / (rising + 1) if step < rising else (steps - step) / (steps - rising)


def items_of(data: Dataset, algorithm: str) -> list[Item]:
    """What the algorithm has one loss for.

    Raises:
        UserError: it learns from preferences, and no prompt has two completions of different reward; or from steps,
            and these are texts.
    """
    if algorithm == "archer":
        logged_steps(data)
    if algorithm not in PREFERENCES:
        return singles(data)
    ranked = rankings(data)
    if not ranked:
        raise UserError(f"offline: {algorithm} compares completions of one prompt, and no two here differ in reward")
    return pairs(ranked) if algorithm == "dpo" else ranked


def _apart(items: Sequence[Item], data: Dataset, config: OfflineConfig, seed: int) -> tuple[list[Item], list[Item]]:
    """Items to learn from, and those held out."""
    rows, held = split([data.units[item.rows[0]] for item in items], config.held_out, seed)
    return [items[i] for i in rows], [items[i] for i in held]


def sampling_weights(items: Sequence[Item], appraisal: Appraisal, config: OfflineConfig) -> Tensor:
    """What each item is drawn by, (I,), with its sign: R, R - V (of archer: Q - V), or 1."""
    if config.algorithm in BY_REWARD:
        return torch.tensor([item.rewards[0] for item in items])
    if config.algorithm in BY_ADVANTAGE:
        return appraisal.advantages_N[[item.rows[0] for item in items]]
    return torch.ones(len(items))


@torch.no_grad()
def mean_loss(data: Dataset, appraisal: Appraisal, items: Sequence[Item], config: OfflineConfig) -> float:
    """The algorithm's loss, averaged over items, by which checkpoints are compared.

    Weights that move with the policy are left out: as what is learned becomes likelier, so do they, and the loss rises.
    """
    size = config.batch_size
    config = replace(config, algorithm=UNMOVED.get(config.algorithm, config.algorithm))
    parts = (items[start : start + size] for start in range(0, len(items), size))
    return sum(float(losses_of(data, appraisal, part, config)[0].sum()) for part in parts) / len(items)


def losses_of(
    data: Dataset, appraisal: Appraisal, items: Sequence[Item], config: OfflineConfig
) -> tuple[Tensor, dict[str, float]]:
    """The loss of each item, (I,), with gradient; and of their completions the share of importance ratios that are
    clipped, the mean ratio, and the divergence from the reference (k3, in nats per completion).
    """
    rows = [row for item in items for row in item.rows]
    logp_NT = data.completions.logprobs(rows)
    ref_NT = appraisal.ref_logp_NT[rows, : logp_NT.shape[1]].to(logp_NT)
    lengths_N = data.completions.lengths(rows).to(logp_NT.device)
    with torch.no_grad():
        by_token = config.algorithm == "a_lol_seq"
        ratios = (losses.token_ratios if by_token else losses.sequence_ratios)(logp_NT, ref_NT)
        count = float(lengths_N.sum()) if by_token else len(rows)
        noted = {"clipped_share": float(losses.outside(ratios, config.clip).sum()) / count}
        noted["kl"] = float(losses.k3(ref_NT - logp_NT).sum(1).mean())
    if config.algorithm == "dpo":
        refs = (None, None) if config.reference_free else (ref_NT[::2], ref_NT[1::2])
        return losses.dpo(logp_NT[::2], logp_NT[1::2], config.beta, *refs), noted
    if config.algorithm == "pro":
        sizes = [len(item.rows) for item in items]
        lists = zip(logp_NT.split(sizes), lengths_N.split(sizes), items, strict=True)
        ranked = [losses.pro(x, n, x.new_tensor(item.rewards), config.pro_sft) for x, n, item in lists]
        return torch.stack(ranked), noted
    if config.algorithm in BY_REWARD:
        weights_N = logp_NT.new_tensor([item.rewards[0] for item in items])
    elif config.algorithm == "archer":
        weights_N = appraisal.advantages_N[rows].to(logp_NT)
    else:
        weights_N = appraisal.weights_N[rows].to(logp_NT)
    return _weighted(logp_NT, ref_NT, weights_N, config), noted


def _weighted(logp_NT: Tensor, ref_NT: Tensor, weights_N: Tensor, config: OfflineConfig) -> Tensor:
    """Losses (N,) of completions that are learned one by one; weights are rewards or advantages."""
    match config.algorithm:
        case "nll":
            return losses.nll(logp_NT)
        case "wbc":
            return losses.wbc(logp_NT, weights_N)
        case "a_lol_ref_free":
            return losses.a_lol_ref_free(logp_NT, weights_N)
        case "r_gold":
            return losses.r_gold(logp_NT, weights_N, config.gold_floor)
        case "r_lol":
            return losses.r_lol(logp_NT, ref_NT, weights_N, config.clip)
        case "a_lol":
            return losses.a_lol(logp_NT, ref_NT, weights_N, config.clip)
        case "a_lol_seq":
            return losses.a_lol_seq(logp_NT, ref_NT, weights_N, config.clip)
        case "a_lol_kl":
            return losses.a_lol_kl(logp_NT, ref_NT, weights_N, config.beta, config.kl)
        case "archer":
            return losses.awr(logp_NT, weights_N, config.awr_beta)
    raise ValueError(config.algorithm)
