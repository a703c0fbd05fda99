"""The coach: comments on a training by reward, while it goes on and at its end.

A training that ends low gets three lines: what was seen, the likely reason, and what to do next. A training that ends
half-way gets them only if it has memorised its tasks or was still learning. The comments are based on the training's
metrics, which anybody can look up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

LOW, GOOD = 0.5, 0.9
"""Success on validation tasks below which a training has ended low, and from which it needs no comment."""
HARDLY = 0.02
"""Success rate in training below which an episode is hardly ever won."""
GAP = 0.2
"""Difference of success between training and validation tasks that shows memorising. The standard error of 30
validation episodes is up to 0.09, so a smaller difference may be chance."""
SOLVED = 0.95
"""Success on training tasks from which more training time brings nothing more."""
IDLE = 0.5
"""Share of the steps above which a single action dominates."""
MORE_TIME = "give it more time (--minutes 20, or --rl.updates twice as many)"
"""Remedy for a training that was still learning."""
BRIEF = 256
"""Number of episodes below which a training says nothing about the environment."""


def progress_words(metrics: Mapping[str, Any]) -> str:
    """Return the state of a training in a few words, for the progress line."""
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
class OwnWins:
    """Search for wins before RL (`rl.own_wins`), and the imitation of what it found.

    Attributes:
        wins, searched: number of wins, and of the training tasks that the search was given.
        steps: limit of the search (`rl.own_wins_steps`).
        tasks: number of training tasks of the environment.
        scoring: how the policy chooses (`play.scoring`).
        chance: loss of a uniform choice on these wins (nats).
        losses: loss on the imitated wins and on held-out wins, at each evaluation of the imitation.
    """

    wins: int
    searched: int
    steps: int
    tasks: int
    scoring: str
    chance: float = 0.0
    losses: tuple[tuple[float, float], ...] = ()

    @property
    def best(self) -> float:
        """Lowest loss on held-out wins."""
        return min(held_out for _, held_out in self.losses)

    @property
    def is_compared(self) -> bool:
        """True if wins were held out. A single win has to serve for both."""
        return self.wins > 1 and bool(self.losses)

    @property
    def taught_nothing(self) -> bool:
        """True if held-out wins stayed about as hard to predict as by chance."""
        return self.is_compared and self.best > 0.9 * self.chance

    @property
    def is_by_heart(self) -> bool:
        """True if imitation improved on its own wins at the cost of held-out ones."""
        return self.is_compared and self.losses[-1][1] > 1.5 * self.best and self.losses[-1][0] < self.best


@dataclass(frozen=True)
class Course:
    """Course of a training by reward, from its metrics.

    Attributes:
        best, best_step: best success on validation tasks, and the update directly before which it was measured.
        episodes: number of episodes played.
        won: share of the episodes won in all updates.
        early, late: share won, and mean return, in the first and in the last quarter of the updates.
        third: share won in the third quarter of the updates.
        highest: highest share won by ten updates in a row.
        spread: difference between the highest and the lowest mean return of an update.
        entropy: entropy of the choices in the last quarter (nats); None if it was not measured.
        action, share: the most frequent action of the last update, and its share of the steps.
        warmup: updates in which only the critic learned.
        own_wins: the search for wins before RL; None if there was none.
    """

    best: float
    best_step: int
    episodes: int
    won: float
    early: tuple[float, float]
    late: tuple[float, float]
    third: float
    highest: float
    spread: float
    entropy: float | None
    action: str
    share: float
    warmup: int
    own_wins: OwnWins | None = None

    @property
    def is_from_before(self) -> bool:
        """True if the best weights, which are kept, are those from before RL."""
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
        third=fmean(rates[-2 * quarter : -quarter] or rates),
        highest=max(fmean(rates[i : i + window]) for i in range(len(rates) - window + 1)),
        spread=max(returns) - min(returns),
        entropy=fmean(entropies) if entropies else None,
        action=str(played[-1].get("main_action", "")),
        share=float(played[-1].get("main_share", 0.0)),
        warmup=warmup,
    )


def advice(course: Course, name: str, luck: bool = False) -> tuple[str, str, str] | None:
    """Return what was seen, the likely reason, and what to do next; None if there is nothing to say.

    Args:
        name: name of the environment, as the user types it.
        luck: True if the environment's own randomness changes what an action does.
    """
    diagnoses = _diagnoses(course, name, luck) if course.best < LOW else _half_way(course, luck)
    diagnosis = next(diagnoses, None)
    return None if diagnosis is None else (_seen(course), *diagnosis)


def _seen(course: Course) -> str:
    """Describe the course in figures."""
    if course.won >= HARDLY:
        won = f"won {course.won:.1%} of"
    elif course.won:  # a share would be rounded to "0.0%"
        won = f"won {round(course.won * course.episodes):,} of"
    else:
        won = "never won in"
    parts = [f"{won} {course.episodes:,} episodes", f"validation {course.best:.0%} at best"]
    if course.won:
        parts.append(f"{course.early[0]:.0%} at first, {course.late[0]:.0%} in the end")
    parts.append(f"return {course.early[1]:.2f} at first, {course.late[1]:.2f} in the end")
    own = course.own_wins
    if own is not None and (own.wins or course.won < HARDLY):
        parts.append(f"the search before RL won {own.wins} of {own.searched} training tasks")
    if course.share >= IDLE:
        parts.append(f"{course.share:.0%} of the last steps are {course.action!r}")
    if course.entropy is not None:
        parts.append(f"entropy {course.entropy:.2f}")
    return "; ".join(parts)


def _half_way(course: Course, luck: bool) -> Iterator[tuple[str, str]]:
    """Yield reasons and remedies for a training that ended neither low nor well.

    More may not be winnable in this environment, so only a clear reason is given.
    """
    if course.best >= GOOD or course.episodes < BRIEF:
        return
    yield from _memorised(course)
    if not luck and course.late[0] > course.early[0] + 0.1 and course.late[0] > 0.9 * course.highest:
        yield (
            "it was still learning when it ended, and does about as well on validation tasks as on training tasks",
            MORE_TIME,
        )


def _memorised(course: Course) -> Iterator[tuple[str, str]]:
    """Yield the reason and the remedy if training tasks are won and validation tasks are not, or less often."""
    if course.late[0] > course.best + GAP or course.late[0] >= SOLVED > course.best:
        yield (
            f"it wins {course.late[0]:.0%} of its training tasks but {course.best:.0%} of the validation tasks at "
            "best: it has memorised them",
            "more training tasks, and a text that says what matters in the same words in every task",
        )


def _imitation(own: OwnWins) -> Iterator[tuple[str, str]]:
    """Yield the reason and the remedy if imitating the wins of the search taught nothing about other tasks."""
    if not own.taught_nothing:
        return
    last, held_out = own.losses[-1]
    losses = f"the loss on held-out wins was {own.best:.2f} at best (by chance {own.chance:.2f})"
    if last > 0.9 * own.chance:
        yield (
            f"not even the {own.wins} wins that it imitated were learned: {losses}, and the loss on the others was "
            f"{last:.2f} in the end; so RL began with nothing",
            f"longer imitation (--sft.patience 20), {_better_imitation(own)}",
        )
    else:
        yield (
            f"imitating its {own.wins} wins taught no rule that holds for other tasks: {losses} and {held_out:.2f} in "
            f"the end, and the loss on the others was {last:.2f}; so RL began with nothing",
            _better_imitation(own),
        )


def _luck(own: OwnWins) -> str:
    """Say that wins may be luck, if imitation never learned to tell their actions from most of the others."""
    among, listed = math.exp(own.best), math.exp(own.chance)
    if among < listed / 2:
        return ""
    return (
        f"; at best it guessed among {among:.1f} of {listed:.1f} actions, so the text hardly says why they win, or "
        "they won by luck"
    )


def _better_imitation(own: OwnWins) -> str:
    """Advise how imitation can learn a general rule instead of memorising its wins."""
    texts = "choose by the texts of the actions (--play.scoring options), " if own.scoring == "enumeration" else ""
    wins = "more training tasks (in tasks) with a win of each (--rl.own-wins)"
    if own.wins < own.searched / 2:
        wins = f"wins of more tasks by a longer search (--rl.own-wins-steps {10 * own.steps})"
    elif own.searched < own.tasks:
        wins = f"wins of more training tasks (--rl.own-wins {own.tasks})"
    return f"{texts}{wins}, or a larger model with more time (--model.width 128 --model.layers 3 --minutes 20)"


def _diagnoses(course: Course, name: str, luck: bool) -> Iterator[tuple[str, str]]:
    """Yield reasons and remedies for a training that ended low, the most specific first."""
    show = f"show it 20 times (reflectrl play {name} --record demos.jsonl; --teach.by log --teach.log demos.jsonl)"
    pay = "reward steps on the way (in apply)"
    gain = course.late[1] - course.early[1]
    moved = course.spread > 0 and gain > 0.2 * course.spread
    own = course.own_wins
    neither = longer = ""
    if own is not None and not own.wins and course.won < HARDLY:
        neither = f", and the search for wins found none in {own.steps:,} steps either"
        longer = f"a longer search (--rl.own-wins-steps {10 * own.steps}), "
    if course.episodes < BRIEF:
        yield f"{course.episodes:,} episodes are too few to learn from", "give it more time (--minutes 10)"
    if own is not None:
        yield from _imitation(own)
    if course.won < HARDLY and course.spread == 0:
        yield f"all episodes earned the same, so there was nothing to learn from{neither}", f"{pay}, {longer}or {show}"
    if course.won < HARDLY and course.share >= IDLE:
        yield (
            f"trying costs more than it brings, so it learned to avoid the costs by {course.action!r}: "
            f"the way to a win is too long to be found by chance{neither}",
            f"{pay}, lower the costs of trying, {longer}or {show}",
        )
    if course.won < HARDLY and moved:
        yield (
            f"it collects the rewards on the way, but the win is still out of its reach{neither}",
            f"give it more time (--minutes 20), {pay} closer to the win, {longer}or {show}",
        )
    if course.won < HARDLY:
        yield f"wins are too rare to learn from: chance hardly ever reaches one{neither}", f"{pay}, {longer}or {show}"
    if course.highest > course.late[0] + 0.2:
        yield (
            f"it had won {course.highest:.0%} and lost it again: the steps of learning were too large",
            "smaller steps (--rl.lr 1e-4 --rl.schedule linear), or hold it (--rl.kl-coef 0.05)",
        )
    # Before the remedies below: more time would only improve success on training tasks.
    yield from _memorised(course)
    # A return that rises much more than success comes from costs avoided, or from rewards on the way.
    elsewhere = moved and course.late[0] - course.early[0] < gain / 3
    another_start = f"another start (--seeds 1 2), lower costs of trying, or {show}"
    if course.share >= IDLE and elsewhere:
        yield (
            f"it learned to avoid costs rather than to win: it still wins {course.late[0]:.0%} of its tasks, and in "
            f"most of the others it stays with {course.action!r}",
            another_start,
        )
    # Compared with the third quarter too: a training that rose at first and then stood still needs more than time.
    if course.late[0] > max(course.early[0] + 0.05, course.third + 0.02):
        yield (
            "success was still rising when it ended",
            MORE_TIME,
        )
    if luck:
        yield (
            "luck plays a part here: the same actions end differently, so no player can always win",
            f"compare with the best player that you know of (reflectrl play {name}), not with 100 %",
        )
    if own is not None and own.is_by_heart:
        yield (
            f"imitation learned its {own.wins} wins by heart: the loss on held-out wins rose from {own.best:.2f} to "
            f"{own.losses[-1][1]:.2f}, while the loss on the others fell to {own.losses[-1][0]:.2f}{_luck(own)}",
            f"{_better_imitation(own)}; or {show}",
        )
    if elsewhere and course.late[0] < course.early[0] + 0.1:
        yield (
            "it learned to earn more without winning more, by avoiding costs or by rewards on the way: its return rose "
            f"by {gain:.2f}, its wins only from {course.early[0]:.0%} to {course.late[0]:.0%}",
            another_start,
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
