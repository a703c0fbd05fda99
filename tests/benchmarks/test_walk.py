"""The way from `reset` to the optimiser's step stays short enough to be read in an afternoon."""

import pytest

from benchmarks.walk import walked


@pytest.mark.parametrize(("plain", "functions", "files", "frames"), [(False, 70, 14, 14), (True, 40, 10, 14)])
def test_the_walk_from_reset_to_the_optimisers_step_is_short(
    plain: bool, functions: int, files: int, frames: int
) -> None:
    walk = walked(plain)
    found = walk.files()
    assert "models/plain.py" in found if plain else "models/packed.py" in found
    assert "wings/taxi/env.py" in found and "learn/trainer.py" in found
    assert len(walk.codes) <= functions
    assert len(found) <= files
    assert len(walk.deepest) <= frames
