"""Players without a model: expert, oracle, baseline, random, scripted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reflectrl.envs.promises import problem_of_advice, problem_of_text, require_kept
from reflectrl.players.base import LiveEpisode, Player
from reflectrl.plugins import one_line
from reflectrl.types import Turn, UserError


def choose(player: str, episode: LiveEpisode, action: int) -> Turn:
    """A turn that takes an action with certainty."""
    actions = episode.observation.actions
    return Turn(player, actions[action], choice=action, probs=tuple(float(i == action) for i in range(len(actions))))


def _asked(episode: LiveEpisode, hook: str) -> Any:
    """What an optional hook of the environment says; UserError where it does not have it, or where it raises."""
    try:
        return getattr(episode.env, hook)()
    except NotImplementedError as error:
        raise UserError(str(error)) from error
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:  # an author's code may raise anything
        raise UserError(
            f"environment {episode.task.env!r} raised on task {episode.task.id!r}: {one_line(error)}"
        ) from error


def _advised(episode: LiveEpisode, player: str, hook: str) -> Turn:
    """The turn that a hook of the environment advises."""
    action = _asked(episode, hook)
    require_kept(episode.env, episode.task, problem_of_advice(f"{hook}()", action, len(episode.observation.actions)))
    return choose(player, episode, int(action))


class ExpertPlayer:
    """Takes the environment's best action."""

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        return [_advised(episode, "expert", "expert_action") for episode in episodes]


class OraclePlayer:
    """Takes the best action that one could take who saw what players do not see."""

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        return [_advised(episode, "oracle", "oracle_action") for episode in episodes]


class BaselinePlayer:
    """Plays as the environment's usual method without learning does: what a trained player has to beat."""

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        return [_advised(episode, "baseline", "baseline_action") for episode in episodes]


class AnalystPlayer:
    """Writes the environment's own analysis: the teacher of reflectors, and the upper bound of what one can say."""

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        return [Turn("analyst", self._analysis(episode)) for episode in episodes]

    def _analysis(self, episode: LiveEpisode) -> str:
        found: str = _asked(episode, "analyse")
        require_kept(episode.env, episode.task, problem_of_text("analyse()", found))
        return found


class RandomPlayer:
    """Takes a legal action uniformly at random."""

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        return [self._turn(episode) for episode in episodes]

    def _turn(self, episode: LiveEpisode) -> Turn:
        actions = episode.observation.actions
        action = int(episode.rng.integers(len(actions)))
        return Turn("random", actions[action], choice=action, probs=(1 / len(actions),) * len(actions))


class ScriptedPlayer:
    """Plays a fixed list of actions (by text) in every episode: for tests, examples and replays."""

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
