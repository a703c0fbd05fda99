"""`import-episodes`: check episodes of another program, and append them to a log of demonstrations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from reflectrl.core.envs.base import TextEnv
from reflectrl.core.episodes import to_line
from reflectrl.core.teach import Recorder, replayed, tasks_of, unreplayed
from reflectrl.core.terminal import printable_line
from reflectrl.core.types import Episode, UserError
from reflectrl.tools.playing.foreign import read_foreign


def import_episodes(files: Sequence[Path], out: Path, env: TextEnv | None) -> str:
    """Read, check and append all episodes, or none.

    Args:
        out: the log. Episodes that it has already are not appended again.
        env: environment that replays every episode and adds missing values. With None, episodes are taken as they are.

    Returns:
        A summary in one line.

    Raises:
        UserError: a file is empty, or a line has an error. The message names file and line.
    """
    unread: set[str] = set()
    episodes = [episode for path in files for episode in _read(path, env, unread)]
    with Recorder(out) as recorder:
        recorded_lines = set(out.read_text(encoding="utf-8", errors="replace").splitlines())
        new = [episode for episode in episodes if to_line(episode) not in recorded_lines]
        if len(envs := {episode.task.env for episode in episodes}) > 1:
            raise UserError(f"the episodes are of several environments ({', '.join(sorted(envs))}); give each a log")
        for episode in new[:1]:
            recorder.require_env(episode.task)
        for episode in new:
            recorder.append(episode)
        total = recorder.count
    won, steps = sum(episode.success for episode in new), [step for episode in new for step in episode.steps]
    reflected = sum(step.reflection is not None for step in steps)
    ignored = f"; keys that were not read: {', '.join(map(printable_line, sorted(unread)))}" if unread else ""
    return (
        f"{out}: {len(new)} of {len(episodes)} episodes are new ({won} won, {len(steps)} steps, {reflected} with "
        f"reflections); it holds {total} now{ignored}"
    )


def _read(path: Path, env: TextEnv | None, unread: set[str]) -> Iterator[Episode]:
    """Yield the episodes of a file, as the environment replays them."""
    tasks, line_number = tasks_of(env) if env is not None else {}, 0
    for line_number, episode, keys in read_foreign(path):
        unread |= keys
        try:
            imported = replayed(env, episode, tasks) if env is not None else unreplayed(episode)
            to_line(imported)  # raises ValueError for values that JSON cannot hold
            yield imported
        except ValueError as error:
            raise UserError(f"{path}:{line_number}: {error}") from error
    if not line_number:
        raise UserError(f"{path} holds no episodes")
