"""Offline learning from completions with rewards: likelihood, A-LoL and relatives, preferences. One linear loop.

The loop serves text (samples with rewards) and agents (steps of logged episodes); `completions.py` scores both. The
reference's log-probabilities and values were computed before (`reference_cache.py`), so one model is in memory.

Sources: Baheti et al. 2024; for "archer", Zhou et al. 2024 (`utterance_critic.py`), whose offline form weights
completions by exp(beta · advantage) without importance ratios, as here. Departures from the released code of Baheti et
al.: each of their algorithms works with every kind of sampling, the loss does not depend on accumulation, and dropout
is off, so ratios are 1 before the first step. The reference stays as it is; the released code can replace it by a
better checkpoint during training (`--baseline_update_threshold`, in none of its published commands).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from reflectrl.learn.optim import make_optimizers
from reflectrl.learn.trainer import Log, Metrics, Trainer, accumulate, linear
from reflectrl.methods.offline.algorithms import DRAWN, PREFERENCES, items_of, losses_of, mean_loss, sampling_weights
from reflectrl.methods.offline.completions import Dataset
from reflectrl.methods.offline.config import OfflineConfig
from reflectrl.methods.offline.reference_cache import ReferenceCache
from reflectrl.methods.offline.reference_value import split
from reflectrl.methods.offline.sampling import batches, scaled_steps

Evaluate = Callable[[], Metrics]
"""Function that scores the current model. The most important score comes first; higher is better."""


def train_offline(
    data: Dataset,
    cache: ReferenceCache,
    config: OfflineConfig,
    seed: int,
    log: Log,
    state_folder: Path | None = None,
    evaluate: Evaluate | None = None,
) -> None:
    """Train the model that the data is bound to, in place. It ends with the weights that scored best.

    Args:
        cache: the reference's log-probabilities and values on the same data.
        log: receives one flat dictionary per evaluation, the first before any step. A truthy return value ends the
            training.
        state_folder: folder in which every evaluation saves the state, so that a killed training can resume.
        evaluate: scores the model. With None, checkpoints are compared by the loss on held-out prompts (or tasks),
            which are then excluded from training.

    Raises:
        UserError: there is nothing to learn from: no preference, or no completion of positive weight.
    """
    items = train = items_of(data, config.algorithm)
    if evaluate is None:
        rows, held = split([data.units[item.rows[0]] for item in items], config.held_out, seed)
        train, held_out = [items[i] for i in rows], [items[i] for i in held]
    weights_N = sampling_weights(train, cache, config)
    sampling = config.sampling if config.algorithm in DRAWN else "none"
    imitable = sum(data.imitable[item.rows[0]] for item in train) if data.imitable else 0
    steps = scaled_steps(config.steps, sampling, weights_N, imitable)
    shared = {"steps": steps, "positive_share": float((weights_N > 0).float().mean())}
    scale = config.preference_lr_scale if config.algorithm in PREFERENCES else 1.0
    optimizers = make_optimizers(
        data.completions.lm, replace(config, lr=config.lr * scale, muon_lr=config.muon_lr * scale)
    )
    trainer = Trainer(data.completions.lm, optimizers, config.max_grad_norm, state_folder)

    def evaluated() -> tuple[Metrics, list[float]]:
        """Return metrics, and the score by which checkpoints are compared."""
        if evaluate is not None:
            scores = evaluate()
            return scores, list(scores.values())
        eval_loss = mean_loss(data, cache, held_out, config, trainer.team)
        return {"eval_loss": eval_loss}, [-eval_loss]

    if trainer.resumed is None:
        # The first weights are a candidate: no algorithm may end below what it started from.
        metrics, score = evaluated()
        trainer.keep_if_best(score)
        log({"step": 0, **metrics, **shared})
    drawn = batches(sampling, weights_N, config.batch_size, seed, skip=trainer.step)
    while not trainer.has_ended(steps):
        trainer.set_rate(linear(trainer.step, steps, config.warmup))
        rows, terms = next(drawn), Metrics()
        own = trainer.team.part(rows)
        for part in np.array_split(own, min(config.accumulate, len(own))) if own else ():
            loss_N, noted = losses_of(data, cache, [train[i] for i in part], config)
            loss = loss_N.sum() / len(rows)
            loss.backward()
            share = len(part) / len(rows)
            accumulate(terms, {"loss": loss})
            accumulate(terms, noted, share)
        trainer.update(terms)
        trainer.step += 1

        if trainer.is_due(config.eval_every, steps):
            metrics, score = evaluated()
            trainer.checkpoint({**metrics, **shared, **trainer.means()}, score, log)
    trainer.finish()
