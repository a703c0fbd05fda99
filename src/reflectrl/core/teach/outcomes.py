"""Reflections from outcomes, if there is no analyst: try the actions of a state, and write down which ones won.

In every state of a teaching episode, each legal action is tried several times: it is taken, and a policy plays on to
the end. The reflection then lists how often each action won. The best action also becomes the step's target. This is
one step of policy improvement by rollouts (Tesauro & Galperin 1996, "On-line Policy Improvement using Monte-Carlo
Search"). Steps of lost episodes become negative examples: wherever any action won, the right action is now known.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from reflectrl.core.envs.base import Snapshot, TextEnv
from reflectrl.core.players.base import LiveEpisode, Player, carries
from reflectrl.core.rollout import advance
from reflectrl.core.types import Choice, Episode, Reflection, Step, named_seed


@dataclass(frozen=True)
class Tried:
    """Outcomes of an action in a state.

    Attributes:
        action: index among the legal actions.
        won: number of continuations that won.
        played: number of continuations.
        mean_return: mean return of the continuations, including the action's own reward.
    """

    action: int
    won: int
    played: int
    mean_return: float


def with_outcomes(
    episode: Episode, envs: Sequence[TextEnv], player: Player, count: int, actions: int = 0, seed: int = 0
) -> Episode:
    """Add reflections and targets from outcomes to an episode.

    They are added to the labelled steps and, in a lost episode, to all steps, which become negative examples. If no
    action ever won in a step, a step without a label is left unchanged, and a labelled step keeps its target.

    Args:
        envs: environments of the episode's kind. One continuation is played in each at the same time.
        player: player of the continuations. It should sample, or all continuations of an action are the same.
        count: number of continuations per action.
        actions: largest number of actions tried in a state: the taken action, and the player's most probable ones. 0
            tries all.
        seed: seed of the continuations. Together with the episode's task it decides all randomness.

    Raises:
        UserError: the environment raised.
    """
    step_indices = [i for i, step in enumerate(episode.steps) if step.label or not episode.success]
    tried_by_step = outcomes(episode, step_indices, envs, player, count, actions, seed)
    steps = [
        _with_reflection(step, tried_by_step[i]) if i in tried_by_step else step for i, step in enumerate(episode.steps)
    ]
    return replace(episode, steps=tuple(steps))


def outcomes(
    episode: Episode,
    indices: Sequence[int],
    envs: Sequence[TextEnv],
    player: Player,
    count: int,
    actions: int,
    seed: int,
) -> dict[int, list[Tried]]:
    """Return the outcomes of the actions in some steps of an episode, by the step's index.

    All actions of a state are tried with the same random numbers, so that differences come from the actions. Arguments
    are as in `with_outcomes`.
    """
    starts = _snapshots(envs[0], episode)
    options = _options(episode, indices, envs[0], player, actions)
    jobs = [(i, action, k) for i in indices for action in options[i] for k in range(count)]
    wins = Counter[tuple[int, int]]()
    returns: dict[tuple[int, int], list[float]] = defaultdict(list)
    for (i, action, _), won, total_reward in _played(jobs, starts, episode, envs, player, seed):
        wins[i, action] += won
        returns[i, action].append(total_reward)
    tried: dict[int, list[Tried]] = {i: [] for i in indices}
    for i in indices:
        for action in options[i]:
            tried[i].append(Tried(action, wins[i, action], count, float(np.mean(returns[i, action]))))
    return tried


def best_of(tried: Iterable[Tried], preferred: int | None = None) -> int:
    """Return the action that won most. Ties go to the preferred action, then the highest return, then the first."""
    order = sorted(tried, key=lambda trial: (-trial.won, trial.action != preferred, -trial.mean_return, trial.action))
    return order[0].action


def outcome_text(actions: Sequence[str], tried: Iterable[Tried], best: int) -> str:
    """Write the reflection, for instance "left: won 3 of 4; right: won 0 of 4; best: left"."""
    parts = [f"{actions[trial.action]}: won {trial.won} of {trial.played}" for trial in tried]
    return "; ".join([*parts, f"best: {actions[best]}"])


def _with_reflection(step: Step, tried: Sequence[Tried]) -> Step:
    """Add the reflection, and the target that it names, to a step."""
    best = best_of(tried, step.target if step.label else None)
    if max(trial.won for trial in tried) == 0 and not step.label:
        return step
    reflection = Reflection("outcomes", outcome_text(step.observation.actions, tried, best))
    turns = (reflection, *(turn for turn in step.turns if isinstance(turn, Choice)))
    return replace(step, turns=turns, target=best, label=step.label or "negative")


def _snapshots(env: TextEnv, episode: Episode) -> list[Snapshot]:
    """Replay an episode, and return a snapshot of the environment before each step."""
    logged_seed = episode.provenance.get("env_seed")
    chance = logged_seed if isinstance(logged_seed, int) else named_seed(episode.seed, "env") % 2**32
    advance(env, episode.task, None, chance)
    snapshots = []
    for step in episode.steps:
        snapshots.append(env.save())
        advance(env, episode.task, step.action)
    return snapshots


def _options(episode: Episode, indices: Sequence[int], env: TextEnv, player: Player, most: int) -> dict[int, list[int]]:
    """Return the actions to try in each of the chosen steps, in the order of listing."""
    options = {i: list(range(len(episode.steps[i].observation.actions))) for i in indices}
    limited = [i for i in indices if most and len(options[i]) > most]
    rng = np.random.default_rng(named_seed(episode.seed, "options"))
    states = [
        LiveEpisode(env, episode.task, episode.seed, rng, episode.steps[i].observation, steps=list(episode.steps[:i]))
        for i in limited
    ]
    for i, turn in zip(limited, player.turns(states) if states else (), strict=True):
        taken_action, probs = episode.steps[i].action, turn.probs or (0.0,) * len(options[i])
        ranked = sorted(options[i], key=lambda action: (action != taken_action, -probs[action], action))
        options[i] = sorted(ranked[:most])
    return options


Try = tuple[int, int, int]
"""Index of a step, an action in it, and the number of the continuation."""


def _played(
    jobs: Iterable[Try],
    starts: Sequence[Snapshot],
    episode: Episode,
    envs: Sequence[TextEnv],
    player: Player,
    seed: int,
) -> Iterator[tuple[Try, bool, float]]:
    """Play the continuations, one per environment at a time. Yield (the continuation, whether it won, its return)."""
    remaining_jobs, free_envs, playing = iter(jobs), list(envs), list[tuple[Try, LiveEpisode, float]]()
    carrying = carries(player)
    while True:
        while free_envs and (job := next(remaining_jobs, None)) is not None:
            i, action, k = job
            env, luck_rng = free_envs.pop(), np.random.default_rng(named_seed(seed, "luck", episode.task.id, i, k))
            env.restore(starts[i])
            env.np_random.bit_generator.state = luck_rng.bit_generator.state
            now = advance(env, episode.task, action)
            rng = np.random.default_rng(named_seed(seed, "outcome", episode.task.id, i, action, k))
            before = episode.steps[i]
            seen = now.observation.after(before.observation, before.reflection) if carrying else now.observation
            live = LiveEpisode(env, episode.task, episode.seed, rng, seen, steps=list(episode.steps[:i]))
            live.steps.append(Step(before.observation, (), action, now.reward, now.events))
            if now.done:
                yield job, now.success, now.reward
                free_envs.append(env)
            else:
                playing.append((job, live, now.reward))
        if not playing:
            return
        turns = player.turns([live for _, live, _ in playing])
        still_playing = []
        for (job, live, total_reward), turn in zip(playing, turns, strict=True):
            assert isinstance(turn, Choice)
            now = advance(live.env, episode.task, turn.choice)
            live.steps.append(Step(live.observation, (*live.turns, turn), turn.choice, now.reward, now.events))
            seen = now.observation.after(live.observation, live.reflection) if carrying else now.observation
            live.observation, live.turns = seen, []
            if now.done:
                yield job, now.success, total_reward + now.reward
                free_envs.append(live.env)
            else:
                still_playing.append((job, live, total_reward + now.reward))
        playing = still_playing
