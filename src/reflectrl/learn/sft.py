"""Supervised fine-tuning of either player: loss on the completion only, evaluation loss, early stopping.

One linear loop. `examples.py` defines the rows and their loss. Departures from the released code of Reflect-RL:

- Completions end with end-of-text, so the model learns where a reflection ends.
- The prompt is the same as in play.
- Logits are computed at completion positions only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from reflectrl.core.config import SFTConfig
from reflectrl.core.types import UserError, named_seed
from reflectrl.learn.examples import (
    Rows,
    are_decisions,
    evaluate_accuracy,
    evaluate_loss,
    micro_batches,
    nll_and_text_loss,
    row_groups,
    shuffled_batches,
    spread,
    summed_nll,
)
from reflectrl.learn.optim import make_optimizers
from reflectrl.learn.trainer import SCHEDULES, Log, Trainer
from reflectrl.models.lm import LanguageModel
from reflectrl.models.sharing import no_sharing, pack

LEARNED, DECIDED = 1e-4, 1e-3
"""Validation loss below which more steps teach nothing, and only make a model overconfident: in nats per token, and in
nats per decision among listed actions."""


def train_sft(
    lm: LanguageModel,
    train: Rows,
    validation: Rows,
    config: SFTConfig,
    seed: int,
    log: Log,
    state_folder: Path | None = None,
) -> None:
    """Train `lm` in place. It ends with the weights of the lowest evaluation loss, or the best by `config.keep`.

    Args:
        log: callback that receives {"step", "loss", "eval_loss"} once per evaluation (losses in nats per token), and
            "eval_accuracy" if `config.keep` asks for it. If it returns anything but "" or None, training ends.
        state_folder: folder in which the state is saved at every evaluation, so that a killed training can continue.

    Raises:
        UserError: there are no training or no validation rows.
    """
    if not train or not validation:
        raise UserError("sft: no training or no validation rows (does the teacher write any for this player?)")
    groups = row_groups(train, config.by_episode)
    share = no_sharing if not config.by_episode and lm.chat is None else pack  # the prompts of a chat all begin alike
    held_out: Any = [validation[i] for i in spread(row_groups(validation, config.by_episode), config.eval_rows)]
    trainer = Trainer(lm, make_optimizers(lm, config), config.max_grad_norm, state_folder)
    batches = shuffled_batches(groups, config.batch_size, seed, skip=trainer.step)
    eval_every = config.eval_every
    if config.eval_epochs:
        eval_every = min(eval_every, max(1, config.eval_epochs * len(train) // config.batch_size))
    while not trainer.has_ended(config.steps) and trainer.stale < config.patience:
        torch.manual_seed(named_seed(seed, "dropout", trainer.step))  # at each step, so that resuming changes nothing
        trainer.set_rate(SCHEDULES[config.schedule](trainer.step, config.steps, config.warmup))
        rows = [train[i] for i in next(batches)]
        tokens, mean_nll = sum(len(row.ids) - row.start for row in rows), 0.0
        with lm.training():
            own = trainer.team.part(rows)
            for part in micro_batches(own, lm, config):
                if config.text_coef:
                    nll, text = nll_and_text_loss(lm, own[part], share)
                    loss = nll / tokens + config.text_coef * text * len(own[part]) / len(rows)
                else:
                    nll = summed_nll(lm, own[part], share)
                    loss = nll / tokens
                loss.backward()
                mean_nll += float(nll.detach()) / tokens
        trainer.update({"loss": mean_nll})
        trainer.step += 1

        if trainer.is_due(eval_every, config.steps):
            eval_loss = evaluate_loss(lm, held_out, config.batch_size, share, trainer.team)
            metrics, score = {"loss": trainer.means()["loss"], "eval_loss": eval_loss}, [-eval_loss]
            if config.keep == "accuracy":
                # With few demonstrations, the loss rises long before choices get worse.
                accuracy = evaluate_accuracy(lm, held_out, config.batch_size, share, trainer.team)
                metrics["eval_accuracy"] = accuracy
                score.insert(0, accuracy)
            trainer.checkpoint(metrics, score, log)
            if eval_loss < (DECIDED if are_decisions(held_out) else LEARNED):
                break
    trainer.finish()
