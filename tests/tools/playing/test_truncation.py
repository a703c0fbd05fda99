"""An episode that an environment breaks off itself is truncated, like one that the horizon ends, in every adapter."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from reflectrl.cli import main
from reflectrl.core.envs.adapter import GymTextEnv
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.envs.pool import EnvPool
from reflectrl.core.envs.teacher import Teacher
from reflectrl.core.episodes import from_line, to_line
from reflectrl.core.players import RandomPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.teach import Demonstration, RecordEpisodes
from reflectrl.core.teach.trajectories import teach
from reflectrl.core.types import Outcome, Task
from reflectrl.tools.browser.world import explore
from reflectrl.tools.playing.play import ending

WALK = '''
import gymnasium as gym


class Walk(gym.Env):
    """A line of six places, which breaks off after four steps by itself."""

    metadata = {"render_modes": ["ansi"]}
    action_space, observation_space = gym.spaces.Discrete(2), gym.spaces.Discrete(6)

    def __init__(self, render_mode=None, both=False):
        self.render_mode, self.both = render_mode, both

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.steps = int(self.np_random.integers(3)), 0
        return self.at, {}

    def step(self, action):
        self.at, self.steps = max(0, self.at + (1 if action else -1)), self.steps + 1
        won = self.at == 5
        return self.at, float(won), won, self.steps >= 4 and (self.both or not won), {}

    def render(self):
        return f"place {self.at}"


gym.register("Walk-v0", entry_point=Walk)
'''
WORDS = ("left", "right")


@pytest.fixture
def walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of an environment of gymnasium that breaks off itself."""
    (tmp_path / "short_walk.py").write_text(WALK, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "short_walk", raising=False)
    monkeypatch.delitem(gym.registry, "Walk-v0", raising=False)
    return "short_walk:Walk-v0"


class Fence(TextEnv):
    """Whoever steps over the edge is sent home: the episode is broken off. At 3 it is won."""

    def __init__(self, flag: Any = True) -> None:
        super().__init__(horizon=8)
        self.flag = flag

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        return [Task(f"fence-{n}", "fence", {"at": n}) for n in range(3)]

    def begin(self, task: Task) -> None:
        self.at = task.payload["at"]

    def apply(self, action: str) -> Outcome:
        self.at += 1 if action == "on" else -1
        return Outcome(0.0, self.at == 3, self.at == 3, truncated=self.flag if self.at < 0 else False)

    def state(self) -> str:
        return f"at {self.at}\n"

    def legal_actions(self) -> Sequence[str]:
        return ("on", "back")


class GoesOn(Teacher):
    def expert_action(self, env: Any) -> int:
        return 0


class TestGymnasium:
    def test_a_limit_of_the_wrapped_environment_is_no_end(self, walk: str) -> None:
        env = GymTextEnv(walk, WORDS, 20)
        env.reset(options={"task": env.tasks("train")[0]})
        assert [env.step(0)[2:4] for _ in range(4)] == [(False, False)] * 3 + [(False, True)]
        assert env.done

    def test_what_is_both_has_ended(self, walk: str) -> None:
        env = GymTextEnv(walk, WORDS, 20, settings={"both": True})
        task = next(one for one in env.tasks("train") if env.reset(options={"task": one})[0].startswith("place 1"))
        env.reset(options={"task": task})
        assert [env.step(1)[2:4] for _ in range(4)][-1] == (True, False) and env.success

    def test_play_calls_it_out_of_time_and_learners_find_it_in_the_episode(self, walk: str) -> None:
        env = GymTextEnv(walk, WORDS, 20)
        jobs = [Job(task, seed) for seed, task in enumerate(env.tasks("train")[:20])]
        episodes = list(rollout(jobs, lambda: GymTextEnv(walk, WORDS, 20), RandomPlayer()))
        lost = [episode for episode in episodes if not episode.success]
        assert len(lost) > 10 and all(episode.truncated and len(episode.steps) == 4 for episode in lost)
        assert all(ending(episode).startswith("out of time after 4 steps") for episode in lost)
        assert not any(episode.truncated for episode in episodes if episode.success)

    def test_check_env_counts_it_as_out_of_time(self, walk: str, capsys: Any) -> None:
        words = ["--id", walk, "--actions", '["left", "right"]', "--horizon", "20"]
        assert main(["check-env", "reflectrl.core.envs.adapter:GymTextEnv", *words]) == 0
        said = capsys.readouterr().out
        assert "won 13 (6%)" in said and "out of time 187 (94%)" in said, said

    def test_a_recording_says_the_same(self, walk: str, tmp_path: Path) -> None:
        script = RecordEpisodes(gym.make(walk, render_mode="ansi"), tmp_path / "d.jsonl", GymTextEnv(walk, WORDS, 20))
        script.reset(seed=0)
        assert [script.step(0)[2:4] for _ in range(4)][-1] == (False, True)
        script.close()
        [episode] = map(from_line, (tmp_path / "d.jsonl").read_text().splitlines())
        assert episode.truncated


class TestOutcomes:
    @pytest.mark.parametrize("flag", [True, np.bool_(True)])
    def test_the_base_class_passes_it_on(self, flag: Any) -> None:
        env = Fence(flag)
        env.reset(options={"task": env.tasks("train")[0]})
        assert env.step(1)[2:4] == (False, True)
        assert env.done and not env.success

    def test_it_comes_out_of_a_worker_and_its_line_reads_back_equal(self) -> None:
        with EnvPool(Fence, workers=1) as pool:
            episodes = list(rollout([Job(Fence().tasks("train")[0], seed) for seed in range(8)], pool, RandomPlayer()))
        broken_off = [episode for episode in episodes if episode.truncated]
        assert broken_off and all(len(episode.steps) < 8 for episode in broken_off)
        assert all(from_line(to_line(episode)) == episode for episode in episodes)

    def test_noise_in_teaching_does_not_take_a_step_that_breaks_off(self) -> None:
        class Guided(Fence):
            teacher = GoesOn()

        task = Guided().tasks("train")[0]
        episodes = [teach(Guided(), Demonstration(task, seed, "trajectory", noise=0.6)) for seed in range(12)]
        assert all(episode.success or len(episode.steps) == 8 for episode in episodes)
        assert any(len(episode.steps) > 3 for episode in episodes)  # there was noise

    def test_a_limit_around_a_text_environment_does_not_hide_its_end(self, tmp_path: Path) -> None:
        script = RecordEpisodes(gym.wrappers.TimeLimit(Fence(), 1), tmp_path / "d.jsonl")
        script.reset(options={"task": Fence().tasks("train")[2]})
        assert script.step(0)[2:4] == (True, True)
        script.close()
        [episode] = map(from_line, (tmp_path / "d.jsonl").read_text().splitlines())
        assert episode.success and not episode.truncated

    def test_the_table_for_a_browser_has_it(self) -> None:
        env = Fence()
        world = explore(env, env.tasks("train"), 100)
        assert sorted(outcome[4:] for outcome in world.outcomes) == [(), (), (True,)]
