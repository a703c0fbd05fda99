"""Common part of all learning loops: optimiser steps, the best weights, the learning rate, saving and resuming.

A loop owns a trainer and stays linear: it shows its algorithm, and the trainer does the rest. A loop that learns from
rollouts lets `updates` evaluate, keep the best weights, save, resume and log:

    trainer = Trainer(lm, [optimizer], config.max_grad_norm, state_folder)
    for metrics in trainer.updates(rollouts, config, log):
        batch = rollouts.collect(trainer.step, critic)
        for minibatch in batch.minibatches:
            loss = ...
            loss.backward()
            metrics |= trainer.update({"loss": ...})

A loop that learns from a fixed set of examples is as short:

    while not trainer.has_ended(config.steps):
        trainer.set_rate(SCHEDULES[config.schedule](trainer.step, config.steps, config.warmup))
        loss = ...
        loss.backward()
        trainer.update({"loss": ...})
        trainer.step += 1
        if trainer.is_due(config.eval_every, config.steps):
            trainer.checkpoint({"eval_loss": ...}, [score], log)
    trainer.finish()

Nothing here calls back into the loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from reflectrl.core import distributed
from reflectrl.core.config import RLConfig
from reflectrl.core.types import UserError
from reflectrl.learn.batch import Rollouts
from reflectrl.learn.checkpoint import load_meta, load_tensors, optimizer_tensors, restore_optimizer, save_state
from reflectrl.models.lm import LanguageModel
from reflectrl.models.machine import release_memory

SOLVED_PATIENCE = 3
"""Largest patience, in evaluations, of a training that has won every validation task."""


class Weights(Protocol):
    """Model whose weights a trainer keeps, saves and loads. Every `nn.Module` is one."""

    def parameters(self) -> Iterable[nn.Parameter]:
        """Return the trained weights."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return all weights by name."""

    def load_state_dict(self, state: dict[str, Tensor], /) -> object:
        """Set weights that `state_dict` returned."""


Model = LanguageModel | Weights
Metrics = dict[str, float]
Verdict = Literal["", "stop", "roll-back"]
"""Requests of a metrics callback: continue (""), stop with the best weights, or roll back to them."""

Log = Callable[[dict[str, Any]], Verdict | None]
"""Metrics callback: receives one flat dictionary of metrics, and may return a request."""


class Stateful(Protocol):
    """Part of a training whose state is saved with the weights, as JSON values."""

    def state(self) -> Any:
        """Return the state to save."""

    def load(self, state: Any) -> None:
        """Continue from a value of `state`."""


