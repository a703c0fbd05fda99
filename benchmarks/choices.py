"""Choice scoring: one forward pass per action, beside enumeration and action texts as branches of a shared prompt.

    python -m benchmarks.choices --sizes 4x256 gpt2-small

There are 20 actions of 5 tokens after a state of 500. Enumeration lists the actions in the prompt (two more tokens
each) and reads a label. The other two methods read no list. `texts` gives each action the log-probability of its
tokens, as the plain implementation does.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reflectrl.models.backend import Candidates
from reflectrl.models.sharing import Ids, KVCache

from .measure import interleaved, timed
from .plain import score_actions
from .settings import Settings, main, note
from .workloads import bench_model, workload

ACTIONS, STATE, LENGTH = 20, 500, 5


def tokens(rng: np.random.Generator, count: int) -> Ids:
    """Draw random tokens."""
    return tuple(int(token) for token in rng.integers(10, 400, size=count))


def row(size: str, settings: Settings) -> dict[str, Any]:
    """Measure a model size, one state at a time."""
    lm = bench_model(size, workload("taxi"), context=1024, device=settings.device, dtype=settings.dtype)
    rng = np.random.default_rng(0)
    state, actions = tokens(rng, STATE), [tokens(rng, LENGTH) for _ in range(ACTIONS)]
    listing = tuple(t for action in actions for t in (*tokens(rng, 2), *action))
    texts = Candidates(tuple(actions), (LENGTH,) * ACTIONS)
    labels = Candidates(tuple((token,) for token in range(1, ACTIONS + 1)), (1,) * ACTIONS)

    def enumeration() -> None:
        with torch.inference_mode():
            lm.backend.score([(*state, *listing)], [labels])

    def by_text() -> torch.Tensor:
        with torch.inference_mode():
            return lm.backend.score([state], [texts], "sum", [KVCache()])[0][0]

    plain = score_actions(lm, state, actions)
    runs = {
        "plain": lambda: timed(lambda: score_actions(lm, state, actions)),
        "enumeration": lambda: timed(enumeration),
        "texts": lambda: timed(by_text),
    }
    seconds = {key: statistics.median(taken) for key, taken in interleaved(runs, 5 * settings.repetitions).items()}
    return {
        "size": Path(size).name,
        "one pass per action, ms": 1000 * seconds["plain"],
        "enumeration, ms": 1000 * seconds["enumeration"],
        "texts, ms": 1000 * seconds["texts"],
        "enumeration, times faster": seconds["plain"] / seconds["enumeration"],
        "texts, times faster": seconds["plain"] / seconds["texts"],
        "texts / enumeration": seconds["texts"] / seconds["enumeration"],
        "largest difference": float((by_text() - plain).abs().max()),
    }


def rows(settings: Settings) -> list[dict[str, Any]]:
    """Return a row per size."""
    return [note(row(size, settings)) for size in settings.models]


if __name__ == "__main__":
    main(rows, __doc__)
