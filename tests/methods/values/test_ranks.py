"""Critics on several ranks: the first one makes them alone, so models that are divided among all are refused."""

from pathlib import Path

from tests.runs.launcher import Launcher


def test_models_that_are_divided_are_refused_before_anything_is_made(
    launcher: Launcher, recipe_file: Path, tmp_path: Path
) -> None:
    launcher.begin(2, "run", str(recipe_file), "--folder", "run", "--arms", "archer", "--model.shard", "true")
    codes, (said, others) = launcher.end()
    told = [*said, *others]
    assert codes == [2, 2] and len(told) == 1 and "values archer (seed 0) is learned by the first process" in told[0], (
        told
    )
    assert not (tmp_path / "run" / "episodes").exists()
