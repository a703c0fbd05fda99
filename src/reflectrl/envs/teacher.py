"""A teacher demonstrates and explains in an environment. It is needed for teaching data, not for play or RL."""

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
"""What a teacher can be: ability → the method to override."""


class Teacher:
    """Knows what to do in an environment, and why. Override the methods that your teacher can answer, and name it:

        class MyEnv(TextEnv):
            teacher = MyTeacher()

    Each method gets the environment in its current state, and must not change it. Methods that are not overridden raise
    NotImplementedError.
    """

    def expert_action(self, env: Any) -> int:
        """The index of the best legal action; needed for teaching and for the expert player."""
        raise NotImplementedError(f"{type(env).__name__} has no expert")

    def analyse(self, env: Any) -> str:
        """A short analysis of the current state, as a reflector should write it: one line, without a line break.

        It may name the best next action, but not say how it is known. It must mention only what the text of the
        observation shows, since a reflector, which reads only that text, could not learn to write anything else.
        """
        raise NotImplementedError(f"{type(env).__name__} has no analyst")

    def oracle_action(self, env: Any) -> int:
        """The index of the best legal action for somebody who sees what players do not see: an upper bound.

        By default, this is the expert's action.
        """
        return self.expert_action(env)

    def baseline_action(self, env: Any) -> int:
        """The index of the action that the usual method without learning takes: what learning has to beat."""
        raise NotImplementedError(f"{type(env).__name__} has no baseline")

    def abilities(self) -> list[str]:
        """The abilities whose methods are overridden: some of "expert", "analyst", "oracle" and "baseline"."""
        mine = type(self)
        return [name for name, method in ABILITIES.items() if getattr(mine, method) is not getattr(Teacher, method)]


def ask(env: Any, task: Task, ability: str, actions: int) -> Any:
    """Ask the teacher of an environment, in this process or in a worker: `ask(env, task, "expert_action", 6)`.

    Args:
        env: the environment, or the stand-in for one in a worker.
        ability: the name of the method of `Teacher`.
        actions: how many actions are legal now.

    Returns:
        The index of an action, or the text of an analysis.

    Raises:
        NotImplementedError: the teacher cannot do this; names the environment.
        UserError: it raised something else, or its answer is invalid; names environment and task.
    """
    try:
        said = getattr(env.teacher, ability)(env)
    except (UserError, NotImplementedError, KeyboardInterrupt):
        raise
    except BaseException as error:  # an author's code may raise anything
        raise raised(repr(task.env), task, error) from error
    require_kept(env, task, problem_of_advice(ability, said, actions))
    return said if ability == "analyse" else int(said)
