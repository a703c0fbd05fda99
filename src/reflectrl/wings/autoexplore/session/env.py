"""Edits as a `TextEnv`: find the setting that a user asks for, change it in an overlay, and run the check.

    The mailer should make 5 attempts, not 3.
    Files: config/mailer.toml, deploy/search.ini, docs/settings.md, tests/mailer.toml
    > read config/mailer.toml
    port = 80
    retries = 3
    > set retries 5
    > check
    passed

The check passes if the right file has the new value and no other file differs. It may be repeated; a step costs 1 / H.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from reflectrl.core.envs.base import SPLITS, TextEnv, require_known
from reflectrl.core.envs.teacher import Teacher
from reflectrl.core.types import Outcome, Task, UserError
from reflectrl.wings.autoexplore.session.making import line_of, pairs, project
from reflectrl.wings.autoexplore.session.memory import MemoryRepository
from reflectrl.wings.autoexplore.session.overlay import Overlay

SETTING = re.compile(r'^ *"?(\w+)"? ?[=:] ?(\d+),?$', re.MULTILINE)
NUMBER = re.compile(r"\d+")


class EditsTeacher(Teacher):
    """Teacher that reads the service's own file, sets the value, and runs the check."""

    def expert_action(self, env: EditsEnv) -> int:
        actions = list(env.legal_actions())
        changed = [change.path for change in env.overlay.changed()]
        if env.is_right():
            return actions.index("check")
        if changed:
            return actions.index("undo")
        if env.opened != env.project.path:
            return actions.index(f"read {env.project.path}")
        return actions.index(f"set {env.key()} {env.project.new}")

    def analyse(self, env: EditsEnv) -> str:
        """Name what is asked for, as far as the text shows it, and the next step."""
        action = env.legal_actions()[self.expert_action(env)]
        if action == "check":
            return "All is as asked. Check."
        if action == "undo":
            return "The wrong setting was changed. Undo."
        if action.startswith("read"):
            return f"The service's own file is {env.project.path}. Read it."
        return f"The setting is {env.key()}, and the new value {env.project.new}."


class EditsEnv(TextEnv):
    """Change one setting of a small project, and run the check.

    Args:
        train, validation, test: tasks per split. No pair of a service and a setting is asked for in two splits.
        horizon: largest number of steps.
        split_seed: decides which pair belongs to which split.

    Raises:
        UserError: a number is out of range.

    Attributes:
        project: files and request of the task.
        overlay: the files with the changes so far.
        opened: path of the file that was read last; "" at first.
    """

    teacher = EditsTeacher()
    instructions = (
        "A user asks for a change of one setting. Read files until you have found it, set its new value, and run the"
        " check. No other file may be changed."
    )
    subgoals = ("right file", "right setting")

    def __init__(
        self, train: int = 2000, validation: int = 60, test: int = 200, horizon: int = 8, split_seed: int = 0
    ) -> None:
        super().__init__(horizon)
        self.sizes, self.split_seed = {"train": train, "validation": validation, "test": test}, split_seed
        if min(*self.sizes.values(), horizon) < 1:
            raise UserError(f"edits: horizon and split sizes must be positive, not {horizon} and {self.sizes}")

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        require_known("edits", "split", split, SPLITS)
        require_known("edits", "stage", stage or "full", self.stages)
        split_pairs = pairs(self.split_seed)[SPLITS.index(split)]
        return [
            Task(f"edits-{service}-{key}-{i}", "edits", {"service": service, "key": key, "seed": i}, split)
            for i in range(self.sizes[split])
            for service, key in [split_pairs[i % len(split_pairs)]]
        ]

    # ---- the world -------------------------------------------------------------------------------------------------

    def begin(self, task: Task) -> None:
        self.project = project(task.payload["service"], task.payload["key"], task.payload["seed"])
        self.overlay = Overlay(MemoryRepository(self.project.texts))
        self.opened = ""
        self._history = f"{self.project.request}\nFiles: {', '.join(self.overlay.files)}\n"

    def key(self) -> str:
        """Return the name of the asked setting as its file writes it."""
        return self.project.key.upper() if self.project.path.endswith(".py") else self.project.key

    def is_right(self) -> bool:
        """Return whether the right file has the new value, and no other file differs."""
        kind, key = self.project.path.rpartition(".")[2], self.project.key
        before, after = (line_of(kind, key, value) for value in (self.project.old, self.project.new))
        wanted = self.project.texts[self.project.path].replace(before, after, 1)
        changed = [change.path for change in self.overlay.changed()]
        return changed == [self.project.path] and self.overlay.read(self.project.path) == wanted

    def apply(self, action: str) -> Outcome:
        verb, _, rest = action.partition(" ")
        output, events, won = "", list[str](), False
        if verb == "read":
            self.opened, output = rest, self.overlay.read(rest)
            events += ["right file"] * (rest == self.project.path)
        elif verb == "set":
            key, _, value = rest.partition(" ")
            line = next(match[0] for match in SETTING.finditer(self.overlay.read(self.opened)) if match[1] == key)
            self.overlay.replace(self.opened, line, NUMBER.sub(value, line))
            events += ["right setting"] * self.is_right()
        elif verb == "undo":
            for change in self.overlay.changed():
                self.overlay.restore(change.path)
        else:
            won = self.is_right()
            output = "passed\n" if won else "failed\n"
        self._history += f"> {action}\n{output}"
        cost = 1 / self.horizon
        return Outcome(float(won) - cost, terminated=won, success=won, events=tuple(events))

    # ---- text ------------------------------------------------------------------------------------------------------

    def history(self) -> str:
        return self._history

    def state(self) -> str:
        return f"Open: {self.opened or 'none'}\n"

    def legal_actions(self) -> Sequence[str]:
        """List unread files, the settings of the open file with the numbers that the user named, and the rest."""
        actions = [f"read {path}" for path in self.overlay.files if path != self.opened]
        if self.opened:
            numbers = list(dict.fromkeys(NUMBER.findall(self.project.request)))
            settings = SETTING.findall(self.overlay.read(self.opened))
            actions += [f"set {key} {number}" for key, value in settings for number in numbers if number != value]
        return [*actions, *(["undo"] if self.overlay.changed() else []), "check"]

    # ---- saving ----------------------------------------------------------------------------------------------------

    def get_state(self) -> Any:
        return self.opened, self._history, self.overlay.get_state()

    def set_state(self, state: Any) -> None:
        self.begin(self.task)
        self.opened, self._history, changes = state
        self.overlay.set_state(changes)
