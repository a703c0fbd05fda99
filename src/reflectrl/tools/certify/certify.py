"""All checks in order. Measurements that several checks need are made once."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from reflectrl.core.envs import make
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.plugins import one_line
from reflectrl.core.types import Episode, Task
from reflectrl.learn.reward_check import Signal, luck_decides, random_play, signal_of
from reflectrl.learn.validation import evenly
from reflectrl.tools.certify.budget import now
from reflectrl.tools.certify.courses import Walk, course
from reflectrl.tools.certify.degenerate import Play, constant_players, played
from reflectrl.tools.certify.fingerprint import disturb
from reflectrl.tools.certify.graph import StateGraph
from reflectrl.tools.certify.headroom import check_headroom
from reflectrl.tools.certify.hidden import check_text
from reflectrl.tools.certify.learnable import check_learning
from reflectrl.tools.certify.repeatable import check_repeatable
from reflectrl.tools.certify.reward import check_reward
from reflectrl.tools.certify.splits import check_splits
from reflectrl.tools.certify.verdict import Finding
from reflectrl.tools.certify.wins import Win, expert_play, explored, find_wins, sample_of
from reflectrl.tools.workbench.check import EnvCheckError, check_text_env

EPISODES, STEPS, BATCH = 200, 5000, 16
"""Random play: number of tasks, least number of steps, and number of episodes that run at the same time."""
TASKS = 20
"""Number of tasks that players that read nothing play. The expert plays five times as many."""
SPLIT_SECONDS, GRAPH_SECONDS, SEARCH_SECONDS, PLAY_SECONDS, TEXT_SECONDS, REWARD_SECONDS = 20, 40, 40, 15, 30, 30
LUCKY_SECONDS = 10
"""Longest time of each part. The search is shorter where luck decides, since some tasks cannot be won there."""
# The first words of a broken promise, and the check that it belongs to.
OF_CHECK = (
    ("splits are disjoint", "splits"),
    ("the same seed", "deterministic"),
    ("observing changes nothing", "deterministic"),
    ("tasks are stable", "deterministic"),
    ("another instance", "isolated"),
)
RESTORED = "what follows a restored point"
TURNS = 6
"""Number of random walks through each task that is compared between processes."""


def findings_of(section: dict[str, Any], minutes: float, say: Callable[[str], None]) -> Iterator[Finding]:
    """Check an environment.

    Args:
        section: `env` section of JSON values.
        minutes: time limit of the training; 0 leaves it out.
        say: callback for the name of each part that begins.

    Yields:
        The findings. If the environment cannot be played at all, they end early.
    """
    make_env = functools.partial(make, section)
    with closing(make_env()) as env:
        say("promises")
        promise = _guarded("promises", lambda: _promises(make_env))
        if promise.figures.get("cannot_be_played"):
            yield promise
            return
        sample, problem = None, ""
        try:
            sample = sampled(make_env, env, say)
        except Exception as error:  # of the environment's own code
            problem = one_line(error)
        say("other processes")
        walks = random_walks(env)
        repeatable = check_repeatable(section, [*winning_walks(env, sample.wins), *walks] if sample else walks)
        yield _attributed(promise, repeatable)
        yield from repeatable
        unstable = any(finding.state == "fault" for finding in repeatable)
        if problem and not unstable and promise.state != "fault":
            yield Finding("promises", "fault", f"while it was played: {problem}")
        if sample is None:
            return
        say("splits, text, reward")
        for finding in _judged(env, sample):
            yield _doubted(finding) if unstable and finding.state == "fault" else finding
        for graph in sample.graphs:
            graph.env.close()
    if minutes:
        say(f"learning, up to {minutes:g} minutes")
        yield check_learning(section, minutes)


@dataclass(frozen=True)
class Sample:
    """Play of an environment, on which several checks are based.

    Attributes:
        luck: True if the environment's own randomness changes the effects of actions.
        episodes, signal: random play, and its statistics.
        tasks: training tasks that were explored.
        graphs: their graphs; none where luck decides.
        wins: their known wins.
        expert: play by the teacher's expert; empty if there is none.
        plays: results of players that read nothing.
    """

    luck: bool
    episodes: list[Episode]
    signal: Signal
    tasks: list[Task]
    graphs: list[StateGraph]
    wins: list[Win]
    expert: list[Episode]
    plays: dict[str, list[Play]]


def sampled(make_env: Callable[[], TextEnv], env: TextEnv, say: Callable[[str], None]) -> Sample:
    """Play and explore an environment.

    Raises:
        UserError: it raised an exception, or a win cannot be repeated.
    """
    tasks = env.tasks("train")
    luck = luck_decides(make_env, tasks) or luck_in_steps(env)
    say("random play")
    batches = random_play(evenly(tasks, EPISODES), make_env, 0, BATCH, STEPS)
    episodes = [episode for batch in batches for episode in batch]
    explored_tasks = sample_of(env, tasks)
    say("exploration")
    graphs = [] if luck else explored(make_env, explored_tasks, now() + GRAPH_SECONDS)
    say("search for wins")
    wins = find_wins(make_env, explored_tasks, graphs, now() + (LUCKY_SECONDS if luck else SEARCH_SECONDS))
    expert = expert_play(make_env, evenly(tasks, 5 * TASKS)) if "expert" in env.teacher.abilities() else []
    say("players that read nothing")
    plays = played(env, evenly(tasks, TASKS), constant_players(episodes), now() + PLAY_SECONDS)
    return Sample(luck, episodes, signal_of(episodes), explored_tasks, graphs, wins, expert, plays)


def _guarded(check: str, call: Callable[[], Finding]) -> Finding:
    """Return a finding, or a fault if the environment raised an exception."""
    try:
        return call()
    except (KeyboardInterrupt, SystemExit):
        raise
    except Exception as error:  # of the environment's own code
        is_promise = isinstance(error, EnvCheckError)
        words = str(error) if is_promise else one_line(error)
        return Finding(check, "fault", words, {"cannot_be_played": not is_promise})


def _promises(make_env: Callable[[], TextEnv]) -> Finding:
    """Run the checks of `check-env`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        abilities = check_text_env(make_env)
    return Finding("promises", "ok", f"all of them; teacher: {', '.join(abilities) or 'none'}")


