"""A person at the terminal: the screen they see, the commands they type, and a view of any player."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from reflectrl.core.players.base import LiveEpisode, Player
from reflectrl.core.plugins import suggestion
from reflectrl.core.terminal import printable, printable_line
from reflectrl.core.types import Turn

Say = Callable[[str], None]
HELP = "a number, or the beginning of an action; h hands over, q quits, /help says more"
COMMANDS = {
    "undo": "/undo [N]: take the last step (or N of them) back",
    "reflect": "/reflect TEXT: what there is to say about this state, as a reflector should write it",
    "mistake": "/mistake [N]: the last step (or N of them) is not to be imitated; what you do next is the way out",
    "comment": "/comment TEXT: a remark for people; no player reads it",
    "drop": "/drop: forget this episode and begin the next",
    "help": "/help: this",
}
"""Commands besides actions. An unambiguous beginning is enough: /u, /r TEXT."""

Kind = Literal["act", "hand over", "quit", "undo", "reflect", "mistake", "comment", "drop", "help", "wrong"]


@dataclass(frozen=True)
class Word:
    """A line that a person typed, parsed.

    Attributes:
        number: index of an action, or number of steps; 0 if none is given.
        text: the text after a command, the player to hand over to, or the error in the line.
    """

    kind: Kind
    number: int = 0
    text: str = ""


def meaning(line: str, actions: Sequence[str], helpers: Sequence[str] = ()) -> Word:
    """Parse a line that a person typed.

    Args:
        actions: the legal actions.
        helpers: names of the players that can take over. The first one does if none is named.
    """
    line = line.strip()
    if line == "q":
        return Word("quit")
    if line == "h" or line.startswith("h "):
        return _handing_over(line.split()[1:], helpers)
    if line.startswith("/") and not any(action.startswith(line) for action in actions):
        return _command(line)
    if line.isdecimal() and 1 <= int(line) <= len(actions):
        return Word("act", int(line) - 1)
    matches = [i for i, action in enumerate(actions) if line and action.lower().startswith(line.lower())]
    exact_matches = [i for i in matches if actions[i].lower() == line.lower()]
    if len(exact_matches or matches) == 1:
        return Word("act", (exact_matches or matches)[0])
    return Word("wrong", text=f"{'which of them?' if matches else 'no such action'} ({HELP})")


def _handing_over(words: Sequence[str], helpers: Sequence[str]) -> Word:
    """Parse `h`, `h 3`, `h expert` or `h expert 3`: the player that takes over, and its number of steps (0: to the
    end).
    """
    names, numbers = [word for word in words if not word.isdecimal()], [word for word in words if word.isdecimal()]
    if not helpers:
        return Word("wrong", text=f"nobody to hand over to ({HELP})")
    if len(names) > 1 or len(numbers) > 1 or (names and names[0] not in helpers):
        return Word(
            "wrong", text=f"hand over to whom?{suggestion(' '.join(names), helpers)}: h WHO, h STEPS, h WHO STEPS"
        )
    return Word("hand over", int(numbers[0]) if numbers else 0, names[0] if names else helpers[0])


def _command(line: str) -> Word:
    name, _, rest = line[1:].partition(" ")
    kinds: list[Kind] = [kind for kind in COMMANDS if name and kind.startswith(name)]  # type: ignore[misc]
    if len(kinds) != 1:
        return Word("wrong", text=f"no such command; there are /{', /'.join(COMMANDS)}")
    kind, rest = kinds[0], rest.strip()
    if kind in ("undo", "mistake"):
        if rest and not (rest.isdecimal() and int(rest)):
            return Word("wrong", text=COMMANDS[kind])
        return Word(kind, int(rest or 1))
    return Word("wrong", text=COMMANDS[kind]) if kind in ("reflect", "comment") and not rest else Word(kind, 0, rest)


class Watched:
    """Any player, shown during play: the state, the reflection, the probabilities and the choice."""

    def __init__(self, player: Player, say: Say = print) -> None:
        self.player, self.say = player, say

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        """Return the player's own turns, after showing them."""
        turns = self.player.turns(episodes)
        for episode, turn in zip(episodes, turns, strict=True):
            self.say(f"{table(episode, turn)}\n{turn.player}: {printable_line(turn.text)}")
        return turns


def table(episode: LiveEpisode, advice: Turn | None = None) -> str:
    """Return the screen before a choice: last reward, new text, reflection, and actions with their probabilities."""
    seen = len(episode.steps[-1].observation.history) if episode.steps else 0
    text = episode.observation.history[seen:] + episode.observation.state
    lines = [f"--- step {len(episode.steps) + 1} of {episode.env.horizon} ---", printable(text).rstrip("\n")]
    if not episode.steps:
        lines.insert(0, f"task {printable_line(episode.task.id)}")
    if episode.reflection is not None:
        lines.append(f"reflection: {printable(episode.reflection)}")
    if episode.steps:
        lines.insert(0, last_reward(episode))
    probs = advice.probs if advice is not None else ()
    for i, action in enumerate(episode.observation.actions):
        chance = f"  {probs[i]:6.1%} {'#' * round(20 * probs[i])}" if probs else ""
        lines.append(f"{i + 1:3}  {printable_line(action):24}{chance}".rstrip())
    return "\n".join(lines)


def last_reward(episode: LiveEpisode) -> str:
    """Describe reward and events of the last step, in one line."""
    last = episode.steps[-1]
    return f"    reward {last.reward:+.2f}{''.join(f', {printable_line(event)}' for event in last.events)}"
