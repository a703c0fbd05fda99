"""Two-player play: steps per second of the engine against the plain implementation, on the same recorded episodes.

    python -m benchmarks.play --workloads taxi alfworld --sizes 4x256 --batches 1 16 --threads 1

Both read the same observations, decode reflections of the same natural lengths by sampling (the policy then reads the
recorded text), and score the same actions. Nothing is remembered: every seat's prompts are computed. A tick is a step
of all episodes of the batch. What the engine keeps between steps must be there when a tick is timed, so the tick before
each timed one is played too, unmeasured.

`predicted` is the ratio of the floating-point operations that torch counts in both, `reached` the share of it that the
clock shows; `mfu` is the share of the GEMM rate measured in the same run; `model` and `env` are shares of the engine's
time, the rest being Python; tokens are per step.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from reflectrl.models.engine import Written, generate
from reflectrl.models.lm import LanguageModel
from reflectrl.models.packing import Ids
from reflectrl.models.tally import Tally
from reflectrl.players.base import Seat
from reflectrl.players.policy import Policy
from reflectrl.players.reflector import Reflector
from reflectrl.types import Episode, Sampling, Step, Turn

from .measure import count_flops, counted, gemm_rate, growth, interleaved, timed
from .plain import PlainPair, Tokens, play_tick
from .settings import Settings, main, note
from .workloads import Workload, bench_model, records, reflection_lengths, workload

SHARES = (0.2, 0.5, 0.8)
"""Where in the episodes the timed ticks lie, as shares of the shortest."""

KEPT = 7 * 2**30
"""Bytes of keys and values that each player may keep: all that 64 long episodes need at the smaller sizes."""

HEAVY = 2e12
"""Operations of a plain tick beyond which the tick in the middle stands for all, and is played once."""


class NaturalReflector(Reflector):
    """Writes as many tokens as each seat's recorded reflection has, whatever they are."""

    lengths: Sequence[int] = ()

    def turns(self, seats: Sequence[Seat]) -> list[Turn]:
        return [self._turn(one) for one in self._write([self._prompt(seat) for seat in seats], seats)]

    def _generate(self, prompts: Sequence[Ids], rows: slice, *rest: Any) -> list[Written]:
        return generate(self.lm, prompts, self.lengths[rows], self.sampling, *rest)


@dataclass
class TimedModel(LanguageModel):
    """Knows how long it has computed."""

    seconds: float = 0.0

    def hidden(self, *args: Any, **named: Any) -> Tensor:
        return self._clocked(super().hidden, *args, **named)

    def logits(self, *args: Any, **named: Any) -> Tensor:
        return self._clocked(super().logits, *args, **named)

    def _clocked(self, function: Callable[..., Tensor], *args: Any, **named: Any) -> Tensor:
        start = time.perf_counter()
        out = function(*args, **named)
        self.seconds += time.perf_counter() - start
        return out


def instrumented(lm: LanguageModel) -> TimedModel:
    """The same model with a clock, a tally of its own, and no end-of-text, so that random weights do not stop early."""
    tokenizer = copy.deepcopy(lm.tokenizer)
    tokenizer.eos_token = None
    return TimedModel(**(vars(lm) | {"tokenizer": tokenizer, "tally": Tally()}))


class EnginePair:
    """The engine's players on the seats of recorded episodes."""

    def __init__(self, policy: LanguageModel, reflector: LanguageModel, work: Workload) -> None:
        self.models = [instrumented(policy), instrumented(reflector)]
        self.policy = Policy(self.models[0], Sampling(1.0), memory=0, cache=KEPT)
        self.reflector = NaturalReflector(self.models[1], 128, Sampling(1.0), cache=KEPT)
        self.env = work.make_env()

    def seats(self, episodes: Sequence[Episode]) -> list[Seat]:
        """Fresh seats: nothing is kept of any episode."""
        first = [episode.steps[0].observation for episode in episodes]
        pairs = enumerate(zip(episodes, first, strict=True))
        return [Seat(self.env, e.task, e.seed, np.random.default_rng(i), seen) for i, (e, seen) in pairs]

    def tick(self, seats: Sequence[Seat], steps: Sequence[Step], lengths: Sequence[int]) -> None:
        """One step of every seat; the policy reads the recorded reflections."""
        for seat, step in zip(seats, steps, strict=True):
            seat.observation, seat.turns = step.observation, []
        self.reflector.lengths = lengths
        self.reflector.turns(seats)
        for seat, step in zip(seats, steps, strict=True):
            seat.turns = [step.turns[0]]
        self.policy.turns(seats)


