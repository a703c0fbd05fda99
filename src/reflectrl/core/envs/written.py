"""`WrittenEnv`: an environment whose answers are free text, too many to be listed, written piece by piece.

Each piece (a letter or a word) is an action, and so is `SEND`, which submits the text. So all players and learners that
choose among actions can also write. As in online RL of text (Ziegler et al. 2019, section 2), each piece is an action
whose probability is trained, and the text's reward comes with its last action. Pieces that the environment does not
list are never written.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from reflectrl.core.envs.base import Outcome, TextEnv
from reflectrl.core.types import UserError

SEND, SPACE = "send", "space"


class WrittenEnv(TextEnv):
    """Base class of environments that are answered in writing.

    An author writes `tasks` and `begin` as usual, `question` in place of `state`, and `answer` in place of `apply` and
    `legal_actions`.

    Args:
        pieces: pieces of a text, each on a single line: the letters of a string, or a list of words. A piece " " is
            called "space" among the actions.
        length: largest number of pieces in a text. A text of this length can only be sent.
        answers: largest number of texts in an episode. The horizon is long enough to write all of them.
        joint: text between two pieces: "" for letters, " " for words.

    Raises:
        UserError: there are no pieces, or one is called "send".
    """

    def __init__(self, pieces: Sequence[str], length: int, answers: int = 1, joint: str = "") -> None:
        super().__init__(answers * (length + 1))
        self.pieces: Mapping[str, str] = {SPACE if piece == " " else piece: piece for piece in pieces}
        if not self.pieces or SEND in self.pieces:
            raise UserError(
                f"{type(self).__name__}: pieces are letters or words, at least one, and none called {SEND!r}"
            )
        self.length, self.joint = length, joint

    @abstractmethod
    def question(self) -> str:
        """Return the question to be answered, as the text of the observation."""

    @abstractmethod
    def answer(self, text: str) -> Outcome:
        """Evaluate the text that was sent. Return its outcome and reward."""

    @property
    def written(self) -> tuple[str, ...]:
        """Names of the pieces written since the last text was sent."""
        start = len(self._actions) - self._actions[::-1].index(SEND) if SEND in self._actions else 0
        return tuple(self._actions[start:])

    def state(self) -> str:
        """Return the question, and the text written so far."""
        return f"{self.question()}Written: {' '.join(self.written) or 'nothing'}\n"

    def legal_actions(self) -> Sequence[str]:
        """Return the pieces, and `SEND` if there is text to send. At the largest length, only `SEND` is legal."""
        count = len(self.written)
        return (SEND,) if count >= self.length else (*self.pieces, SEND) if count else tuple(self.pieces)

    def apply(self, action: str) -> Outcome:
        """Write a piece, which earns nothing, or send the text."""
        if action != SEND:
            return Outcome(0.0)
        return self.answer(self.joint.join(self.pieces[name] for name in self.written))
