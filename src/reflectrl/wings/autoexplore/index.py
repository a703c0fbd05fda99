"""Index a repository in one walk: list the files to explore, and count the reasons for leaving out others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore import gitignore
from reflectrl.wings.autoexplore.checkouts import (
    Checkout,
    Scope,
    enclosing_checkout,
    is_other_worktree,
    own_checkout,
)
from reflectrl.wings.autoexplore.decoding import decode
from reflectrl.wings.autoexplore.gitignore import rules_of
from reflectrl.wings.autoexplore.names import joined, parent
from reflectrl.wings.autoexplore.sandbox import (
    Kind,
    Sandbox,
    Stamp,
    entries,
    has_other_names,
    read_in,
    stamp_in,
    version_of,
)
from reflectrl.wings.autoexplore.watching import Changes, Watch

A_TEST = "a test"
"""Reason for leaving out a test."""
OTHER_CHECKOUT = "another checkout of the repository"
TOO_MANY_RULES = "under more rules of git than can be applied"
HEAD = 8192
"""Number of bytes from which a file is judged to be text or binary. Git reads about as many."""
_UNTEXTUAL = 0.3
"""Share of control characters and undecodable bytes above which a file is binary even without a null byte."""
_TEST_FOLDER = re.compile(r"tests?|__tests?__", re.IGNORECASE)
_TEST_FILE = re.compile(r"test_.*|(tests?|conftest)\.\w+|.*[._-](test|spec)s?\.\w+", re.IGNORECASE)
_CONFIGURATION = re.compile(
    r"\.(?:github|gitlab|circleci|husky|devcontainer|storybook|changeset|buildkite|config|vscode)|"
    r"\.(?:travis|gitlab-ci|appveyor|pre-commit-config|pre-commit-hooks|golangci|goreleaser|readthedocs|codecov|rubocop|"
    r"yamllint|markdownlint|mergify|cirrus|drone|woodpecker)\.(?:ya?ml|json)|"
    r"\.(?:eslintrc|prettierrc|stylelintrc|babelrc|swcrc|mocharc|releaserc|lintstagedrc)(?:\.\w+)?|"
    r"\.(?:editorconfig|dockerignore|flake8|pylintrc|coveragerc|clang-format|clang-tidy|rustfmt\.toml|npmrc|nvmrc|"
    r"env\.(?:example|sample|template)|luacheckrc|swiftlint\.yml|gitattributes|gitmodules|mailmap)",
    re.IGNORECASE,
)
"""Hidden names that belong to the work. `.env` is not among them: it holds secrets."""
_CONTROL = bytes({*range(32), 127} - set(b"\b\t\n\v\f\r\x1b"))
"""Control characters that text does not hold. The escape character is allowed: logs with colours are text."""


@dataclass(frozen=True)
class Filters:
    """Filters of files to leave out. Links, devices, pipes, sockets and `.git` are always left out."""

    ignored: bool = True
    """Leave out files that git would not list, because .gitignore files or `.git/info/exclude` name them (unless they
    are tracked), and further checkouts of the same repository."""
    outside: bool = False
    """Also apply git's rules from outside the folder: of the repository around it, and of the user's configuration."""
    hidden: bool = True
    """Leave out names that begin with a dot."""
    tests: bool = True
    """Leave out folders of tests, and files named like tests."""
    binaries: bool = True
    """Leave out files that do not hold text."""
    non_ascii: bool = True
    """Leave out names with non-ASCII or non-printable characters."""
    configuration: bool = False
    """Keep hidden names that configure the project, such as `.github` and `.eslintrc.json`."""
    nested_tests: bool = False
    """Keep folders called `test` below another folder: `django/test` holds no tests. Test files are left out."""
    min_characters: int = 10
    """Smallest number of characters of a file, without white space at both ends. Shorter files are left out."""

    def of_name(self, name: str, is_folder: bool, folder: str = "") -> str | None:
        """Return the reason to leave out an entry because of its name; None to keep it.

        Args:
            folder: path of the folder that holds the entry.
        """
        if name == ".git":
            return "git's own"
        if self.hidden and name.startswith(".") and not (self.configuration and _CONFIGURATION.fullmatch(name)):
            return "hidden"
        if self.non_ascii and not (name.isascii() and name.isprintable()):
            return "not named in ASCII"
        if self.nested_tests and is_folder and folder and name == "test":
            return None
        if self.tests and (_TEST_FOLDER if is_folder else _TEST_FILE).fullmatch(name):
            return A_TEST
        return None

    def of_content(self, head: bytes, size: int) -> str | None:
        """Return the reason to leave out a file because of its first bytes and its size; None to keep it."""
        if self.binaries and not is_text(head, complete=len(head) == size):
            return "binary"
        if len(head) == size and len(decoded(head).strip()) < self.min_characters:
            return f"under {self.min_characters} characters"
        return None


def is_text(data: bytes, complete: bool = True) -> bool:
    """Return whether a file that begins with `data` holds text, in any encoding that leaves it mostly readable.

    Only the first `HEAD` bytes are examined. Pass `complete=False` if `data` is only the beginning of the file: then
    its last character may be cut.
    """
    head, complete = data[:HEAD], complete and len(data) <= HEAD
    text, encoding, _ = decode(head, complete, fallback="utf-8")
    if encoding == "utf-16":
        return text.count("\ufffd") + text.count("\0") <= _UNTEXTUAL * len(text)
    if b"\0" in head:
        return False
    strange = len(head) - len(head.translate(None, _CONTROL)) + text.count("\ufffd")
    return strange <= _UNTEXTUAL * len(head)


def decoded(data: bytes, complete: bool = True) -> str:
    """Decode bytes (see `decode`). Those that are in no known encoding become U+FFFD.

    With `complete=False`, a cut last character is dropped.
    """
    return decode(data, complete, fallback="utf-8").text


MOST_ENTRIES = 1_000_000
"""Largest number of files and folders. With more, the user probably named a home folder or a disk."""
DEEPEST = 64
"""Largest depth of nested folders that are walked."""


@dataclass(frozen=True)
class Index:
    """Result of a walk."""

    files: dict[str, Stamp]
    """Files to explore, sorted by path → stamp."""
    left_out: dict[str, int]
    """Reason → number of entries that were left out. The contents of a left-out folder are not counted."""
    refused: dict[str, tuple[Stamp, str]]
    """Files that were left out because of their contents → stamp and reason."""


@dataclass(frozen=True)
class Listing:
    """Entries of a folder that passed all filters of names.

    Attributes:
        version: `sandbox.version_of` the folder when it was listed.
        outer: rules of git in the folder above.
        scope: rules of git that apply in the folder.
        ignore_file: contents of its .gitignore; None without one.
        has_git: it holds an entry ".git".
        files, folders: names.
        left_out: reason → number of entries that were left out because of their names.
        entries: number of all entries.
    """

    version: tuple[int, int] | None
    outer: Scope
    scope: Scope
    ignore_file: bytes | None
    has_git: bool
    files: tuple[str, ...]
    folders: tuple[str, ...]
    left_out: Mapping[str, int]
    entries: int


@dataclass
class Visited:
    """Folder of an earlier walk.

    Attributes:
        listing: its entries.
        files, refused: as in `Index`, of this folder alone.
        unreadable: number of files that could not be read.
        is_certain: the kernel reports whatever changes in it.
    """

    listing: Listing
    files: dict[str, Stamp] = field(default_factory=dict)
    refused: dict[str, tuple[Stamp, str]] = field(default_factory=dict)
    unreadable: int = 0
    is_certain: bool = True


Former = Callable[[str], tuple[Stamp, str | None] | None]
"""Function that returns the stamp of a path in an earlier walk, and the reason for leaving the file out, or None."""


def index(
    sandbox: Sandbox,
    filters: Filters,
    former: Former = lambda path: None,
    folders: dict[str, Visited] | None = None,
) -> Index:
    """Walk the whole repository and read the beginnings of its files.

    Args:
        former: files of an earlier walk with the same filters. A file with the same stamp is not read again.
        folders: path → folder of an earlier walk with the same filters. A folder that has not changed is not listed
            again. The walk brings them up to date.

    Raises:
        UserError: there are more than `MOST_ENTRIES` entries.
    """
    walk = Walk(filters)
    walk.folders = folders or {}
    indexed = walk.everything(sandbox, former)
    if folders is not None:
        folders.clear()
        folders.update(walk.folders)
    return indexed


class Walk:
    """Walk through a repository, and again after it has changed.

    Args:
        filters: files to leave out.
        watch: watch that is to follow the folders.
        names_only: open no file. Then nothing is left out because of its contents, and stamps are empty.

    Attributes:
        folders: path → folder.
        files: number of files to explore.
        left_out: as in `Index`.
        is_followed: the kernel reports every change, so that a walk without reports would have the same result.
    """

    def __init__(self, filters: Filters, watch: Watch | None = None, names_only: bool = False) -> None:
        self._filters, self._watch, self._names_only = filters, watch, names_only
        self._around = Checkout()
        self._checkouts: dict[str, Checkout] = {}
        self._changes: Changes | None = None
        self._former_folders: dict[str, Visited] = {}
        self._touched: set[str] | None = None
        self._noticed: Callable[[Visited], None] | None = None
        self._before: dict[str, Visited | None] = {}
        self.folders: dict[str, Visited] = {}
        self.files = self._entries = 0
        self.left_out: Counter[str] = Counter()
        self.is_followed = False

    def everything(
        self,
        sandbox: Sandbox,
        former: Former,
        changes: Changes | None = None,
        noticed: Callable[[Visited], None] | None = None,
    ) -> Index:
        """Walk through the whole repository.

        Args:
            former: as for `index`.
            changes: changes since the last walk, from the watch. A folder without changes is not even opened; without
                `changes`, all are.
            noticed: function that is called with each folder, while the walk goes on.

        Raises:
            UserError: there are more than `MOST_ENTRIES` entries.
        """
        self._sandbox, self._former, self._changes = sandbox, former, changes
        self._touched = None
        self._former_folders, self.folders = self.folders, {}
        self.files = self._entries = 0
        self.left_out = Counter()
        self.is_followed = self._watch is not None
        self._noticed = noticed
        self._visit("", None, self._scope_around())
        self._former_folders, self._noticed = {}, None
        files: dict[str, Stamp] = {}
        refused: dict[str, tuple[Stamp, str]] = {}
        for visited in self.folders.values():
            files.update(visited.files)
            refused.update(visited.refused)
        return Index(dict(sorted(files.items())), dict(self.left_out.most_common()), refused)

    def changed(self, sandbox: Sandbox, former: Former, changes: Changes) -> dict[str, Visited | None]:
        """Walk only to the folders that changed since the last walk, which has to be `is_followed`.

        If it fails, only `everything` may follow.

        Returns:
            path → folder before, for all folders that were looked at or are gone; None for a new one.

        Raises:
            UserError: there are more than `MOST_ENTRIES` entries.
        """
        self._sandbox, self._former, self._changes, self._noticed = sandbox, former, changes, None
        self._touched = _with_parents(changes.folders)
        self._before = {}
        self._former_folders = self.folders
        self._visit("", None, self._scope_around())
        return self._before

    def stale(self) -> set[str]:
        """Return the folders for which rules of git have changed since the last walk, where no watch reports it."""
        stale = {path for path, checkout in self._checkouts.items() if path in self.folders and checkout.is_stale}
        return stale | ({""} if self._around.is_stale else set())

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return what the user should know about the rules of git, a line each."""
        checkouts = (checkout for path, checkout in self._checkouts.items() if path in self.folders)
        return (*self._around.remarks, *(remark for checkout in checkouts for remark in checkout.remarks))

    def reason_for(self, sandbox: Sandbox, path: str) -> str | None:
        """Return the reason for which a file is left out because of its path; None if it is kept.

        Raises:
            OSError: there is no such file, or a folder above it cannot be opened.
        """
        self._sandbox = sandbox
        scope, folder = self._scope_around(), ""
        with ExitStack() as opened:
            descriptor = opened.enter_context(sandbox.folder(""))
            while True:
                children = set(entries(descriptor))
                if self._is_other_worktree(folder, children):
                    return OTHER_CHECKOUT
                scope, _ = self._scope_in(descriptor, folder, scope, children)
                if _is_partial(scope):
                    return TOO_MANY_RULES
                name, _, rest = path[len(folder) + 1 if folder else 0 :].partition("/")
                kind = dict(children).get(name)
                if kind is None or (rest and kind == "file"):
                    raise FileNotFoundError(path)
                reason = self._reason(folder, name, kind, scope)
                if reason is not None:
                    return reason
                if not rest:
                    if kind != "file":
                        raise IsADirectoryError(path)
                    return None
                descriptor = opened.enter_context(sandbox.subfolder(descriptor, name))
                folder = joined(folder, name)

    def _visit(self, path: str, outer: int | None, scope: Scope) -> None:
        """Visit a folder, and all below it that may have changed.

        Args:
            outer: the open folder above; None if it is not open.
            scope: rules of git in the folder above.
        """
        visited = self._unchanged(path, scope)
        if visited is not None:
            if self._touched is None:
                self._add(path, visited)
            elif path not in self._touched:
                return  # the rules for the folders below are those that they know, and nothing in them has changed
            self._visit_below(path, visited, None)
            return
        with ExitStack() as opened:
            try:
                descriptor = opened.enter_context(self._opened(path, outer))
                visited = self._look(descriptor, path, scope)
            except OSError:
                if self._touched is not None:
                    self._remove(path)
                self.left_out["unreadable"] += 1
                self.is_followed = False  # it may become readable without a report
                return
            if self._touched is not None:
                self._replace(path, visited)
            self._add(path, visited)
            self._visit_below(path, visited, descriptor)

    def _visit_below(self, path: str, visited: Visited, descriptor: int | None) -> None:
        for name in visited.listing.folders:
            self._visit(joined(path, name), descriptor, visited.listing.scope)

    def _unchanged(self, path: str, scope: Scope) -> Visited | None:
        """Return a folder of the earlier walk in which nothing has changed since, as the kernel says; else None."""
        if self._watch is None or self._changes is None or path in self._changes.folders:
            return None
        visited = self._former_folders.get(path)
        if visited is None or not visited.is_certain or not self._watch.is_followed(path):
            return None
        return visited if visited.listing.outer == scope else None

    def _opened(self, path: str, outer: int | None) -> AbstractContextManager[int]:
        if outer is None:
            return self._sandbox.folder(path)
        return self._sandbox.subfolder(outer, path.rpartition("/")[2])

    def _look(self, descriptor: int, path: str, scope: Scope) -> Visited:
        """List an open folder, and look at its files.

        Raises:
            OSError: the folder cannot be listed.
        """
        # First of all, so that every later change is reported.
        is_followed = self._watch is not None and self._watch.follow(descriptor, path)
        listing = self._list(descriptor, path, scope)
        if listing.ignore_file is not None and is_followed:
            is_followed = not has_other_names(descriptor, ".gitignore")
        visited = Visited(listing, is_certain=is_followed)
        for name in visited.listing.files:
            self._take(visited, descriptor, joined(path, name), name)
        return visited

    def _add(self, path: str, visited: Visited) -> None:
        """Add a folder."""
        self.folders[path] = visited
        self.is_followed &= visited.is_certain
        self._count(visited, 1)
        if self._entries > MOST_ENTRIES:
            raise UserError(f"{str(self._sandbox.root)!r} holds more than {MOST_ENTRIES:,} files; name one repository")
        if self._noticed is not None:
            self._noticed(visited)

    def _replace(self, path: str, visited: Visited) -> None:
        """Note a folder as it was before, and remove the folders below that it does not hold any more."""
        before = self._before[path] = self.folders.get(path)
        if before is not None:
            self._count(before, -1)
            for name in set(before.listing.folders).difference(visited.listing.folders):
                self._remove(joined(path, name))

    def _remove(self, path: str) -> None:
        """Remove a folder, and all below it."""
        before = self.folders.pop(path, None)
        if before is not None:
            self._before[path] = before
            self._count(before, -1)
            for name in before.listing.folders:
                self._remove(joined(path, name))

    def _count(self, visited: Visited, sign: int) -> None:
        """Count a folder's entries; with -1, take them back."""
        self.files += sign * len(visited.files)
        self._entries += sign * visited.listing.entries
        for reason, count in visited.listing.left_out.items():
            self.left_out[reason] += sign * count
        for _, reason in visited.refused.values():
            self.left_out[reason] += sign
        if visited.unreadable:
            self.left_out["unreadable"] += sign * visited.unreadable

    def _list(self, descriptor: int, path: str, outer: Scope) -> Listing:
        """Return the entries of a folder that pass the filters of names.

        Args:
            outer: rules of git in the folder above.
        """
        visited = self._former_folders.get(path)
        former = None if visited is None else visited.listing
        version = version_of(descriptor)  # before the folder is read, so that a change meanwhile is noticed next time
        if former is not None and former.outer == outer and former.version == version is not None:
            same_rules = former.ignore_file is None or former.ignore_file == _ignore_file(descriptor)
            if same_rules and not former.has_git:
                return former
        children = entries(descriptor)
        has_git = any(name == ".git" for name, _ in children)
        if self._is_other_worktree(path, children):
            return Listing(version, outer, outer, None, has_git, (), (), {OTHER_CHECKOUT: 1}, 1)
        scope, ignore_file = self._scope_in(descriptor, path, outer, children)
        if former is not None and former.scope == scope:
            scope = former.scope  # the same object is compared faster, in each folder below
        if _is_partial(scope):
            left_out = {TOO_MANY_RULES: len(children)}
            return Listing(version, outer, scope, ignore_file, has_git, (), (), left_out, len(children))
        names: dict[Kind, list[str]] = {"file": [], "folder": []}
        reasons: Counter[str] = Counter()
        for name, kind in children:
            reason = self._reason(path, name, kind, scope)
            if reason is None:
                names[kind].append(name)
            else:
                reasons[reason] += 1
        files, folders = tuple(names["file"]), tuple(names["folder"])
        return Listing(version, outer, scope, ignore_file, has_git, files, folders, reasons, len(children))

    def _scope_around(self) -> Scope:
        """Return the rules of git from outside the root. A root that is a checkout has none, since git stops there."""
        own = own_checkout(self._sandbox, "", (), self._filters.outside) if self._filters.ignored else None
        is_outside = self._filters.ignored and self._filters.outside and own is None
        self._around = enclosing_checkout(self._sandbox) if is_outside else Checkout()
        common = self._around.common if own is None else own.common
        self._nearby = (self._sandbox.root, *([] if common is None else [common]))
        return self._around.scope

    def _is_other_worktree(self, path: str, children: Iterable[tuple[str, Kind]]) -> bool:
        """Return whether a folder below the root holds the same files once more, as a linked worktree."""
        if not path or not self._filters.ignored or (".git", "file") not in children:
            return False
        return is_other_worktree(self._sandbox, path, self._nearby)

    def _scope_in(
        self, descriptor: int, path: str, outer: Scope, children: Iterable[tuple[str, Kind]]
    ) -> tuple[Scope, bytes | None]:
        """Return the rules of git that apply in an open folder, and the contents of its .gitignore or None.

        Args:
            outer: rules in the folder above.
            children: entries of the folder.
        """
        self._checkouts.pop(path, None)
        if not self._filters.ignored:
            return outer, None
        checkout = None
        is_ignored = outer.is_ignored or (bool(path) and outer.excludes(path, is_folder=True))
        # A clone in an ignored folder is ignored, unless it is a submodule.
        may_be_checkout = not is_ignored or outer.tracked.holds(path, is_folder=False)
        if may_be_checkout and any(name == ".git" for name, _ in children):
            within = self._nearby if path else ()
            checkout = own_checkout(self._sandbox, path, within, self._filters.outside)
        if checkout is not None:
            self._checkouts[path] = checkout
            scope = checkout.scope  # a submodule or another clone, in which only its own rules count
        else:
            scope = Scope(outer.rules, outer.tracked, is_ignored)
        if scope.is_ignored or (".gitignore", "file") not in children:
            return scope, None
        ignore_file = _ignore_file(descriptor)
        if ignore_file is not None:
            scope = Scope((*scope.rules, rules_of(path, ignore_file)), scope.tracked)
        return scope, ignore_file

    def _reason(self, folder: str, name: str, kind: Kind, scope: Scope) -> str | None:
        """Return the reason to leave out an entry because of its name or its kind; None to keep it."""
        if kind in ("link", "special"):
            return "a link" if kind == "link" else "a device, pipe or socket"
        path = joined(folder, name)
        if (reason := self._filters.of_name(name, kind == "folder", folder)) is not None:
            return reason
        if scope.ignores(path, kind == "folder"):
            return "ignored by git"
        if kind == "folder" and path.count("/") >= DEEPEST:
            return "too deep"
        return None

    def _take(self, visited: Visited, descriptor: int, path: str, name: str) -> None:
        """Add a file to a folder, or note why it is left out."""
        if self._names_only:
            visited.files[path] = Stamp(0, 0, False)
            return
        try:
            former = self._former(path)
            is_written = self._changes is not None and self._changes.is_written(path)
            if former is not None and not is_written and former[0] == (stamp := stamp_in(descriptor, name)):
                reason = former[1]
            else:
                head, stamp = read_in(descriptor, name, HEAD)
                reason = self._filters.of_content(head, stamp.size)
            if visited.is_certain and has_other_names(descriptor, name):
                visited.is_certain = False
        except OSError:
            visited.unreadable += 1
            visited.is_certain = False
            return
        if reason is None:
            visited.files[path] = stamp
        else:
            visited.refused[path] = (stamp, reason)


def _is_partial(scope: Scope) -> bool:
    """Return whether there are rules that cannot be applied."""
    return any(rules.is_partial for rules in scope.rules)


def _with_parents(folders: Iterable[str]) -> set[str]:
    """Return folders and all folders above them."""
    paths = {""}
    for path in folders:
        while path not in paths:
            paths.add(path)
            path = parent(path)
    return paths


def _ignore_file(descriptor: int) -> bytes | None:
    """Return the contents of a folder's .gitignore; None if the file cannot be read."""
    try:
        return read_in(descriptor, ".gitignore", gitignore.MOST_BYTES + 1)[0]
    except OSError:
        return None
