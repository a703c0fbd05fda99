"""Curricula: schedules of an environment's stages, and starting points of episodes within a task."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from reflectrl.core.config import RLConfig
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.plugins import suggestion
from reflectrl.core.rollout import Start, begin
from reflectrl.core.types import Episode, Task, UserError

LOG = logging.getLogger(__name__)


MERGED = "+"
"""Separator of the names of stages that are merged into one."""
SHARING = ("equal", "by-tasks")
"""Kinds of curriculum that fix each stage's share of the updates in advance."""


def chosen_stages(wanted: Sequence[str], stages: Sequence[str]) -> tuple[str, ...]:
    """Return the stages to train on: those that are wanted, some of them merged, or all stages of the environment.

    Raises:
        UserError: a stage is unknown.
    """
    for name in (name for stage in wanted for name in stage.split(MERGED)):
        if name not in stages:
            raise UserError(f"rl.stages: unknown stage {name!r}{suggestion(name, stages)}")
    return tuple(wanted or stages)


def is_part(name: str, stage: str) -> bool:
    """Tell whether a stage of the environment is a part of a stage of the curriculum."""
    return name in stage.split(MERGED)


def new_tasks(env: TextEnv, stages: Sequence[str]) -> list[int]:
    """Return the number of training tasks of each stage that no earlier stage has.

    Tasks are told apart by their ids: in some environments, a stage includes the tasks of the stages before it.
    """
    task_ids, counts = set[str](), list[int]()
    for stage in stages:
        before = len(task_ids)
        for name in stage.split(MERGED):
            task_ids.update(task.id for task in env.tasks("train", name))
        counts.append(len(task_ids) - before)
    return counts


def make_curriculum(config: RLConfig, env: TextEnv) -> Curriculum:
    """Return the curriculum of a training.

    Raises:
        UserError: a stage is unknown, or there are too few updates for the stages.
    """
    stages = chosen_stages(config.stages, env.stages)
    sizes: Sequence[int] = ()
    if config.curriculum == "by-tasks":
        sizes = new_tasks(env, stages)
    return Curriculum(stages, config.curriculum, config.updates, config.gate, sizes=sizes)


