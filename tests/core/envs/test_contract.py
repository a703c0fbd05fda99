"""What an environment must not give is told at the step that gave it, by environment and task; nothing is written."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from corridor import CorridorEnv, CorridorTeacher

from reflectrl.core.envs.adapter import GymTextEnv
from reflectrl.core.envs.pool import EnvPool
from reflectrl.core.episodes import EpisodeLog, from_line, read_episodes, to_line
from reflectrl.core.players import AnalystPlayer, ExpertPlayer, RandomPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.teach import Demonstration, teach
from reflectrl.core.types import Task, UserError

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
worlds: Any = importlib.import_module("strange_worlds")
sys.path.remove(str(HERE))


@pytest.fixture(scope="module")
def places() -> Iterator[list[Any]]:
    """Where environments may live: in this process, and in a worker."""
    sys.path.insert(0, str(HERE))
    with EnvPool(worlds.Odd, workers=1) as pool:
        yield [worlds.Odd, pool]
    sys.path.remove(str(HERE))


def odd(name: str, at: int) -> Job:
    return Job(Task("wild", "dice", {"length": 4, "odd": name, "at": at}), 0)


@pytest.mark.parametrize("name", worlds.ODD)
def test_what_no_log_can_hold_is_told_at_the_step_and_not_written(places: Any, tmp_path: Path, name: str) -> None:
    of_a_step = worlds.ODD[name][0] not in ("legal_actions", "state", "history")
    calm = Job(Task("calm", "dice", {"length": 1}), 1)
    for where, at in zip(places * 2, (0, 0, 2, 2), strict=True):
        path = tmp_path / f"{id(where)}-{at}.jsonl"
        with EpisodeLog(path) as log, pytest.raises(UserError) as caught:
            for episode in rollout([calm, odd(name, at)], where, RandomPlayer()):
                log.append(episode)
        told = str(caught.value)
        assert told.startswith("environment Odd breaks a promise on task 'wild': ") and "\n" not in told
        told.encode()  # it can be printed
        assert [episode.task.id for episode in read_episodes(path)] == (["calm"] if at == 2 or of_a_step else [])


@pytest.mark.parametrize("name", worlds.FINE)
def test_what_a_log_can_hold_is_taken_and_read_back_equal(places: Any, name: str) -> None:
    for where in places:
        [episode] = rollout([odd(name, 0)], where, RandomPlayer())
        assert from_line(to_line(episode)) == episode


def test_the_message_says_which_promise_is_broken_and_by_what(places: Any) -> None:
    told = {}
    for name in ("no actions", "a word for a reward", "a surrogate in a state", "a number for an event"):
        with pytest.raises(UserError) as caught:
            list(rollout([odd(name, 0)], places[0], RandomPlayer()))
        told[name] = str(caught.value).partition("'wild': ")[2]
    assert told == {
        "no actions": "legal actions are not empty before the end",
        "a word for a reward": "rewards are finite numbers, not '1'",
        "a surrogate in a state": "state is text that UTF-8 can hold, without '\\udfff'",
        "a number for an event": "an event is text, not 3",
    }


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (Task("\ud800", "dice", {"length": 1}), r"on task '\\ud800': a task's id is text that UTF-8 can hold"),
        (Task(3, "dice", {"length": 1}), r"on task 3: a task's id is text, not 3"),  # type: ignore[arg-type]
        (Task("a", "dice", {"length": 1}, stage=None), r"on task 'a': a task's stage is text"),  # type: ignore[arg-type]
    ],
)
def test_a_task_that_no_log_can_hold_is_told(places: Any, task: Task, told: str) -> None:
    for where in places:
        with pytest.raises(UserError, match=told):
            list(rollout([Job(task, 0)], where, RandomPlayer()))


@pytest.mark.parametrize("payload", [{"x": float("nan")}, {"x": {1, 2}}, {"x": "\ud800"}])
def test_an_episode_whose_payload_no_log_can_hold_is_not_written(tmp_path: Path, payload: Any) -> None:
    [good, bad] = [Job(Task(name, "dice", {"length": 1, **more}), 0) for name, more in (("a", {}), ("b", payload))]
    with EpisodeLog(tmp_path / "log.jsonl") as log:
        for episode in rollout([good], worlds.Dice, RandomPlayer()):
            log.append(episode)
        with pytest.raises(UserError, match=r"log\.jsonl: the episode of task 'b' cannot be written: "):
            for episode in rollout([bad], worlds.Dice, RandomPlayer()):
                log.append(episode)
    assert [episode.task.id for episode in read_episodes(tmp_path / "log.jsonl")] == ["a"]


# ---- the teacher's hooks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hook", "value", "told"),
    [
        ("expert_action", "0", r"breaks a promise on task .*: expert_action\(\) gives the index .* not '0' of 4"),
        ("expert_action", 4, r"expert_action\(\) gives the index of a legal action, not 4 of 4"),
        ("expert_action", True, r"expert_action\(\) gives the index of a legal action, not True"),
        ("analyse", 3, r"breaks a promise on task .*: analyse\(\) is text, not 3"),
        ("analyse", "\ud800", r"analyse\(\) is text that UTF-8 can hold"),
    ],
)
def test_a_teacher_that_says_what_no_log_can_hold_is_told(hook: str, value: Any, told: str) -> None:
    teacher = type("OddTeacher", (CorridorTeacher,), {hook: lambda self, env: value})()
    env_class = type("Odd", (CorridorEnv,), {"teacher": teacher})
    task = env_class().tasks("train")[0]
    with pytest.raises(UserError, match=told):
        teach(env_class(), Demonstration(task, 0, "trajectory"))
    with pytest.raises(UserError, match=told):
        list(rollout([Job(task, 0)], env_class, ExpertPlayer(), AnalystPlayer()))


def test_a_teacher_may_count_in_numpys_numbers() -> None:
    class CountingTeacher(CorridorTeacher):
        def expert_action(self, env: Any) -> Any:
            return np.int64(super().expert_action(env))

    class Counting(CorridorEnv):
        teacher = CountingTeacher()

    task = Counting().tasks("train")[0]
    for episode in (
        teach(Counting(), Demonstration(task, 0, "trajectory")),
        *rollout([Job(task, 0)], Counting, ExpertPlayer()),
    ):
        assert from_line(to_line(episode)) == episode


@pytest.mark.parametrize("error", [RuntimeError("no map"), SystemExit(3)])
@pytest.mark.parametrize("hook", ["expert_action", "analyse", "apply"])
def test_whatever_a_teachers_environment_raises_is_one_line(hook: str, error: BaseException) -> None:
    def fail(*_: object) -> None:
        raise error

    teacher = type("LostTeacher", (CorridorTeacher,), {hook: fail})() if hook != "apply" else CorridorTeacher()
    env_class = type(
        "Lost", (CorridorEnv,), {"teacher": teacher, "apply": fail if hook == "apply" else CorridorEnv.apply}
    )
    task = env_class().tasks("train")[0]
    told = rf"raised on task '{task.id}': {type(error).__name__}: "
    with pytest.raises(UserError, match=told):
        teach(env_class(), Demonstration(task, 0, "trajectory"))
    with pytest.raises(UserError, match=told):
        list(rollout([Job(task, 0)], env_class, ExpertPlayer(), AnalystPlayer()))


# ---- environments of gymnasium ---------------------------------------------------------------------------------------


class Words(gym.Env[int, int]):
    """Pays in words."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012
    observation_space, action_space = gym.spaces.Discrete(1), gym.spaces.Discrete(2)
    render_mode = "ansi"

    def __init__(self, render_mode: str = "ansi") -> None:
        pass

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        return 0, {}

    def step(self, action: int) -> Any:
        return 0, "1", False, False, {}

    def render(self) -> Any:
        return "here"


def test_a_reward_in_words_is_not_taken_from_gymnasium_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gym.registry, "Words-v0", gym.envs.registration.EnvSpec("Words-v0", entry_point=Words))
    env = GymTextEnv("Words-v0", ["a", "b"])
    with pytest.raises(
        UserError, match=r"raised on task 'words-v0-0': ValueError: rewards are finite numbers, not '1'"
    ):
        list(rollout([Job(env.tasks("train")[0], 0)], lambda: env, RandomPlayer()))
