"""The Python API: training, loading, acting and evaluating, as a program does it."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import reflectrl
from reflectrl import UserError
from reflectrl.core.config import Recipe, load_recipe, read_recipe
from reflectrl.core.types import Observation

SETTINGS: dict[str, Any] = {
    "arms": ["random", "sft", "reflect-rl"],
    "model": {"layers": 1, "width": 32, "heads": 2},
    "teach": {"tasks": 8},
    "sft": {"steps": 20, "eval_every": 10},
    "rl": {"updates": 1, "episodes": 4, "eval_episodes": 2, "curriculum": "none"},
    "eval": {"episodes": 5},
    "play": {"reflection_tokens": 8},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> reflectrl.Run:
    return reflectrl.train("corridor", tmp_path_factory.mktemp("api") / "run", **SETTINGS)


def test_every_public_name_is_there() -> None:
    for name in reflectrl.__all__:
        if find_spec(reflectrl._HOME[name]) is not None:  # rooms beside the core may be missing
            assert getattr(getattr(reflectrl, name), "__name__", name) == name
    assert set(reflectrl.__all__) <= set(dir(reflectrl))
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = reflectrl.trian  # type: ignore[attr-defined]


def test_training_leaves_results_and_goes_on(run: reflectrl.Run) -> None:
    assert {row["arm"] for row in run.results["rows"]} == set(SETTINGS["arms"])
    before = (run.folder / "results.json").read_bytes()
    again = reflectrl.train("corridor", run.folder, **SETTINGS)
    assert again == run and (run.folder / "results.json").read_bytes() == before


def test_a_stage_ends_it_early_and_says_so(tmp_path: Path) -> None:
    taught = reflectrl.train("corridor", tmp_path / "run", until="teach", **SETTINGS)
    assert any((taught.folder / "episodes").iterdir())
    with pytest.raises(UserError, match="no results there yet"):
        _ = taught.results


def test_the_agent_plays_as_the_evaluation_of_the_run_has_it(run: reflectrl.Run) -> None:
    agent = reflectrl.load_agent(run, "sft")
    _, row = reflectrl.evaluate(agent, "corridor", episodes=5)
    _, kept = [row for row in run.results["rows"] if (row["arm"], row["split"]) == ("sft", "test")]
    assert {key: row[key] for key in ("episodes", "success", "return")} == {
        key: kept[key] for key in ("episodes", "success", "return")
    }


def test_acting_step_by_step_is_what_a_rollout_does(run: reflectrl.Run) -> None:
    agent, env = reflectrl.load_agent(run, "reflect-rl"), reflectrl.make_env("corridor", slippery=False, test=6)
    won, returns, tasks = 0, 0.0, env.tasks("test")
    for task in tasks:
        env.reset(options={"task": task})
        agent.reset()
        while not env.done:
            observation = env.observe()
            action = agent.act(observation)
            assert isinstance(agent.reflection, str)
            assert set(agent.probabilities) == set(observation.actions)
            assert agent.probabilities[observation.actions[action]] == max(agent.probabilities.values())
            returns += env.step(action)[1]
        won += env.success
    _, row = reflectrl.evaluate(agent, env)
    assert (row["success"], row["return"]) == (won / len(tasks), pytest.approx(returns / len(tasks)))


def test_plain_text_and_a_list_of_actions_are_enough(run: reflectrl.Run) -> None:
    agent = reflectrl.load_agent(run.folder)
    assert agent.name == "reflect-rl"
    assert agent.act("A F\nF G\nLast: none\n", ["left", "down"]) in (0, 1)
    assert agent.act("F F\nA G\nLast: down\n", ["left", "down", "right"]) in (0, 1, 2)


def test_players_that_need_no_training_are_evaluated_by_name() -> None:
    _, row = reflectrl.evaluate("expert", reflectrl.make_env("corridor", test=3), episodes=4)
    assert (row["arm"], row["episodes"], row["success"], row["high"]) == ("expert", 3, 1.0, 1.0)
    assert 0 < row["low"] < 1


def test_a_class_is_an_environment(tmp_path: Path) -> None:
    kind = type(reflectrl.make_env("corridor"))
    assert isinstance(reflectrl.make_env(kind, length=4), kind)
    taught = reflectrl.train(kind, tmp_path / "run", until="teach", **SETTINGS)
    assert any((taught.folder / "episodes").iterdir())


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda run: reflectrl.train("corridr"), "unknown environment 'corridr' .did you mean 'corridor'"),
        (lambda run: reflectrl.train("corridor", sfft={}), "unknown key 'sfft'.*did you mean 'sft'"),
        (lambda run: reflectrl.train({"length": 5}), "names no environment"),
        (lambda run: reflectrl.train(Recipe(), sft={}), "a Recipe already has all settings; set 'sft' in it"),
        (lambda run: reflectrl.load_agent("nowhere"), "nowhere is not a run folder"),
        (lambda run: reflectrl.load_agent(run, runtime="numpy"), "not an agent's folder"),
        (lambda run: reflectrl.load_agent(run, "sfd"), "unknown arm 'sfd'"),
        (lambda run: reflectrl.load_agent(run, "no-reflection"), "is not trained yet"),
        (lambda run: reflectrl.evaluate("expart", "corridor"), "unknown player 'expart'"),
        (lambda run: reflectrl.load_agent(run).act("A\n"), "no legal actions to choose from"),
        (lambda run: reflectrl.load_agent(run).act(Observation("", "A\n", ())), "no legal actions to choose from"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    run: reflectrl.Run, mistake: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        mistake(run)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_importing_the_package_imports_nothing_slow() -> None:
    code = "import sys, reflectrl; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


PROJECT = '''
from corridor import CorridorEnv


class MyHall(CorridorEnv):
    """The corridor, in a project of one's own."""
