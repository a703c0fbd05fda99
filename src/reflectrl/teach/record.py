"""Recording: episodes written down while a person, a script or a player plays them, and appended to a log.

A recording says for every step whether it is to be imitated. Those of a person and of an expert are, those of other
players are not (they led to where the person took over; Kelly et al. 2019, "HG-DAgger", learns from a person's steps
alone), nor is a step that the person called a mistake. The step after a mistake is a negative example: it shows the way
out of an error. Of a lost episode nothing is imitated.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from reflectrl.config.folders import locked, writing
from reflectrl.envs.base import TextEnv
from reflectrl.episodes import EpisodeLog, from_line, read_episodes, task_key, to_line
from reflectrl.plugins import reason
from reflectrl.types import Episode, Observation, Step, Task, Turn, UserError, named_seed

LOG = logging.getLogger(__name__)
VOUCHED = ("human", "expert", "oracle")
"""Players whose steps are imitated wherever the episode was won."""


class Recording:
    """One episode while it is written down.

    Args:
        task: what is played.
        seed: from which the environment's randomness is drawn, as `rollout.Job` has it.
        provenance: what else is to be known of the episode.

    Attributes:
        steps: the steps so far.
    """

    def __init__(self, task: Task, seed: int, **provenance: Any) -> None:
        self.task, self.seed, self.provenance = task, seed, provenance
        self.steps: list[Step] = []
        self._mistakes: set[int] = set()
        self._comments: list[dict[str, Any]] = []
        self._undone: list[dict[str, Any]] = []

    def step(
        self,
        observation: Observation,
        action: int,
        reward: float,
        events: Sequence[str] = (),
        reflection: str | None = None,
        player: str = "human",
        turns: Sequence[Turn] = (),
    ) -> None:
        """Write down what was seen and done.

        Args:
            action: index into the observation's actions.
            reflection: what whoever plays says about this observation; it teaches reflectors.
            player: who acted.
            turns: what players said, where that is known in full; takes the place of `reflection` and `player`.
        """
        said = (Turn(player, reflection),) if reflection else ()
        done = tuple(turns) or (*said, Turn(player, observation.actions[action], choice=action))
        self.steps.append(Step(observation, done, action, float(reward), tuple(events)))

    def comment(self, text: str) -> None:
        """Keep a remark about the step to come; people read it, players never do."""
        self._comments.append({"step": len(self.steps), "text": text})

    def mistake(self, steps: int = 1) -> None:
        """The last steps are not to be imitated; what is done next is the way out."""
        self._mistakes.update(range(max(0, len(self.steps) - steps), len(self.steps)))

    def undo(self) -> None:
        """Take the last step back; what it was stays known in the episode's provenance."""
        step = self.steps.pop()
        self._undone.append({"step": len(self.steps), "action": step.observation.actions[step.action]})
        self._mistakes.discard(len(self.steps))
        self._comments = [one for one in self._comments if one["step"] <= len(self.steps)]

    def finished(self, success: bool, truncated: bool = False) -> Episode:
        """The episode, its steps labelled as the head of this module says."""
        steps = [self._labelled(i, step) for i, step in enumerate(self.steps)] if success else self.steps
        found = {"comments": self._comments, "undone": self._undone, "mistakes": sorted(self._mistakes)}
        provenance = self.provenance | {name: notes for name, notes in found.items() if notes}
        return Episode(self.task, tuple(steps), success, truncated, self.seed, provenance)

    def _labelled(self, i: int, step: Step) -> Step:
        vouched = step.choice is not None and step.choice.player in VOUCHED
        if i in self._mistakes or not vouched:
            return step
        return replace(step, target=step.action, label="negative" if i - 1 in self._mistakes else "positive")


