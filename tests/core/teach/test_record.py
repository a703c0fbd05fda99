"""Recording: which steps are to be imitated, what reaches the file, and what a script plays through the wrapper."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import reflectrl
from reflectrl.core.envs import make
from reflectrl.core.envs.adapter import GymTextEnv
from reflectrl.core.episodes import as_foreign, read_episodes
from reflectrl.core.teach import RecordEpisodes, Recorder, Recording, replayed, tasks_of
from reflectrl.core.types import Episode, Observation, Task, UserError

CLIFF = ("up", "right", "down", "left")
LAKE = ("left", "down", "right", "up")
SEEN = Observation("", "a room", ("on", "off"))
TASK = Task("one", "lamp", {"n": 1})


def labels(episode: Episode) -> list[str | None]:
    return [step.label for step in episode.steps]


def recording(*players: str) -> Recording:
    made = Recording(TASK, 3)
    for player in players:
        made.step(SEEN, 1, -0.5, player=player)
    return made


class TestLabels:
    def test_steps_of_a_person_are_imitated_where_they_won(self) -> None:
        episode = recording("human", "human").finished(success=True)
        assert labels(episode) == ["positive"] * 2 and [step.target for step in episode.steps] == [1, 1]

    def test_nothing_of_a_lost_episode_is(self) -> None:
        assert labels(recording("human", "human").finished(success=False)) == [None, None]

    def test_steps_of_other_players_are_context(self) -> None:
        episode = recording("random", "policy", "human", "expert").finished(success=True)
        assert labels(episode) == [None, None, "positive", "positive"]

    def test_after_a_mistake_comes_a_negative_example(self) -> None:
        made = recording("human", "human", "human")
        made.mistake(2)
        made.step(SEEN, 0, 1.0, reflection="That led nowhere. Next: on.")
        made.step(SEEN, 0, 1.0)
        assert labels(made.finished(success=True)) == ["positive", None, None, "negative", "positive"]

    def test_what_was_undone_is_gone_and_known(self) -> None:
        made = recording("human", "human")
        made.comment("odd")
        made.mistake()
        made.undo()
        episode = made.finished(success=True)
        assert labels(episode) == ["positive"]
        assert episode.provenance == {"undone": [{"step": 1, "action": "off"}]}


class TestRecorder:
    def test_it_appends_whole_episodes_and_knows_their_tasks(self, tmp_path: Path) -> None:
        for n in range(2):
            with reflectrl.Recorder(tmp_path / "d.jsonl") as recorder:
                task = Task(f"t{n}", "lamp", {"n": n})
                assert recorder.count == n and not recorder.has(task)
                begun = recorder.begin(task)
                begun.step(SEEN, 0, 1.0, ("won",), "Switch it on.")
                recorder.append(begun.finished(success=True))
                assert recorder.has(task)
        episodes = list(read_episodes(tmp_path / "d.jsonl"))
        assert [episode.task.id for episode in episodes] == ["t0", "t1"]
        assert episodes[0].steps[0].reflection == "Switch it on."

    def test_what_a_kill_left_is_cut_off(self, tmp_path: Path) -> None:
        path = tmp_path / "d.jsonl"
        with Recorder(path) as recorder:
            recorder.append(recording("human").finished(success=True))
        whole = path.read_bytes()
        path.write_bytes(whole + whole[:40])
        with Recorder(path) as recorder:
            assert recorder.count == 1
        assert path.read_bytes() == whole

    def test_a_whole_episode_without_a_line_break_is_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "d.jsonl"
        with Recorder(path) as recorder:
            recorder.append(recording("human").finished(success=True))
        whole = path.read_bytes()
        path.write_bytes(whole.rstrip(b"\n"))
        assert len(list(read_episodes(path))) == 1
        with Recorder(path) as recorder:
            assert recorder.count == 1
        assert path.read_bytes() == whole

    @pytest.mark.parametrize(
        ("content", "line"), [("my notes", 1), ("my notes\n", 1), ('{"schema":9}\n', 1), ("{}\nmore", 1), ("\n", 1)]
    )
    def test_a_file_of_something_else_is_left_alone(self, tmp_path: Path, content: str, line: int) -> None:
        path = tmp_path / "notes.txt"
        path.write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match=f"notes.txt:{line}: not an episode of a log"):
            Recorder(path)
        assert path.read_text(encoding="utf-8") == content

    def test_one_recorder_at_a_time_writes(self, tmp_path: Path) -> None:
        path = tmp_path / "d.jsonl"
        with Recorder(path) as recorder:
            recorder.append(recording("human").finished(success=True))
            with pytest.raises(UserError, match=r"another recorder is at work on .*d\.jsonl"):
                Recorder(path)
            recorder.append(recording("human").finished(success=False))
        with Recorder(path) as recorder:
            assert recorder.count == 2

    def test_one_that_refuses_a_file_lets_go_of_it(self, tmp_path: Path) -> None:
        path = tmp_path / "d.jsonl"
        path.write_text("notes\n", encoding="utf-8")
        with pytest.raises(UserError, match="not an episode of a log"):
            Recorder(path)
        path.write_text("", encoding="utf-8")
        with Recorder(path) as recorder:
            assert recorder.count == 0

    def test_one_log_has_one_environment(self, tmp_path: Path) -> None:
        with Recorder(tmp_path / "d.jsonl") as recorder:
            recorder.append(recording("human").finished(success=True))
        with Recorder(tmp_path / "d.jsonl") as recorder, pytest.raises(UserError, match="holds episodes of 'lamp'"):
            recorder.begin(Task("x", "door"))


def walk(env: Any, actions: str, seed: int | None = None) -> None:
    """A script that knows nothing of being recorded."""
    env.reset(seed=seed)
    for action in actions:
        _, _, terminated, truncated, _ = env.step(int(action))
        if terminated or truncated:
            return


class TestRecordEpisodes:
    def test_a_text_environment_is_recorded_as_it_is(self, tmp_path: Path) -> None:
        env = RecordEpisodes(make({"name": "corridor", "slippery": True}), tmp_path / "d.jsonl")
        for _ in range(3):
            env.reset()
            while not env.unwrapped.done:
                env.reflect(env.unwrapped.teacher.analyse(env.unwrapped))
                env.step(env.unwrapped.teacher.expert_action(env.unwrapped))
        env.close()
        episodes = list(read_episodes(tmp_path / "d.jsonl"))
        plain = make({"name": "corridor", "slippery": True})
        assert [episode.task for episode in episodes] == list(plain.tasks("train")[:3])
        assert [replayed(plain, as_foreign(episode), tasks_of(plain)) for episode in episodes] == episodes
        assert all(step.reflection and step.label == "positive" for episode in episodes for step in episode.steps)

    def test_a_seed_draws_the_task_that_the_environment_draws(self, tmp_path: Path) -> None:
        plain = make({"name": "corridor"})
        env = RecordEpisodes(make({"name": "corridor"}), tmp_path / "d.jsonl")
        assert env.reset(seed=5)[0] == plain.reset(seed=5)[0]
        env.close()

    def test_a_plain_environment_gets_the_text_in_which_players_are_taught(self, tmp_path: Path) -> None:
        text = GymTextEnv("FrozenLake-v1", LAKE, settings={"is_slippery": False}, history=True)
        env = RecordEpisodes(gym.make("FrozenLake-v1", is_slippery=False), tmp_path / "d.jsonl", text)
        walk(env, "112122")
        walk(env, "1", seed=7)  # broken off: not recorded
        walk(env, "1121", seed=3)
        walk(env, "112122", seed=4)
        env.close()
        episodes = list(read_episodes(tmp_path / "d.jsonl"))
        assert [(one.task.payload["seed"], one.success, len(one.steps)) for one in episodes] == [
            (0, True, 6), (4, True, 6),
        ]  # fmt: skip
        taught = GymTextEnv("FrozenLake-v1", LAKE, settings={"is_slippery": False}, history=True)
        assert [replayed(taught, as_foreign(episode), tasks_of(taught)) for episode in episodes] == episodes
        assert episodes[0].steps[0].observation.actions == LAKE

    def test_a_limit_of_the_script_ends_the_episode(self, tmp_path: Path) -> None:
        script = gym.make("CliffWalking-v1", max_episode_steps=2)
        env = RecordEpisodes(script, tmp_path / "d.jsonl", GymTextEnv("CliffWalking-v1", CLIFF))
        walk(env, "000")
        env.close()
        [episode] = read_episodes(tmp_path / "d.jsonl")
        assert (episode.success, episode.truncated, len(episode.steps)) == (False, True, 2)

    def test_the_next_task_is_one_that_is_not_recorded(self, tmp_path: Path) -> None:
        for seed in range(2):
            env = RecordEpisodes(make({"name": "corridor"}), tmp_path / "d.jsonl")
            env.reset()
            assert env.unwrapped.task.payload == {"map": seed}
            while not env.unwrapped.done:
                env.step(env.unwrapped.teacher.expert_action(env.unwrapped))
            env.close()

    def test_a_text_of_other_settings_is_refused_at_the_first_difference(self, tmp_path: Path) -> None:
        text = GymTextEnv("FrozenLake-v1", LAKE, settings={"is_slippery": False, "desc": ["SF", "FF", "FG"]})
        env = RecordEpisodes(
            gym.make("FrozenLake-v1", is_slippery=False, desc=["SF", "FG"]), tmp_path / "d.jsonl", text
        )
        with pytest.raises(UserError, match="make both with the same settings"):
            walk(env, "12")
        env.close()
        assert not list(read_episodes(tmp_path / "d.jsonl"))

    def test_what_is_not_legal_as_text_is_not_recorded(self, tmp_path: Path, caplog: Any) -> None:
        names = ("south", "north", "east", "west", "pickup", "dropoff")
        text = GymTextEnv("Taxi-v4", names)
        env = RecordEpisodes(gym.make("Taxi-v4"), tmp_path / "d.jsonl", text)
        env.reset()
        masked = next(i for i, name in enumerate(names) if name not in text.legal_actions())
        with caplog.at_level(logging.WARNING):
            env.step(masked)
        assert "is not a legal action" in caplog.text
        env.step(0)
        env.close()
        assert not list(read_episodes(tmp_path / "d.jsonl"))

    def test_without_text_it_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="give a GymTextEnv of it"):
            RecordEpisodes(gym.make("CliffWalking-v1"), tmp_path / "d.jsonl")

    def test_a_seed_without_a_task_is_refused(self, tmp_path: Path) -> None:
        text = GymTextEnv("CliffWalking-v1", CLIFF)
        env = RecordEpisodes(gym.make("CliffWalking-v1"), tmp_path / "d.jsonl", text)
        with pytest.raises(UserError, match="has no task with seed 5000"):
            env.reset(seed=5000)
        env.close()
