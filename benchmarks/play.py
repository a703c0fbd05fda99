"""Two-player play: steps per second of the engine against the plain implementation, on the same recorded episodes.

    python -m benchmarks.play --workloads taxi alfworld --sizes 4x256 --batches 1 16 --threads 1

Both read the same observations, generate reflections of the same natural lengths, and score the same actions. Weights
are random, so a generated text is noise. Therefore the engine samples and then takes the recorded reflection's token
instead, so that its drafts have natural text to predict. (Hugging Face's `generate` writes what it samples.) Caching of
results is off: the prompts of all episodes are computed. A tick is a step of all episodes of the batch. The engine's
caches of earlier steps must exist when a tick is timed, so the tick before each timed one is played too, unmeasured.
Drafts know the reflections of the same episodes' earlier steps and of `BEFORE` other episodes, as in a run that began a
little while ago.

`predicted` is the ratio of the floating-point operations that torch counts on both sides, and `reached` is the measured
speed-up divided by it. `mfu` is the share of the GEMM rate measured in the same run. `model` and `env` are shares of
the engine's time; the rest is Python. Tokens are per step and include wrong drafts. `per pass` is the number of
reflection tokens per forward pass of the engine.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reflectrl.core.players.base import LiveEpisode
from reflectrl.core.prompts import reflector_prompt, tokenize
from reflectrl.core.types import Episode, Sampling, Step
from reflectrl.models.backend import Completion, Counters
from reflectrl.models.generation import END, Draft, DraftModel
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import Policy, Reflector, draw
from reflectrl.models.sharing import Ids, KVCache, shared_length

from .measure import count_flops, gemm_rate, growth, host_waits, interleaved, timed
from .plain import PlainPair, Tokens, play_tick
from .settings import Settings, main, note
from .workloads import Workload, bench_model, records, reflection_ids, workload

KEPT = 7 * 2**30
"""Largest size in bytes of the keys and values that each player caches: enough for 64 long episodes at small sizes."""

BEFORE = 16
"""Number of other episodes whose reflections the draft model knows."""


@dataclass
class Script:
    """Text that an episode must write, in place of its random generator. It draws from the generator as well.

    A GPU draws a token for each token of a draft, and takes back draws that are not needed (`bit_generator.state`). So
    the place in the text is part of the generator's state.
    """

    generator: np.random.Generator
    ids: Ids
    place: int = 0

    @property
    def bit_generator(self) -> Script:
        return self

    @property
    def state(self) -> tuple[Any, int]:
        return self.generator.bit_generator.state, self.place

    @state.setter
    def state(self, state: tuple[Any, int]) -> None:
        self.generator.bit_generator.state, self.place = state

    def random(self, count: int) -> np.ndarray:
        """Draw random numbers, and skip as many tokens."""
        self.place += count
        return self.generator.random(count)

    def next_token(self) -> int:
        """Return the next token of the text. After its end, return the last token, for draws that are not used."""
        self.place += 1
        return self.ids[min(self.place, len(self.ids)) - 1]


def draw_as_written(logits_BV: Tensor, scripts: Sequence[Any], sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Sample as always, but take the scripts' next tokens."""
    _, logprobs_B = draw(logits_BV, [script.generator for script in scripts], sampling)
    return torch.tensor([script.next_token() for script in scripts], device=logits_BV.device), logprobs_B


class ScriptedReflector(Reflector):
    """Reflector that writes the recorded reflections, at most as many tokens as `limits` allow."""

    texts: Mapping[LiveEpisode, Ids] = {}
    limits: Mapping[LiveEpisode, int] = {}

    def _compute(
        self, keys: Sequence[Ids], episodes: Sequence[LiveEpisode], caches: Sequence[KVCache] | None
    ) -> list[Completion]:
        scripts: Any = [Script(live.rng, self.texts[live]) for live in episodes]
        limits = [self.limits[live] for live in episodes]
        as_written = partial(draw_as_written, sampling=self.sampling)
        return self.backend.write(keys, limits, as_written, scripts, caches, self.draft_model)

    def rehearse(self, live: LiveEpisode, text: Ids) -> None:
        """Teach the draft model a reflection as if it had been written, without running the language model."""
        assert self.draft_model is not None
        prompt_ids = tokenize(self.lm, reflector_prompt(live.observation), reserve=self.max_new_tokens)
        prompt, reflection, written = "".join(map(chr, prompt_ids)), "".join(map(chr, text[:-1])), 0
        while written <= len(reflection):
            draft = self.draft_model.draft(prompt, reflection[:written], len(reflection) - written)
            accepted = shared_length([*map(ord, draft.tokens)], text[written:-1])
            self.draft_model.learn(draft, accepted)
            written += accepted + 1
        self.draft_model.learn(Draft(), 0, reflection + END)


