"""The bench of strangers: sound environments, players that win in them, projects as a user would have them."""

from pathlib import Path

import pytest

from benchmarks import short_prompts
from benchmarks.strangers import STRANGERS, make, module_of
from benchmarks.strangers.bench import record, table, write_project
from reflectrl.core.config import read_recipe
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.episodes import read_episodes
from reflectrl.learn.own_wins import find_wins
from reflectrl.models import packed
from reflectrl.tools.workbench.check import check_text_env

pytest.importorskip("minigrid")
pytest.importorskip("textarena")


def plays(env: TextEnv, name: str, count: int) -> int:
    """Return the number of test tasks that the best known player wins."""
    won = 0
    for number, task in enumerate(env.tasks("test")[:count]):
        _, info = env.reset(seed=number, options={"task": task})
        while not env.done:
            _, _, _, _, info = env.step(info["actions"].index(module_of(name).best(env)))
        won += env.success
    return won


@pytest.mark.filterwarnings("ignore:all tasks begin with the same text")  # dice and cliff have one start each
@pytest.mark.parametrize("name", STRANGERS)
def test_a_stranger_keeps_its_promises_and_can_be_won(name: str) -> None:
    env = make(name)
    check_text_env(env, episodes=1)
    assert plays(env, name, 4) >= 2 and len(Path(module_of(name).__file__).read_text().splitlines()) <= 100


def test_a_stranger_becomes_a_project_with_demonstrations(tmp_path: Path) -> None:
    recipe = read_recipe(write_project("fusebox", tmp_path) / "recipe.toml")
    assert recipe.env["name"] == "fusebox:Fusebox" and recipe.rl.own_wins
    for name in ("fusebox", "dice"):  # in dice, luck decides: no task may have the luck of another
        record(name, tmp_path / f"{name}.jsonl", 3)
        assert [episode.success for episode in read_episodes(tmp_path / f"{name}.jsonl")] == [True] * 3


def test_the_table_has_a_row_per_stranger_and_arm() -> None:
    line = {"name": "dice", "seed": 0, "cpu_seconds": 9.0, "best": 0.77, "success": {"random": 0.1, "rl-only": 0.7}}
    rows = table([line, {**line, "seed": 1, "success": {"random": 0.1, "rl-only": 0.75}}]).splitlines()
    assert rows[-1] == "| dice | chance | 77 % | rl-only | 70.0, 75.0 | 9, 9 |"


def test_wins_are_found_where_an_early_mistake_cannot_be_mended() -> None:
    """Thousands of bowls with the wrong flour lead nowhere; a search has to begin before them often enough."""
    tasks = make("bakery").tasks("train")[:3]
    found = [episode for episode, _ in find_wins(lambda: make("bakery"), tasks, 200_000, seed=0)]
    assert sum(episode is not None for episode in found) >= 2


def test_a_pass_on_short_prompts_is_measured_both_ways(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["short_prompts", *["--names", "berries", "--rows", "9", "--repetitions", "1"]])
    monkeypatch.setattr(packed, "SMALL", packed.SMALL)  # the program changes it
    short_prompts.main()
    name, prompts, _, *milliseconds, _ = capsys.readouterr().out.splitlines()[-1].strip("| ").split(" | ")
    assert (name, prompts) == ("berries", "9") and all(float(one) > 0 for one in milliseconds)
