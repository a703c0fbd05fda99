"""An environment with a teacher: guess a number, and be told "higher" or "lower".

    python src/reflectrl/examples/guess_number.py

checks the environment and shows a game. In a recipe:

    [env]
    name = "reflectrl.examples.guess_number:GuessEnv"
    span = 31
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, divide, require_known
from reflectrl.core.envs.teacher import Teacher
from reflectrl.core.types import Task, UserError
from reflectrl.tools.workbench.check import check_text_env

LOWEST = 70  # the ranges of tasks start at numbers below this


class Halving(Teacher):
    """Teacher that names the middle of the remaining numbers. Needed only to make teaching data."""

    def expert_action(self, env: GuessEnv) -> int:
        return (env.high - env.low) // 2

    def analyse(self, env: GuessEnv) -> str:
        middle = env.low + self.expert_action(env)
        return f"The number is between {env.low} and {env.high}. Halve the range: {middle}."


class GuessEnv(TextEnv):
    """Find the secret number in a range. The answers so far are the history, so they are never encoded twice.

    Args:
        span: size of the range.
        horizon: number of guesses allowed. Halving finds one of 15 numbers in 4 guesses.
        train, validation, test: tasks per split.
    """

    teacher = Halving()

    def __init__(
        self, span: int = 15, horizon: int = 6, train: int = 600, validation: int = 100, test: int = 200
    ) -> None:
        if span < 2:
            raise UserError(f"guess: span must be at least 2, not {span}")
        super().__init__(horizon)
        self.span = span
        self.sizes = {"train": train, "validation": validation, "test": test}

    # ---- tasks: the same list in every process, no payload in two splits ---------------------------------------------

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        require_known("guess", "split", split, SPLITS)
        require_known("guess", "stage", stage or "full", self.stages)
        return [
            Task(f"guess-{low}-{secret}", "guess", {"low": low, "secret": secret}, split)
            for low, secret in self._secrets[split]
        ]

    @cached_property
    def _secrets(self) -> dict[str, list[tuple[int, int]]]:
        pairs = [(low, low + offset) for low in range(LOWEST) for offset in range(self.span)]
        return divide(pairs, self.sizes, "guess")

    # ---- the world -------------------------------------------------------------------------------------------------

    def begin(self, task: Task) -> None:
        self._secret = task.payload["secret"]
        self.low, self.high = task.payload["low"], task.payload["low"] + self.span - 1
        self._past = f"A number from {self.low} to {self.high}.\n"

    def apply(self, action: str) -> Outcome:
        guess = int(action)
        if guess == self._secret:
            self._past += f"{guess}: found\n"
            return Outcome(1.0, terminated=True, success=True, events=("found",))
        if guess < self._secret:
            self._past += f"{guess}: higher\n"
            self.low = guess + 1
        else:
            self._past += f"{guess}: lower\n"
            self.high = guess - 1
        return Outcome(-0.1)

    # ---- text: what only grows, what may change, what may be done ----------------------------------------------------

    def history(self) -> str:
        return self._past

    def state(self) -> str:
        return "Your guess?\n"

    def legal_actions(self) -> Sequence[str]:
        return [str(guess) for guess in range(self.low, self.high + 1)]


def main() -> None:
    check_text_env(GuessEnv)
    env = GuessEnv()
    env.reset(options={"task": env.tasks("test")[0]})
    while not env.done:
        print(env.teacher.analyse(env))
        env.step(env.teacher.expert_action(env))
    print(env.render(), "won" if env.success else "lost")


if __name__ == "__main__":
    main()
