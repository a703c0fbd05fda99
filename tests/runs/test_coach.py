"""The coach: what it says of trainings that end low, and that it keeps quiet about others."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reflectrl import runs as pipeline
from reflectrl.core.config import load_recipe
from reflectrl.core.envs.base import Outcome, TextEnv
from reflectrl.core.types import Task
from reflectrl.runs.coach import OwnWins, advice, course_of, progress_words
from reflectrl.runs.coaching import coach_lines
from reflectrl.runs.folder import RunFolder
from reflectrl.runs.progress import duration


def lines(rates: list[float], returns: list[float], **last: Any) -> list[dict[str, Any]]:
    """Metrics of a training that was evaluated before each update."""
    made: list[dict[str, Any]] = []
    for step, (rate, earned) in enumerate(zip(rates, returns, strict=True)):
        made.append({"step": step, "success": rate, "return": earned, "episodes": 64 * (step + 1), "entropy": 0.8})
        made[-1] |= {"eval_success": rate, "eval_return": earned}
    made[-1] |= last
    return made


def held_at(validation: float, rates: list[float], returns: list[float]) -> tuple[str, str, str]:
    """Words about a training whose success on validation tasks never changed."""
    course = course_of([line | {"eval_success": validation} for line in lines(rates, returns)])
    assert course is not None
    words = advice(course, "my_env")
    assert words is not None
    return words


def said(*given: Any, luck: bool = False, own: OwnWins | None = None, **last: Any) -> str:
    course = course_of(lines(*given, **last))
    assert course is not None
    found = advice(replace(course, own_wins=own), "my_env", luck)
    return "" if found is None else " | ".join(found)


IDLE = {"main_action": "wait", "main_share": 14 / 15}


@pytest.mark.parametrize(
    ("words", "rates", "returns", "last"),
    [
        (("never won in 1,280 episodes", "93% of the last steps are 'wait'", "avoid the costs"),
         [0.0] * 20, [-1 + 0.03 * i for i in range(20)], IDLE),
        (("never won in 192 episodes", "too few to learn from", "--minutes"), [0.0] * 3, [0.0, 0.1, 0.2], {}),
        (("never won", "nothing to learn from", "--record"), [0.0] * 8, [0.0] * 8, {}),
        (("never won", "rewards on the way", "--minutes"), [0.0] * 20, [0.1 * i for i in range(20)], {}),
        (("lost it again", "--rl.schedule linear"), [0.45] * 10 + [0.1] * 10, [0.0] * 20, {}),
        (("still rising", "--minutes"), [0.02 * i for i in range(20)], [0.02 * i for i in range(20)], {}),
        (("tries nothing else", "--rl.entropy-coef"), [0.3] * 20, [0.3] * 20, {"entropy": -14.0}),
        (("avoid costs rather than to win", "wins 20% of its tasks", "stays with 'wait'", "--seeds 1 2"),
         [0.2] * 20, [-0.75 + 0.035 * i for i in range(20)], IDLE),
        (("still rising",), [0.02 * i for i in range(20)], [0.02 * i for i in range(20)], IDLE),
        (("earn more without winning more", "rose by 0.56", "from 12% to 18%", "--seeds 1 2"),
         [0.12] * 5 + [0.17] * 10 + [0.18] * 5, [-0.82 + 0.0375 * i for i in range(20)], {}),
        (("hide what matters", "reflectrl play my_env"), [0.3] * 20, [0.3] * 20, {}),
    ],
)  # fmt: skip
def test_a_training_that_ends_low_gets_its_reason_and_the_next_command(
    words: tuple[str, ...], rates: list[float], returns: list[float], last: dict[str, Any]
) -> None:
    found = said(rates, returns, **last)
    assert all(word in found for word in words), found


def test_where_luck_decides_it_says_so_and_a_good_end_needs_no_words() -> None:
    assert "luck plays a part" in said([0.3] * 20, [0.3] * 20, luck=True)
    assert said([0.2, 0.9], [0.2, 0.9], luck=True) == ""


RISING = [0.005 * i for i in range(20)]
MAILROOM = (1.385, 1.384), (1.366, 1.369), (1.282, 1.436), (1.186, 1.633), (0.711, 2.836)
FUSEBOX = (2.124, 0.715), (0.611, 0.789), (0.424, 1.389)
LEARNED = (0.777, 0.341), (0.003, 0.0)
"""Losses of imitation, as two strangers that were not learned wrote them, and one that was."""


@pytest.mark.parametrize(
    ("own", "words", "rates"),
    [
        (OwnWins(0, 30, 200_000, 30, "options"),
         ("won 0 of 30 training tasks", "found none in 200,000 steps", "--rl.own-wins-steps 2000000"), [0.0] * 20),
        (OwnWins(200, 200, 200_000, 400, "options", 1.386, MAILROOM),
         ("won 200 of 200 training tasks", "1.37 at best (by chance 1.39)", "--rl.own-wins 400)"), [0.0] * 20),
        (OwnWins(200, 200, 200_000, 200, "enumeration", 1.386, MAILROOM),
         ("taught no rule", "--play.scoring options", "more training tasks (in tasks)"), RISING),
        (OwnWins(200, 200, 200_000, 200, "options", 1.386, ((1.3864, 1.3863),) * 5),
         ("not even the 200 wins that it imitated were learned", "--sft.patience"), [0.0] * 20),
        (OwnWins(80, 80, 200_000, 80, "options", 1.98, FUSEBOX),
         ("learned its 80 wins by heart", "from 0.71 to 1.39"), [0.2] * 20),
        (OwnWins(200, 200, 200_000, 300, "options", 2.197, ((1.9, 1.87), (0.16, 6.8))),
         ("learned its 200 wins by heart", "among 6.5 of 9.0 actions", "won by luck"), [0.2] * 20),
        (OwnWins(13, 200, 200_000, 300, "options", 1.27, ((1.3, 1.16), (0.24, 3.21))),
         ("imitating its 13 wins taught no rule", "a longer search (--rl.own-wins-steps 2000000)"), [0.0] * 20),
        (OwnWins(1, 30, 200_000, 30, "options", 1.386, MAILROOM),
         ("won 1 of 30 training tasks", "rewards on the way"), [0.0] * 20),
        (OwnWins(200, 200, 200_000, 400, "options", 1.386, LEARNED), ("still rising",), [0.02 * i for i in range(20)]),
    ],
)  # fmt: skip
def test_the_imitation_of_own_wins_is_a_reason_only_where_it_failed(
    own: OwnWins, words: tuple[str, ...], rates: list[float]
) -> None:
    found = said(rates, [0.1 * i for i in range(20)], own=own)
    assert all(word in found for word in words), found


def test_a_training_that_ends_half_way_gets_words_only_for_a_clear_reason() -> None:
    rising = [0.4 + 0.02 * i for i in range(20)]
    assert "still learning" in said(rising, rising)
    assert said(rising, rising, luck=True) == ""  # half may be all that can be won
    assert said([0.7] * 20, [0.7] * 20, own=OwnWins(80, 80, 200_000, 80, "options", 1.98, FUSEBOX)) == ""
    words = held_at(0.6, [0.95] * 20, [1.0] * 20)
    assert "95% of its training tasks but 60%" in words[1] and "more training tasks" in words[2]


def test_a_single_win_is_not_rounded_away() -> None:
    assert "won 1 of 1,280 episodes" in said([1 / 64] + [0.0] * 19, [0.1 * i for i in range(20)])


def test_memorised_tasks_are_not_given_more_time() -> None:
    assert "memorised" in held_at(0.1, [0.03 * i for i in range(20)], [0.0] * 20)[1]


def test_where_training_tasks_are_all_won_more_time_teaches_nothing() -> None:
    words = held_at(0.87, [min(0.7 + 0.05 * i, 0.98) for i in range(20)], [0.0] * 20)
    assert "98% of its training tasks but 87%" in words[1] and "more training tasks" in words[2]


class Buttons(TextEnv):
    """Press the buttons of a code that no text tells."""

    length, paid = 1, 0.0

    def __init__(self) -> None:
        super().__init__(horizon=self.length)

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        first = {"train": 0, "validation": 100, "test": 200}[split]
        return [Task(f"buttons-{i}", "buttons", {"code": i}, split) for i in range(first, first + 40)]

    def begin(self, task: Task) -> None:
        self.number, self.pressed = task.payload["code"], 0

    def apply(self, action: str) -> Outcome:
        right = int(action[-1]) == (self.number * 7 // (self.pressed + 2)) % 4
        self.pressed = self.pressed + 1 if right else -self.length
        return Outcome(
            1.0 if self.pressed == self.length else self.paid * right, not right, self.pressed == self.length
        )

    def state(self) -> str:
        return f"Machine {self.number}.\n"

    def legal_actions(self) -> Sequence[str]:
        return [f"press {i}" for i in range(4)]


class LongCode(Buttons):
    length, paid = 12, 0.1


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (Buttons, ("won 40 of 40 training tasks", "RL began with nothing")),
        (LongCode, ("won 0 of 40 training tasks", "found none in 900 steps")),
    ],
)
def test_a_run_says_what_its_search_and_its_imitation_came_to(
    env: type[TextEnv], words: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "coach.toml"
    path.write_text(
        f"""
