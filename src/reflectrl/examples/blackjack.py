"""Adapting a gymnasium environment: Blackjack as text.

    python src/reflectrl/examples/blackjack.py

checks the environment and shows a game. In a recipe:

    [env]
    name = "reflectrl.examples.blackjack:BlackjackEnv"
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reflectrl.core.envs.adapter import GymTextEnv
from reflectrl.tools.workbench.check import check_text_env


class BlackjackEnv(GymTextEnv):
    """Draw cards up to 21. A task is the seed of the shuffled deck. A game with a positive reward counts as won."""

    def __init__(self, horizon: int = 12, history: bool = False) -> None:
        super().__init__("Blackjack-v1", ("stick", "hit"), horizon, name="blackjack", history=history)

    def describe(self, observation: Any, info: Mapping[str, Any]) -> str:
        total, dealer, ace = observation
        return f"You hold {total}{' with a usable ace' if ace else ''}, the dealer shows {dealer}."


def main() -> None:
    check_text_env(BlackjackEnv)
    env = BlackjackEnv(history=True)
    env.reset(options={"task": env.tasks("test")[0]})
    while not env.done:
        env.step(env.names.index("hit"))
    print(env.render(), "won" if env.success else "lost")


if __name__ == "__main__":
    main()
