"""The action set of today's locators: search for words of the question, look at what was found, and go on from there.

Every file that is shown, by a search or in a folder, gets a label that it keeps for the episode: its kind and a number
among those of its kind. `id code 3`, `cat docs 1`, `head news 1` and `outline code 2` name it by that, so a player
decides about the kind first, which the question tells. `search` looks for the whole question and `search W` for one of
its words; `more` shows what else the last search found. `ls`, `cd` and `next` walk folders, so every file can be
reached. All outputs are history, which only grows; the folder that one is in is state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reflectrl.wings.autoexplore.commands import Command, Result, Verb, cat, head, outlined
from reflectrl.wings.autoexplore.finder import Finder
from reflectrl.wings.autoexplore.names import joined, parent, shown
from reflectrl.wings.autoexplore.teacher import kind_of
from reflectrl.wings.autoexplore.view import QUESTION_TOKENS, View, cut_line

LOOKS: tuple[Verb, ...] = ("outline", "head", "cat")
"""Ways to look at a file, each offered once."""
NATURAL, PATIENCE = ("search", "more"), 3
"""How a way begins for one who does not know the file, and how many pages such a one looks at."""
WORDS = 6
"""So many words of the question are offered for searching alone: the rarest that occur in the repository."""


class ExtendedWalk:
    """A walk under way.

    Args:
        view: the repository.
        finder: its search.
        question: what is asked.
        page: entries of a folder that are shown at a time.
        hits: files that a search shows at a time.
    """

    def __init__(self, view: View, finder: Finder, question: str, page: int, hits: int) -> None:
        self.view, self.finder, self.question = view, finder, question
        self.page, self.hits = page, hits
        self.folder = ""
        self._listed = 0
        """Entries of the present folder that were shown: 0 before `ls`."""
        self.labels: dict[str, str] = {}
        """Path → label, of the files that were shown."""
        self._together: tuple[tuple[str, ...], ...] = ()
        """What each page of hits showed."""
        self.looked: frozenset[tuple[str, str]] = frozenset()
        """(verb, path) of the looks that were taken."""
        self.searched: tuple[str, ...] = ()
        """What was searched for, the last one last; "" is the whole question."""
        self._found = 0
        """Hits of the last search that were shown."""
        self._history = f"Question: {cut_line(question, QUESTION_TOKENS)}\n"
        self._legal: dict[str, Command] = {}
        """The actions that are legal now; empty where they must be listed anew."""
        self._rankings: dict[str, tuple[str, ...]] = {}
        """What the finder found for what was searched for."""

    # ---- what is shown ---------------------------------------------------------------------------------------------

    def history(self) -> str:
        return self._history

    def state(self) -> str:
        return f"Folder: {shown(self.folder)}\n" if self.folder else ""

    # ---- commands --------------------------------------------------------------------------------------------------

    def commands(self) -> Mapping[str, Command]:
        if self._legal:
            return self._legal
        found = self._legal = self._searches() | self._moves()
        for path, label in self.labels.items():
            found[f"id {label}"] = Command("id", path)
            found |= {f"{verb} {label}": Command(verb, path) for verb in LOOKS if (verb, path) not in self.looked}
        return found

    def _searches(self) -> dict[str, Command]:
        words = self.finder.words(self.question)
        found = {"search": Command("search")} if words and "" not in self.searched else {}
        for word in words[:WORDS]:
            if word not in self.searched:
                found[f"search {word}"] = Command("search", word)
        if self.searched and self._found < len(self._ranked(self.searched[-1])):
            found["more"] = Command("more")
        return found

    def _moves(self) -> dict[str, Command]:
        if not self._listed:
            return {"ls": Command("ls")}
        folder = self.view.folder(self.folder)
        found = {"cd ..": Command("cd", parent(self.folder))} if self.folder else {}
        found |= {
            f"cd {shown(name)}": Command("cd", joined(self.folder, name)) for name in folder.folders[: self._listed]
        }
        if self._listed < len(folder.folders) + len(folder.files):
            found["next"] = Command("next")
        return found

    def do(self, action: str) -> Result:
        result = self._carried_out(self.commands()[action])
        self._history += f"> {action}\n" + (f"{result.text}\n" if result.text else "")
        self._legal = {}
        return result

    def _carried_out(self, command: Command) -> Result:
        match command.verb:
            case "search":
                self.searched, self._found = (*self.searched, command.path), 0
                return self._hits()
            case "more":
                return self._hits()
            case "cd":
                self.folder, self._listed = command.path, 0
                return self._page()
            case "ls" | "next":
                return self._page()
            case "id":
                return Result("")
        self.looked |= {(command.verb, command.path)}
        if command.verb == "outline":
            return outlined(self.view.repository, self.finder.profiles, command.path)
        return {"head": head, "cat": cat}[command.verb](self.view.repository, command.path)

    def _ranked(self, words: str) -> tuple[str, ...]:
        if words not in self._rankings:
            self._rankings[words] = self.finder.ranked(self.question, words, self.view)
        return self._rankings[words]

    def _hits(self) -> Result:
        """The next hits of the last search, a line for each."""
        ranked = self._ranked(self.searched[-1])
        paths = ranked[self._found : self._found + self.hits]
        self._found += len(paths)
        if not paths:
            return Result("Warning: nothing was found", "warning")
        self._together = (*self._together, paths)
        return Result("\n".join([f"{self._label(path)}: {shown(path)}" for path in paths]))

    def found_with(self, path: str) -> tuple[str, ...]:
        return next((page for page in reversed(self._together) if path in page), ())

    def _page(self) -> Result:
        """The next entries of the present folder: folders first, then files with their labels."""
        folder = self.view.folder(self.folder)
        entries = [f"{shown(name)}/" for name in folder.folders[self._listed : self._listed + self.page]]
        first = max(0, self._listed - len(folder.folders))
        for name in folder.files[first : first + self.page - len(entries)]:
            path = joined(self.folder, name)
            entries.append(f"{self._label(path)}: {shown(name)}")
        self._listed += self.page
        return Result(", ".join(entries))

    def _label(self, path: str) -> str:
        if path not in self.labels:
            kind = kind_of(path)
            before = sum(label.startswith(kind) for label in self.labels.values())
            self.labels[path] = f"{kind} {before + 1}"
        return self.labels[path]

    # ---- the way to a file -----------------------------------------------------------------------------------------

    def way_to(self, target: str) -> list[str]:
        """A short way: the commands that lead from here to identifying a file, the first to be taken now.

        Searching for the whole question comes first if it finds the file within `PATIENCE` pages, since nobody could
        know beforehand that another search is shorter. Otherwise the shortest way; of equals, searching before walking.
        """
        if target in self.labels:
            return [f"id {self.labels[target]}"]
        ways = self._ways_by_search(target)
        natural = next((way for way in ways if way[0] in NATURAL and len(way) <= PATIENCE), None)
        way = natural or min([*ways, self._way_by_folders(target)], key=len)
        return [*way, f"id {self._label_then(way, target)}"]

    def _ways_by_search(self, target: str) -> list[list[str]]:
        """Ways that begin with "more", with "search", and with searches for words, in this order."""
        ways = []
        if self.searched and (place := self._place(self.searched[-1], target)) >= self._found:
            ways.append(["more"] * ((place - self._found) // self.hits + 1))
        for action, command in self._searches().items():
            if command.verb == "search" and (place := self._place(command.path, target)) >= 0:
                ways.append([action] + ["more"] * (place // self.hits))
        return ways

    def _place(self, words: str, target: str) -> int:
        """Rank of a file, from 0, in a search; -1 if it does not find it."""
        ranked = self._ranked(words)
        return ranked.index(target) if target in ranked else -1

    def _way_by_folders(self, target: str) -> list[str]:
        way: list[str] = []
        folder, listed = self.folder, self._listed
        while folder and not target.startswith(f"{folder}/"):
            way += ([] if listed else ["ls"]) + ["cd .."]
            folder, listed = parent(folder), self.page
        if not listed:
            way, listed = [*way, "ls"], self.page
        while "/" in (rest := target[len(folder) + 1 if folder else 0 :]):
            name = rest.split("/")[0]
            way += [*self._turns(folder, listed, name, True), f"cd {shown(name)}"]
            folder, listed = joined(folder, name), self.page
        return [*way, *self._turns(folder, listed, rest, False)]

    def _turns(self, folder: str, listed: int, name: str, is_folder: bool) -> list[str]:
        """The pages to turn until an entry is shown."""
        found = self.view.folder(folder)
        place = found.folders.index(name) if is_folder else len(found.folders) + found.files.index(name)
        return ["next"] * max(0, place // self.page + 1 - listed // self.page)

    def _label_then(self, way: list[str], target: str) -> str:
        """The label that a file gets on the way there."""
        state = self.get_state()
        for action in way:
            self.do(action)
        label = self.labels.get(target)
        self.set_state(state)
        if label is None:
            raise RuntimeError(f"the way {way} does not lead to {target}")
        return label

    def get_state(self) -> Any:
        progress = (self.folder, self._listed, dict(self.labels), self.looked, self.searched, self._found)
        return (*progress, self._together, self._history)

    def set_state(self, state: Any) -> None:
        self.folder, self._listed, labels, self.looked, self.searched, self._found, *texts = state
        self._together, self._history = texts
        self.labels = dict(labels)
        self._legal = {}
