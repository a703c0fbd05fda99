"""`TextArenaEnv`: a game of TextArena (Guertler et al. 2025) for one player, with its actions listed."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from reflectrl.core.advice import install
from reflectrl.core.envs.adapter import FIRST_SEED, refuse_wrong_settings
from reflectrl.core.envs.base import SPLITS, TextEnv, require_known
from reflectrl.core.plugins import one_line, suggestion
from reflectrl.core.types import Outcome, Task, UserError
from reflectrl.wings.textarena.games import LISTED, Candidates, listed

UNLIMITED = 500
"""Number of turns of a game that has no limit of its own."""
OUT_OF_TURNS = re.compile(r"turn limit|used all \d+ moves", re.IGNORECASE)
"""Pattern of a game's reason for its end if it was cut off, neither won nor lost on the board."""
ROUTE = (
    "list them in 'candidates' or, if answers have to be written freely, train token by token on prompts with"
    " rewards: the arm ppo of text tasks (docs/bridges.md)"
)


class TextArenaEnv(TextEnv):
    """Play a game through the messages that it sends.

    The history holds the rules and all messages since. The state is the latest board, if the game draws one. The reward
    is the game's, at its end: 1 for a win, and usually partial credit for progress. A task is a seed of the game's
    randomness. Some games, like TowerOfHanoi, have none, so all of their tasks are the same.

    Args:
        game: id in TextArena's registry, with or without wrappers ("FrozenLake-v0", "Minesweeper-v0-small").
        candidates: the actions: texts, or in Python a function of the game's current state (`textarena.Env`). An action
            without [brackets] is sent in brackets. Needed if this wing knows no list for the game (see `games.LISTED`).
        horizon: steps per episode; 0 takes twice the game's turns, since it may forgive every other move.
        win: the final reward from which a game is won.
        rules: show the game's own explanation.
        messages: show all past actions and messages; otherwise only the messages since the last action.
        train, validation, test: seeds per split.
        settings: keyword arguments of the game ({"size": 5}).

    Raises:
        UserError: TextArena is not installed, there is no such game, it is not for one player, or lists no actions.
    """

    def __init__(
        self,
        game: str = "FrozenLake-v0",
        candidates: Sequence[str] | Candidates = (),
        horizon: int = 0,
        win: float = 1.0,
        rules: bool = True,
        messages: bool = True,
        train: int = 1000,
        validation: int = 100,
        test: int = 200,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        if horizon < 0 or min(train, validation, test) < 1:
            raise UserError("textarena: horizon must be at least 0, train, validation and test at least 1")
        super().__init__(horizon or 1)
        self.id, self.win, self.show_rules, self.show_messages = game, win, rules, messages
        self.sizes = {"train": train, "validation": validation, "test": test}
        self.settings, self.given = dict(settings or {}), candidates
        self._candidates = self._listing()
        self._random: Any = None
        self.game = self._make()
        if not horizon:
            self.horizon = 2 * (self.game.state.max_turns or UNLIMITED)

    def _listing(self) -> Candidates:
        """Return the function that lists actions. Given texts become a function that returns them."""
        candidates = self.given
        if callable(candidates):
            return candidates
        if isinstance(candidates, str) or not all(isinstance(text, str) and text for text in candidates):
            raise UserError(f"textarena: candidates must be a list of texts, not {candidates!r:.60}")
        lister = listed(self.id)
        if candidates:
            return lambda game: candidates
        if lister is None:
            games = ", ".join(LISTED)
            raise UserError(f"textarena: {self.id!r} lists no actions (those of {games} are known); {ROUTE}")
        return lister

    def _make(self) -> Any:
        """Make the game without wrappers. It is reset once to check that it can be played alone."""
        try:
            import textarena
        except ImportError as error:
            raise UserError(f"environment textarena needs TextArena; {install('textarena')}") from error
        if self.id not in textarena.envs.registration.ENV_REGISTRY:
            raise UserError(f"textarena: unknown game {self.id!r}{_near(self.id)}")
        with self._luck(0):
            try:
                game = textarena.make(self.id, **self.settings)
                while isinstance(game, textarena.core.Wrapper):
                    game = game.env
                game.reset(num_players=1, seed=0)
            except Exception as error:  # games fail with assertions and many other errors
                spec = textarena.envs.registration.ENV_REGISTRY[self.id]
                refuse_wrong_settings(spec, self.settings, f"textarena: game {self.id!r}")
                raise UserError(f"textarena: cannot play {self.id!r} alone: {one_line(error)}") from error
        return game

    # ---- TextEnv ---------------------------------------------------------------------------------------------------

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        require_known("textarena", "split", split, SPLITS)
        require_known("textarena", "stage", stage or "full", self.stages)
        first = FIRST_SEED[split]
        seeds = range(first, first + self.sizes[split])
        return [Task(f"{self.id}-{seed}", "textarena", {"game": self.id, "seed": seed}, split) for seed in seeds]

    def begin(self, task: Task) -> None:
        self._rules, self._past, self._latest, self._board = "", "", "", ""
        seed = task.payload["seed"]
        with self._luck(seed):
            self.game.reset(num_players=1, seed=seed)
        self._hear()

    def apply(self, action: str) -> Outcome:
        self._latest = ""
        with self._luck():
            done, _ = self.game.step(action if "[" in action else f"[{action}]")
        self._hear()
        reward = float((self.game.state.rewards or {0: 0.0})[0]) if done else 0.0
        won = bool(done and reward >= self.win)
        # The package has one flag for every end; only the game's words tell that its turns were used up.
        truncated = bool(done) and not won and OUT_OF_TURNS.search(str(self.game.state.game_info[0].get("reason")))
        return Outcome(reward, bool(done and not truncated), won, ("won",) if won else (), bool(truncated))

    def history(self) -> str:
        return (self._rules if self.show_rules else "") + (self._past if self.show_messages else "")

    def state(self) -> str:
        return ("" if self.show_messages else self._latest) + self._board

    def legal_actions(self) -> Sequence[str]:
        """Return the candidates, given or computed from the game's current state."""
        return tuple(self._candidates(self.game))

    # ---- the game's side -------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        """Read the game's new messages: rules, board, and the rest."""
        for sender, message, kind in self.game.state.get_current_player_observation():
            text = f"{message.rstrip()}\n"
            if kind.name == "PROMPT":
                self._rules += text
            elif kind.name == "GAME_BOARD":
                self._board = text
            else:
                entry = f"> {text}" if sender >= 0 else text
                self._past, self._latest = self._past + entry, self._latest + entry

    @contextmanager
    def _luck(self, seed: int | None = None) -> Iterator[None]:
        """Give a game random generators of its own for a moment: games draw from Python's and numpy's global ones.

        Args:
            seed: begin with this seed; None continues from where the last block ended.
        """
        before = random.getstate(), np.random.get_state()
        try:
            if seed is None:
                random.setstate(self._random[0])
                np.random.set_state(self._random[1])
            else:
                random.seed(seed)
                np.random.seed(seed)
            yield
            self._random = random.getstate(), np.random.get_state()
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the game, which need not be picklable. The receiving process replays the episode."""
        return {key: value for key, value in self.__dict__.items() if key not in ("game", "_candidates")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._candidates, self.game = self._listing(), self._make()
        if self._task is not None:
            self.restore(self.save())


def _near(game: str) -> str:
    """Suggest the nearest known game, or say where to find the list."""
    from textarena.envs.registration import ENV_REGISTRY

    names = [name for name in ENV_REGISTRY if not name.endswith(("-raw", "-train"))]
    return suggestion(game, names) if len(suggestion(game, names)) < 80 else " (see textarena.envs)"
