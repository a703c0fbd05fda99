"""Players without a model: expert, oracle, baseline, analyst, random and scripted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reflectrl.core.envs.teacher import ask
from reflectrl.core.players.base import LiveEpisode, Player
from reflectrl.core.types import Choice, Reflection, Turn, UserError


def choose(player: str, episode: LiveEpisode, action: int) -> Turn:
    """Return a turn that takes the given action with probability 1."""
    actions = episode.observation.actions
    return Choice(player, actions[action], choice=action, probs=tuple(float(i == action) for i in range(len(actions))))


def _advice(episode: LiveEpisode, ability: str) -> Any:
    """Ask the environment's teacher. Raise UserError if it cannot answer, or raises an exception."""
    try:
        return ask(episode.env, episode.task, ability, len(episode.observation.actions))
    except NotImplementedError as error:
        raise UserError(str(error)) from error


class ExpertPlayer:
    """Player that takes the action that the environment's teacher considers best."""

    name, ability = "expert", "expert_action"

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        return [choose(self.name, episode, _advice(episode, self.ability)) for episode in episodes]


class OraclePlayer(ExpertPlayer):
    """Player that takes the best action given everything, including what other players cannot see."""

    name, ability = "oracle", "oracle_action"


class BaselinePlayer(ExpertPlayer):
    """Player that uses the usual method without learning, which a trained player has to beat."""

    name, ability = "baseline", "baseline_action"


class AnalystPlayer:
    """Player that writes the teacher's own analysis: the example for reflectors, and their upper bound."""

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        return [Reflection("analyst", _advice(episode, "analyse")) for episode in episodes]


class RandomPlayer:
    """Player that takes a legal action uniformly at random."""

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        turns = list[Turn]()
        for episode in episodes:
            actions = episode.observation.actions
            action = int(episode.rng.integers(len(actions)))
            probs = (1 / len(actions),) * len(actions)
            turns.append(Choice("random", actions[action], choice=action, probs=probs))
        return turns


class ScriptedPlayer:
    """Player of a fixed list of actions, given by their texts, in every episode. For tests, examples and replays."""

    def __init__(self, script: Sequence[str]) -> None:
        self.script = list(script)

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        return [choose("scripted", episode, self._action(episode)) for episode in episodes]

    def _action(self, episode: LiveEpisode) -> int:
        turn = len(episode.steps)
        if turn >= len(self.script):
            raise UserError(f"the script has {len(self.script)} actions, but the episode goes on")
        if self.script[turn] not in episode.observation.actions:
            legal = ", ".join(episode.observation.actions)
            raise UserError(f"scripted action {self.script[turn]!r} is not legal at step {turn} (legal: {legal})")
        return episode.observation.actions.index(self.script[turn])


UNLEARNED: dict[str, type[Player]] = {
    "expert": ExpertPlayer,
    "oracle": OraclePlayer,
    "baseline": BaselinePlayer,
    "random": RandomPlayer,
}
"""Players that need no model, by the names of their arms."""