def _attributed(promise: Finding, others: list[Finding]) -> Finding:
    """Name the check that a broken promise belongs to."""
    if promise.state != "fault":
        return promise
    check = next((check for words, check in OF_CHECK if promise.words.startswith(words)), "promises")
    faulty = [finding.check for finding in others if finding.state == "fault"]
    if faulty and (check in ("isolated", "deterministic") or promise.words.startswith(RESTORED)):
        words = f"broken by the same fault ({faulty[0]}): {promise.words}"
        return Finding("promises", "unknown", words, promise.figures)
    return Finding(check, "fault", promise.words, promise.figures)


def _doubted(finding: Finding) -> Finding:
    """Return a fault as "unknown", for an environment whose episodes cannot be repeated."""
    words = f"not certain, since episodes do not repeat themselves: {finding.words}"
    return Finding(finding.check, "unknown", words, finding.figures)


def random_walks(env: TextEnv) -> list[Walk]:
    """Return walks for the comparison of processes, the most telling ones first."""
    walks = []
    for split, count in (("train", 16), ("test", 8)):
        task_indices = evenly(range(len(env.tasks(split))), count)
        walks += [Walk(split, task_index, seed) for seed, task_index in enumerate(task_indices)]
    # A second walk through a task shows whether the first one has left state behind.
    repeats = [Walk(walk.split, walk.number, walk.seed + 1000 * turn) for turn in range(1, TURNS) for walk in walks]
    return [*walks, *walks[:4], *repeats]


def winning_walks(env: TextEnv, wins: list[Win]) -> list[Walk]:
    """Return walks along known wins, whose states random walks seldom reach. The first four are taken twice."""
    task_indices = {task.id: task_index for task_index, task in enumerate(env.tasks("train"))}
    walks = [Walk("train", task_indices[win.task.id], seed, win.actions) for seed, win in enumerate(wins)]
    return [*walks, *walks[:4]]


def _judged(env: TextEnv, sample: Sample) -> Iterator[Finding]:
    """Yield the findings that are based on a sample of play."""
    yield _guarded("splits", lambda: check_splits(env, sample.luck, now() + SPLIT_SECONDS))
    yield _guarded("text", lambda: check_text(sample.graphs, sample.luck, now() + TEXT_SECONDS))
    yield _guarded(
        "reward",
        lambda: check_reward(
            env, sample.wins, sample.graphs, sample.plays, sample.episodes, sample.signal, now() + REWARD_SECONDS
        ),
    )
    yield check_headroom(
        sample.episodes, sample.expert, sample.wins, len(sample.tasks), sample.graphs, sample.plays, sample.luck
    )


def luck_in_steps(env: TextEnv, walks: int = 10) -> bool:
    """Tell whether random draws during an episode change what actions do, as far as a few walks show."""
    for task_index, task in enumerate(evenly(env.tasks("train"), walks)):
        walk = Walk(task.split, task_index, task_index)
        if list(course(env, task, walk)) != list(course(env, task, walk, disturb)):
            return True
    return False