name = "coach"
arms = ["rl-only"]
env.name = "{__name__}:{env.__name__}"
model = {{layers = 1, width = 16, heads = 2, mixed_precision = "off"}}
sft = {{batch_size = 8, eval_every = 20, patience = 2}}
rl = {{updates = 5, episodes = 64, eval_every = 5, own_wins = 200, own_wins_steps = 900, own_wins_updates = 60}}
eval = {{splits = ["test"], episodes = 4}}
""",
        encoding="utf-8",
    )
    recipe = load_recipe(path, [], trust=True)
    pipeline.run(recipe, tmp_path / "run")
    found = " | ".join(coach_lines(recipe, RunFolder(tmp_path / "run")))
    assert all(word in found for word in words), found


def test_the_best_weights_may_be_those_from_before_the_training() -> None:
    falling, rising = [course_of(lines(rates, rates)) for rates in ([0.8, 0.4, 0.3], [0.3, 0.4, 0.8])]
    assert falling is not None and falling.is_from_before
    assert rising is not None and not rising.is_from_before and rising.best == 0.8
    assert course_of([{"step": 0, "success": 0.5}]) is None


def test_progress_is_a_few_words() -> None:
    found = progress_words({"step": 3, "success": 0.25, "return": 0.5, "entropy": 1.0, "eval_success": 0.5})
    assert found == "won 25%, return 0.50, entropy 1.00, validation 50%"
    assert [duration(seconds) for seconds in (40, 600, 7200)] == ["40 s", "10 min", "2.0 h"]