@dataclass
class TimedModel(LanguageModel):
    """Language model that measures how long it computes."""

    seconds: float = 0.0

    def clocked(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Wrap a function so that its time counts."""

        def timed(*args: Any, **named: Any) -> Tensor:
            start = time.perf_counter()
            out = function(*args, **named)
            self.seconds += time.perf_counter() - start
            return out

        return timed


def instrumented(lm: LanguageModel, endless: bool = False) -> TimedModel:
    """Copy a model with its own clock and counters. An endless model has no end-of-text token."""
    changes: dict[str, Any] = {"counters": Counters()}
    if endless:
        changes["tokenizer"] = copy.deepcopy(lm.tokenizer)
        changes["tokenizer"].eos_token = None
    timed = TimedModel(**({field.name: getattr(lm, field.name) for field in fields(LanguageModel)} | changes))
    backend: Any = timed.backend
    backend.walk, backend.logits = timed.clocked(backend.walk), timed.clocked(backend.logits)
    return timed


class EnginePair:
    """Players of the engine that replay recorded episodes."""

    def __init__(self, policy: LanguageModel, reflector: LanguageModel, work: Workload, speculative: bool) -> None:
        self.models = [instrumented(policy), instrumented(reflector)]
        self.policy = Policy(self.models[0], Sampling(1.0), memory=0, cache=KEPT)
        self.reflector = ScriptedReflector(self.models[1], 128, Sampling(1.0), cache=KEPT, speculative=speculative)
        self.env = work.make_env()

    def playing(self, episodes: Sequence[Episode]) -> list[LiveEpisode]:
        """Begin to replay episodes, with nothing cached."""
        first = [episode.steps[0].observation for episode in episodes]
        pairs = enumerate(zip(episodes, first, strict=True))
        return [LiveEpisode(self.env, e.task, e.seed, np.random.default_rng(i), seen) for i, (e, seen) in pairs]

    def clear_cache(self) -> None:
        """Reset the draft model, as if the reflector had written nothing yet."""
        if self.reflector.draft_model is not None:
            self.reflector.draft_model = DraftModel()

    def rehearse(self, playing: Sequence[LiveEpisode], steps: Sequence[Step]) -> None:
        """Teach the draft model what the reflector wrote in a step of every episode."""
        if self.reflector.draft_model is None:
            return
        self._show(playing, steps)
        for live, ids in self.reflector.texts.items():
            self.reflector.rehearse(live, ids)

    def _show(self, playing: Sequence[LiveEpisode], steps: Sequence[Step]) -> None:
        for live, step in zip(playing, steps, strict=True):
            live.observation, live.turns = step.observation, []
        texts = reflection_ids(self.models[1], [step.reflection or "" for step in steps])
        self.reflector.texts = dict(zip(playing, texts, strict=True))

    def tick(self, playing: Sequence[LiveEpisode], steps: Sequence[Step], limit: int | None = None) -> None:
        """Play a step of every episode. The reflector writes at most `limit` tokens; the policy reads the full text."""
        self._show(playing, steps)
        self.reflector.limits = {
            episode: min(len(ids), limit or len(ids)) for episode, ids in self.reflector.texts.items()
        }
        self.reflector.turns(playing)
        for live, step in zip(playing, steps, strict=True):
            live.turns = [step.turns[0]]
        self.policy.turns(playing)


class Cell:
    """Row of the table: a workload, a model size and a batch."""

    def __init__(
        self, size: str, name: str, batch: int, speculative: bool, shares: Sequence[float], **model: Any
    ) -> None:
        self.size, self.work = size, workload(name)
        self.lm, other = (bench_model(size, self.work, seed=seed, **model) for seed in (0, 1))
        start = time.perf_counter()
        self.episodes, self.before = records(self.work, batch), records(self.work, BEFORE, first=batch)
        everything = [*self.episodes, *self.before]
        self.env_seconds = (time.perf_counter() - start) / sum(len(episode.steps) for episode in everything)
        shortest = min(len(episode.steps) for episode in self.episodes)
        self.ticks = sorted({max(1, int(share * shortest)) for share in shares})
        self.engine = EnginePair(self.lm, other, self.work, speculative)
        self.plain = PlainPair(self.lm, other)

    def steps(self, tick: int) -> list[Step]:
        return [episode.steps[tick] for episode in self.episodes]

    def lengths(self, tick: int) -> list[int]:
        return list(map(len, reflection_ids(self.lm, [step.reflection or "" for step in self.steps(tick)])))

    def plain_tick(self, tick: int) -> None:
        steps = self.steps(tick)
        seen, texts = [step.observation for step in steps], [step.reflection or "" for step in steps]
        play_tick(self.plain, seen, texts, self.lengths(tick))

    def plain_ticks(self, measure: Callable[[Callable[[], None]], float]) -> float:
        """Return the sum of `measure` over the timed ticks."""
        return sum(measure(lambda tick=tick: self.plain_tick(tick)) for tick in self.ticks)

    def engine_ticks(self, measure: Callable[[Callable[[], None]], float]) -> float:
        """Return the same for the engine. The tick before each timed tick is played unmeasured."""
        self.engine.clear_cache()
        for episode in self.before:
            for step in episode.steps:
                self.engine.rehearse(self.engine.playing([episode]), [step])
        total, rehearsed = 0.0, 0
        for tick in self.ticks:
            playing, steps = self.engine.playing(self.episodes), self.steps(tick)
            for index in range(rehearsed, tick):
                self.engine.rehearse(playing, self.steps(index))
            rehearsed = tick + 1
            # Fill the caches that the timed tick finds. A single written token is enough for the prompts to be read.
            self.engine.tick(playing, self.steps(tick - 1), limit=1)
            total += measure(lambda playing=playing, steps=steps: self.engine.tick(playing, steps))
        return total

    def row(self, repetitions: int, heavy: float, operations: bool = True) -> dict[str, Any]:
        """Measure the row. If a plain tick exceeds `heavy` operations, only the middle tick is measured, once.

        Args:
            operations: count operations too. Otherwise a run before the timed ones is not measured, in which a GPU's
                decoding passes are recorded.
        """
        rate = gemm_rate(self.lm.dtype, self.lm.device)
        middle = self.ticks[len(self.ticks) // 2]
        once = len(self.episodes) * len(self.prompt(middle)) * 2 * body(self.lm) > heavy
        if once:
            self.ticks = [middle]
        watch, plain_watch = Watch(self.engine.models), PlainWatch(self.plain)
        sides = {"plain": (self.plain_ticks, plain_watch), "engine": (self.engine_ticks, watch)}
        if operations:
            seconds, flops = measured(sides, repetitions, once)
        else:
            for ticks, watch in sides.values():
                watch.peak = growth(partial(ticks, timed))
            runs = {name: partial(ticks, watch) for name, (ticks, watch) in sides.items()}
            seconds = interleaved(runs, repetitions, warm_up=False)
            flops = dict.fromkeys(sides, math.nan)
        repetitions = len(seconds["engine"])
        plain, ours = statistics.median(seconds["plain"]), statistics.median(seconds["engine"])
        predicted = flops["plain"] / flops["engine"]
        steps = len(self.ticks) * len(self.episodes)
        every = steps * repetitions
        return {
            "size": Path(self.size).name,
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
            "per pass": plain_watch.written / max(1, watch.written - watch.drafted),
            "plain MiB": plain_watch.peak / 2**20,
            "MiB": watch.peak / 2**20,
            "waits/pass": self.waits_per_pass(),
        }

    def waits_per_pass(self) -> float | None:
        """Return the host's waits for the GPU per forward pass of the engine; None on a CPU."""
        if self.lm.device.type == "cpu":
            return None
        passes = 0

        def count(tick: Callable[[], None]) -> float:
            nonlocal passes
            before = sum(model.counters.passes for model in self.engine.models)
            waits = host_waits(tick)
            passes += sum(model.counters.passes for model in self.engine.models) - before
            return waits

        return self.engine_ticks(count) / passes

    def prompt(self, tick: int) -> Ids:
        step = self.episodes[0].steps[tick]
        return self.engine.policy.prompt(step.observation, step.reflection)


def measured(
    sides: Mapping[str, tuple[Callable[..., float], Watch]], repetitions: int, once: bool
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return each side's seconds per repetition, and its operations. With `once`, a single run gives both."""
    if not once:
        flops = {name: ticks(watch.count) for name, (ticks, watch) in sides.items()}
        runs = {name: partial(ticks, watch) for name, (ticks, watch) in sides.items()}
        return interleaved(runs, repetitions, warm_up=False), flops
    seconds, flops = {}, dict.fromkeys(sides, 0.0)
    for name, (ticks, watch) in sides.items():

        def clock(tick: Callable[[], None], name: str = name, watch: Watch = watch) -> float:
            taken: list[float] = []
            flops[name] += watch.count(lambda: taken.append(watch(tick)))
            return taken[0]

        seconds[name] = [ticks(clock)]
    return seconds, flops


class Watch:
    """Watch of ticks: times them, adds up the models' seconds and tokens, and measures operations and memory."""

    def __init__(self, models: Sequence[TimedModel]) -> None:
        self.models = models
        self.peak = self.read = self.written = self.drafted = 0
        self.model_seconds = 0.0

    def count(self, tick: Callable[[], None]) -> int:
        """Return the operations of a tick, and record its peak memory. (Not timed: memory is freed first.)"""
        operations: list[int] = []
        self.peak = max(self.peak, growth(lambda: operations.append(count_flops(tick))))
        return operations[0]

    def __call__(self, tick: Callable[[], None]) -> float:
        """Return the seconds of a tick."""
        before = [(model.counters.copy(), model.seconds) for model in self.models]
        taken = timed(tick)
        for model, (counters, seconds) in zip(self.models, before, strict=True):
            new = model.counters.since(counters)
            self.read, self.written = self.read + new.encoded, self.written + new.decoded
            self.drafted += new.drafted
            self.model_seconds += model.seconds - seconds
        return taken


class PlainWatch(Watch):
    """Watch of the plain side."""

    def __init__(self, pair: PlainPair) -> None:
        super().__init__([])
        self.pair = pair

    def __call__(self, tick: Callable[[], None]) -> float:
        self.pair.tokens = Tokens()
        taken = super().__call__(tick)
        self.read, self.written = self.read + self.pair.tokens.encoded, self.written + self.pair.tokens.decoded
        return taken


def body(lm: LanguageModel) -> int:
    """Count the weights that every token is multiplied with."""
    tables = {id(module.weight) for module in lm.core.modules() if isinstance(module, torch.nn.Embedding)}
    return sum(p.numel() for p in lm.core.parameters() if p.ndim == 2 and id(p) not in tables)


def rows(settings: Settings) -> list[dict[str, Any]]:
    """Return a row per cell."""
    options = settings.player | {"mixed_play": settings.mixed_play}
    speculative = settings.speculative == "on"
    table_rows = []
    for size, name, batch in settings.cells():
        cell = Cell(size, name, batch, speculative, settings.shares, **options)
        for model in cell.engine.models if settings.graphs == "off" else ():
            model.backend.graphs = None  # type: ignore[attr-defined]
        table_rows.append(note(cell.row(settings.repetitions, settings.heavy, settings.operations == "on")))
    return table_rows


if __name__ == "__main__":
    main(rows, __doc__)
