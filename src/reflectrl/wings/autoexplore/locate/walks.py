"""A played episode of AutoExplore gone over again: what each command showed, and how it ranks the files.

**Ranking rule.** When the last action was chosen, some files could be identified. They come first: the identified one,
then the others by the probability that the player gave to `id F` in its last choice. The other files follow in the
order of the search.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from reflectrl.types import Episode, UserError, named_seed
from reflectrl.wings.autoexplore.env import AutoExploreEnv

Ranking = tuple[tuple[str, float], ...]
"""(path, probability of identifying it), best first."""


@dataclass(frozen=True)
class Stride:
    """One step of a walk."""

    action: str
    probability: float | None
    """That the player gave to the action, if it told."""
    reflection: str | None
    output: str
    """What the command showed."""
    offered: Mapping[str, float]
    """Files that could be identified before it → the probability of that."""
    identified: str | None = None
    """The file, if the action identified one."""


def retrace(env: AutoExploreEnv, episode: Episode) -> list[Stride]:
    """Walk an episode again, and tell what was seen on the way.

    Args:
        env: one with the arguments of the environment in which it was played.

    Raises:
        UserError: its actions are not those of the episode, because the repository has changed since, say.
    """
    env.reset(seed=named_seed(episode.seed, "env") % 2**32, options={"task": episode.task})
    strides = []
    for number, step in enumerate(episode.steps):
        commands = env.walk.commands()
        if tuple(commands) != step.observation.actions:
            raise UserError(
                f"{episode.task.id}: step {number} cannot be walked again: other actions are legal there now"
            )
        action, choice = step.observation.actions[step.action], step.choice
        probs = dict(zip(step.observation.actions, choice.probs if choice else (), strict=False))
        offered = {one.path: probs.get(name, 0.0) for name, one in commands.items() if one.verb == "id"}
        command = commands[action]
        identified = command.path if command.verb == "id" else None
        shown = env.walk.do(action).text
        strides.append(Stride(action, probs.get(action), step.reflection, shown, offered, identified))
    return strides


def ranking(last: Stride, rest: Iterable[str]) -> Ranking:
    """Files by the rule above.

    Args:
        last: the last step of a walk.
        rest: all files that a search finds, best first.
    """
    by_probability = sorted(last.offered, key=lambda path: -last.offered[path])  # equal ones in the order of the offer
    order = dict.fromkeys([*([last.identified] if last.identified else []), *by_probability, *rest])
    return tuple((path, last.offered.get(path, 0.0)) for path in order)
