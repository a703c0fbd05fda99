"""Demonstrations of a log: played again, divided by task, refused by file and line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reflectrl.core.config import TeachConfig
from reflectrl.core.envs import make
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.episodes import EpisodeLog, as_foreign, task_key
from reflectrl.core.players import RandomPlayer
from reflectrl.core.players.simple import AnalystPlayer, ExpertPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.teach import demonstrations, has_reflections, recorded, replayed, tasks_of, teach
from reflectrl.core.teach.recorded import require_lessons
from reflectrl.core.types import Episode, Task, UserError

SECTION: dict[str, Any] = {"name": "corridor", "train": 12, "validation": 4}


def played(
    split: str = "train", count: int = 6, player: Any = None, reflector: Any = None, **section: Any
) -> list[Episode]:
    env = make(SECTION | section)
    jobs = [Job(task, n) for n, task in enumerate(env.tasks(split)[:count])]
    return list(rollout(jobs, lambda: env, player or ExpertPlayer(), reflector, batch=1))


@pytest.fixture
def env() -> TextEnv:
    return make(SECTION)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """`write(episodes)`: a log of them."""

    def written(episodes: list[Episode], name: str = "d.jsonl") -> Path:
        with EpisodeLog(tmp_path / name) as log:
            for episode in episodes:
                log.append(episode)
        return tmp_path / name

    return written


class TestReplay:
    @pytest.mark.parametrize("section", [{}, {"slippery": True}, {"history": True}, {"impossible": "hidden"}])
    def test_an_episode_goes_as_it_went(self, section: dict[str, Any]) -> None:
        env = make(SECTION | section)
        for player in (None, RandomPlayer()):
            for episode in played(player=player, reflector=AnalystPlayer(), **section):
                assert replayed(env, as_foreign(episode), tasks_of(env)) == episode

    def test_so_does_one_of_a_teacher_with_its_labels(self, env: TextEnv) -> None:
        """Teaching episodes of a run are demonstrations as well; negatives break off."""
        for one in demonstrations(env.tasks("train")[:4], TeachConfig(), 0):
            episode = teach(env, one)
            assert replayed(env, as_foreign(episode), tasks_of(env)) == episode

    @pytest.mark.parametrize(
        ("section", "problem"),
        [
            ({"length": 7}, "step 1: the environment shows '. . . . . . A'|step 1: the environment shows"),
            ({"impossible": "hidden"}, "step 1: the legal actions are"),
            ({"train": 2}, "has no task 'corridor-full-3' with these settings"),
            ({"horizon": 1}, "step 2: the episode is over after step 1"),
        ],
    )
    def test_other_settings_show(self, section: dict[str, Any], problem: str) -> None:
        other = make(SECTION | section)
        with pytest.raises(ValueError, match=problem):
            replayed(other, as_foreign(played()[3]), tasks_of(other))

    def test_an_episode_of_another_environment_is_named(self, env: TextEnv) -> None:
        episode = replace(played()[0], task=Task("x", "lamp", {"map": 0}))
        with pytest.raises(ValueError, match="an episode of 'lamp', but the environment is 'corridor'"):
            replayed(env, as_foreign(episode), tasks_of(env))


class TestRecorded:
    def test_no_task_is_in_both_parts_and_the_seed_decides(self, env: TextEnv, write: Any) -> None:
        path = write(played(count=10) + played(count=10, player=RandomPlayer()))
        parts = recorded(env, [path], seed=0)
        keys = {part: {task_key(one.task) for one in episodes} for part, episodes in parts.items()}
        assert len(keys["train"]) == 8 and len(keys["validation"]) == 2 and not keys["train"] & keys["validation"]
        assert sum(map(len, parts.values())) == 20
        assert parts == recorded(env, [path], seed=0)
        assert any(parts != recorded(env, [path], seed=seed) for seed in range(1, 5))

    def test_an_episode_that_is_there_twice_counts_once_and_is_told(
        self, env: TextEnv, write: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        once = played(count=4)
        parts = recorded(env, [write(once, "once.jsonl")], seed=0)
        assert not caplog.messages
        elsewhere = [replace(episode, provenance={"player": "another"}) for episode in once[:1]]
        twice = write(once + once[:2] + elsewhere, "twice.jsonl")
        assert recorded(env, [twice], seed=0) == parts
        assert caplog.messages == [
            f"reflectrl: {twice}: 3 episodes repeat an earlier one step for step; each counts once"
        ]

    def test_another_play_of_a_task_counts(self, env: TextEnv, write: Any) -> None:
        path = write(played(count=4) + played(count=4, player=RandomPlayer()))
        assert sum(map(len, recorded(env, [path], seed=0).values())) == 8

    def test_validation_tasks_of_the_environment_stay_so(self, env: TextEnv, write: Any) -> None:
        parts = recorded(env, [write(played(count=3)), write(played("validation", 2), "v.jsonl")], seed=0)
        assert [one.task.split for one in parts["train"]] == ["train"] * 3
        assert [one.task.split for one in parts["validation"]] == ["validation"] * 2

    def test_won_episodes_are_imitated_and_lost_ones_are_not(self, env: TextEnv, write: Any) -> None:
        parts = recorded(env, [write(played() + played(player=RandomPlayer()))], seed=0)
        for episode in parts["train"] + parts["validation"]:
            for step in episode.steps:
                assert (step.label, step.target) == (("positive", step.action) if episode.success else (None, None))

    def test_reflections_are_needed_in_both_parts(self, env: TextEnv, write: Any) -> None:
        with_them, without = played(reflector=AnalystPlayer()), played()
        assert has_reflections(recorded(env, [write(with_them, "a.jsonl")], 0))
        assert not has_reflections(recorded(env, [write(without, "b.jsonl")], 0))

    @pytest.mark.parametrize(
        ("episodes", "problem"),
        [
            (lambda: [], "d.jsonl holds no episodes; record some: reflectrl play ENV --record"),
            (lambda: played(count=1) * 2, "at least two are needed"),
            (lambda: [*played(), *played("test", 1)], "d.jsonl:7: task 'corridor-full-2000' is one of the test tasks"),
            (lambda: played(length=6), "d.jsonl:1: step 1: the environment shows"),
        ],
    )
    def test_what_cannot_teach_is_refused(self, env: TextEnv, write: Any, episodes: Any, problem: str) -> None:
        with pytest.raises(UserError, match=problem):
            recorded(env, [write(episodes())], seed=0)

    def test_half_a_line_is_refused_and_left(self, env: TextEnv, write: Any) -> None:
        path = write(played())
        content = path.read_bytes()[:-20]
        path.write_bytes(content)
        with pytest.raises(UserError, match="d.jsonl:6: half-written line"):
            recorded(env, [path], seed=0)
        assert path.read_bytes() == content

    def test_an_action_that_is_not_legal_is_named(self, env: TextEnv, write: Any) -> None:
        path = write(played())
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        lines[1]["steps"][0]["observation"]["actions"][:] = ["left", "right", "take", "fly"]
        lines[1]["steps"][0] |= {"action": 3, "turns": []}
        for line in lines:
            del line["crc32"]  # written again by hand
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
        with pytest.raises(UserError, match=r"d.jsonl:2: step 1: the legal actions are left, right, take, open, not"):
            recorded(env, [path], seed=0)

    def test_without_a_won_episode_there_is_nothing_to_imitate(self, env: TextEnv, write: Any) -> None:
        lost = [one for one in played(count=12, player=RandomPlayer()) if not one.success]
        path = write(lost)
        with pytest.raises(UserError, match="there is nothing to imitate"):
            require_lessons(recorded(env, [path], 0), [path])
