"""`WrittenEnv`: an environment whose actions are free text, too many to be listed, written piece by piece.

Each piece, a letter or a word, is an action, and so is `SEND`, which hands the text over. So everything that plays and
learns by choosing among actions also writes: as in online RL of text (Ziegler et al. 2019, section 2), each piece is an
action whose probability is learned from, and what the text earned stands at its last one. Pieces that the environment
does not name are never written.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from reflectrl.envs.base import Outcome, TextEnv
from reflectrl.types import UserError

SEND, SPACE = "send", "space"


class WrittenEnv(TextEnv):
    """Base class of environments that are answered in writing.

    An author writes `tasks` and `begin` as ever, `question` in place of `state`, and `answer` in place of `apply` and
    `legal_actions`.

    Args:
        pieces: what a text is made of, each piece one line: the letters of a string, or a list of words. A piece " " is
            called "space" among the actions.
        length: the greatest number of pieces of a text; then it can only be sent.
        answers: the greatest number of texts of an episode; the horizon is as long as writing them can take.
        joint: stands between pieces of a text: "" for letters, " " for words.

    Raises:
        UserError: there are no pieces, or one is called "send".
    """

    def __init__(self, pieces: Sequence[str], length: int, answers: int = 1, joint: str = "") -> None:
        super().__init__(answers * (length + 1))
        self.pieces: Mapping[str, str] = {SPACE if piece == " " else piece: piece for piece in pieces}
        if not self.pieces or SEND in self.pieces:
            raise UserError(f"{type(self).__name__}: pieces are letters or words, at least one, and none is {SEND!r}")
        self.length, self.joint = length, joint

    @abstractmethod
    def question(self) -> str:
        """The text of the observation: what is to be answered."""

    @abstractmethod
    def answer(self, text: str) -> Outcome:
        """What the text that was sent does, and earns."""

    @property
    def written(self) -> tuple[str, ...]:
        """The pieces since the last text was sent, by the names of their actions."""
        sent = len(self._actions) - self._actions[::-1].index(SEND) if SEND in self._actions else 0
        return tuple(self._actions[sent:])

    def state(self) -> str:
        """The question, and what is written so far."""
        return f"{self.question()}Written: {' '.join(self.written) or 'nothing'}\n"

    def legal_actions(self) -> Sequence[str]:
        """The pieces; `SEND` once there is something to send, and alone when there is no room for more."""
        count = len(self.written)
        return (SEND,) if count >= self.length else (*self.pieces, SEND) if count else tuple(self.pieces)

    def apply(self, action: str) -> Outcome:
        """Write a piece, which earns nothing, or send the text."""
        if action != SEND:
            return Outcome(0.0)
        return self.answer(self.joint.join(self.pieces[name] for name in self.written))
