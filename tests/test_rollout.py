"""Rollout: an episode depends on its job alone; what environments do wrong is told; nothing is left open."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from corridor import CorridorEnv

from reflectrl.core.config import ModelConfig
from reflectrl.core.envs import make
from reflectrl.core.envs.base import Outcome, TextEnv
from reflectrl.core.players import AnalystPlayer, ExpertPlayer, LiveEpisode, Player, RandomPlayer
from reflectrl.core.rollout import Job, Start, rollout
from reflectrl.core.types import Choice, Episode, Sampling, Task, Turn, UserError
from reflectrl.models.load import LanguageModel, load_model
from reflectrl.models.players import Policy, Reflector
from reflectrl.models.scratch import save_scratch

TEXT = ". D K A .\nLast: none\nReflection: Go on.\nActions: 1: left; 2: right; 3: take; 4: open; 5: a; 6: b\nChoice: 1"


def corridor() -> TextEnv:
    return make({"name": "corridor", "length": 9, "train": 60})


TASKS = corridor().tasks("train")


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    folder = tmp_path_factory.mktemp("rollout")
    config = ModelConfig(layers=1, width=32, heads=2, vocab=300, context=256)
    save_scratch(folder, config, [TEXT], 6, seed=2)
    loaded = load_model(folder, config)
    with torch.no_grad():
        for weight in loaded.parameters():
            if weight.ndim == 2:
                weight.mul_(3.0)
    return loaded


def moves(episode: Episode) -> tuple[Any, ...]:
    """What happened, without numbers that rounding may touch."""
    steps = [(step.observation, step.action, step.reflection, step.reward, step.events) for step in episode.steps]
    return (episode.task.id, episode.seed, episode.success, episode.truncated, steps)


def played(
    jobs: Sequence[Job], batch: int, player: Player, reflector: Player | None = None, p: float = 1.0
) -> list[Episode]:
    """Episodes in the order of their jobs."""
    found = {(e.task.id, e.seed): e for e in rollout(jobs, corridor, player, reflector, batch, p)}
    return [found[job.task.id, job.seed] for job in jobs]


@pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_episode_depends_on_its_job_alone(lm: LanguageModel, probability: float, shuffle: bool) -> None:
    jobs = [Job(TASKS[i % 8], 100 + i) for i in range(15)]

    def play(some: Sequence[Job], batch: int) -> list[Episode]:
        policy, reflector = Policy(lm, Sampling(1.0), shuffle), Reflector(lm, 6, Sampling(1.0))
        return played(some, batch, policy, reflector, probability)

    one, seven = play(jobs, 1), play(jobs, 7)
    assert [moves(e) for e in one] == [moves(e) for e in seven]
    assert [moves(e) for e in play(jobs[::-2], 3)] == [moves(e) for e in one[::-2]]
    for first, second in zip(one, seven, strict=True):
        for a, b in zip(first.steps, second.steps, strict=True):
            assert a.choice and b.choice
            assert a.choice.logprobs == pytest.approx(b.choice.logprobs, abs=1e-4)
    assert len({len(e.steps) for e in one}) > 1, "the test needs episodes of different lengths"


def test_other_seeds_give_other_episodes() -> None:
    first, second, again = (played([Job(TASKS[0], seed)], 1, RandomPlayer())[0] for seed in (1, 2, 1))
    assert [s.action for s in first.steps] != [s.action for s in second.steps]
    assert first == again


@pytest.mark.parametrize(("probability", "low", "high"), [(0.0, 0, 0), (0.5, 0.4, 0.6), (1.0, 1, 1)])
def test_the_reflector_speaks_as_often_as_asked(probability: float, low: float, high: float) -> None:
    jobs = [Job(task, i) for i, task in enumerate(TASKS[:50])]
    steps = [s for e in rollout(jobs, corridor, ExpertPlayer(), AnalystPlayer(), 16, probability) for s in e.steps]
    assert len(steps) > 400
    assert low <= np.mean([step.reflection is not None for step in steps]) <= high
    assert all(step.turns[-1].choice is not None and len(step.turns) <= 2 for step in steps)


def test_an_episode_says_where_it_comes_from_and_holds_what_happened() -> None:
    [episode] = rollout([Job(TASKS[3], 5, {"arm": "expert"})], corridor, ExpertPlayer(), AnalystPlayer())
    assert (episode.task, episode.seed, episode.provenance) == (TASKS[3], 5, {"arm": "expert"})
    assert (episode.success, episode.truncated) == (True, False)
    env = corridor()
    env.reset(options={"task": TASKS[3]})
    for step in episode.steps:
        assert step.observation == env.observe()
        assert step.reflection == env.teacher.analyse(env)
        _, reward, _, _, info = env.step(step.action)
        assert (step.reward, step.events) == (reward, tuple(info["events"]))
    assert env.done


class Circling:
    """Walks to and fro for ever, where that is possible."""

    def turns(self, playing: Sequence[LiveEpisode]) -> list[Turn]:
        found = []
        for live in playing:
            actions = live.observation.actions
            action = actions.index("left" if len(live.steps) % 2 else "right")
            found.append(Choice("circling", actions[action], choice=action))
        return found


def starts_at_the_right_end(env: CorridorEnv, task: Task) -> bool:
    env.reset(options={"task": task})
    return env.place == env.length - 1


def test_an_episode_that_the_horizon_ends_is_truncated_and_not_won() -> None:
    env = CorridorEnv(horizon=6)
    task = next(task for task in env.tasks("train") if not starts_at_the_right_end(env, task))
    [episode] = rollout([Job(task, 0)], lambda: CorridorEnv(horizon=6), Circling())
    assert (len(episode.steps), episode.truncated, episode.success) == (6, True, False)


# ---- the batch -------------------------------------------------------------------------------------------------------


class Counting:
    """A player that notes how many live episodes it is given."""

    def __init__(self, player: Player) -> None:
        self.player = player
        self.sizes: list[int] = []

    def turns(self, playing: Sequence[LiveEpisode]) -> list[Turn]:
        self.sizes.append(len(playing))
        return self.player.turns(playing)


class Worlds:
    """Makes environments, and knows how many there are and which are closed."""

    def __init__(self, kind: Callable[[], TextEnv] = corridor) -> None:
        self.kind, self.made, self.closed = kind, 0, 0

    def __call__(self) -> TextEnv:
        env = self.kind()
        self.made += 1
        close = env.close

        def closing() -> None:
            self.closed += 1
            close()

        env.close = closing  # type: ignore[method-assign]
        return env


def test_a_job_may_cut_its_episode_off_earlier() -> None:
    whole = played([Job(TASKS[i], i) for i in range(6)], 3, RandomPlayer())
    cut = played([Job(TASKS[i], i, horizon=3) for i in range(6)], 3, RandomPlayer())
    assert [len(episode.steps) for episode in cut] == [min(3, len(episode.steps)) for episode in whole]
    for short, long in zip(cut, whole, strict=True):
        assert moves(short)[-1] == moves(long)[-1][:3]
        assert short.truncated == (len(long.steps) > 3 or long.truncated) and not (short.truncated and short.success)


def test_a_cut_counts_from_where_the_player_begins() -> None:
    [whole] = played([Job(TASKS[0], 0)], 1, ExpertPlayer())
    assert len(whole.steps) > 5
    start = Start(0, tuple(step.observation.actions[step.action] for step in whole.steps[:3]))
    [cut] = played([Job(TASKS[0], 5, start=start, horizon=2)], 1, ExpertPlayer())
    assert len(cut.steps) == 3 + 2 and cut.truncated


def test_finished_episodes_make_room_for_waiting_jobs_and_leave_in_the_end() -> None:
    player, worlds = Counting(RandomPlayer()), Worlds()
    jobs = [Job(TASKS[i % 8], i) for i in range(20)]
    episodes = list(rollout(jobs, worlds, player, batch=4))
    assert sorted(e.seed for e in episodes) == list(range(20))
    assert sum(player.sizes) == sum(len(e.steps) for e in episodes), "nobody plays on after the end"
    assert player.sizes[0] == 4
    assert player.sizes == sorted(player.sizes, reverse=True), "the batch is filled while jobs wait"
    assert (worlds.made, worlds.closed) == (4, 4)


def test_no_more_environments_are_made_than_are_needed() -> None:
    worlds = Worlds()
    assert len(list(rollout([Job(TASKS[0], 0), Job(TASKS[1], 0)], worlds, ExpertPlayer(), batch=64))) == 2
    assert (worlds.made, worlds.closed) == (2, 2)
    assert list(rollout([], worlds, ExpertPlayer())) == []
    assert worlds.made == 2


def test_jobs_are_taken_when_they_are_needed() -> None:
    taken: list[int] = []

    def endless() -> Iterator[Job]:
        for i in range(10**6):
            taken.append(i)
            yield Job(TASKS[i % len(TASKS)], i)

    episodes = rollout(endless(), corridor, RandomPlayer(), batch=3)
    for _ in range(5):
        next(episodes)
    episodes.close()  # type: ignore[attr-defined]
    assert len(taken) <= 5 + 3


def test_a_rollout_that_is_stopped_closes_its_environments() -> None:
    worlds = Worlds()
    episodes = rollout([Job(task, 0) for task in TASKS[:9]], worlds, ExpertPlayer(), batch=3)
    next(episodes)
    assert worlds.closed == 0
    episodes.close()  # type: ignore[attr-defined]
    assert (worlds.made, worlds.closed) == (3, 3)


# ---- environments that fail ------------------------------------------------------------------------------------------


class Faulty(TextEnv):
    """Counts to three, unless told to fail somewhere."""

    tasks_: ClassVar[list[Task]] = [Task("calm", "faulty")]

    def __init__(self, fault: str, error: Exception | None = None, reward: float = 0.0) -> None:
        super().__init__(horizon=5)
        self.fault, self.error, self.reward = fault, error, reward

    def _maybe(self, where: str) -> None:
        if where == self.fault and self.error is not None:
            raise self.error

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        return self.tasks_

    def begin(self, task: Task) -> None:
        self.count = 0
        self._maybe("begin")

    def apply(self, action: str) -> Outcome:
        self.count += 1
        self._maybe("apply")
        return Outcome(self.reward, terminated=self.count == 3)

    def history(self) -> str:
        return ""

    def state(self) -> str:
        self._maybe(f"state {self.count}")
        return f"{self.count}\n"

    def legal_actions(self) -> Sequence[str]:
        return ("on", "off")

    def get_state(self) -> int:
        return self.count

    def set_state(self, state: int) -> None:
        self.count = state


@pytest.mark.parametrize("fault", ["begin", "apply", "state 0", "state 2"])
def test_what_an_environment_raises_is_one_line_with_its_name_and_the_task(fault: str) -> None:
    worlds = Worlds(lambda: Faulty(fault, RuntimeError("the world\nis on fire")))
    with pytest.raises(UserError) as caught:
        list(rollout([Job(Task("calm", "faulty"), 0)], worlds, RandomPlayer()))
    assert str(caught.value) == "environment Faulty raised on task 'calm': RuntimeError: the world is on fire"
    assert worlds.made == worlds.closed == 1


def test_a_users_mistake_is_passed_on_as_it_is() -> None:
    with pytest.raises(UserError, match=r"^no such folder$"):
        list(
            rollout(
                [Job(Task("calm", "faulty"), 0)], lambda: Faulty("begin", UserError("no such folder")), RandomPlayer()
            )
        )


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_told(reward: float) -> None:
    with pytest.raises(UserError, match=r"Faulty .* on task 'calm': .* finite numbers, not (nan|inf)$"):
        list(rollout([Job(Task("calm", "faulty"), 0)], lambda: Faulty("", reward=reward), RandomPlayer()))


def test_episodes_that_ended_before_a_failure_are_not_lost() -> None:
    """Not even when another environment fails at the same step."""

    class Late(Faulty):
        def apply(self, action: str) -> Outcome:
            if self.count == 2 and self.task.id == "wild":
                raise RuntimeError("crash")
            return super().apply(action)

    jobs = [Job(Task("calm", "faulty"), 0), Job(Task("wild", "faulty"), 1)]
    found: list[Episode] = []
    with pytest.raises(UserError, match="'wild'"):
        for episode in rollout(jobs, lambda: Late(""), RandomPlayer(), batch=2):
            found.append(episode)
    assert [(episode.task.id, len(episode.steps)) for episode in found] == [("calm", 3)]