class Recorder:
    """A log to which recorded episodes are appended, whole or not at all. Use it as a context manager:

        with Recorder("demos.jsonl") as recorder:
            recording = recorder.begin(task)
            recording.step(observation, action=2, reward=-0.05, reflection="The key is left. Next: left.")
            recorder.append(recording.finished(success=True))

    Args:
        path: the file; what it holds stays, and what is recorded comes after it.

    Attributes:
        count: how many episodes the log holds.

    Raises:
        UserError: the file cannot be written, another recorder is at work on it, or it holds something else than
            episodes; it is left as it was.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = _alone(self.path)  # before anything is read, so that nobody appends meanwhile
        try:
            _mend_end(self.path, _refuse_other_content(self.path))
            self._log = EpisodeLog(self.path)
            episodes = list(read_episodes(self.path))
        except UserError:
            self._lock.close()
            raise
        self.count = len(episodes)
        self._tasks = {task_key(episode.task) for episode in episodes}
        self._envs = {episode.task.env for episode in episodes}

    def has(self, task: Task) -> bool:
        """Whether an episode of this task is in the log."""
        return task_key(task) in self._tasks

    def begin(self, task: Task, seed: int | None = None, **provenance: Any) -> Recording:
        """Start to write down an episode; nothing reaches the file before `append`.

        Raises:
            UserError: the log holds episodes of another environment.
        """
        self.require_env(task)
        return Recording(task, named_seed("record", task.id) if seed is None else seed, **provenance)

    def require_env(self, task: Task) -> None:
        """Refuse a task of another environment than that of the log."""
        if self._envs - {task.env}:
            raise UserError(
                f"{self.path} holds episodes of {min(self._envs)!r}, not of {task.env!r}; give another file"
            )

    def append(self, episode: Episode) -> None:
        """Write an episode; UserError if it holds what a log cannot, or the disk is full: the log is as it was then."""
        self.require_env(episode.task)
        self._log.append(episode)
        self.count += 1
        self._tasks.add(task_key(episode.task))
        self._envs.add(episode.task.env)

    def close(self) -> None:
        """Bring everything to the disk, and close the file."""
        with self._lock:
            self._log.__exit__()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _alone(path: Path) -> IO[bytes]:
    """Open a log, made if it is not there, and lock it until it is closed, so that one recorder at a time writes."""
    try:
        file = path.open("ab")
    except OSError as error:
        raise UserError(f"{path}: {reason(error)}") from error
    if not locked(file):
        file.close()
        raise UserError(f"another recorder is at work on {path}; wait until it ends, or record into another file")
    return file


def doubt_about_loss(env: TextEnv, episode: Episode) -> str:
    """A line if an episode that ended is lost only because rewards decide here, and its last one was too low; else "".

    Such an episode may well be a win: where every step costs something, the best end is paid no more than the others.
    """
    if not env.success_rule or episode.success or episode.truncated or not episode.steps:
        return ""
    last = f"task {episode.task.id} ended with a reward of {episode.steps[-1].reward:g}, so it counts as lost"
    return f"{last}: success is where {env.success_rule}. If it was won, change that rule: lost episodes teach nothing"


def _refuse_other_content(path: Path) -> bytes:
    """Refuse a file that is no log of episodes, before its last line is cut off as one that a kill left.

    Returns:
        What stands after the last line break.
    """
    try:
        lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    except OSError as error:
        raise UserError(f"{path}: {reason(error)}") from error
    *whole, rest = lines
    for number, line in enumerate(whole, start=1):
        try:
            from_line(line.decode("utf-8"))
        except ValueError as error:
            raise UserError(f"{path}:{number}: no episode of a log ({error}); record into another file") from error
    begun = to_line(Episode(Task("", ""), (), False, False, 0))[: len('{"schema":')].encode()
    if rest[: len(begun)] != begun[: len(rest)]:
        raise UserError(f"{path}:{len(lines)}: no episode of a log; record into another file")
    return rest


def _mend_end(path: Path, rest: bytes) -> None:
    """End a last line that is whole, so that it is not taken for one that a kill left; say that another is cut off."""
    if not rest:
        return
    try:
        from_line(rest.decode("utf-8"))
    except ValueError:
        LOG.warning("reflectrl: %s: the last line is half-written, and cut off", path)
        return
    with writing(path), path.open("ab") as file:
        file.write(b"\n")
