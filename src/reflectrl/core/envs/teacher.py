"""Teachers, which demonstrate and explain in an environment. They are needed for teaching data, not for play or RL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reflectrl.core.envs.contract import (
    problem_of_advice,
    problem_of_preferences,
    problem_of_questions,
    raised,
    require_kept,
)
from reflectrl.core.types import AuxiliaryQuestion, Task, UserError

ABILITIES = {
    "expert": "expert_action",
    "analyst": "analyse",
    "oracle": "oracle_action",
    "baseline": "baseline_action",
}
"""Abilities of a teacher: ability → the method to override."""


class Teacher:
    """Base class of teachers. Override the methods that your teacher supports, and name it in your environment:

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

        It may name the best next action, but must not say how that is known. It must mention only facts that the text
        of the observation shows. A reflector reads only that text, and could not learn to write anything else.
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

    def teaches(self, split: str) -> bool:
        """Return False for a split whose tasks the teacher does not know, such as "test". It is not asked there then.

        By default, a teacher is asked in all splits. Teaching data is made in "train" and "validation".
        """
        return True

    def preferences(self, env: Any) -> Sequence[float]:
        """Return relative weights of all legal actions, for states in which naming the best action is not enough.

        Equal weights of several actions mean that they are equally good, and 0 means that an action is never right. A
        policy that scores options learns them as target probabilities. An empty sequence, the default, means the
        expert's action alone.
        """
        return ()

    def questions(self, env: Any) -> Sequence[AuxiliaryQuestion]:
        """Return further questions about the state, with their answers. There are none by default.

        A policy that scores options is trained on them too (`sft.auxiliary_coef`). They help where a choice depends on
        something that the model would not learn to read from the choices alone, such as a list in the reflection.
        """
        return ()

    def abilities(self) -> list[str]:
        """Return the abilities whose methods are overridden: some of "expert", "analyst", "oracle" and "baseline"."""
        cls = type(self)
        return [name for name, method in ABILITIES.items() if getattr(cls, method) is not getattr(Teacher, method)]


def ask_preferences(env: Any, task: Task, actions: int) -> tuple[float, ...]:
    """Ask the teacher of an environment for its preferences among the legal actions. Empty if it has none.

    Raises:
        UserError: the teacher raised, or its answer is invalid. Names environment and task.
    """
    return tuple(float(weight) for weight in _asked(env, task, "preferences", actions))


def ask_questions(env: Any, task: Task) -> tuple[AuxiliaryQuestion, ...]:
    """Ask the teacher of an environment for further questions about the state.

    Raises:
        UserError: the teacher raised, or its answer is invalid. Names environment and task.
    """
    return tuple(_asked(env, task, "questions", 0))


def _asked(env: Any, task: Task, hook: str, actions: int) -> Sequence[Any]:
    try:
        answer: Sequence[Any] = getattr(env.teacher, hook)(env)
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:  # an author's code may raise anything
        raise raised(repr(task.env), task, error) from error
    check = problem_of_preferences(answer, actions) if hook == "preferences" else problem_of_questions(answer)
    require_kept(env, task, check)
    return answer


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
        answer = getattr(env.teacher, ability)(env)
    except (UserError, NotImplementedError, KeyboardInterrupt):
        raise
    except BaseException as error:  # an author's code may raise anything
        raise raised(repr(task.env), task, error) from error
    require_kept(env, task, problem_of_advice(ability, answer, actions))
    return answer if ability == "analyse" else int(answer)
