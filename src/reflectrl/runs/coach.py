"""The coach: words about a training by reward, while it goes on and at its end.

A training that ends low gets three lines: what was seen, the likely reason, and what to do next. They are read off its
metrics, which anybody can look up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

LOW = 0.5
"""Success on validation tasks below which a training has ended low."""
HARDLY, FEW = 0.02, 0.2
"""Success rates in training below which an episode is hardly ever won, and seldom."""
IDLE = 0.5
"""Share of the steps above which a single action dominates."""
BRIEF = 256
"""Number of episodes below which a training says nothing about the environment."""


def progress_words(metrics: Mapping[str, Any]) -> str:
    """Return the state of a training in a few words, for the line of progress."""
    words = []
    if "success" in metrics:
        words.append(f"won {metrics['success']:.0%}")
    if "return" in metrics:
        words.append(f"return {metrics['return']:.2f}")
    if "entropy" in metrics:
        words.append(f"entropy {metrics['entropy']:.2f}")
    if "eval_success" in metrics:
        words.append(f"validation {metrics['eval_success']:.0%}")
    return ", ".join(words)


@dataclass(frozen=True)
class Course:
    """Course of a training by reward, from its metrics.

    Attributes:
        best, best_step: best success on validation tasks, and the update before which it was measured.
        episodes: number of episodes played.
        won: share of the episodes won in all updates.
        early, late: share won, and mean return, in the first and in the last quarter of the updates.
        highest: highest share won by ten updates in a row.
        spread: difference between the highest and the lowest mean return of an update.
        entropy: entropy of the choices in the last quarter (nats); None if it was not measured.
        action, share: the most frequent action of the last update, and its share of the steps.
        warmup: updates in which only the critic learned.
    """

    best: float
    best_step: int
    episodes: int
    won: float
    early: tuple[float, float]
    late: tuple[float, float]
    highest: float
    spread: float
    entropy: float | None
    action: str
    share: float
    warmup: int

    @property
    def is_from_before(self) -> bool:
        """True if the weights that were kept are those from before RL."""
        return self.best_step <= self.warmup


def course_of(lines: Sequence[Mapping[str, Any]], warmup: int = 0) -> Course | None:
    """Return the course of a training; None if its metrics do not say enough.

    Args:
        lines: metrics of one training, in order.
        warmup: updates in which only the critic learned.
    """
    scored = [line for line in lines if "eval_success" in line]
    played = [line for line in lines if "success" in line]
    if not scored or not played:
        return None
    # Ties go to the later weights, as in training.
    best = max(scored, key=lambda line: (line["eval_success"], line.get("eval_return", 0.0), line["step"]))
    quarter = max(1, len(played) // 4)
    rates = [line["success"] for line in played]
    returns = [line.get("return", 0.0) for line in played]
    entropies = [line["entropy"] for line in played[-quarter:] if "entropy" in line]
    window = min(10, len(rates))
    return Course(
        best=best["eval_success"],
        best_step=best["step"],
        episodes=int(played[-1].get("episodes", 0)),
        won=fmean(rates),
        early=(fmean(rates[:quarter]), fmean(returns[:quarter])),
        late=(fmean(rates[-quarter:]), fmean(returns[-quarter:])),
        highest=max(fmean(rates[i : i + window]) for i in range(len(rates) - window + 1)),
        spread=max(returns) - min(returns),
        entropy=fmean(entropies) if entropies else None,
        action=str(played[-1].get("main_action", "")),
        share=float(played[-1].get("main_share", 0.0)),
        warmup=warmup,
    )


def advice(course: Course, name: str, luck: bool = False) -> tuple[str, str, str] | None:
    """Return what was seen, the likely reason, and what to do next; None if the training did not end low.

    Args:
        name: name of the environment, as the user types it.
        luck: True if the environment's own randomness changes what an action does.
    """
    if course.best >= LOW:
        return None
    reason, remedy = next(_diagnoses(course, name, luck))
    return _seen(course), reason, remedy


def _seen(course: Course) -> str:
    """Describe the course in figures."""
    won = f"won {course.won:.1%} of {course.episodes:,} episodes" if course.won else ""
    parts = [won or f"never won in {course.episodes:,} episodes", f"validation {course.best:.0%} at best"]
    if course.won:
        parts.append(f"{course.early[0]:.0%} at first, {course.late[0]:.0%} in the end")
    parts.append(f"return {course.early[1]:.2f} at first, {course.late[1]:.2f} in the end")
    if course.share >= IDLE:
        parts.append(f"{course.share:.0%} of the last steps are {course.action!r}")
    if course.entropy is not None:
        parts.append(f"entropy {course.entropy:.2f}")
    return "; ".join(parts)


def _diagnoses(course: Course, name: str, luck: bool) -> Iterator[tuple[str, str]]:
    """Yield reasons and remedies, the most specific first."""
    show = f"show it 20 times (reflectrl play {name} --record demos.jsonl; --teach.by log --teach.log demos.jsonl)"
    pay = "reward steps on the way (in apply)"
    gain = course.late[1] - course.early[1]
    moved = course.spread > 0 and gain > 0.2 * course.spread
    if course.episodes < BRIEF:
        yield f"{course.episodes:,} episodes are too few to learn from", "give it more time (--minutes 10)"
    if course.won < HARDLY and course.spread == 0:
        yield "all episodes earned the same, so there was nothing to learn from", f"{pay}, or {show}"
    if course.won < HARDLY and course.share >= IDLE:
        yield (
            f"trying costs more than it brings, so it learned to avoid the costs by {course.action!r}: "
            "the way to a win is too long to be found by chance",
            f"{pay}, lower the costs of trying, or {show}",
        )
    if course.won < HARDLY and moved:
        yield (
            "it collects the rewards on the way, but the win is still out of its reach",
            f"give it more time (--minutes 20), {pay} closer to the win, or {show}",
        )
    if course.won < HARDLY:
        yield "wins are too rare to learn from: chance hardly ever reaches one", f"{pay}, or {show}"
    if course.highest > course.late[0] + 0.2:
        yield (
            f"it had won {course.highest:.0%} and lost it again: the steps of learning were too large",
            "smaller steps (--rl.lr 1e-4 --rl.schedule linear), or hold it (--rl.kl-coef 0.05)",
        )
    if course.late[0] > course.early[0] + 0.05 and course.late[0] > 0.9 * course.highest:
        yield (
            "success was still rising when it ended",
            "give it more time (--minutes 20, or --rl.updates twice as many)",
        )
    if luck:
        yield (
            "luck plays a part here: the same actions end differently, so no player can always win",
            f"compare with the best player that you know of (reflectrl play {name}), not with 100 %",
        )
    if course.late[0] > course.best + 0.2:
        yield (
            "it wins its training tasks but not the validation tasks: it has memorised them",
            "more training tasks, and a text that says what matters in the same words in every task",
        )
    if course.entropy is not None and course.entropy < 0.1:
        yield (
            "it has settled on one way of playing, and tries nothing else",
            f"more variety (--rl.entropy-coef 0.1 --rl.temperature 2), or {show}",
        )
    yield (
        "it stands still below half: the text may hide what matters, or ask for a comparison that a small model "
        "learns slowly",
        f"play it yourself by the text alone (reflectrl play {name}); a larger model (--model.width 128 "
        f"--model.layers 3) with more time (--minutes 20); or {show}",
    )
