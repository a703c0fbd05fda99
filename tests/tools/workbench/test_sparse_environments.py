"""What is said of environments that reward rarely, are won by no reward, or list what no player can choose from."""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from reflectrl.cli import main
from reflectrl.core.config.values import Word, read_word
from reflectrl.core.envs import make
from reflectrl.core.envs.adapter import GymTextEnv
from reflectrl.core.episodes import read_episodes
from reflectrl.core.teach import RecordEpisodes
from reflectrl.core.types import UserError
from reflectrl.learn import reward_check
from reflectrl.models.labels import MOST, candidates
from reflectrl.tools.workbench import check_env
from tests.command_line import refused

PAGE = Path(__file__).parents[3] / "docs/environments.md"
CLIFF = ("up", "right", "down", "left")
PATH = [0, *[1] * 11, 2]
"""The shortest way along the cliff."""
ADAPTED = ["check-env", "reflectrl.core.envs.adapter:GymTextEnv"]
LAKE = [*ADAPTED, "--id", "FrozenLake-v1", "--actions", '["l", "d", "r", "u"]']
LISTS = '''
from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, require_known
from reflectrl.core.types import Task

FAULTS = {"equal": ["a", "b", "a"], "empty": ["a", " "], "lines": ["a", "b\\nc"], "none": ["a", "b"]}


class Lists(TextEnv):
    """A number is hidden, which the first guess shows to be higher or not. `fault` says what is listed."""

    def __init__(self, fault: str = "none", count: int = 0) -> None:
        super().__init__(horizon=3)
        self.fault, self.count = fault, count

    def tasks(self, split, stage=None):
        require_known("lists", "split", split, SPLITS)
        require_known("lists", "stage", stage or "full", self.stages)
        return [Task(f"{split}-{n}", "lists", {"hidden": n}, split) for n in range(SPLITS.index(split), 30, 3)]

    def begin(self, task):
        self.hint = "guess"

    def apply(self, action):
        higher = self.task.payload["hidden"] > 15
        self.hint = "higher" if higher else "lower"
        won = higher == (action == "a")
        return Outcome(float(won), self.elapsed == 2, won)

    def state(self):
        return f"{self.hint}\\n"

    def legal_actions(self):
        return [f"action number {n}" for n in range(self.count)] or FAULTS[self.fault]
'''
RECIPE = """
name = "lists"
arms = ["random", "rl-only"]
env.name = "lists:Lists"
model = {layers = 1, width = 16, heads = 2, mixed_precision = "off"}
rl = {updates = 1, episodes = 4, eval_every = 1, eval_episodes = 2}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the module and a recipe that is trusted."""
    (tmp_path / "lists.py").write_text(LISTS, encoding="utf-8")
    (tmp_path / "lists.toml").write_text(RECIPE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "lists", raising=False)
    return tmp_path


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for rare reward no longer than a test may take."""
    monkeypatch.setattr(reward_check, "RARE", 600)
    monkeypatch.setattr(check_env, "EPISODES", 30)


RUN = ("run", "lists.toml", "--env.name", "lists:Lists")


def shown_class(name: str) -> type[GymTextEnv]:
    """A class that the page on environments shows."""
    code = next(
        block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if f"class {name}(" in block
    )
    known: dict[str, Any] = {"GymTextEnv": GymTextEnv}
    exec("from dataclasses import replace\n" + re.sub("(?m)^  ", "", code), known)  # noqa: S102 -- our own page
    return known[name]  # type: ignore[no-any-return]


class TestActions:
    @pytest.mark.parametrize(
        ("fault", "words"), [("equal", "legal actions are unique"), ("empty", "non-empty"), ("lines", "no newline")]
    )
    def test_a_run_refuses_what_check_env_refuses(self, here: Path, capsys: Any, fault: str, words: str) -> None:
        for command in (RUN, ("check-env", "lists:Lists")):
            option = "--env.fault" if command is RUN else "--fault"
            line = refused(capsys, *command, option, fault)
            assert words in line and "breaks a promise" in line
        assert not (here / "runs/lists").exists()

    def test_ten_thousand_are_refused_before_anything_is_played(self, here: Path, capsys: Any) -> None:
        for command, option in ((RUN, "--env.count"), (("check-env", "lists:Lists"), "--count")):
            before = time.process_time()
            assert f"10000 actions are legal at once, and labels tell at most {MOST} apart" in refused(
                capsys, *command, option, "10000"
            )
            assert time.process_time() - before < 5
        assert not (here / "runs/lists").exists()

    def test_the_bound_is_the_number_of_labels(self) -> None:
        assert len(list(candidates())) == MOST


class TestSparseReward:
    def test_the_figures_are_shown_and_the_ways_out_are_named(self, capsys: Any) -> None:
        words = [*LAKE, "--settings", '{"map_name": "8x8"}', "--horizon", "6", "--train", "60"]
        assert main(words) == 2
        said = capsys.readouterr()
        assert "some reward above 0 0 (0%)" in said.out and "the longest prompt has" in said.out
        assert "trainable by reward: no" in said.out
        assert said.err.count("\n") == 1
        for way in (
            "play reflectrl.core.envs.adapter:GymTextEnv --record demos.jsonl",
            "super().apply()",
            "rl.count_coef",
        ):
            assert way in said.err, said.err

    def test_reward_on_the_way_as_the_page_pays_it_can_be_learned_from_and_recorded(self, tmp_path: Path) -> None:
        env = shown_class("Downhill")()
        env.reset(options={"task": env.tasks("train")[0]})
        assert [round(env.step(action)[1], 6) for action in (1, 1, 0, 3)] == [0.1, 0.1, 0.0, -0.1]
        raw = gym.make("FrozenLake-v1", is_slippery=False)
        with_text = RecordEpisodes(raw, tmp_path / "d.jsonl", shown_class("Downhill")())
        with_text.reset(seed=0)
        for action in (1, 1, 2, 1, 2, 2):
            with_text.step(action)
        with_text.close()
        [episode] = read_episodes(tmp_path / "d.jsonl")
        assert episode.success and round(episode.total_reward, 6) == 1.6


class TestSuccessByReward:
    def test_check_env_doubts_a_rule_by_which_nothing_is_won(self, capsys: Any) -> None:
        words = [*ADAPTED, "--id", "CliffWalking-v1", "--actions", '["up", "right", "down", "left"]', "--train", "20"]
        assert main(words) == 0
        said = capsys.readouterr().out
        assert "\n  note: no" in said and "override won()" in said
        assert "trainable by reward: yes, returns differ (but nothing that chance found counts as won" in said

    def test_a_rule_by_which_chance_wins_is_not_doubted(self, capsys: Any) -> None:
        assert main([*LAKE, "--train", "20", "--settings", '{"is_slippery": false}', "--horizon", "30"]) == 0
        assert "override won()" in (said := capsys.readouterr().out) and "  note: " not in said

    def test_recording_says_once_why_the_best_path_is_lost(self, tmp_path: Path, caplog: Any) -> None:
        script = RecordEpisodes(gym.make("CliffWalking-v1"), tmp_path / "d.jsonl", GymTextEnv("CliffWalking-v1", CLIFF))
        for _ in range(2):
            script.reset()
            for action in PATH:
                script.step(action)
        script.close()
        [line] = [record.getMessage() for record in caplog.records]
        assert "ended with a reward of -1, so it counts as lost" in line and "override won()" in line

    def test_with_the_rule_of_the_page_it_is_won(self, tmp_path: Path, caplog: Any) -> None:
        cliff = shown_class("Cliff")()
        script = RecordEpisodes(gym.make("CliffWalking-v1"), tmp_path / "d.jsonl", cliff)
        script.reset()
        for action in PATH:
            script.step(action)
        script.close()
        [episode] = read_episodes(tmp_path / "d.jsonl")
        assert episode.success and not caplog.records and not cliff.success_rule

    def test_play_says_it_and_a_run_with_such_demonstrations_does(
        self, here: Path, capsys: Any, monkeypatch: Any
    ) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO())
        words = ["--env.id", "FrozenLake-v1", "--env.actions", '["left", "down", "right", "up"]', "--record", "d.jsonl"]
        words += ["--player", "random", "--episodes", "3"]
        assert main(["play", "reflectrl.core.envs.adapter:GymTextEnv", *words]) == 0
        said = capsys.readouterr().out
        assert said.count("note: task ") == 1 and "override won()" in said
        recipe = 'name = "shown"\narms = ["no-reflection"]\nteach = {by = "log", log = ["d.jsonl"]}\n[env]\n'
        recipe += 'name = "reflectrl.core.envs.adapter:GymTextEnv"\nid = "FrozenLake-v1"\n'
        (here / "shown.toml").write_text(recipe + 'actions = ["left", "down", "right", "up"]\n', encoding="utf-8")
        line = refused(capsys, "run", "shown.toml")
        assert "nothing to imitate (success means that the episode ends with a reward above 0" in line


class TestTasksThatBeginAlike:
    def test_what_is_hidden_is_no_reason_to_warn(self, here: Path, capsys: Any) -> None:
        assert main(["check-env", "lists:Lists"]) == 0
        assert "same text" not in capsys.readouterr().out

    def test_tasks_that_are_all_one_are_pointed_out(self, capsys: Any) -> None:
        words = [*ADAPTED, "--id", "CliffWalking-v1", "--actions", '["up", "right", "down", "left"]', "--train", "20"]
        assert main(words) == 0
        assert "the same actions then lead to the same episode" in capsys.readouterr().out


class TestSettings:
    def test_a_table_may_be_typed_as_json_or_as_toml(self) -> None:
        for word in ('{"is_slippery": false, "map_name": "8x8 # 2"}', '{is_slippery = false, map_name = "8x8"}'):
            section = {"name": ADAPTED[1], "id": "FrozenLake-v1", "actions": [*"ldru"], "settings": Word(word)}
            env: Any = make(section) if "#" not in word else None
            assert read_word(Word(word))["is_slippery"] is False
            if env is not None:
                assert env.settings == {"is_slippery": False, "map_name": "8x8"}
        assert read_word(Word("{not a table")) == "{not a table"

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ('{"is_slipery": true}', "FrozenLake-v1 of gymnasium takes no 'is_slipery' (did you mean 'is_slippery'?)"),
            ("slippery", "'settings' is a table ('{\"name\": 1}' on the command line"),
            ('{"map_name": "9x9"}', "gymnasium cannot make 'FrozenLake-v1'"),
        ],
    )
    def test_a_wrong_one_is_said_in_plain_words(self, capsys: Any, settings: str, words: str) -> None:
        assert words in refused(capsys, *LAKE, "--settings", settings)


class TestContext:
    @pytest.mark.parametrize("context", [1, 31])
    def test_one_that_is_too_short_for_any_prompt_is_named_by_its_key(
        self, here: Path, capsys: Any, context: int
    ) -> None:
        line = refused(capsys, *RUN, "--model.context", str(context))
        assert f"[model] 'context' is {context}, too short for any prompt; it must be at least 32" in line
        assert not (here / "runs/lists").exists()

    def test_a_model_that_reads_no_more_is_named(self, tmp_path: Path) -> None:
        from reflectrl.core.config import ModelConfig
        from reflectrl.models.load import load_model
        from reflectrl.models.scratch import save_scratch

        save_scratch(tmp_path, ModelConfig(layers=1, width=16, heads=2, context=16), ["Look.\n"], 2, 0)
        with pytest.raises(UserError, match="reads at most 16 tokens; players need 32 or more"):
            load_model(tmp_path, ModelConfig(), "policy")