class Trainer:
    """State of a training: the model, its optimisers and its progress. Resumes from a state saved in the folder.

    Args:
        model: the trained model, whose best weights are kept.
        optimizers: the optimisers. A group's "initial_lr" is its peak learning rate (by default its current rate).
        max_grad_norm: norm to which gradients of the model, and of each further part, are clipped; None for no
            clipping.
        folder: folder of the saved state; None saves nothing.
        parts: further models whose weights belong to the state, by name, such as a critic or a frozen reference;
            None leaves a part out.
        keep_best: keep a copy of the best weights. Before any evaluation these are the first weights.

    Raises:
        UserError: the folder holds a state without one of the parts, from an older version.

    Attributes:
        step: number of finished steps or updates, counted by the loop.
        best: the best score so far.
        stale: number of evaluations since the best score was first reached.
        rate: factor of the peak learning rates, besides the schedule's. `obey` halves it, and a loop may adapt it.
        stopped: True if a callback has asked for the training to end, or its time or patience is over.
        spent: seconds that the training has taken, those before a kill included.
        resumed: content of the loaded state, including what the loop added in `save`; None for a new training.
        team: the processes that train together. Each computes a part of every batch.
    """

    def __init__(
        self,
        model: Model,
        optimizers: Sequence[torch.optim.Optimizer],
        max_grad_norm: float | None = None,
        folder: Path | None = None,
        parts: Mapping[str, Model | None] | None = None,
        keep_best: bool = True,
    ) -> None:
        self.model, self.optimizers, self.folder = model, optimizers, folder
        self.parts: dict[str, Model] = {"weights": model}
        for name, part in (parts or {}).items():
            if part is not None:
                self.parts[name] = part
        self.max_grad_norm = max_grad_norm
        self._parameters = [list(part.parameters()) for part in self.parts.values()]
        self.step, self.stale, self.rate, self.stopped = 0, 0, 1.0, False
        self.spent, self._since = 0.0, time.monotonic()
        for group in self._groups():
            group.setdefault("initial_lr", group["lr"])
        self.best: tuple[float, ...] = (-math.inf,)
        self.best_weights: dict[str, Tensor] | None = None
        if keep_best:
            self.best_weights = weights_of(model)
        self.resumed: dict[str, Any] | None = None
        self._recent: list[Metrics] = []
        self.team = distributed.current()
        if folder is not None:
            self.resumed = self.team.first(partial(load_meta, folder))
        if folder is not None and self.resumed is not None:
            tensors = load_tensors(self.team.first(lambda: folder))  # all ranks read the first rank's folder
            if missing := self.parts.keys() - tensors.keys():
                about = f"holds the state of a training by another version (without {', '.join(sorted(missing))})"
                raise UserError(f"{folder} {about}; remove it to start this training over")
            if keep_best:
                # Through the model, so that they have its device and data types.
                load_weights(model, tensors["best"])
                self.best_weights = weights_of(model)
            for name, part in self.parts.items():
                load_weights(part, tensors[name])
            for i, optimizer in enumerate(optimizers):
                restore_optimizer(optimizer, tensors[f"optimizer{i}"])
            self.step, self.stale, self.best = self.resumed["step"], self.resumed["stale"], tuple(self.resumed["best"])
            self.rate, self.stopped = self.resumed.get("rate", 1.0), self.resumed.get("stopped", False)
            self.spent = self.resumed.get("spent", 0.0)
            if self.rate != 1.0:
                self.set_rate(1.0)  # a loop with a constant schedule never sets it

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
        totals = self.team.reduce(list(chain.from_iterable(self._parameters)), metrics)
        if self.max_grad_norm is not None:
            norms = [nn.utils.clip_grad_norm_(part, self.max_grad_norm) for part in self._parameters]
            totals["grad_norm"] = float(norms[0])
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self._recent.append(totals)
        return totals

    def updates(
        self, rollouts: Rollouts, config: RLConfig, log: Log, further: Mapping[str, Stateful] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield a dictionary for the metrics of each update of online RL, and do everything but the algorithm.

        Before an update it evaluates and saves, if that is due. After it, the metrics are logged, and the callback's
        request is carried out. At the end, the model has the weights that did best on validation tasks. A killed
        training continues from its last saved state, and repeats the updates after it bit for bit.

        Args:
            rollouts: source of batches. The loop itself collects them.
            config: settings of online RL, here `updates` and `eval_every`.
            log: callback that receives one flat dictionary per update, and one for the evaluation after the last. If
                it returns "stop", the model is evaluated once more and training ends. With "roll-back", training
                continues from the best weights so far with half the learning rate.
            further: further parts of the state, by name.
        """
        stateful = dict(further or {})
        if self.resumed is not None:
            rollouts.load(self.resumed)
            for name, part in stateful.items():
                part.load(self.resumed[name])
        while True:
            metrics: dict[str, Any] = {"step": self.step, **rollouts.about()}
            if config.minutes:
                minutes = self.team.first(self.minutes)  # clocks differ, and all ranks must end together
                metrics["minutes"] = round(minutes, 3)
                self.stopped |= minutes >= config.minutes
            if self.is_due(config.eval_every, config.updates):
                scores = rollouts.evaluate()
                metrics |= scores
                self.keep_if_best(list(scores.values()))
                # A training that has won nothing yet may still find its first win. One that has won everything has
                # little left to gain.
                patience = config.patience
                if self.best[0] >= 1:
                    patience = min(patience, SOLVED_PATIENCE)
                self.stopped |= 0 < patience <= self.stale and self.best[0] > 0
                # The line of this update is not written yet, so after a kill it is written (again) with its metrics.
                states = {name: part.state() for name, part in stateful.items()}
                self.save(logged=self.step - 1, **states, **rollouts.state())
            if self.has_ended(config.updates):
                break
            yield metrics
            metrics |= rollouts.end_update()
            release_memory()
            self.step += 1
            self.obey(log(metrics))
        log(metrics)
        self.finish()
        rollouts.close()

    def minutes(self) -> float:
        """Return the minutes that the training has taken so far."""
        now = time.monotonic()
        self.spent, self._since = self.spent + now - self._since, now
        return self.spent / 60

    def set_rate(self, share: float) -> None:
        """Set every learning rate to its peak times `rate` times a schedule's share."""
        for group in self._groups():
            group["lr"] = group["initial_lr"] * self.rate * share

    def _groups(self) -> Iterator[dict[str, Any]]:
        """Yield the parameter groups of all optimisers."""
        for optimizer in self.optimizers:
            yield from optimizer.param_groups

    def has_ended(self, last: int) -> bool:
        """Return whether this was the last step, or a callback has asked for the training to end."""
        return self.stopped or self.step >= last

    def is_due(self, every: int, last: int) -> bool:
        """Return whether to evaluate now: every `every` steps, and at the end."""
        return self.step % every == 0 or self.has_ended(last)

    def obey(self, verdict: Verdict | None) -> None:
        """Carry out a callback's request: stop, or roll back to the best weights and halve the learning rates."""
        if verdict == "stop":
            self.stopped = True
        elif verdict == "roll-back":
            self.roll_back()
            # The rate is kept as well, since a schedule sets all learning rates anew before the next step.
            self.rate /= 2
            for group in self._groups():
                group["lr"] /= 2

    def means(self) -> Metrics:
        """Return the mean metrics over the optimiser steps since the last call."""
        recent, self._recent = self._recent, []
        means = Metrics()
        for name in recent[0]:
            means[name] = sum(metrics[name] for metrics in recent) / len(recent)
        return means

    def checkpoint(self, metrics: Metrics, score: Sequence[float], log: Log) -> None:
        """Log an evaluation between steps, keep the weights if they are the best so far, and save the state.

        Args:
            metrics: metrics of the evaluation. The step is added.
            score: scores, the most important first. Higher is better.
            log: callback for metrics. If it requests anything, the training ends.
        """
        release_memory()
        self.keep_if_best(score)
        self.stopped = bool(log({"step": self.step, **metrics}))
        self.save(logged=self.step)

    def keep_if_best(self, score: Sequence[float]) -> None:
        """Keep a copy of the weights if no earlier weights scored higher.

        Ties go to the later weights, which have learned more: validation tasks are soon all won, but a curriculum may
        not have reached the whole task by then.

        Args:
            score: scores, the most important first. Higher is better.
        """
        self.stale += 1
        if tuple(score) > self.best:
            self.stale = 0
        if tuple(score) >= self.best:
            self.best, self.best_weights = tuple(score), weights_of(self.model)

    def roll_back(self) -> None:
        """Return to the best weights so far, and clear the optimisers' state."""
        load_weights(self.model, self.best_weights or {})
        for optimizer in self.optimizers:
            optimizer.state.clear()  # its momentum leads back to where the weights went wrong

    def save(self, logged: int, **more: Any) -> None:
        """Save the state, from which a killed training continues with identical bits. The previous state is kept.

        Args:
            logged: last step whose line of metrics is written already. Lines after it are written again.
            more: further state of the loop, as JSON values. `resumed` holds it afterwards.
        """
        self._recent = []
        if self.folder is None:
            return
        tensors = {"best": self.best_weights or {}}
        for name, part in self.parts.items():
            tensors[name] = weights_of(part)
        for i, optimizer in enumerate(self.optimizers):
            tensors[f"optimizer{i}"] = optimizer_tensors(optimizer)
        if self.spent:
            more["spent"] = self.spent
        counters = {"step": self.step, "stale": self.stale, "best": self.best, "rate": self.rate, "logged": logged}
        save_state(self.folder, tensors, {**counters, "stopped": self.stopped, **more})

    def finish(self) -> None:
        """Load the best weights into the model."""
        load_weights(self.model, self.best_weights or {})


def accumulate(totals: Metrics, terms: Mapping[str, Tensor | float], weight: float = 1.0) -> None:
    """Add the terms of a slice to a batch's metrics in place. With shares as weights, the totals are means."""
    for name, term in terms.items():
        value = float(term.detach()) if isinstance(term, Tensor) else term
        totals[name] = totals.get(name, 0.0) + weight * value


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
    if step < rising:
        return (step + 1) / (rising + 1)
    return (steps - step) / (steps - rising)


SCHEDULES: dict[str, Callable[[int, int, float], float]] = {
    "constant": lambda step, steps, warmup: 1.0,
    "linear": linear,
    "cosine": cosine,
}
"""Functions that return the share of the peak learning rate at a step, by the values of `schedule` in a recipe. As in
transformers, "constant" has no warm-up."""
