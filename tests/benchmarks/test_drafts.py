"""Drafts in whole episodes of a finished run."""

from pathlib import Path

import pytest

from benchmarks.drafts import Asked, rows
from reflectrl.core.types import UserError


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_episodes_are_played_with_and_without_guesses(finished: Path, temperature: float) -> None:
    found = rows(Asked(finished, episodes=3, batches=(1, 3), temperature=temperature, repetitions=1))
    assert [(row["batch"], row["episodes"], row["the same"]) for row in found] == [(1, 3, 3), (3, 3, 3)]
    assert all(row["per pass"] >= 1 and row["steps/s"] > 0 for row in found)


def test_an_arm_without_a_reflector_has_nothing_to_guess(finished: Path) -> None:
    with pytest.raises(UserError, match="random"):
        rows(Asked(finished, arm="random"))