'''
"""The package of a project, as `init` makes one."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder here, `my_hall`, with an environment and a recipe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "my_hall"
    folder.mkdir()
    (folder / "__init__.py").write_text(PROJECT, encoding="utf-8")
    recipe = 'name = "hall-one"\narms = ["random"]\n[env]\nname = "my_hall:MyHall"\nlength = 4\n[eval]\nepisodes = 2\n'
    (folder / "recipe.toml").write_text(recipe, encoding="utf-8")
    yield folder
    sys.modules.pop("my_hall", None)


class TestProjects:
    """A name means in Python what it means on the command line."""

    @pytest.mark.parametrize("how", ["by its name", "by its class", "with arguments"])
    def test_a_project_is_trained_by_its_own_recipe(self, project: Path, how: str) -> None:
        from my_hall import MyHall  # type: ignore[import-not-found]

        given: Any = {"by its name": "my_hall", "by its class": MyHall, "with arguments": {"name": "my_hall"}}[how]
        run = reflectrl.train(given, seeds=[3], eval={"splits": ["test"]})
        assert run.folder == Path("runs/hall-one")
        kept = load_recipe(run.folder / "recipe.toml")
        assert (kept.arms, kept.seeds, kept.env["length"]) == (("random",), (3,), 4)
        assert (kept.eval.episodes, kept.eval.splits) == (2, ("test",))

    def test_arguments_go_before_those_of_the_recipe(self, project: Path) -> None:
        assert reflectrl.make_env("my_hall").length == 4  # type: ignore[attr-defined]
        assert reflectrl.make_env({"name": "my_hall", "length": 6}).length == 6  # type: ignore[attr-defined]
        assert reflectrl.make_env("my_hall", length=7).length == 7  # type: ignore[attr-defined]
        assert reflectrl.evaluate("random", "my_hall", episodes=2)[-1]["episodes"] == 2

    def test_another_class_of_its_package_is_no_project(self, project: Path) -> None:
        from my_hall import CorridorEnv

        run = reflectrl.train(CorridorEnv, until="teach", arms=["random"])
        assert run.folder == Path("runs/corridorenv")

    def test_code_beside_its_own_needs_trust_told_in_pythons_words(self, project: Path) -> None:
        path = project / "recipe.toml"
        path.write_text(path.read_text(encoding="utf-8") + '[rewards]\n"elsewhere:Spy" = 1.0\n', encoding="utf-8")
        with pytest.raises(UserError, match="wants to run code: .*elsewhere:Spy.* say so once with trust=True$"):
            reflectrl.train("my_hall")

    def test_demonstrations_find_an_arm_that_learns_from_them(self, project: Path) -> None:
        taught = reflectrl.train("corridor", "taught", until="teach", arms=["sft"], teach={"tasks": 8})
        log = next((taught.folder / "episodes").glob("teach-*-train.jsonl"))
        with pytest.warns(UserWarning, match=r'so this is run: arms=\["random", ".*"\] name="hall-one-shown"'):
            run = reflectrl.train("my_hall", until="teach", teach={"by": "log", "log": [str(log)], "check_log": False})
        assert run.folder == Path("runs/hall-one-shown")

    def test_a_path_may_be_a_text(self, project: Path) -> None:
        with pytest.raises(UserError, match="say so once with trust=True$"):
            load_recipe("my_hall/recipe.toml")
        assert load_recipe("my_hall/recipe.toml", trust=True) == load_recipe(Path("my_hall/recipe.toml"))
        assert read_recipe("my_hall/recipe.toml", {"rl": {"lr": 0.5}}).rl.lr == 0.5

    @pytest.mark.parametrize(
        ("mistake", "message"),
        [
            (lambda: reflectrl.train("my_hall", rll={}), "^the given settings: unknown key 'rll'"),
            (lambda: reflectrl.train("my_hall", rl={"lr": "fast"}), "^the given settings: 'rl.lr' must be a number"),
            (lambda: read_recipe("my_hall/recipe.toml", ["rl.lrr=1"]), "^the given settings: unknown key 'rl.lrr'"),
            (lambda: read_recipe("my_hall/recipe.toml", ["lr"]), "overrides are written key=value"),
            (lambda: reflectrl.train("my_hal"), "did you mean 'my_hall'"),
        ],
    )
    def test_no_message_speaks_of_the_command_line(self, project: Path, mistake: Any, message: str) -> None:
        with pytest.raises(UserError, match=message) as found:
            mistake()
        assert " --" not in re.sub("`[^`]*`", "", str(found.value))

    def test_another_training_in_the_folder_is_told_in_pythons_words(self, run: reflectrl.Run) -> None:
        with pytest.raises(UserError, match="use another folder, or remove this one$"):
            reflectrl.train("corridor", run.folder, **{**SETTINGS, "sft": {"steps": 21, "eval_every": 10}})
