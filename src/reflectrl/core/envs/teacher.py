"""Teachers, which demonstrate and explain in an environment. They are needed for teaching data, not for play or RL."""

from __future__ import annotations

from typing import Any

from reflectrl.core.envs.promises import problem_of_advice, raised, require_kept
from reflectrl.core.types import Task, UserError

ABILITIES = {
    "expert": "expert_action",
    "analyst": "analyse",
    "oracle": "oracle_action",
    "baseline": "baseline_action",
}
"""Abilities of a teacher: ability → the method to override."""


class Teacher:
    """Base class of teachers. Override the methods that your teacher can answer, and name it in your environment:

        class MyEnv(TextEnv):
            teacher = MyTeacher()

    Each method gets the environment in its current state, and must not change it. Methods that are not overridden raise
    NotImplementedError.
    """

    def expert_action(self, env: Any) -> int:
        """Return the index of the best legal action. Needed for teaching and for the expert player."""
        raise NotImplementedError(f"{type(env).__name__} has no expert")

    def analyse(self, env: Any) -> str:
        """Return a short analysis of the current state, as a reflector should write it, on a single line.

        It may name the best next action, but not say how it is known. It must mention only facts that the text of the
        observation shows. A reflector reads only that text, and could not learn to write anything else.
        """
        raise NotImplementedError(f"{type(env).__name__} has no analyst")

    def oracle_action(self, env: Any) -> int:
        """Return the index of the best legal action given hidden information too, as an upper bound.

        By default, this is the expert's action.
        """
        return self.expert_action(env)

    def baseline_action(self, env: Any) -> int:
        """Return the index of the action that the usual method without learning takes. Learning has to beat it."""
        raise NotImplementedError(f"{type(env).__name__} has no baseline")

    def abilities(self) -> list[str]:
        """Return the abilities whose methods are overridden: some of "expert", "analyst", "oracle" and "baseline"."""
        mine = type(self)
        return [name for name, method in ABILITIES.items() if getattr(mine, method) is not getattr(Teacher, method)]


def ask(env: Any, task: Task, ability: str, actions: int) -> Any:
    """Ask the teacher of an environment, in this process or in a worker: `ask(env, task, "expert_action", 6)`.

    Args:
        env: the environment, or its stand-in if it runs in a worker.
        ability: name of the method of `Teacher`.
        actions: number of actions that are legal now.

    Returns:
        The index of an action, or the text of an analysis.

    Raises:
        NotImplementedError: the teacher cannot do this. Names the environment.
        UserError: the teacher raised something else, or its answer is invalid. Names environment and task.
    """
    try:
        said = getattr(env.teacher, ability)(env)
    except (UserError, NotImplementedError, KeyboardInterrupt):
        raise
    except BaseException as error:  # an author's code may raise anything
        raise raised(repr(task.env), task, error) from error
    require_kept(env, task, problem_of_advice(ability, said, actions))
    return said if ability == "analyse" else int(said)
