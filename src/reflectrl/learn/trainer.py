"""The part that all learning loops share: optimiser steps, the best weights, the learning rate, saving and resuming.

A loop holds a trainer and stays linear; nothing here calls back into it:

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

from reflectrl import distributed
from reflectrl.learn.checkpoint import load_meta, load_tensors, optimizer_tensors, restore_optimizer, save_state
from reflectrl.models.lm import LanguageModel
from reflectrl.models.pieces import whole, wholes
from reflectrl.types import UserError

Model = LanguageModel | nn.Module
Metrics = dict[str, float]
Verdict = Literal["", "stop", "roll-back"]
"""What whoever hears of metrics may ask of a training: nothing, to end with the best weights, or to go back to them."""


class Trainer:
    """What is trained and how far it has come. Made with a folder that holds a saved state, it goes on from there.

    Args:
        model: what is trained and of which the best weights are kept.
        optimizers: a group's "initial_lr" is the peak of its learning rate; without one, the rate that it has now.
        max_grad_norm: gradients of the model, and of each further part, are clipped to this norm; None leaves them.
        folder: where the state is saved; None saves nothing.
        parts: further models whose weights belong to the state, by name: a critic, a frozen reference.
        keep_best: keep a copy of the best weights (of the first ones, before any evaluation).

    Raises:
        UserError: the folder holds a state that lacks a part, as those of older versions do.

    Attributes:
        step: steps or updates that are finished; the loop counts those that are not one optimiser step.
        best: the best score so far.
        stale: evaluations since it was first reached.
        rate: share of the learning rates' peaks that is left, apart from a schedule; `heed` halves it.
        stopped: whether somebody has asked for the training to end.
        resumed: what the loop added to the state that was loaded; None where the training is new.
        rank, ranks: which of how many processes this is; each takes every `ranks`-th slice of a batch from `rank` on.
        backward: adds the gradient of this process's share of a loss; called by all ranks where models are divided.
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
            tensors = load_tensors(distributed.first(lambda: folder))  # the first rank's folder, which all read
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
        """One step of every optimiser along the gradients gathered so far, which are then dropped.

        The model and each part are clipped apart: a critic that is far off must not starve the policy.

        Args:
            metrics: what is to be noted of this step; where several processes train together, what they note is added
                up, as their gradients are.

        Returns:
            The same with "grad_norm": the norm of the model's gradient before clipping, where it is clipped.
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
        """Set every learning rate to a schedule's share of what is left of its peak (`rate`)."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * self.rate * share

    def has_ended(self, last: int) -> bool:
        """Whether this was the last step, or the training was asked to end."""
        return self.stopped or self.step == last

    def is_due(self, every: int, last: int) -> bool:
        """Whether to evaluate now: every so many steps, and at the end."""
        return self.step % every == 0 or self.has_ended(last)

    def heed(self, verdict: Verdict | None) -> None:
        """Do what whoever heard of the metrics asks for: end, or go back to the best weights with half the rates."""
        if verdict == "stop":
            self.stopped = True
        elif verdict == "roll-back":
            self.roll_back()
            self.rate /= 2
            for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
                group["lr"] /= 2

    def means(self) -> Metrics:
        """What was noted, averaged over the optimiser steps since the last call."""
        recent, self._recent = self._recent, []
        return {name: sum(one[name] for one in recent) / len(recent) for name in recent[0]}

    def keep_if_best(self, score: Sequence[float]) -> None:
        """Keep a copy of the weights if none before scored higher; ties go to the later ones, which have learned more:
        validation tasks are soon all won, but a curriculum may not have come to the whole task by then.

        Args:
            score: what matters most comes first, and more is better.
        """
        self.stale = 0 if tuple(score) > self.best else self.stale + 1
        if tuple(score) >= self.best:
            self.best, self.best_weights = tuple(score), weights_of(self.model)

    def roll_back(self) -> None:
        """Return to the best weights so far; the optimisers forget what led away from them."""
        load_weights(self.model, self.best_weights or {})
        for optimizer in self.optimizers:
            optimizer.state.clear()

    def save(self, logged: int, **more: Any) -> None:
        """Save the state, from which the training goes on after a kill with the same bits; the one before it is kept.

        Args:
            logged: the last step whose line of metrics was written before; what follows it is written again.
            more: what else the loop needs, as JSON values; found in `resumed` afterwards.
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
        """Give the model the weights that scored best."""
        load_weights(self.model, self.best_weights or {})


def weights_of(model: Model) -> dict[str, Tensor]:
    """A copy of a model's weights; of an adapter, its own only. Frozen layers are left out, unless nothing learns."""
    if isinstance(model, LanguageModel):
        return model.weights(frozen=False) or model.weights()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def load_weights(model: Model, weights: dict[str, Tensor]) -> None:
    """Set what `weights_of` returned."""
    if isinstance(model, LanguageModel):
        model.load_weights(weights)
    elif weights:
        model.load_state_dict(weights)


# ---- learning rates, as a share of the peak at a step (from 0) ------------------------------------------------------


def cosine(step: int, steps: int, warmup: float) -> float:
    """Up linearly from 0 in a share `warmup` of the steps, then along a cosine to a tenth."""
    rising = round(warmup * steps)
    if step < rising:
        return step / rising
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def linear(step: int, steps: int, warmup: float) -> float:
    """Up linearly in a share `warmup` of the steps, the first of which moves already, then down to 0 after the last."""
    rising = round(warmup * steps)
    return (step + 1) / (rising + 1) if step < rising else (steps - step) / (steps - rising)
