"""What reward alone could teach, judged from random play: the figures, the rule, and how long it is looked for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import pytest

from reflectrl.core.envs.base import Outcome, TextEnv
from reflectrl.core.types import Episode, Task
from reflectrl.learn import reward_check
from reflectrl.learn.reward_check import random_play, signal_of


class Doors(TextEnv):
    """Two doors at each of three steps. `pays` is the way that earns something, as letters."""

    def __init__(self, pays: str = "l", tasks: int = 5, doors: str = "lr") -> None:
        super().__init__(horizon=3)
        self.pays, self.count, self.doors = pays, tasks, doors

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        return [Task(f"{split}-{n}", "doors", {"n": n}, split) for n in range(self.count)]

    def begin(self, task: Task) -> None:
        self.way = ""

    def apply(self, action: str) -> Outcome:
        self.way += action
        won = self.way == self.pays
        return Outcome(float(won), won, won, ("through",) if won else ())

    def state(self) -> str:
        return f"{len(self.way)}.\n"

    def legal_actions(self) -> Sequence[str]:
        return tuple(self.doors)


def play(env: Doors, batch: int = 4, steps: int = 100) -> list[Episode]:
    make = lambda: Doors(env.pays, env.count, env.doors)  # noqa: E731
    return [episode for played in random_play(env.tasks("train"), make, 0, batch, steps) for episode in played]


def test_the_figures_are_those_of_the_episodes() -> None:
    played = play(Doors())
    found = signal_of(played)
    won = sum(episode.steps[0].action == 0 for episode in played)
    assert 0 < won < len(played) == found.episodes
    assert (found.won, found.rewarded, found.events) == (won, won, {"through": won})
    assert (found.lowest, found.highest, found.fewest, found.most) == (0.0, 1.0, 2, 2)
    assert (found.length, found.truncated, found.unmarked) == (3, len(played) - won, 0)
    assert found.steps == won + 3 * (len(played) - won) and found.problem is None


def test_few_tasks_are_played_again_with_other_luck() -> None:
    played = play(Doors(tasks=5), steps=10_000)
    assert len(played) == reward_check.EPISODES
    assert len({episode.seed for episode in played}) == len(played)
    assert len({tuple(step.action for step in e.steps) for e in played if e.task.id == "train-0"}) > 1


def test_it_ends_after_so_many_steps() -> None:
    played = play(Doors(tasks=50), batch=10, steps=40)
    assert 40 <= sum(len(episode.steps) for episode in played) < 40 + 30


def test_the_same_seed_gives_the_same_episodes_whatever_the_batch() -> None:
    one, other = ([(e.seed, [s.action for s in e.steps]) for e in play(Doors(), batch)] for batch in (2, 5))
    assert one[:30] == other[:30]


def test_rare_reward_is_looked_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_check, "RARE", 3_000)
    assert len(play(Doors("never", 100), 50, steps=300)) == 1_000
    rare = play(Doors("lll", 100), 1, steps=3)
    assert signal_of(rare).problem is None and signal_of(rare[:-1]).problem is not None


def test_there_has_to_be_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_check, "RARE", 300)
    found = signal_of(play(Doors("never", doors="l")))
    assert found.problem is not None and "nothing to choose" in found.problem


def test_batches_come_one_by_one() -> None:
    batches = random_play(Doors(tasks=9).tasks("train"), lambda: Doors(tasks=9), 0, 4, 10_000)
    assert [len(batch) for batch in islice(batches, 4)] == [4, 4, 1, 4]
