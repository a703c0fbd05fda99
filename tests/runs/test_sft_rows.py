"""The rows on which players are fine-tuned, from the episodes of a finished run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from reflectrl.core.config import Recipe
from reflectrl.models.load import load_model
from reflectrl.runs.training import sft_examples

LIKE = Callable[..., Recipe]


def test_equal_rows_of_the_reflector_count_once_if_the_recipe_says_so(finished: Path, like: LIKE) -> None:
    log = finished / "episodes" / "teach-seed0-train.jsonl"
    lm = load_model(finished / "checkpoints" / "seed0" / "base", like().model)
    every = list(sft_examples(like(), lm, "reflector", log, True, 0))
    distinct = list(sft_examples(like("sft.distinct_reflections=true"), lm, "reflector", log, True, 0))
    assert len(distinct) < len(every) and set(distinct) == set(every)
    assert len(set(distinct)) == len(distinct)
    policy = [
        len(sft_examples(like(*more), lm, "policy", log, True, 0)) for more in ((), ("sft.distinct_reflections=true",))
    ]
    assert policy[0] == policy[1]
