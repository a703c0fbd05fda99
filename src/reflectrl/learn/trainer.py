"""Common part of all learning loops: optimiser steps, the best weights, the learning rate, saving and resuming.

A loop owns a trainer and stays linear. Nothing here calls back into the loop:

    trainer = Trainer(lm, make_optimizers(lm, config), config.max_grad_norm, state_folder)
    while trainer.step < config.steps:
        trainer.set_rate(cosine(trainer.step, config.steps, config.warmup))
        for micro_batch in ...:
            loss = ...
            backward(loss)
        trainer.update({"loss": ...})
        if trainer.is_due(config.eval_every, config.steps):
            trainer.keep_if_best((-validation_loss,))
            trainer.save(logged=trainer.step)
    trainer.finish()
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from reflectrl.core import distributed
from reflectrl.core.types import UserError
from reflectrl.learn.checkpoint import load_meta, load_tensors, optimizer_tensors, restore_optimizer, save_state
from reflectrl.models.lm import LanguageModel
from reflectrl.models.pieces import whole, wholes

Model = LanguageModel | nn.Module
Metrics = dict[str, float]
Verdict = Literal["", "stop", "roll-back"]
"""Requests of a metrics callback: continue (""), stop with the best weights, or roll back to them."""


class Trainer:
    """State of a training: the model, its optimisers and its progress. Resumes from a state saved in the folder.

    Args:
        model: the trained model, whose best weights are kept.
        optimizers: the optimisers. A group's "initial_lr" is its peak learning rate (by default its current rate).
        max_grad_norm: norm to which gradients of the model, and of each further part, are clipped; None for no
            clipping.
        folder: folder of the saved state; None saves nothing.
        parts: further models whose weights belong to the state, by name, such as a critic or a frozen reference.
        keep_best: keep a copy of the best weights. Before any evaluation these are the first weights.

    Raises:
        UserError: the folder holds a state without one of the parts, from an older version.

    Attributes:
        step: number of finished steps or updates, counted by the loop.
        best: the best score so far.
        stale: number of evaluations since the best score was first reached.
        rate: share of the peak learning rates that is left, apart from the schedule. `heed` halves it.
        stopped: True if a callback has asked for the training to end.
        resumed: content of the loaded state, including what the loop added in `save`; None for a new training.
        rank, ranks: number of this process, and number of processes. A process takes every `ranks`-th slice of a
            batch, from `rank` on.
        backward: function that adds the gradient of this process's share of a loss. With sharded models, all ranks
            must call it.
    """

    def __init__(
        self,
        model: Model,
        optimizers: Sequence[torch.optim.Optimizer],
        max_grad_norm: float | None = None,
        folder: Path | None = None,
        parts: Mapping[str, Model] | None = None,
        keep_best: bool = True,
    ) -> None:
        self.model, self.optimizers, self.folder = model, optimizers, folder
        self.parts: dict[str, Model] = {"weights": model, **(parts or {})}
        self.max_grad_norm, self._parameters = max_grad_norm, [list(part.parameters()) for part in self.parts.values()]
        self.step, self.stale, self.rate, self.stopped = 0, 0, 1.0, False
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group.setdefault("initial_lr", group["lr"])
        self.best: tuple[float, ...] = (-math.inf,)
        self.best_weights = weights_of(model) if keep_best else None
        self.resumed: dict[str, Any] | None = None
        self._recent: list[Metrics] = []
        team = distributed.team
        self.rank, self.ranks = (team.rank, team.size) if team is not None else (0, 1)
        self._lockstep = team.lockstep if team is not None else None
        self.backward: Callable[[Tensor], None] = Tensor.backward if self._lockstep is None else self._lockstep.backward
        if folder is not None:
            self.resumed = distributed.first(partial(load_meta, folder))
        if folder is not None and self.resumed is not None:
            tensors = load_tensors(distributed.first(lambda: folder))  # all ranks read the first rank's folder
            if missing := self.parts.keys() - tensors.keys():
                about = f"holds the state of another version's training (without {', '.join(sorted(missing))})"
                raise UserError(f"{folder} {about}; remove it to begin this training anew")
            if keep_best:
                load_weights(model, tensors["best"])
                self.best_weights = weights_of(model)
            for name, part in self.parts.items():
                load_weights(part, tensors[name])
            for i, optimizer in enumerate(optimizers):
                restore_optimizer(optimizer, tensors[f"optimizer{i}"])
            self.step, self.stale, self.best = self.resumed["step"], self.resumed["stale"], tuple(self.resumed["best"])
            self.rate, self.stopped = self.resumed.get("rate", 1.0), self.resumed.get("stopped", False)
            if self.rate != 1.0:
                self.set_rate(1.0)

    def update(self, metrics: Mapping[str, float]) -> Metrics:
        """Take a step of every optimiser along the accumulated gradients, and reset the gradients.

        The model and each part are clipped separately, so that a large gradient of the critic does not shrink the
        policy's.

        Args:
            metrics: metrics of this step. If several processes train together, metrics are summed over processes, as
                gradients are.

        Returns:
            The metrics, with clipping also "grad_norm": the norm of the model's gradient before clipping.
        """
        noted = dict(metrics)
        if distributed.team is not None:
            noted = distributed.team.reduce([p for part in self._parameters for p in part], noted)
        if self.max_grad_norm is not None:
            norms = [nn.utils.clip_grad_norm_(part, self.max_grad_norm) for part in self._parameters]
            noted["grad_norm"] = float(norms[0] if self._lockstep is None else whole(norms[0]))
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self._recent.append(noted)
        return noted

    def set_rate(self, share: float) -> None:
        """Set every learning rate to its peak times `rate` times a schedule's share."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * self.rate * share

    def has_ended(self, last: int) -> bool:
        """Return whether this was the last step, or a callback has asked for the training to end."""
        return self.stopped or self.step == last

    def is_due(self, every: int, last: int) -> bool:
        """Return whether to evaluate now: every `every` steps, and at the end."""
        return self.step % every == 0 or self.has_ended(last)

    def heed(self, verdict: Verdict | None) -> None:
        """Carry out a callback's request: stop, or roll back to the best weights and halve the learning rates."""
        if verdict == "stop":
            self.stopped = True
        elif verdict == "roll-back":
            self.roll_back()
            self.rate /= 2
            for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
                group["lr"] /= 2

    def means(self) -> Metrics:
        """Return the mean metrics over the optimiser steps since the last call."""
        recent, self._recent = self._recent, []
        return {name: sum(one[name] for one in recent) / len(recent) for name in recent[0]}

    def keep_if_best(self, score: Sequence[float]) -> None:
        """Keep a copy of the weights if no earlier weights scored higher.

        Ties go to the later weights, which have learned more: validation tasks are soon all won, but a curriculum may
        not have reached the whole task by then.

        Args:
            score: scores, the most important first. Higher is better.
        """
        self.stale = 0 if tuple(score) > self.best else self.stale + 1
        if tuple(score) >= self.best:
            self.best, self.best_weights = tuple(score), weights_of(self.model)

    def roll_back(self) -> None:
        """Return to the best weights so far, and clear the optimisers' state."""
        load_weights(self.model, self.best_weights or {})
        for optimizer in self.optimizers:
            optimizer.state.clear()

    def save(self, logged: int, **more: Any) -> None:
        """Save the state, from which a killed training continues with identical bits. The previous state is kept.

        Args:
            logged: last step whose line of metrics is written already. Lines after it are written again.
            more: further state of the loop, as JSON values. It is found in `resumed` afterwards.
        """
        self._recent = []
        if self.folder is None:
            return
        tensors = {name: weights_of(part) for name, part in self.parts.items()} | {"best": self.best_weights or {}}
        tensors |= {f"optimizer{i}": optimizer_tensors(optimizer) for i, optimizer in enumerate(self.optimizers)}
        tensors = {group: wholes(named) for group, named in tensors.items()}
        counters = {"step": self.step, "stale": self.stale, "best": self.best, "rate": self.rate, "logged": logged}
        save_state(self.folder, tensors, {**counters, "stopped": self.stopped, **more})

    def finish(self) -> None:
        """Load the best weights into the model."""
        load_weights(self.model, self.best_weights or {})


def weights_of(model: Model) -> dict[str, Tensor]:
    """Copy a model's weights, or only the adapter's. Frozen layers are left out, unless all layers are frozen."""
    if isinstance(model, LanguageModel):
        return model.weights(frozen=False) or model.weights()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def load_weights(model: Model, weights: dict[str, Tensor]) -> None:
    """Set the weights that `weights_of` returned."""
    if isinstance(model, LanguageModel):
        model.load_weights(weights)
    elif weights:
        model.load_state_dict(weights)


# ---- learning rates, as a share of the peak at a step (from 0) ------------------------------------------------------


def cosine(step: int, steps: int, warmup: float) -> float:
    """Rise linearly over a share `warmup` of the steps, then fall along a cosine to a tenth.

    The first of n rising steps has 1/n of the peak, since a step with a rate of 0 would be wasted.
    """
    rising = round(warmup * steps)
    if step < rising:
        return (step + 1) / rising
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def linear(step: int, steps: int, warmup: float) -> float:
    """Rise linearly over a share `warmup` of the steps, from above 0, then fall linearly to 0 after the last step."""
    rising = round(warmup * steps)
    return (step + 1) / (rising + 1) if step < rising else (steps - step) / (steps - rising)
