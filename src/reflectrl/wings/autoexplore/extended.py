"""Extended action set: search for words of the question, look at the hits, and continue from there.

Every file that is shown, by a search or in a folder, gets a label for the rest of the episode: its kind and a number.
Actions use the label: `id code 3`, `cat docs 1`, `head news 1`, `outline code 2`. So a policy that writes an action
first decides on the kind, which the question suggests. `search` looks for the whole question, `search W` for one of its
words, and `more` shows the next hits of the last search. `ls`, `cd` and `next` list folders, so every file can be
reached. All outputs belong to the history, which only grows. Only the current folder belongs to the state.
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
"""Commands that show a file. Each is offered once per file."""
NATURAL, PATIENCE = ("search", "more"), 3
"""First actions of a search without knowledge of the target, and how many result pages to read before giving up."""
WORDS = 6
"""Number of single words that are offered to `search`: the question's rarest words that occur in the repository."""


class ExtendedWalk:
    """Walk with the extended action set.

    Args:
        view: the visible part of the repository.
        finder: search engine of the repository.
        question: question of the episode.
        page: number of folder entries shown at a time.
        hits: number of files that a search shows at a time.
    """

    def __init__(self, view: View, finder: Finder, question: str, page: int, hits: int) -> None:
        self.view, self.finder, self.question = view, finder, question
        self.page, self.hits = page, hits
        self.folder = ""
        self._listed = 0
        """Number of entries of the current folder that were shown; 0 before `ls`."""
        self.labels: dict[str, str] = {}
        """Path → label of each file that was shown."""
        self._together: tuple[tuple[str, ...], ...] = ()
        """Pages of hits that were shown, each a tuple of paths."""
        self.looked: frozenset[tuple[str, str]] = frozenset()
        """(verb, path) of each `outline`, `head` or `cat` that was executed."""
        self.searched: tuple[str, ...] = ()
        """Search terms in order; "" stands for the whole question."""
        self._found = 0
        """Number of hits of the last search that were shown."""
        self._history = f"Question: {cut_line(question, QUESTION_TOKENS)}\n"
        self._legal: dict[str, Command] = {}
        """Cache of the legal actions; empty if they must be computed again."""
        self._rankings: dict[str, tuple[str, ...]] = {}
        """Search term → ranked paths."""

    # ---- what is shown ---------------------------------------------------------------------------------------------

    def history(self) -> str:
        return self._history

    def state(self) -> str:
        return f"Folder: {shown(self.folder)}\n" if self.folder else ""

    # ---- commands --------------------------------------------------------------------------------------------------

    def commands(self) -> Mapping[str, Command]:
        if self._legal:
            return self._legal
        legal = self._legal = self._searches() | self._moves()
        for path, label in self.labels.items():
            legal[f"id {label}"] = Command("id", path)
            legal |= {f"{verb} {label}": Command(verb, path) for verb in LOOKS if (verb, path) not in self.looked}
        return legal

    def _searches(self) -> dict[str, Command]:
        words = self.finder.words(self.question)
        searches = {"search": Command("search")} if words and "" not in self.searched else {}
        for word in words[:WORDS]:
            if word not in self.searched:
                searches[f"search {word}"] = Command("search", word)
        if self.searched and self._found < len(self._ranked(self.searched[-1])):
            searches["more"] = Command("more")
        return searches

    def _moves(self) -> dict[str, Command]:
        if not self._listed:
            return {"ls": Command("ls")}
        folder = self.view.folder(self.folder)
        moves = {"cd ..": Command("cd", parent(self.folder))} if self.folder else {}
        moves |= {
            f"cd {shown(name)}": Command("cd", joined(self.folder, name)) for name in folder.folders[: self._listed]
        }
        if self._listed < len(folder.folders) + len(folder.files):
            moves["next"] = Command("next")
        return moves

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
        """Show the next hits of the last search, one per line."""
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
        """Show the next entries of the current folder: folders first, then files with their labels."""
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
        """Return a short sequence of actions from here that ends with identifying `target`.

        If searching for the whole question shows the file within `PATIENCE` pages, that search is used: a player cannot
        know beforehand that another search is shorter. Otherwise it is the shortest sequence; at equal length, a search
        is preferred to walking folders.
        """
        if target in self.labels:
            return [f"id {self.labels[target]}"]
        sequences = self._ways_by_search(target)
        natural = next(
            (sequence for sequence in sequences if sequence[0] in NATURAL and len(sequence) <= PATIENCE), None
        )
        sequence = natural or min([*sequences, self._way_by_folders(target)], key=len)
        return [*sequence, f"id {self._label_then(sequence, target)}"]

    def _ways_by_search(self, target: str) -> list[list[str]]:
        """Return sequences that begin with "more", with "search", and with searches for words, in this order."""
        sequences = []
        if self.searched and (rank := self._rank(self.searched[-1], target)) >= self._found:
            sequences.append(["more"] * ((rank - self._found) // self.hits + 1))
        for action, command in self._searches().items():
            if command.verb == "search" and (rank := self._rank(command.path, target)) >= 0:
                sequences.append([action] + ["more"] * (rank // self.hits))
        return sequences

    def _rank(self, words: str, target: str) -> int:
        """Return the rank of a file in a search, from 0; -1 if the search does not find the file."""
        ranked = self._ranked(words)
        return ranked.index(target) if target in ranked else -1

    def _way_by_folders(self, target: str) -> list[str]:
        actions: list[str] = []
        folder, listed = self.folder, self._listed
        while folder and not target.startswith(f"{folder}/"):
            actions += ([] if listed else ["ls"]) + ["cd .."]
            folder, listed = parent(folder), self.page
        if not listed:
            actions, listed = [*actions, "ls"], self.page
        while "/" in (rest := target[len(folder) + 1 if folder else 0 :]):
            name = rest.split("/")[0]
            actions += [*self._turns(folder, listed, name, True), f"cd {shown(name)}"]
            folder, listed = joined(folder, name), self.page
        return [*actions, *self._turns(folder, listed, rest, False)]

    def _turns(self, folder: str, listed: int, name: str, is_folder: bool) -> list[str]:
        """Return the `next` actions that are needed until an entry is shown."""
        contents = self.view.folder(folder)
        index = contents.folders.index(name) if is_folder else len(contents.folders) + contents.files.index(name)
        return ["next"] * max(0, index // self.page + 1 - listed // self.page)

    def _label_then(self, actions: list[str], target: str) -> str:
        """Return the label that a file gets after some actions, by executing them and restoring the state."""
        # A label is a number in the order of showing, so it is known only after the actions.
        state = self.get_state()
        for action in actions:
            self.do(action)
        label = self.labels.get(target)
        self.set_state(state)
        if label is None:
            raise RuntimeError(f"the way {actions} does not lead to {target}")
        return label

    def get_state(self) -> Any:
        progress = (self.folder, self._listed, dict(self.labels), self.looked, self.searched, self._found)
        return (*progress, self._together, self._history)

    def set_state(self, state: Any) -> None:
        self.folder, self._listed, labels, self.looked, self.searched, self._found, *rest = state
        self._together, self._history = rest
        self.labels = dict(labels)
        self._legal = {}