class Cell:
    """One row of the table: a workload, a model size, a batch."""

    def __init__(self, size: str, name: str, batch: int, **model: Any) -> None:
        self.size, self.work = size, workload(name)
        self.lm, other = (bench_model(size, self.work, seed=seed, **model) for seed in (0, 1))
        start = time.perf_counter()
        self.episodes = records(self.work, batch)
        self.env_seconds = (time.perf_counter() - start) / sum(len(episode.steps) for episode in self.episodes)
        shortest = min(len(episode.steps) for episode in self.episodes)
        self.ticks = sorted({max(1, int(share * shortest)) for share in SHARES})
        self.engine = EnginePair(self.lm, other, self.work)
        self.plain = PlainPair(self.lm, other)

    def steps(self, tick: int) -> list[Step]:
        return [episode.steps[tick] for episode in self.episodes]

    def lengths(self, tick: int) -> list[int]:
        return reflection_lengths(self.lm, [step.reflection or "" for step in self.steps(tick)])

    def plain_tick(self, tick: int) -> None:
        steps = self.steps(tick)
        seen, texts = [step.observation for step in steps], [step.reflection or "" for step in steps]
        play_tick(self.plain, seen, texts, self.lengths(tick))

    def plain_ticks(self, measure: Callable[[Callable[[], None]], float]) -> float:
        """What `measure` finds for the timed ticks, summed."""
        return sum(measure(lambda tick=tick: self.plain_tick(tick)) for tick in self.ticks)

    def engine_ticks(self, measure: Callable[[Callable[[], None]], float]) -> float:
        """The same for the engine; the tick before each timed one is played without it."""
        total = 0.0
        for tick in self.ticks:
            seats = self.engine.seats(self.episodes)
            self.engine.tick(seats, self.steps(tick - 1), [1] * len(seats))
            steps, lengths = self.steps(tick), self.lengths(tick)
            total += measure(lambda seats=seats, steps=steps, lengths=lengths: self.engine.tick(seats, steps, lengths))
        return total

    def row(self, repetitions: int) -> dict[str, Any]:
        rate = gemm_rate(self.lm.dtype, self.lm.device)
        middle = self.ticks[len(self.ticks) // 2]
        if len(self.episodes) * len(self.prompt(middle)) * 2 * body(self.lm) > HEAVY:
            self.ticks = [middle]
        watch, plain_watch = Watch(self.engine.models), PlainWatch(self.plain)
        sides = {"plain": (self.plain_ticks, plain_watch), "engine": (self.engine_ticks, watch)}
        seconds, flops = measured(sides, repetitions, len(self.ticks) == 1)
        repetitions = len(seconds["engine"])
        plain, ours = statistics.median(seconds["plain"]), statistics.median(seconds["engine"])
        predicted = flops["plain"] / flops["engine"]
        steps = len(self.ticks) * len(self.episodes)
        every = steps * repetitions
        return {
            "size": self.size,
            "workload": self.work.name,
            "batch": len(self.episodes),
            "plain steps/s": steps / plain,
            "steps/s": steps / ours,
            "speed-up": plain / ours,
            "predicted": predicted,
            "reached": plain / ours / predicted,
            "plain mfu": flops["plain"] / plain / rate,
            "mfu": flops["engine"] / ours / rate,
            "model": watch.model_seconds / sum(seconds["engine"]),
            "env": self.env_seconds * steps / ours,
            "plain read": plain_watch.read / every,
            "read": watch.read / every,
            "plain written": plain_watch.written / every,
            "written": watch.written / every,
            "plain MiB": plain_watch.peak / 2**20,
            "MiB": watch.peak / 2**20,
        }

    def prompt(self, tick: int) -> Ids:
        step = self.episodes[0].steps[tick]
        return self.engine.policy.prompt(step.observation, step.reflection)


def measured(
    sides: Mapping[str, tuple[Callable[..., float], Watch]], repetitions: int, once: bool
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds of every repetition and operations of one, by side; `once` counts them in the only repetition."""
    if not once:
        flops = {name: ticks(count_flops) for name, (ticks, _) in sides.items()}
        runs = {name: partial(ticks, watch) for name, (ticks, watch) in sides.items()}
        return interleaved(runs, repetitions, warm_up=False), flops
    seconds, flops = {}, dict.fromkeys(sides, 0.0)
    for name, (ticks, watch) in sides.items():

        def clock(tick: Callable[[], None], name: str = name, watch: Watch = watch) -> float:
            taken, count = counted(tick, watch)
            flops[name] += count
            return taken

        seconds[name] = [ticks(clock)]
    return seconds, flops


class Watch:
    """Times ticks, and notes what they take: memory, and the models' seconds and tokens."""

    def __init__(self, models: Sequence[TimedModel]) -> None:
        self.models = models
        self.peak = self.read = self.written = 0
        self.model_seconds = 0.0

    def __call__(self, tick: Callable[[], None]) -> float:
        before = [(model.tally.copy(), model.seconds) for model in self.models]
        taken: list[float] = []
        self.peak = max(self.peak, growth(lambda: taken.append(timed(tick))))
        for model, (tally, seconds) in zip(self.models, before, strict=True):
            new = model.tally.since(tally)
            self.read, self.written = self.read + new.encoded, self.written + new.decoded
            self.model_seconds += model.seconds - seconds
        return taken[0]


class PlainWatch(Watch):
    """The same for the plain side."""

    def __init__(self, pair: PlainPair) -> None:
        super().__init__([])
        self.pair = pair

    def __call__(self, tick: Callable[[], None]) -> float:
        self.pair.tokens = Tokens()
        taken = super().__call__(tick)
        self.read, self.written = self.read + self.pair.tokens.encoded, self.written + self.pair.tokens.decoded
        return taken


def body(lm: LanguageModel) -> int:
    """Weights that every token is multiplied with."""
    return sum(p.numel() for p in lm.core.base_model.parameters() if p.ndim == 2) - 2 * lm.hidden_size * lm.context


def rows(settings: Settings) -> list[dict[str, Any]]:
    """A row per cell."""
    made = {"device": settings.device, "dtype": settings.dtype, "mixed_play": settings.mixed_play}
    return [note(Cell(*cell, **made).row(settings.repetitions)) for cell in settings.cells()]


if __name__ == "__main__":
    main(rows, __doc__)
