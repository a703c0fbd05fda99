"""The teacher of households: the next command, and a good reflector's sentence, from nothing but the text shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reflectrl.core.envs.teacher import Teacher
from reflectrl.core.types import UserError
from reflectrl.wings.alfworld.beliefs import Beliefs
from reflectrl.wings.alfworld.game import GameError
from reflectrl.wings.alfworld.house import House
from reflectrl.wings.alfworld.notes import notes
from reflectrl.wings.alfworld.planner import best_command
from reflectrl.wings.alfworld.search import Advice, advise

if TYPE_CHECKING:
    from reflectrl.wings.alfworld.env import AlfworldEnv


class AlfworldTeacher(Teacher):
    """Look for things, or know where they are (`AlfworldEnv(expert="planner")`). The oracle always knows."""

    def expert_action(self, env: AlfworldEnv) -> int:
        return env.legal_actions().index(_command(env))

    def oracle_action(self, env: AlfworldEnv) -> int:
        return env.legal_actions().index(_planned(env))

    def analyse(self, env: AlfworldEnv) -> str:
        if env.analysis == "belief":
            return f"{notes(env.beliefs, env.house.game.goal)} Next: {_command(env)}"
        return analyse(env.beliefs, _advised(env), _command(env), env.last)


def _command(env: AlfworldEnv) -> str:
    return _planned(env) if env.expert == "planner" else _advised(env).command


def _planned(env: AlfworldEnv) -> str:
    """Return the next command of a shortest plan, found with knowledge of where everything is."""
    if not isinstance(env.house, House):
        raise UserError("alfworld: the planner needs engine 'native'")
    try:
        return best_command(env.house)
    except GameError:  # the thing in the hand fits nowhere, so the game cannot be won any more
        return _advised(env).command


def _advised(env: AlfworldEnv) -> Advice:
    """Return the searching expert's advice for this step. It is computed once per step."""
    if env.advice is None:
        env.advice = advise(env.beliefs, env.house.game.goal, set(env.legal_actions()), env.prior)
    return env.advice


def analyse(beliefs: Beliefs, advice: Advice, command: str, last: str) -> str:
    """Write one line: whether the last command was useful, what is known that matters now, and what to do next.

    Args:
        advice: the searching expert's command and its reason.
        command: the next command. If it differs from the advice, the list after "Left:" is dropped.
        last: the last command; "" at the start.
    """
    wasted = f"The last command, {last}, brought nothing. " if last and not beliefs.fresh else ""
    reasons = advice.because if command == advice.command else advice.because.partition(" Left:")[0]
    return f"{wasted}{reasons} Next: {command}"
