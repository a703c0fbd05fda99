"""Time decisions among options by a learned head: the engine beside the numpy runtime, and the effect of the order.

    OMP_NUM_THREADS=1 python -m benchmarks.decisions

A scratch model of about 2M parameters, on one core. The state (100 tokens) has been read before, so a decision reads
only the options. Times are processor time, in milliseconds: the smallest of interleaved repetitions, since other load
on a machine can only add to them.

- `engine`: `play.scoring = "options"` in float32, and with `model.mixed_play` (bfloat16).
- `numpy`: the same policy without torch.
- `order`: largest difference of a probability over shuffles of the options.
- `differ`: decisions in which the two choose differently, if the two best options are not equal to 1e-5.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reflectrl.core.config import ModelConfig
from reflectrl.core.players import LiveEpisode
from reflectrl.core.types import Observation, Sampling, Task
from reflectrl.models.backend import Candidates
from reflectrl.models.light import LightModel, LightPolicy, load_light
from reflectrl.models.load import load_model
from reflectrl.models.players import Policy
from reflectrl.models.scratch import save_scratch
from reflectrl.models.sharing import Ids, KVCache

from .measure import report

WORDS = [
    "north",
    "south",
    "east",
    "west",
    "pick",
    "drop",
    "taxi",
    "door",
    "key",
    "red",
    "blue",
    "green",
    "1",
    "2",
    "3",
    "4",
    "5",
    "6",
    "7",
    "8",
    "9",
    "at",
    "the",
    "and",
    "go",
    "to",
    "look",
]
STATE = 100
SHAPES = ((20, 1), (20, 2), (20, 20), (255, 20))
"""Numbers of options, and of tokens in each."""
START = """
import sys, time
from pathlib import Path
from reflectrl.models.light import LightPolicy, load_light
LightPolicy(load_light(Path(sys.argv[1]), 512), "options")
print(time.process_time())
"""


@dataclass(frozen=True)
class Sizes:
    """Shape of the model, and amounts of work."""

    family: str = "gpt2"
    layers: int = 4
    width: int = 192
    heads: int = 6
    repetitions: int = 30
    shuffles: int = 1000
    decisions: int = 10_000


def make_scorer(folder: Path, sizes: Sizes) -> ModelConfig:
    """Write a model with random weights and a random head. Return the settings to load it with."""
    config = ModelConfig(
        family=sizes.family,  # type: ignore[arg-type]
        layers=sizes.layers,
        width=sizes.width,
        heads=sizes.heads,
        context=512,
        mixed_precision="off",
        device="cpu",
    )
    save_scratch(folder, config, [" ".join(WORDS)] * 40, 9, 0)
    lm = load_model(folder, config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in lm.parameters():
            if weight.ndim == 2:  # enlarged, so that options differ
                weight.mul_(3)
        lm.ensure_option_head().copy_(torch.randn(sizes.width, generator=generator) / sizes.width**0.5)
    lm.save(folder)
    return config


def smallest(runs: dict[str, Callable[[], Any]], repetitions: int) -> dict[str, float]:
    """Return the smallest processor time (ms) of each run over interleaved repetitions, after one to warm up."""
    times_by_run = {name: list[float]() for name in runs}
    for repetition in range(repetitions + 1):
        for name, run in runs.items():
            start = time.thread_time()
            run()
            if repetition:
                times_by_run[name].append(1000 * (time.thread_time() - start))
    return {name: min(times) for name, times in times_by_run.items()}


def speed_rows(folder: Path, config: ModelConfig, sizes: Sizes) -> list[dict[str, Any]]:
    """Measure decisions of the engine in both precisions, and of numpy."""
    light = load_light(folder, 512)
    assert light is not None
    engines = {kind: load_model(folder, replace(config, mixed_play=kind)) for kind in ("off", "on")}  # type: ignore[arg-type]
    rng, vocabulary, rows = np.random.default_rng(0), len(engines["off"].tokenizer), []
    state = random_tokens(rng, vocabulary, STATE)
    for count, length in SHAPES:
        options = list({random_tokens(rng, vocabulary, length): None for _ in range(3 * count)})[:count]
        answers, caches = Candidates(tuple(options), (1,) * count), {kind: KVCache() for kind in engines}

        def by_engine(kind: str, answers: Candidates = answers, caches: dict[str, KVCache] = caches) -> torch.Tensor:
            with engines[kind].playing():
                return engines[kind].backend.score([state], [answers], "options", [caches[kind]])[0][0]

        def by_numpy(options: Sequence[Ids] = options) -> np.ndarray:
            return light.score_options(options, light.cache_of(state))

        runs = {"engine": lambda: by_engine("off"), "engine bf16": lambda: by_engine("on"), "numpy": by_numpy}
        taken = smallest(runs, sizes.repetitions)
        difference = float(np.abs(by_engine("off").numpy() - by_numpy()).max())
        rows.append(
            {
                "options": count,
                "tokens": length,
                **{f"{name}, ms": value for name, value in taken.items()},
                "numpy / engine": taken["numpy"] / taken["engine"],
                "difference of scores": difference,
            }
        )
    return rows


def random_tokens(rng: np.random.Generator, vocabulary: int, count: int) -> Ids:
    """Draw random tokens."""
    return tuple(int(token) for token in rng.integers(1, vocabulary, size=count))


def seat(rng: np.random.Generator, actions: Sequence[str], words: int) -> LiveEpisode:
    """Return an episode with a random state and the given actions."""
    nowhere: Any = None  # players look at the observation alone
    state = " ".join(rng.choice(WORDS, size=words)) + "\n"
    return LiveEpisode(nowhere, Task("", ""), 0, rng, Observation("", state, tuple(actions)))


def order_row(folder: Path, config: ModelConfig, sizes: Sizes, count: int) -> dict[str, Any]:
    """Measure the largest difference of a probability over shuffles, by the engine and by numpy."""
    light, rng = load_light(folder, 512), np.random.default_rng(1)
    assert light is not None
    actions = [f"{rng.choice(WORDS)} {i}" for i in range(count)]
    players = {
        "engine": Policy(load_model(folder, config), Sampling(0.0), memory=0, scoring="options"),
        "numpy": LightPolicy(light, "options"),
    }
    row: dict[str, Any] = {"options": count, "shuffles": sizes.shuffles}
    for name, player in players.items():
        live, worst = seat(np.random.default_rng(2), actions, 20), 0.0
        [turn] = player.turns([live])
        first = dict(zip(actions, turn.probs, strict=True))
        for _ in range(sizes.shuffles):
            shuffled = [actions[i] for i in rng.permutation(count)]
            live.observation = Observation("", live.observation.state, tuple(shuffled))
            [turn] = player.turns([live])
            pairs = zip(shuffled, turn.probs, strict=True)
            worst = max(worst, max(abs(first[action] - probability) for action, probability in pairs))
        row[f"{name}, largest difference"] = worst
    return row


def agreement_row(folder: Path, config: ModelConfig, sizes: Sizes) -> dict[str, Any]:
    """Count the decisions of 2 to 20 options in which numpy chooses otherwise than the engine."""
    light, rng, differ = load_light(folder, 512), np.random.default_rng(3), 0
    assert isinstance(light, LightModel)
    engine = Policy(load_model(folder, config), Sampling(0.0), memory=0, scoring="options")
    ours, largest = LightPolicy(light, "options"), 0.0
    for start in range(0, sizes.decisions, 100):
        count = min(100, sizes.decisions - start)
        lives = []
        for _ in range(count):
            actions = list({" ".join(rng.choice(WORDS, size=2)): None for _ in range(int(rng.integers(2, 21)))})
            lives.append(seat(rng, actions, 15))
        for mine, theirs in zip(ours.turns(lives), engine.turns(lives), strict=True):
            gap = abs(mine.probs[mine.choice or 0] - mine.probs[theirs.choice or 0])
            differ += mine.choice != theirs.choice and gap > 1e-5
            pairs = zip(mine.probs, theirs.probs, strict=True)
            largest = max(largest, max(abs(p - q) for p, q in pairs))
    return {"decisions": sizes.decisions, "differ": differ, "largest difference": largest}


def start_seconds(folder: Path) -> float:
    """Return the processor time (s) of a process that imports the runtime and loads the model: the smallest of five."""
    command = [sys.executable, "-c", START, str(folder)]
    return min(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(5))


def main(sizes: Sizes) -> dict[str, list[dict[str, Any]]]:
    """Measure everything, and return the tables."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        config = make_scorer(folder, sizes)
        light = load_light(folder, 512)
        assert light is not None
        return {
            "model": [{**vars(sizes), "parameters": light.size, "numpy start, s": start_seconds(folder)}],
            "speed": speed_rows(folder, config, sizes),
            "order": [order_row(folder, config, sizes, count) for count in (20, 255)],
            "agreement": [agreement_row(folder, config, sizes)],
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in vars(Sizes()).items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    for title, rows in main(Sizes(**vars(parser.parse_args()))).items():
        print(f"\n{title}\n{report(rows, as_json=False)}")
