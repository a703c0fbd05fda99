"""`RecordEpisodes`: a gymnasium wrapper that records the episodes of any script into a log."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any, SupportsInt

import gymnasium as gym
from gymnasium.utils.seeding import np_random

from reflectrl.core.envs.adapter import GymTextEnv
from reflectrl.core.envs.base import SPLITS, TextEnv
from reflectrl.core.rollout import TimeStep, advance
from reflectrl.core.teach.record import Recorder, Recording, doubt_about_loss
from reflectrl.core.types import Task, UserError, named_seed

LOG = logging.getLogger(__name__)


class RecordEpisodes(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that records the episodes played through it. Scripts use it like the wrapped environment.

        env = RecordEpisodes(gym.make("FrozenLake-v1", render_mode="human"), "demos.jsonl",
                             GymTextEnv("FrozenLake-v1", ["left", "down", "right", "up"]))

    A `TextEnv` is recorded as it is. For any other environment, give a `GymTextEnv` of the same environment, in whose
    text players will be taught. It is played alongside with the same seed and actions, so that the log has its texts,
    actions, rewards and tasks. If a reset names neither task nor seed, the next training task that is not in the log
    yet is played. `GymTextEnv.won` decides success. If the last step of a win earns 0 or less, override it in a
    subclass: otherwise the episode counts as lost, and is not imitated.

    Args:
        env: environment that the script plays.
        path: the log. Existing episodes are kept.
        text: text version of an environment that is not a `TextEnv`.
        player: name of the player. The steps of "human", "expert" and "oracle" are imitated if the episode is won. An
            episode of another player is imitated as a whole, if it is won.

    Raises:
        UserError: `text` is missing or plays another environment, or the file is not a log.
    """

    def __init__(
        self, env: gym.Env[Any, Any], path: str | Path, text: GymTextEnv | None = None, player: str = "human"
    ) -> None:
        super().__init__(env)
        self.text, self.player = text, player
        if text is None and not isinstance(env.unwrapped, TextEnv):
            raise UserError(f"{env.unwrapped}: has no text; give a GymTextEnv of it: RecordEpisodes(env, path, text)")
        self._shown: TextEnv = text if text is not None else env.unwrapped  # type: ignore[assignment]
        self.recorder = Recorder(path)
        self._recording: Recording | None = None
        self._reflection: str | None = None
        self._may_win = False  # True once an episode was won, or the warning about lost episodes was logged

    def reflect(self, text: str) -> None:
        """Set the reflection on the current observation, before the next action."""
        self._reflection = text

    def comment(self, text: str) -> None:
        """Add a remark for people, which players do not read."""
        if self._recording is not None:
            self._recording.comment(text)

    def mistake(self, steps: int = 1) -> None:
        """Mark the last steps as mistakes, which are not imitated."""
        if self._recording is not None:
            self._recording.mistake(steps)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode and its recording. An unfinished recording is dropped.

        Raises:
            UserError: there is no task with this seed.
        """
        named = (options or {}).get("task")
        self._reflection = None
        task = named or self._task(seed)
        chance = named_seed(named_seed("record", task.id), "env") % 2**32 if seed is None else seed
        self._recording = self.recorder.begin(task, player=self.player, env_seed=chance)
        if self.text is None:
            result = self.env.reset(seed=chance, options={**(options or {}), "task": task})
            self._now = TimeStep(result[1]["observation"], 0.0, False, False, False, ())
            return result
        self._now = advance(self.text, task, None, chance)
        return self.env.reset(seed=task.payload["seed"], options=options)

    def _task(self, seed: int | None) -> Task:
        """Return the task of a seed, or without a seed the next training task that is not in the log."""
        if seed is not None and self.text is not None:
            tasks = [task for split in SPLITS for task in self.text.tasks(split) if task.payload["seed"] == seed]
            if not tasks:
                raise UserError(f"{self.text.name} has no task with seed {seed}; leave the seed out, or make it larger")
            return tasks[0]
        tasks = list(self._shown.tasks("train"))
        if seed is not None:  # the task that a `TextEnv` draws
            return tasks[int(np_random(seed)[0].integers(len(tasks)))]
        return next((task for task in tasks if not self.recorder.has(task)), tasks[0])

    def step(self, action: SupportsInt) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment and record the step. A finished episode is appended to the log.

        Raises:
            UserError: the environment and its text differ in rewards or endings.
        """
        result = self.env.step(action)
        recording, before = self._recording, self._now
        if recording is None:
            return result
        if self.text is None:
            info = result[4]
            done, events = result[2] or result[3], tuple(info["events"])
            truncated = result[3] and not result[2]  # gymnasium's wrappers may set both; then the task itself has ended
            index, now = int(action), TimeStep(info["observation"], float(result[1]), done, truncated,
                                               info["success"], events)  # fmt: skip
        else:
            name = self.text.names[int(action)]
            if name not in before.observation.actions:
                LOG.warning(
                    "reflectrl: %r is not a legal action in %s: this episode is not recorded", name, self.text.name
                )
                self._recording = None
                return result
            index = before.observation.actions.index(name)
            now = advance(self.text, recording.task, index)
            self._require_same(result, now)
        recording.step(before.observation, index, now.reward, now.events, self._reflection, self.player)
        self._now, self._reflection = now, None
        if now.done or result[2] or result[3]:
            ended = now.done and not now.truncated
            episode = recording.finished(now.success, not ended)
            self.recorder.append(episode)
            self._recording = None
            if not self._may_win and (warning := doubt_about_loss(self._shown, episode)):
                LOG.warning("reflectrl: %s", warning)
                self._may_win = True
            self._may_win |= episode.success
        return result

    def _require_same(self, result: tuple[Any, ...], now: TimeStep) -> None:
        """Refuse a `text` environment that differs from the environment that the script plays."""
        assert self.text is not None
        reward = now.reward * self.text.scale if self.text.earned is None else self.text.earned
        ended = now.done and not now.truncated
        if not math.isclose(reward, float(result[1]), abs_tol=1e-6) or (result[2] and not ended):
            ours, theirs = ("ended" if end else "went on" for end in (ended, result[2]))
            raise UserError(
                f"the text version of {self.text.name} gave reward {reward:g} and {ours}, but the environment that is "
                f"played gave {float(result[1]):g} and {theirs}: make both with the same settings"
            )

    def close(self) -> None:
        """Close the log and the environment."""
        self.recorder.close()
        if self.text is not None:
            self.text.close()
        self.env.close()
