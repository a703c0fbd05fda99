"""Action set of Reflect-RL: `cd`, `cat` and `id` in one folder at a time.

The actions are `cd ..` (except at the root), `cd D` for each folder, and `cat F` and `id F` for each file. `cat` is
offered once per file. A folder of more than `page` entries is shown in pages, with `next` and `back`, so that every
action can be reached. Folder and last output belong to the state, since they change entirely at each step. The previous
commands belong to the history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reflectrl.wings.autoexplore.commands import Command, Result, cat
from reflectrl.wings.autoexplore.names import depth, joined, parent, shown
from reflectrl.wings.autoexplore.view import QUESTION_TOKENS, View, cut_line


class PaperWalk:
    """Walk with the paper's action set.

    Args:
        view: the visible part of the repository.
        question: question of the episode.
        page: number of folder entries shown at a time.
    """

    def __init__(self, view: View, question: str, page: int) -> None:
        self.view, self.page = view, page
        self.folder = ""
        self._first = 0
        self.read: frozenset[str] = frozenset()
        self._history = f"Question: {cut_line(question, QUESTION_TOKENS)}\n"
        self._output = ""
        self._legal: dict[str, Command] = {}
        """Cache of the legal actions; empty if they must be computed again."""

    # ---- what is shown ---------------------------------------------------------------------------------------------

    def history(self) -> str:
        return self._history

    def state(self) -> str:
        folders, files = self._shown()
        where = f"Folder: {shown(self.folder) if self.folder else '(root)'}\n"
        more = self._pages() if self._entries() > self.page else ""
        listing = f"Folders: {', '.join(map(shown, folders))}\nFiles: {', '.join(map(shown, files))}\n"
        return f"{where}{listing}{more}" + (f"Output:\n{self._output}\n" if self._output else "")

    def _pages(self) -> str:
        last = min(self._first + self.page, self._entries())
        return f"Entries {self._first + 1} to {last} of {self._entries()}\n"

    def _entries(self) -> int:
        folder = self.view.folder(self.folder)
        return len(folder.folders) + len(folder.files)

    def _shown(self) -> tuple[list[str], list[str]]:
        """Return the folders and files of the current page."""
        folder = self.view.folder(self.folder)
        count = len(folder.folders)
        end = self._first + self.page
        return list(folder.folders[self._first : end]), list(
            folder.files[max(0, self._first - count) : max(0, end - count)]
        )

    # ---- commands --------------------------------------------------------------------------------------------------

    def commands(self) -> Mapping[str, Command]:
        if self._legal:
            return self._legal
        folders, files = self._shown()
        legal = self._legal = {}
        if self.folder:
            legal["cd .."] = Command("cd", parent(self.folder))
        if self._first + self.page < self._entries():
            legal["next"] = Command("next")
        if self._first:
            legal["back"] = Command("back")
        for name in folders:
            legal[f"cd {shown(name)}"] = Command("cd", joined(self.folder, name))
        for name in files:
            path = joined(self.folder, name)
            if path not in self.read:
                legal[f"cat {shown(name)}"] = Command("cat", path)
            legal[f"id {shown(name)}"] = Command("id", path)
        return legal

    def do(self, action: str) -> Result:
        command = self.commands()[action]
        result = self._carried_out(command)
        self._history += f"> {action}\n"
        self._output = result.text
        self._legal = {}
        return result

    def _carried_out(self, command: Command) -> Result:
        match command.verb:
            case "cd":
                self.folder, self._first = command.path, 0
            case "next":
                self._first += self.page
            case "back":
                self._first -= self.page
            case "cat":
                self.read |= {command.path}
                return cat(self.view.repository, command.path)
        return Result("")

    def found_with(self, path: str) -> tuple[str, ...]:
        return ()

    # ---- the way to a file -----------------------------------------------------------------------------------------

    def way_to(self, target: str) -> list[str]:
        """Return the shortest sequence of actions from here that looks into `target` and then identifies it.

        Reflect-RL's trajectories end with `cat F` and `id F`. Without the look, a player would learn to guess by names.
        """
        return self._way(target, self.folder, self._first)

    def _way(self, target: str, folder: str, first: int) -> list[str]:
        actions: list[str] = []
        while folder and not target.startswith(f"{folder}/"):
            actions.append("cd ..")
            folder, first = parent(folder), 0
        while depth(target) > (depth(folder) + 1 if folder else 0):
            name = target[len(folder) + 1 if folder else 0 :].split("/")[0]
            actions += [*self._turns(folder, first, name), f"cd {shown(name)}"]
            folder, first = joined(folder, name), 0
        name = target.rpartition("/")[2]
        look = [] if target in self.read else [f"cat {shown(name)}"]
        return [*actions, *self._turns(folder, first, name, is_file=True), *look, f"id {shown(name)}"]

    def _turns(self, folder: str, first: int, name: str, is_file: bool = False) -> list[str]:
        """Return the `next` or `back` actions that are needed until an entry is shown."""
        contents = self.view.folder(folder)
        index = len(contents.folders) + contents.files.index(name) if is_file else contents.folders.index(name)
        turns = index // self.page - first // self.page
        return ["next"] * turns if turns > 0 else ["back"] * -turns

    def get_state(self) -> Any:
        return (self.folder, self._first, self.read, self._history, self._output)

    def set_state(self, state: Any) -> None:
        self.folder, self._first, self.read, self._history, self._output = state
        self._legal = {}
