"""An episode that a person plays at the terminal, with players to hand over to, steps to undo, and comments."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from reflectrl.core.envs.base import Snapshot, TextEnv
from reflectrl.core.players.base import LiveEpisode, Player, carries
from reflectrl.core.players.simple import choose
from reflectrl.core.rollout import advance
from reflectrl.core.teach import Recording
from reflectrl.core.terminal import printable_line
from reflectrl.core.types import Choice, Episode, Observation, Reflection, Task, Turn, named_seed
from reflectrl.tools.playing.human import COMMANDS, Say, Word, last_reward, meaning, table

KEEP = "Enter keeps this episode, /undo takes the last step back, /drop forgets it, q keeps it and quits"


class Quit(Exception):
    """The person wants to stop. `finished` is the episode that they were asked about, if there is one."""

    def __init__(self, finished: Episode | None = None) -> None:
        super().__init__()
        self.finished = finished


class Session:
    """An episode at the terminal.

    Args:
        seed: seed of all randomness, as in `rollout.Job`.
        helpers: players that can take over, by name. The first one advises.
        reflector: writer of the reflections that the person and the helpers read, or None.
        advise: show the first helper's probabilities beside the actions.
        confirm: ask at the end whether to keep the episode, so that the losing steps can be undone.
        ask: shows a prompt and returns the typed line. EOFError means the end of the input.
        say: shows text.
    """

    def __init__(
        self,
        env: TextEnv,
        task: Task,
        seed: int,
        helpers: Mapping[str, Player],
        reflector: Player | None = None,
        advise: bool = False,
        confirm: bool = False,
        ask: Callable[[str], str] = input,
        say: Say = print,
    ) -> None:
        self.env, self.task, self.seed, self.helpers, self.reflector = env, task, seed, helpers, reflector
        self.advise, self.confirm, self.ask, self.say = advise, confirm, ask, say
        self.recording = Recording(task, seed, player="human")
        self.snapshots: list[Snapshot] = []
        self.playing, self.left = "", 0
        self.truncated = False
        self.rng = np.random.default_rng(named_seed(seed, "players"))
        self._see(advance(env, task, None, named_seed(seed, "env") % 2**32).observation)

    def play(self) -> Episode | None:
        """Play to the end. Returns None if the person drops the episode.

        Raises:
            Quit: the person typed `q`, or the input ended.
            UserError: the environment raised an error.
        """
        while not (self.env.done and self._is_kept()):  # if it is not kept, steps were undone
            turn = self._turn()
            if turn is None:
                return None
            if isinstance(turn, Choice):
                self._take(turn)
        return self._episode() if self.recording.steps else None

    def _see(self, observation: Observation) -> None:
        """Show an observation to the players, as a new episode, since they cache texts by episode."""
        self.live = LiveEpisode(self.env, self.task, self.seed, self.rng, observation)
        self.live.steps = self.recording.steps
        if self.reflector is not None and not self.env.done:
            self.live.turns = self.reflector.turns([self.live])
        self.shown = False

    def _turn(self) -> Turn | None:
        """Return the next action of a helper or the person.

        The turn has no choice if none is made yet. None means that the episode is dropped.
        """
        if self.playing:
            turn = self.helpers[self.playing].turns([self.live])[0]
            self.say(f"{table(self.live, turn)}\n{turn.player}: {printable_line(turn.text)}")
            self.left -= 1
            if self.left == 0:
                self.playing = ""
            return turn
        if not self.shown:
            advisers = list(self.helpers.values())[: 1 if self.advise else 0]
            self.say(table(self.live, *(adviser.turns([self.live])[0] for adviser in advisers)))
            self.shown = True
        word = self._word()
        if word.kind == "act":
            return choose("human", self.live, word.number)
        if word.kind == "quit":
            raise Quit
        if word.kind == "hand over":
            self.playing, self.left = word.text, word.number
        elif word.kind == "drop":
            return None
        else:
            self._obey(word)
        return Reflection("human", "")

    def _word(self) -> Word:
        try:
            line = self.ask("> ")
        except EOFError:
            line = "q"
        return meaning(line, self.live.observation.actions, list(self.helpers))

    def _obey(self, word: Word) -> None:
        """Carry out a command that is not an action."""
        if word.kind == "undo":
            self._undo(word.number)
        elif word.kind == "reflect":
            others = [turn for turn in self.live.turns if isinstance(turn, Choice)]
            self.live.turns, self.shown = [Reflection("human", word.text), *others], not self.advise
        elif word.kind == "mistake":
            self.recording.mistake(word.number)
            count = min(word.number, len(self.recording.steps))
            self.say(f"{count or 'no'} step{'' if count == 1 else 's'} marked: not to be imitated")
        elif word.kind == "comment":
            self.recording.comment(word.text)
        elif word.kind == "help":
            helpers = (
                f"h [{' | '.join(self.helpers)}] [N]: hand over, to the end or for N steps; " if self.helpers else ""
            )
            self.say("\n".join([f"a number, or the beginning of an action; {helpers}q: quit", *COMMANDS.values()]))
        else:
            self.say(word.text)

    def _undo(self, steps: int) -> None:
        """Go back some steps.

        The environment's randomness goes back as well, so that the episode can be replayed from its seed.
        """
        if not self.snapshots:
            self.say("nothing to take back")
            return
        observation = self.recording.steps[-min(steps, len(self.snapshots))].observation
        for _ in range(min(steps, len(self.snapshots))):
            snapshot = self.snapshots.pop()
            self.recording.undo()
        self.env.restore(snapshot)
        self.playing = ""
        self._see(observation)

    def _take(self, turn: Choice) -> None:
        self.snapshots.append(self.env.save())
        seen, turns = self.live.observation, (*self.live.turns, turn)
        time_step = advance(self.env, self.task, turn.choice)
        self.recording.step(seen, turn.choice, time_step.reward, time_step.events, turns=turns)
        self.truncated, observation = time_step.truncated, time_step.observation
        if carries(self.reflector):
            observation = observation.after(seen, self.live.reflection)
        self._see(observation)

    def _is_kept(self) -> bool:
        """Tell whether the finished episode is kept as it is. The person may undo its last steps, or drop it."""
        self.playing = ""
        if not self.confirm:
            return True
        self.say(f"{last_reward(self.live)}\n{'won' if self.env.success else 'not won'}. {KEEP}")
        while True:
            try:
                line = self.ask("> ")
            except EOFError:
                line = "q"
            word = meaning(line, ())
            if not line.strip():
                return True
            if word.kind == "quit":
                raise Quit(self._episode())
            if word.kind == "drop":
                self.recording.steps.clear()
                return True
            self._obey(word if word.kind != "wrong" else Word("wrong", text=KEEP))
            if word.kind == "undo":
                return False

    def _episode(self) -> Episode:
        return self.recording.finished(self.env.success, self.truncated)
