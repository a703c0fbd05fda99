"""The order of the checks: what each of them needs is measured once."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from reflectrl.core.envs import make
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.plugins import one_line
from reflectrl.core.types import UserError
from reflectrl.learn.signal import luck_decides, random_play, signal_of
from reflectrl.learn.validation import evenly
from reflectrl.tools.certify.budget import now
from reflectrl.tools.certify.courses import Walk
from reflectrl.tools.certify.degenerate import constant_players, played
from reflectrl.tools.certify.fingerprint import generators
from reflectrl.tools.certify.headroom import check_headroom
from reflectrl.tools.certify.hidden import check_text
from reflectrl.tools.certify.learnable import check_learning
from reflectrl.tools.certify.repeatable import check_repeatable
from reflectrl.tools.certify.reward import check_reward
from reflectrl.tools.certify.splits import check_splits
from reflectrl.tools.certify.verdict import Finding
from reflectrl.tools.certify.wins import explored, expert_play, find_wins, sample_of
from reflectrl.tools.workbench.check import EnvCheckError, check_text_env

EPISODES, STEPS, BATCH = 200, 5000, 16
"""Random play: number of tasks, of steps at least, and of episodes that run at the same time."""
TASKS = 20
"""Number of tasks that players without reading, and the expert, play."""
SPLIT_SECONDS, GRAPH_SECONDS, SEARCH_SECONDS, PLAY_SECONDS, TEXT_SECONDS, REWARD_SECONDS = 20, 40, 40, 15, 30, 30
"""Longest time of each part."""
OF_CHECK = (
    ("splits are disjoint", "splits"),
    ("the same seed", "deterministic"),
    ("observing changes nothing", "deterministic"),
    ("tasks are stable", "deterministic"),
    ("another instance", "isolated"),
)
"""Words of a broken promise, and the check that it belongs to."""


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
        say("processes")
        repeatable = _repeatable(section, env)
        yield _attributed(promise, repeatable)
        yield from repeatable
        if any(finding.check in ("promises", "deterministic") and finding.state == "fault" for finding in (promise,)):
            if promise.figures.get("cannot_be_played"):
                return
        try:
            yield from _measured(make_env, env, say)
        except UserError as error:
            yield Finding("promises", "fault", f"while it was played: {one_line(error)}")
            return
    if minutes:
        say(f"learning, up to {minutes:g} minutes")
        yield check_learning(section, minutes)


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
    if check == "isolated" and "deterministic" in faulty:
        check = "deterministic"
    if check == "deterministic" and faulty == ["isolated"]:
        check = "isolated"
    return Finding(check, "fault", promise.words, promise.figures)


def _repeatable(section: dict[str, Any], env: TextEnv) -> list[Finding]:
    """Compare walks between processes, and between orders of play."""
    walks = []
    for split, count in (("train", 16), ("test", 8)):
        size = len(env.tasks(split))
        walks += [Walk(split, number, seed) for seed, number in enumerate(evenly(range(size), count))]
    # A task played twice shows what its own first episode leaves behind.
    walks += walks[:4]
    try:
        return check_repeatable(section, walks)
    except UserError as error:
        single = "max_concurrent_envs" in str(error)
        return [Finding("isolated", "unknown" if single else "fault", one_line(error))]


def _measured(make_env: Callable[[], TextEnv], env: TextEnv, say: Callable[[str], None]) -> Iterator[Finding]:
    """Check what random play, exploration and a search are needed for."""
    tasks = env.tasks("train")
    luck = luck_decides(make_env, tasks) or draws_in_steps(env)
    say("splits")
    yield _guarded("splits", lambda: check_splits(env, luck, now() + SPLIT_SECONDS))
    say("random play")
    batches = random_play(evenly(tasks, EPISODES), make_env, 0, BATCH, STEPS)
    episodes = [episode for batch in batches for episode in batch]
    signal = signal_of(episodes)
    sample = sample_of(env, tasks)
    say("exploration")
    graphs = [] if luck else explored(make_env, sample, now() + GRAPH_SECONDS)
    say("search for wins")
    wins = find_wins(make_env, sample, graphs, now() + SEARCH_SECONDS)
    expert = expert_play(make_env, evenly(tasks, 5 * TASKS)) if "expert" in env.teacher.abilities() else []
    say("players that read nothing")
    plays = played(env, evenly(tasks, TASKS), constant_players(episodes), now() + PLAY_SECONDS)
    yield _guarded("text", lambda: check_text(graphs, luck, now() + TEXT_SECONDS))
    until = now() + REWARD_SECONDS
    yield _guarded("reward", lambda: check_reward(env, wins, graphs, plays, episodes, signal, until))
    yield _guarded("headroom", lambda: check_headroom(episodes, expert, wins, len(sample), graphs, plays, luck))
    for graph in graphs:
        graph.env.close()


def draws_in_steps(env: TextEnv, walks: int = 10, steps: int = 30) -> bool:
    """Tell whether a step draws from a random generator, as far as a few walks show."""
    for number, task in enumerate(evenly(env.tasks("train"), walks)):
        env.reset(seed=number, options={"task": task})
        before = generators(env)
        for step in range(steps):
            if env.done:
                break
            env.step((number + step * 7) % len(env.legal_actions()))
            if generators(env) != before:
                return True
    return False
