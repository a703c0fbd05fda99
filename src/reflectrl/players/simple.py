"""Players without a model: expert, oracle, baseline, random, scripted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reflectrl.envs.promises import problem_of_advice, problem_of_text, require_kept
from reflectrl.players.base import Player, Seat
from reflectrl.plugins import one_line
from reflectrl.types import Turn, UserError


def choose(player: str, seat: Seat, action: int) -> Turn:
    """A turn that takes an action with certainty."""
    actions = seat.observation.actions
    return Turn(player, actions[action], choice=action, probs=tuple(float(i == action) for i in range(len(actions))))


def _asked(seat: Seat, hook: str) -> Any:
    """What an optional hook of the environment says; UserError where it does not have it, or where it raises."""
    try:
        return getattr(seat.env, hook)()
    except NotImplementedError as error:
        raise UserError(str(error)) from error
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:  # an author's code may raise anything
        raise UserError(f"environment {seat.task.env!r} raised on task {seat.task.id!r}: {one_line(error)}") from error


def _advised(seat: Seat, player: str, hook: str) -> Turn:
    """The turn that a hook of the environment advises."""
    action = _asked(seat, hook)
    require_kept(seat.env, seat.task, problem_of_advice(f"{hook}()", action, len(seat.observation.actions)))
    return choose(player, seat, int(action))


class ExpertPlayer:
    """Takes the environment's best action."""

    def turns(self, seats: Sequence[Seat]) -> list[Turn]:
        return [_advised(seat, "expert", "expert_action") for seat in seats]


class OraclePlayer:
    """Takes the best action that one could take who saw what players do not see."""

    def turns(self, seats: Sequence[Seat]) -> list[Turn]:
        return [_advised(seat, "oracle", "oracle_action") for seat in seats]


class BaselinePlayer:
    """Plays as the environment's usual method without learning does: what a trained player has to beat."""

    def turns(self, seats: Sequence[Seat]) -> list[Turn]:
        return [_advised(seat, "baseline", "baseline_action") for seat in seats]


class AnalystPlayer:
    """Writes the environment's own analysis: the teacher of reflectors, and the upper bound of what one can say."""

    def turns(self, seats: Sequence[Seat]) -> list[Turn]:
        return [Turn("analyst", self._analysis(seat)) for seat in seats]

    def _analysis(self, seat: Seat) -> str:
        found: str = _asked(seat, "analyse")
        require_kept(seat.env, seat.task, problem_of_text("analyse()", found))
        return found


class RandomPlayer:
    """Takes a legal action uniformly at random."""

    def turns(self, seats: Sequence[Seat]) -> list[Turn]:
        return [self._turn(seat) for seat in seats]

    def _turn(self, seat: Seat) -> Turn:
        actions = seat.observation.actions
        action = int(seat.rng.integers(len(actions)))
        return Turn("random", actions[action], choice=action, probs=(1 / len(actions),) * len(actions))


class ScriptedPlayer:
    """Plays a fixed list of actions (by text) in every episode: for tests, examples and replays."""

    def __init__(self, script: Sequence[str]) -> None:
        self.script = list(script)

    def turns(self, seats: Sequence[Seat]) -> list[Turn]:
        return [choose("scripted", seat, self._action(seat)) for seat in seats]

    def _action(self, seat: Seat) -> int:
        turn = len(seat.steps)
        if turn >= len(self.script):
            raise UserError(f"the script has {len(self.script)} actions, but the episode goes on")
        if self.script[turn] not in seat.observation.actions:
            legal = ", ".join(seat.observation.actions)
            raise UserError(f"scripted action {self.script[turn]!r} is not legal at step {turn} (legal: {legal})")
        return seat.observation.actions.index(self.script[turn])


UNLEARNED: dict[str, type[Player]] = {
    "expert": ExpertPlayer,
    "oracle": OraclePlayer,
    "baseline": BaselinePlayer,
    "random": RandomPlayer,
}
"""Players that need no model, by the names of their arms."""
