"""A person at the terminal as a player, and a window through which any player can be watched."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reflectrl.players.base import LiveEpisode, Player
from reflectrl.players.simple import choose
from reflectrl.terminal import printable, printable_line
from reflectrl.types import Turn

Say = Callable[[str], None]
HELP = "a number, or the beginning of an action; h hands over, q quits"


class Quit(Exception):
    """The person wants to stop."""


class HumanPlayer:
    """Asks for each action, showing what there is to see.

    Args:
        helper: takes over when the person types `h`; None if there is nobody to hand over to.
        advise: show the helper's probabilities beside the actions.
        ask: shows a prompt and returns the typed line; EOFError means that nothing more will come.
        say: shows text.
    """

    def __init__(
        self, helper: Player | None = None, advise: bool = False, ask: Callable[[str], str] = input, say: Say = print
    ) -> None:
        self.helper, self.advise, self.ask, self.say = helper, advise, ask, say
        self.handed_over = False

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        """One turn per episode, asked for one after the other.

        Raises:
            Quit: the person typed `q`, or the input ended.
        """
        return [self._turn(episode) for episode in episodes]

    def _turn(self, episode: LiveEpisode) -> Turn:
        advice = self.helper.turns([episode])[0] if self.helper and (self.advise or self.handed_over) else None
        self.say(table(episode, advice))
        while not self.handed_over:
            try:
                word = self.ask("> ").strip()
            except EOFError:
                word = "q"
            if word == "q":
                raise Quit
            if word == "h" and self.helper is not None:
                self.handed_over = True
                advice = advice or self.helper.turns([episode])[0]
            elif (action := self._action(word, episode.observation.actions)) is not None:
                return choose("human", episode, action)
        assert advice is not None
        self.say(f"{advice.player}: {printable_line(advice.text)}")
        return advice

    def _action(self, word: str, actions: Sequence[str]) -> int | None:
        """The action that a word means; None (and a hint) if it means none or several."""
        if word.isdecimal() and 1 <= int(word) <= len(actions):
            return int(word) - 1
        near = [i for i, action in enumerate(actions) if word and action.lower().startswith(word.lower())]
        exact = [i for i in near if actions[i].lower() == word.lower()]
        if len(exact or near) == 1:
            return (exact or near)[0]
        self.say(
            "nobody to hand over to" if word == "h" else f"{'which of them?' if near else 'no such action'} ({HELP})"
        )
        return None


class Watched:
    """Any player, shown while it plays: the state, the reflection, the probabilities and the choice."""

    def __init__(self, player: Player, say: Say = print) -> None:
        self.player, self.say = player, say

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        """The player's own turns."""
        turns = self.player.turns(episodes)
        for episode, turn in zip(episodes, turns, strict=True):
            self.say(f"{table(episode, turn)}\n{turn.player}: {printable_line(turn.text)}")
        return turns


def table(episode: LiveEpisode, advice: Turn | None = None) -> str:
    """What is new to a player: the last reward, the text, the reflection, and the actions with their probabilities."""
    seen = len(episode.steps[-1].observation.history) if episode.steps else 0
    text = episode.observation.history[seen:] + episode.observation.state
    lines = [f"--- step {len(episode.steps) + 1} ---", printable(text).rstrip("\n")]
    if episode.reflection is not None:
        lines.append(f"reflection: {printable(episode.reflection)}")
    if episode.steps:
        last = episode.steps[-1]
        lines.insert(
            0, f"    reward {last.reward:+.2f}{''.join(f', {printable_line(event)}' for event in last.events)}"
        )
    probs = advice.probs if advice is not None else ()
    for i, action in enumerate(episode.observation.actions):
        chance = f"  {probs[i]:6.1%} {'#' * round(20 * probs[i])}" if probs else ""
        lines.append(f"{i + 1:3}  {printable_line(action):24}{chance}".rstrip())
    return "\n".join(lines)
