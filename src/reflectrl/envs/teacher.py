"""A teacher: who demonstrates and explains in an environment. Needed for teaching data, not for play or RL."""

from __future__ import annotations

from typing import Any

from reflectrl.envs.promises import problem_of_advice, raised, require_kept
from reflectrl.types import Task, UserError

ABILITIES = {
    "expert": "expert_action",
    "analyst": "analyse",
    "oracle": "oracle_action",
    "baseline": "baseline_action",
}
"""What a teacher may be, and the method that makes it so."""


class Teacher:
    """Knows what to do in an environment, and why. Override what yours can do, and name it in the environment:

        class MyEnv(TextEnv):
            teacher = MyTeacher()

    Each method is given the environment as it stands and changes nothing in it. What a method does not know it answers
    with NotImplementedError, as these do.
    """

    def expert_action(self, env: Any) -> int:
        """Index of the best legal action. Needed for teaching and for the expert player."""
        raise NotImplementedError(f"{type(env).__name__} has no expert")

    def analyse(self, env: Any) -> str:
        """A short analysis of the current state, as a reflector should write it (one line, no newline).

        It may use the best next action but never names the source of that knowledge. It may speak only of what the
        text of the observation shows, since a reader could not learn to write anything else.
        """
        raise NotImplementedError(f"{type(env).__name__} has no analyst")

    def oracle_action(self, env: Any) -> int:
        """Index of the best legal action for one who knows what is hidden: the ceiling of the oracle player.

        Where nothing is hidden from the expert either, that is the expert's action.
        """
        return self.expert_action(env)

    def baseline_action(self, env: Any) -> int:
        """Index of the action that the usual method without learning takes: the bar of the baseline player."""
        raise NotImplementedError(f"{type(env).__name__} has no baseline")

    def abilities(self) -> list[str]:
        """What it has of its own: some of "expert", "analyst", "oracle" and "baseline"."""
        mine = type(self)
        return [name for name, method in ABILITIES.items() if getattr(mine, method) is not getattr(Teacher, method)]


def ask(env: Any, task: Task, ability: str, actions: int) -> Any:
    """What the teacher of an environment says, here or in a worker process: `ask(env, task, "expert_action", 6)`.

    Args:
        env: the environment, or its stand-in.
        ability: the method of `Teacher`.
        actions: how many actions are legal now.

    Returns:
        The index of an action, or the text of an analysis.

    Raises:
        NotImplementedError: the teacher cannot do this; names the environment.
        UserError: it raised something else, or what it said cannot be used; names environment and task.
    """
    try:
        said = getattr(env.teacher, ability)(env)
    except (UserError, NotImplementedError, KeyboardInterrupt):
        raise
    except BaseException as error:  # an author's code may raise anything
        raise raised(repr(task.env), task, error) from error
    require_kept(env, task, problem_of_advice(ability, said, actions))
    return said if ability == "analyse" else int(said)
