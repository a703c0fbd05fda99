"""The coach: what it says of trainings that end low, and that it keeps quiet about others."""

from typing import Any

import pytest

from reflectrl.runs.coach import advice, course_of, progress_words
from reflectrl.runs.progress import duration


def lines(rates: list[float], returns: list[float], **last: Any) -> list[dict[str, Any]]:
    """Metrics of a training that was evaluated before each update."""
    made: list[dict[str, Any]] = []
    for step, (rate, earned) in enumerate(zip(rates, returns, strict=True)):
        made.append({"step": step, "success": rate, "return": earned, "episodes": 64 * (step + 1), "entropy": 0.8})
        made[-1] |= {"eval_success": rate, "eval_return": earned}
    made[-1] |= last
    return made


def said(*given: Any, luck: bool = False, **last: Any) -> str:
    course = course_of(lines(*given, **last))
    assert course is not None
    found = advice(course, "my_env", luck)
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


def test_the_best_weights_may_be_those_from_before_the_training() -> None:
    falling, rising = [course_of(lines(rates, rates)) for rates in ([0.8, 0.4, 0.3], [0.3, 0.4, 0.8])]
    assert falling is not None and falling.is_from_before
    assert rising is not None and not rising.is_from_before and rising.best == 0.8
    assert course_of([{"step": 0, "success": 0.5}]) is None


def test_progress_is_a_few_words() -> None:
    found = progress_words({"step": 3, "success": 0.25, "return": 0.5, "entropy": 1.0, "eval_success": 0.5})
    assert found == "won 25%, return 0.50, entropy 1.00, validation 50%"
    assert [duration(seconds) for seconds in (40, 600, 7200)] == ["40 s", "10 min", "2.0 h"]
