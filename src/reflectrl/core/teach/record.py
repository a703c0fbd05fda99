"""Recording of episodes while a person, a script or a player plays them, into a log.

A recording marks which steps are to be imitated: the steps of a person or an expert, except steps that the person
called a mistake. Steps of other players are not imitated, because they only led to the point where the person took over
(as in Kelly et al. 2019, "HG-DAgger"). The step after a mistake is a negative example: it shows the way out of an
error. No step of a lost episode is imitated.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from reflectrl.core.config.folders import locked, writing
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.episodes import EpisodeLog, from_line, read_episodes, task_key, to_line
from reflectrl.core.plugins import reason
from reflectrl.core.types import Choice, Episode, Observation, Reflection, Step, Task, Turn, UserError, named_seed

LOG = logging.getLogger(__name__)
VOUCHED = ("human", "expert", "oracle")
"""Players whose steps are imitated if the episode was won."""


class Recording:
    """Episode that is being recorded.

    Args:
        task: the task that is played.
        seed: seed of the environment's randomness, as in `rollout.Job`.
        provenance: further facts about the episode's origin.

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
        """Record a step: the observation, and the action that followed.

        Args:
            action: index into the observation's actions.
            reflection: the player's remark about this observation, which teaches reflectors.
            player: name of the player that acted.
            turns: all turns of the players, if they are known. They replace `reflection` and `player`.
        """
        reflections = (Reflection(player, reflection),) if reflection else ()
        done = tuple(turns) or (*reflections, Choice(player, observation.actions[action], choice=action))
        self.steps.append(Step(observation, done, action, float(reward), tuple(events)))

    def comment(self, text: str) -> None:
        """Add a remark about the next step. People read it, players never do."""
        self._comments.append({"step": len(self.steps), "text": text})

    def mistake(self, steps: int = 1) -> None:
        """Mark the last steps as mistakes, which are not imitated. The next step shows the way out."""
        self._mistakes.update(range(max(0, len(self.steps) - steps), len(self.steps)))

    def undo(self) -> None:
        """Take the last step back. The episode's provenance keeps a note of it."""
        step = self.steps.pop()
        self._undone.append({"step": len(self.steps), "action": step.observation.actions[step.action]})
        self._mistakes.discard(len(self.steps))
        self._comments = [comment for comment in self._comments if comment["step"] <= len(self.steps)]

    def finished(self, success: bool, truncated: bool = False) -> Episode:
        """Return the episode, with steps labelled by the rules in this module's docstring."""
        steps = [self._labelled(i, step) for i, step in enumerate(self.steps)] if success else self.steps
        remarks = {"comments": self._comments, "undone": self._undone, "mistakes": sorted(self._mistakes)}
        provenance = self.provenance | {name: notes for name, notes in remarks.items() if notes}
        return Episode(self.task, tuple(steps), success, truncated, self.seed, provenance)

    def _labelled(self, i: int, step: Step) -> Step:
        vouched = step.choice is not None and step.choice.player in VOUCHED
        if i in self._mistakes or not vouched:
            return step
        return replace(step, target=step.action, label="negative" if i - 1 in self._mistakes else "positive")


class Recorder:
    """Log to which recorded episodes are appended atomically. Use it as a context manager:

        with Recorder("demos.jsonl") as recorder:
            recording = recorder.begin(task)
            recording.step(observation, action=2, reward=-0.05, reflection="The key is left. Next: left.")
            recorder.append(recording.finished(success=True))

    Args:
        path: the file. Existing episodes are kept, and new ones are appended.

    Attributes:
        count: number of episodes in the log.

    Raises:
        UserError: the file cannot be written, another recorder is using it, or it holds something other than episodes.
            The file is left unchanged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = _locked_log(self.path)  # before anything is read, so that no other process appends meanwhile
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
        """Return whether the log holds an episode of this task."""
        return task_key(task) in self._tasks

    def begin(self, task: Task, seed: int | None = None, **provenance: Any) -> Recording:
        """Start recording an episode. Nothing is written to the file before `append`.

        Raises:
            UserError: the log holds episodes of another environment.
        """
        self.require_env(task)
        return Recording(task, named_seed("record", task.id) if seed is None else seed, **provenance)

    def require_env(self, task: Task) -> None:
        """Refuse a task if the log holds episodes of another environment."""
        if self._envs - {task.env}:
            raise UserError(
                f"{self.path} holds episodes of {min(self._envs)!r}, not of {task.env!r}; give another file"
            )

    def append(self, episode: Episode) -> None:
        """Append an episode to the log.

        Raises:
            UserError: a log cannot hold the episode, or the disk is full. The log is unchanged then.
        """
        self.require_env(episode.task)
        self._log.append(episode)
        self.count += 1
        self._tasks.add(task_key(episode.task))
        self._envs.add(episode.task.env)

    def close(self) -> None:
        """Flush everything to the disk, and close the file."""
        with self._lock:
            self._log.__exit__()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _locked_log(path: Path) -> IO[bytes]:
    """Open a log, or create it, and lock it until it is closed, so that only one recorder writes at a time."""
    try:
        file = path.open("ab")
    except OSError as error:
        raise UserError(f"{path}: {reason(error)}") from error
    if not locked(file):
        file.close()
        raise UserError(f"another recorder is at work on {path}; wait until it ends, or record into another file")
    return file


def doubt_about_loss(env: TextEnv, episode: Episode) -> str:
    """Return a warning if a finished episode counts as lost only because its last reward was too low; else "".

    Such an episode may well be a win: if every step costs something, the best end earns no more than others.
    """
    if not env.success_rule or episode.success or episode.truncated or not episode.steps:
        return ""
    last = f"task {episode.task.id} ended with a reward of {episode.steps[-1].reward:g}, so it counts as lost"
    return (
        f"{last}: success means that {env.success_rule}. If it was won, change this rule; lost episodes teach nothing"
    )


def _refuse_other_content(path: Path) -> bytes:
    """Refuse a file that is not a log of episodes, before its incomplete last line is removed.

    Returns:
        The content after the last line break.
    """
    try:
        lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    except OSError as error:
        raise UserError(f"{path}: {reason(error)}") from error
    *complete_lines, tail = lines
    for line_number, line in enumerate(complete_lines, start=1):
        try:
            from_line(line.decode("utf-8"))
        except ValueError as error:
            raise UserError(
                f"{path}:{line_number}: not an episode of a log ({error}); record into another file"
            ) from error
    prefix = to_line(Episode(Task("", ""), (), False, False, 0))[: len('{"schema":')].encode()
    if tail[: len(prefix)] != prefix[: len(tail)]:
        raise UserError(f"{path}:{len(lines)}: not an episode of a log; record into another file")
    return tail


def _mend_end(path: Path, rest: bytes) -> None:
    """Add the missing line break to a complete last line. If the line is incomplete, warn that it will be removed."""
    if not rest:
        return
    try:
        from_line(rest.decode("utf-8"))
    except ValueError:
        LOG.warning("reflectrl: %s: the last line is incomplete, so it is removed", path)
        return
    with writing(path), path.open("ab") as file:
        file.write(b"\n")
