"""Effects of actions as texts that models learn to write, and tables of the effects that are known."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reflectrl.core.json_lines import parse_json, read_json_lines
from reflectrl.core.types import Episode, UserError

ON, WON, LOST = "on", "won", "lost"


class Scene(NamedTuple):
    """Text of a state, and the actions listed there."""

    state: str
    actions: tuple[str, ...]


class Effect(NamedTuple):
    """Outcome of an action.

    Attributes:
        reward: reward of the step, in environment units.
        end: "on" if the episode goes on, "won" or "lost" if it ends.
        scene: what is seen next; None at the end.
    """

    reward: float
    end: str
    scene: Scene | None


class Transition(NamedTuple):
    """Step of a log: an action in a scene, and its effect."""

    scene: Scene
    action: str
    effect: Effect


def question(scene: Scene, action: str) -> str:
    """Write what a model reads before it predicts an effect."""
    return f"{scene.state}\nAction: {action}\nOutcome:"


def effect_text(effect: Effect) -> str:
    """Write an effect as a model predicts it: reward and end in the first line, then the next scene."""
    first = f"{effect.reward:+.6g} {effect.end}"
    if effect.scene is None:
        return first
    return "\n".join([first, effect.scene.state, "Actions:", *effect.scene.actions])


def read_effect(text: str) -> Effect | None:
    """Read what `effect_text` wrote; None if the text is not a valid effect."""
    first, _, rest = text.partition("\n")
    reward_text, _, end = first.partition(" ")
    try:
        reward = float(reward_text)
    except ValueError:
        return None
    if end in (WON, LOST) and not rest:
        return Effect(reward, end, None)
    state, separator, actions = rest.rpartition("\nActions:\n")
    if end != ON or not separator:
        return None
    return Effect(reward, end, Scene(state, tuple(actions.split("\n"))))


def transitions(episodes: Iterable[Episode]) -> Iterator[Transition]:
    """Yield the transitions of a log. The last step of a truncated episode is left out: its effect is not logged.

    Raises:
        UserError: an observation has a history, so its state is not all that the player saw.
    """
    for episode in episodes:
        scenes = []
        for step in episode.steps:
            if step.observation.history:
                raise UserError(
                    f"offline-morel: task {episode.task.id!r} has observations with a history, which the models do"
                    " not predict; leave this arm out"
                )
            scenes.append(Scene(step.observation.state, tuple(step.observation.actions)))
        for i, step in enumerate(episode.steps):
            effect = Effect(step.reward, WON if episode.success else LOST, None)
            if i + 1 < len(scenes):
                effect = Effect(step.reward, ON, scenes[i + 1])
            elif episode.truncated:
                continue
            yield Transition(scenes[i], scenes[i].actions[step.action], effect)


class Table:
    """Known effects, and the scenes in which episodes begin.

    Args:
        starts: first scenes of episodes by split.
        effects: for each scene, the effect of each of its actions; None where it is unknown.
    """

    def __init__(self, starts: dict[str, list[Scene]], effects: Mapping[Scene, Sequence[Effect | None]]) -> None:
        self.starts, self.effects = starts, effects

    def lines(self) -> Iterator[str]:
        """Yield the table as JSON lines: one for the starts of each split, then one for each scene."""
        for split, scenes in self.starts.items():
            yield json.dumps({"split": split, "starts": scenes})
        for scene, effects in self.effects.items():
            yield json.dumps({"scene": scene, "effects": effects})

    @classmethod
    def read(cls, path: Path) -> Table:
        """Read a table from JSON lines."""
        starts, effects = dict[str, list[Scene]](), dict[Scene, list[Effect | None]]()
        for _, row in read_json_lines(path, parse_json):
            if "split" in row:
                starts[row["split"]] = [_scene(entry) for entry in row["starts"]]
            else:
                effects[_scene(row["scene"])] = [_effect(entry) for entry in row["effects"]]
        return cls(starts, effects)


def _scene(row: Sequence[Any]) -> Scene:
    state, actions = row
    return Scene(state, tuple(actions))


def _effect(row: Sequence[Any] | None) -> Effect | None:
    if row is None:
        return None
    reward, end, scene = row
    return Effect(reward, end, scene and _scene(scene))
