"""The reference engine, TextWorld with ALFWorld's grammar, behind the interface of `House`. Needs the extra `alfworld`.

It is slow (seconds per game, tens of milliseconds per step). Use it to check the native engine.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from reflectrl.core.advice import install
from reflectrl.core.types import UserError
from reflectrl.wings.alfworld.game import Game

GRAMMAR = re.compile(r"""[{}\[\]#|<>";\\\x00-\x1f\x7f]""")
"""Characters that mean something in a TextWorld grammar or end a text in it. It evaluates what stands in braces."""


def require_plain(wording: str, game: str) -> None:
    """Refuse a task in words that TextWorld's grammar would read as a program. Games may be a stranger's.

    Raises:
        UserError: names the game and the character.
    """
    if sign := GRAMMAR.search(wording):
        raise UserError(
            f"alfworld: the task of {game} contains {sign[0]!r}, which TextWorld's grammar may evaluate as a program;"
            " play it with engine = 'native'"
        )


@lru_cache(maxsize=1)
def _engine() -> Any:
    """Return one environment for all games of the process. Every further environment would leak some megabytes."""
    try:
        import textworld
        from textworld.envs import PddlEnv
    except ImportError as error:
        raise UserError(
            f"engine 'textworld' needs TextWorld ({error}), or use the native one; {install('alfworld')}"
        ) from None
    return PddlEnv(textworld.EnvInfos(admissible_commands=True))


@lru_cache(maxsize=1)
def _rules() -> tuple[str, str]:
    """Return ALFWorld's PDDL domain and grammar from its package, without importing it (that would create folders)."""
    from importlib.util import find_spec

    spec = find_spec("alfworld")
    if spec is None or spec.origin is None:
        raise UserError(f"engine 'textworld' needs alfworld; {install('alfworld')}")
    data = Path(spec.origin).parent / "data"
    return (data / "alfred.pddl").read_text(), (data / "alfred.twl2").read_text()


class ReferenceHouse:
    """A game in the reference engine. Only one can be active: starting another takes the engine away.

    Args:
        problem: text of `initial_state.pddl`.
        game: the same game, compiled.
    """

    def __init__(self, problem: str, game: Game) -> None:
        self.game, self._problem = game, problem
        self._env = _engine()
        self._walked: list[str] = []

    @classmethod
    def from_folder(cls, source: str, game: Game) -> ReferenceHouse:
        """Start a compiled game from its files in a folder of the official layout.

        Raises:
            UserError: the folder has no such game.
        """
        paths = sorted(Path(source).glob(f"**/{game.id}/initial_state.pddl"))
        if not paths:
            raise UserError(f"alfworld: there is no {game.id}/initial_state.pddl in {source}")
        return cls(paths[0].read_text(encoding="utf-8"), game)

    def _begin(self, wording: str) -> None:
        require_plain(wording, self.game.id)
        domain, grammar = _rules()
        grammar = grammar.replace("UNKNOWN GOAL.", wording)
        content = {"pddl_domain": domain, "grammar": grammar, "pddl_problem": self._problem}
        self._walked = []
        arguments = list(sys.argv)  # Fast Downward's translator overwrites them
        try:
            self._env.load(content)
            _name(self._env._entity_infos)
            self._state = self._env.reset()
        except SystemExit:
            raise UserError(
                "the reference engine cannot translate this game (its planner rejects the PDDL files)"
            ) from None
        finally:
            sys.argv = arguments

    def introduction(self, wording: str) -> str:
        """Restart the game and return the text that a player reads first. `wording` is the task in words."""
        self._begin(wording)
        return str(self._state.feedback)

    def admissible(self) -> tuple[str, ...]:
        """Return the admissible commands, in order."""
        return tuple(self._state["admissible_commands"])

    def do(self, command: str) -> str:
        """Carry out a command and return the reply."""
        self._walked.append(command)
        self._state, _, _ = self._env.step(command)
        return str(self._state.feedback)

    def is_won(self) -> bool:
        """Return whether the goal is reached."""
        return bool(self._state["won"])

    def get_state(self) -> tuple[str, ...]:
        """Return the commands that led here."""
        return tuple(self._walked)

    def set_state(self, state: tuple[str, ...]) -> None:
        """Restore a state: restart the game and repeat its commands."""
        self._begin(self.game.description)
        for command in state:
            self.do(command)


def _name(infos: dict[str, Any]) -> None:
    """Give the entities the names that players read, by ALFWorld's own code."""
    from importlib import import_module

    demangler = import_module("alfworld.agents.utils.misc").Demangler(game_infos=infos, shuffle=False)
    for info in infos.values():
        info.name = demangler.demangle_alfred_name(info.id)
