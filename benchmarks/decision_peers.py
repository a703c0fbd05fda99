"""Milliseconds per decision without torch, compared with two small deciders from PyPI, on one core.

    pip install sparrow-decider simthinkd
    OMP_NUM_THREADS=1 python -m benchmarks.decision_peers

Each is asked through its own interface, about a new state every time, so nothing comes from a cache. Rendering and
tokenizing are included. Ours are policies with random weights that score options (`play.scoring = "options"`), since
only time is measured. `simthinkd` knows at most eight options. Times are processor time, in milliseconds: medians of
interleaved repetitions.

The three differ in what they can do: ours and `simthinkd`'s answer one question in one world, after training for it;
`sparrow-decider`'s answers any question.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from reflectrl.models.light import LightPolicy, load_light

from .decisions import WORDS, Sizes, make_scorer, seat
from .measure import report

Decide = Callable[[np.random.Generator, list[str]], Any]
"""Draws a state and decides among some options."""

FEW, MANY = 7, 20
"""Numbers of options."""
WORDS_OF_STATE = 16


def ours(folder: Path, layers: int, width: int) -> tuple[int, Decide]:
    """Return the size of a policy of ours, and how it decides."""
    make_scorer(folder, Sizes(layers=layers, width=width, heads=width // 32))
    light = load_light(folder, 512)
    assert light is not None
    player = LightPolicy(light, "options")
    return light.size, lambda rng, options: player.turns([seat(rng, options, WORDS_OF_STATE)])


def sparrow() -> tuple[int, Decide]:
    """Return the size of `sparrow-decider`'s default model, and how it decides."""
    from sparrow_decider import Decider

    decider = Decider.load()

    def decide(rng: np.random.Generator, options: list[str]) -> Any:
        question = {"type": "choice", "instructions": "What next?", "criteria": dict.fromkeys(options, "")}
        return decider.ask(" ".join(rng.choice(WORDS, size=WORDS_OF_STATE)), {"next": question})

    return int(decider.cfg["vocab_size"] * decider.cfg["dim"]), decide  # its table of words is nearly all of it


def simthink() -> tuple[int, Decide]:
    """Return the size of a decider of `simthinkd`, and how it decides."""
    from simthinkd import Decider, build_request

    decider = Decider("doom-defend")

    def decide(rng: np.random.Generator, options: list[str]) -> Any:
        state = " ".join(rng.choice(WORDS, size=WORDS_OF_STATE))
        return decider.predict(build_request(state, dict.fromkeys(options, ""), "What next?"))

    return 265_665, decide  # its documentation gives this size


def main(repetitions: int = 100) -> None:
    """Print a line per decider."""
    with tempfile.TemporaryDirectory() as folder:
        makers: dict[str, Callable[[], tuple[int, Decide]]] = {
            "ours, 2 layers of 96": lambda: ours(Path(folder, "small"), 2, 96),
            "ours, 4 layers of 192": lambda: ours(Path(folder, "large"), 4, 192),
            "sparrow-decider": sparrow,
            "simthinkd": simthink,
        }
        deciders = dict[str, tuple[int, Decide]]()
        for name, make in makers.items():
            try:
                deciders[name] = make()
            except ModuleNotFoundError as error:
                print(f"{name} is left out: {error.name} is not installed")
        rng = np.random.default_rng(0)
        options = [f"{word} {i}" for i, word in enumerate(WORDS[:MANY])]
        taken: dict[tuple[str, int], list[float]] = {}
        for repetition in range(repetitions + 3):
            for name, (_, decide) in deciders.items():
                for count in (FEW, MANY) if name != "simthinkd" else (FEW,):
                    start = time.thread_time()
                    decide(rng, options[:count])
                    if repetition >= 3:  # the first ones warm up
                        taken.setdefault((name, count), []).append(1000 * (time.thread_time() - start))
    rows = []
    for name, (size, _) in deciders.items():
        times = {f"{count} options, ms": float(np.median(taken.get((name, count), np.nan))) for count in (FEW, MANY)}
        rows.append({"decider": name, "parameters": size, **times})
    print(report(rows, as_json=False))


if __name__ == "__main__":
    tyro.cli(main)