class Curriculum:
    """Schedule of an environment's stages, from the first to the last and never back.

    Args:
        stages: stage names, the easiest first. The last is the whole task.
        kind: "none" stays at the last stage. "equal" gives every stage an equal share of the updates (the remainder
            goes to the last). "by-tasks" gives every stage one update, and shares the others in proportion to `sizes`.
            "gate" moves on when the mean success rate over the latest `window` updates of the stage reaches `gate`.
        updates: number of updates of the whole training (for "equal" and "by-tasks").
        gate: success rate in [0, 1] that opens the next stage (for "gate").
        window: number of updates over which the success rate is averaged. A stage lasts at least this long (for
            "gate").
        sizes: number of tasks that each stage adds (for "by-tasks").

    Raises:
        UserError: "equal" or "by-tasks" with fewer updates than stages, so that some stage would never be learned.
    """

    def __init__(
        self,
        stages: Sequence[str],
        kind: Literal["none", "equal", "by-tasks", "gate"],
        updates: int,
        gate: float,
        window: int = 5,
        sizes: Sequence[int] = (),
    ) -> None:
        if kind in SHARING and updates < len(stages):
            about = f"rl.updates is {updates} (or an arm's own rounds); curriculum {kind!r} needs at least"
            raise UserError(f"{about} {len(stages)}, one per stage")
        self.stages = tuple(stages)
        self._kind, self._gate, self._window = kind, gate, window
        self._shares = [updates // len(self.stages)] * len(self.stages)
        if kind == "by-tasks":
            further = updates - len(self.stages)
            self._shares = [1 + further * size // max(1, sum(sizes)) for size in sizes]
        self._index = len(self.stages) - 1 if kind == "none" else 0
        self._rates: list[float] = []

    @property
    def stage(self) -> str:
        """The name of the stage being learned."""
        return self.stages[self._index]

    @property
    def others(self) -> tuple[str, ...]:
        """The other stages, the last one first; none if there is no curriculum."""
        if self._kind == "none":
            return ()
        return tuple(stage for stage in reversed(self.stages) if stage != self.stage)

    def advance(self, success_rate: float) -> bool:
        """Record the success rate (in [0, 1]) of an update. Return whether the stage has changed.

        Call this once after each update. If it returns True, the successes so far belong to an easier stage, so the
        replay buffer should be cleared.
        """
        self._rates.append(success_rate)
        if self._index == len(self.stages) - 1 or not self._finished():
            return False
        self._index, self._rates = self._index + 1, []
        return True

    def _finished(self) -> bool:
        if self._kind in SHARING:
            return len(self._rates) >= self._shares[self._index]
        latest = self._rates[-self._window :]
        return len(latest) == self._window and sum(latest) / self._window >= self._gate - 1e-9  # rounding

    def state(self) -> dict[str, Any]:
        """Return the state of the curriculum, as JSON values."""
        return {"stage": self.stage, "rates": list(self._rates)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a value of `state`.

        Raises:
            UserError: the state's stage is not one of this curriculum's (the recipe was changed in between).
        """
        if state["stage"] not in self.stages:
            raise UserError(
                f"cannot resume: stage {state['stage']!r} is not one of {', '.join(self.stages)}; "
                "continue with the recipe that began the run, or start a new one"
            )
        self._index, self._rates = self.stages.index(state["stage"]), list(state["rates"])


class SuccessRates:
    """Recent success rate of each task, as a measure of how much can be learned from it.

    A task is drawn in proportion to 4 p (1 - p) + 0.1, where p is its success rate. So tasks that are won between one
    time in five and four times in five are drawn about five to eight times as often as tasks that were always or never
    won in their last twenty episodes or so. A group of episodes with the same outcome teaches nothing by comparison,
    and p (1 - p) is half the chance that two outcomes differ (Rutherford et al. 2024, "No Regrets", call it
    learnability; Foster and Foerster 2025 use it for language models). A task that was not played yet counts as won
    half the time. With each later episode of a task, the earlier ones lose a tenth of their weight.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, float]] = {}  # task -> discounted counts of episodes and wins

    def add(self, episodes: Iterable[Episode]) -> None:
        """Record the outcomes of episodes that were played from the beginning."""
        for episode in episodes:
            played, won = self._known.get(self._key(episode.task), (0.0, 0.0))
            self._known[self._key(episode.task)] = 0.9 * played + 1, 0.9 * won + episode.success

    def weights(self, tasks: Sequence[Task]) -> np.ndarray:
        """Return the probabilities [len(tasks)] with which the tasks are drawn."""
        counts = np.array([self._known.get(self._key(task), (0.0, 0.0)) for task in tasks])
        rates = (counts[:, 1] + 0.1) / (counts[:, 0] + 0.2)
        weights = 4 * rates * (1 - rates) + 0.1
        return np.asarray(weights / weights.sum())

    @staticmethod
    def _key(task: Task) -> str:
        return f"{task.stage}/{task.id}"

    def state(self) -> dict[str, Any]:
        """Return the counts, as JSON values."""
        return {key: list(counts) for key, counts in self._known.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a value of `state`."""
        self._known = {key: (played, won) for key, (played, won) in state.items()}


def growing_horizon(config: RLConfig, last: int, update: int) -> int:
    """Return the horizon of an update. In the first half of the updates it grows from `first_horizon` to `last`."""
    share = min(1.0, 2 * update / config.updates)
    return min(last, config.first_horizon + int(share * (last - config.first_horizon)))


def draw_tasks(
    env: TextEnv,
    curriculum: Curriculum,
    count: int,
    rehearsal: float,
    rng: np.random.Generator,
    rates: SuccessRates | None = None,
) -> list[Task]:
    """Draw the training tasks of an update: from the curriculum's stage, and a share `rehearsal` from other stages.

    A stage is only a part of the whole task, and a policy that trains on nothing else forgets the rest within a few
    updates: on the pickup stage of taxi, it soon tries to pick up where it should drop off. Tasks of a stage are drawn
    without replacement if there are enough, with equal chances or weighted by their success `rates`.
    """

    def draw(stage: str, number: int) -> list[Task]:
        tasks = [task for name in stage.split(MERGED) for task in env.tasks("train", name)]
        weights = rates.weights(tasks) if rates is not None else None
        return [tasks[int(i)] for i in rng.choice(len(tasks), size=number, replace=number > len(tasks), p=weights)]

    others = curriculum.others
    rehearsed = int(rehearsal * count) if others else 0
    tasks = draw(curriculum.stage, count - rehearsed)
    return tasks + [task for i in range(rehearsed) for task in draw(others[i % len(others)], 1)]


# ---- starts near a win -----------------------------------------------------------------------------------------------


def replayed(episode: Episode) -> int:
    """Return the number of steps before the player's first turn, which were repeated to reach the episode's start."""
    return next((i for i, step in enumerate(episode.steps) if step.choice is not None), len(episode.steps))


@dataclass(frozen=True)
class Win:
    """Winning episode, reduced to what is needed to repeat it.

    Attributes:
        carried: for each action, the reflection that was carried to its observation. Empty if none was.
    """

    task: Task
    seed: int
    actions: tuple[str, ...]
    carried: tuple[str, ...] = ()

    @classmethod
    def of(cls, episode: Episode) -> Win:
        """Make a win of an episode, which may have been played from the beginning or from a later start."""
        actions = tuple(step.observation.actions[step.action] for step in episode.steps)
        carried = tuple(step.observation.carried for step in episode.steps)
        seed = episode.provenance.get("started_from", episode.seed)
        return cls(episode.task, seed, actions, carried if any(carried) else ())

    def start(self, distance: int) -> Start:
        """Return the point that lies `distance` actions before the end."""
        count = len(self.actions) - distance
        return Start(self.seed, self.actions[:count], self.carried[: count + 1])

    def wins_again(self, env: TextEnv) -> bool:
        """Return whether the same actions win again, as they do in every environment that keeps its contract."""
        try:
            steps, now = begin(env, self.task, Start(self.seed, self.actions))
        except UserError:
            return False
        return bool(steps) and now.done and now.success


class ReverseCurriculum:
    """Curriculum that starts a share of the groups shortly before a win, and moves the start towards the beginning.

    All starts are `distance` actions before the end of a winning episode of the stage. If at least a share `gate` of an
    update's episodes from there won, the distance grows by `step`. If none won, it shrinks by `step`. So it stays where
    there is something to learn. Wins that are shorter than the distance are not used any more. For each task, the
    shortest win is kept.

    Sources: Salimans and Chen 2018, "Learning Montezuma's Revenge from a Single Demonstration"; Florensa et al. 2017,
    "Reverse Curriculum Generation for Reinforcement Learning", whose starts are neither too easy nor too hard. Here one
    distance is used for all tasks, not one per task or demonstration, because tasks are many and seldom drawn twice.

    Args:
        share: share of the stage's groups, in [0, 1). 0 turns this off. At least one group starts at the beginning.
        gate: success rate in [0, 1] from which the distance grows.
        step: number of actions by which the distance changes.
    """

    def __init__(self, share: float, gate: float, step: int) -> None:
        self.share, self.gate, self.step = share, gate, step
        self.distance = step
        self._wins: dict[tuple[str, str], Win] = {}
        self._said: set[str] = set()

    def __len__(self) -> int:
        return len(self._wins)

    def add(self, episodes: Iterable[Episode], env: TextEnv) -> None:
        """Keep the winning episodes that are shorter than the known wins, if they win again when repeated in `env`."""
        if not self.share:
            return
        for episode in episodes:
            key, length = (episode.task.stage, episode.task.id), len(episode.steps)
            if not episode.success or (key in self._wins and len(self._wins[key].actions) <= length):
                continue
            win = Win.of(episode)
            if win.wins_again(env):
                self._wins[key] = win
            else:
                problem = f"a win of task {win.task.id!r} does not win again when replayed"
                self._say_once("lost", f"{problem}; such wins are not used as starts")

    def draw(self, stage: str, groups: int, rng: np.random.Generator) -> list[tuple[Task, Start]]:
        """Draw tasks and starts for a share of `groups` groups. Empty if no win is long enough."""
        count = min(max(1, round(self.share * groups)), groups - 1) if self.share else 0
        if count > 0 and not self._wins:
            self._say_once("none", "rl.reverse: no winning episode yet; until then, episodes start at the beginning")
        open_wins = [
            w for (name, _), w in self._wins.items() if is_part(name, stage) and len(w.actions) > self.distance
        ]
        if not open_wins or count <= 0:
            return []
        drawn = rng.choice(len(open_wins), size=count, replace=count > len(open_wins))
        wins = [open_wins[int(i)] for i in drawn]
        return [(win.task, win.start(self.distance)) for win in wins]

    def advance(self, success_rate: float) -> None:
        """Move the start after an update, given the success rate of the episodes that began there."""
        if success_rate >= self.gate - 1e-9 and success_rate > 0:
            self.distance += self.step
        elif success_rate == 0:
            self.distance = max(self.step, self.distance - self.step)

    def restart(self) -> None:
        """Start close to the win again, because another stage is learned now."""
        self.distance = self.step

    def state(self) -> dict[str, Any]:
        """Return the wins and the distance, as JSON values."""
        return {"distance": self.distance, "wins": [asdict(win) for win in self._wins.values()]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a value of `state`."""
        self.distance, self._wins = state["distance"], {}
        for saved in state["wins"]:
            carried = tuple(saved.get("carried", ()))  # earlier versions saved none
            win = Win(Task(**saved["task"]), saved["seed"], tuple(saved["actions"]), carried)
            self._wins[win.task.stage, win.task.id] = win

    def _say_once(self, about: str, message: str) -> None:
        if about not in self._said:
            self._said.add(about)
            LOG.warning("reflectrl: %s", message)
