"""Git's own files around a checkout: what they say about the files to leave out. Nothing in them is run or shown.

A repository's `.git` is a stranger's folder. Its `info/exclude`, the list of tracked files and two settings are read as
text, and only to leave files out or to keep tracked ones. Of settings with a path, `core.excludesFile` counts: the one
in the user's own configuration, and one in the repository's if it lies in the checkout or in the user's home.
"""

from __future__ import annotations

import os
import re
import stat
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.gitignore import MOST_BYTES, Rules, is_ignored, rules_of
from reflectrl.wings.autoexplore.names import joined, shown
from reflectrl.wings.autoexplore.sandbox import Sandbox

MOST_TRACKED_BYTES = 256 * 1024 * 1024
"""Largest list of tracked files that is read. Without it, tracked files that the rules name are left out, too."""
_MOST_CONFIG_BYTES = 1024 * 1024
_MOST_INCLUDES = 16
_GIT_FILE = re.compile(r"gitdir: (.+)", re.DOTALL)
_HEAD = re.compile(rb"ref:\s*refs/|[0-9a-f]{40}(?:[0-9a-f]{24})?\s*$")
_SECTION = re.compile(r'\s*\[\s*([\w.-]+)(?:\s+"((?:[^"\\]|\\.)*)")?\s*\]')
_KEY = re.compile(r"\s*([A-Za-z][\w-]*)\s*(=?)\s*(.*)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b"}

Version = tuple[int, ...] | None
"""Properties by which a change of a file is noticed; None if there is no such file."""


class Tracked:
    """Tracked files of a repository: those in git's index, which count even if rules name them.

    Args:
        data: contents of the index; b"" for none.
        base: folder of the checkout, relative to the root.
        prefix: path from the checkout to the root, if the checkout lies above. Then `base` is "".
    """

    def __init__(self, data: bytes = b"", base: str = "", prefix: str = "") -> None:
        self._data, self._base, self._prefix = data, base, prefix

    @cached_property
    def _names(self) -> list[bytes]:
        return sorted(tracked_names(self._data))

    def holds(self, path: str, is_folder: bool) -> bool:
        """Return whether a file is tracked, or anything in a folder, or the submodule at a path."""
        inner = path[len(self._base) + 1 if self._base else 0 :]
        name = os.fsencode(joined(self._prefix, inner) if inner else self._prefix)
        start = bisect_left(self._names, name)
        if start < len(self._names) and self._names[start] == name:
            return True
        start = bisect_left(self._names, name + b"/")
        return is_folder and start < len(self._names) and self._names[start].startswith(name + b"/")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tracked) or (self._base, self._prefix) != (other._base, other._prefix):
            return False
        return self._data == other._data or self._names == other._names

    def __hash__(self) -> int:
        return hash((self._base, self._prefix))


@dataclass(frozen=True)
class Scope:
    """Rules of git that apply in a folder.

    Attributes:
        rules: rules of files, the strongest last.
        tracked: tracked files of the repository.
        is_ignored: the folder is ignored, so only tracked files in it count.
    """

    rules: tuple[Rules, ...] = ()
    tracked: Tracked = field(default_factory=Tracked)
    is_ignored: bool = False

    def ignores(self, path: str, is_folder: bool) -> bool:
        """Return whether an entry is left out."""
        return self.excludes(path, is_folder) and not self.tracked.holds(path, is_folder)

    def excludes(self, path: str, is_folder: bool) -> bool:
        """Return whether the rules exclude an entry, whether it is tracked or not."""
        return self.is_ignored or bool(self.rules and is_ignored(path + "/" * is_folder, self.rules))


@dataclass(frozen=True)
class Checkout:
    """Repository that governs a folder.

    Attributes:
        scope: its rules from outside of the folder, and its tracked files.
        common: folder with the settings that all its checkouts share; None if there is no repository.
        versions: path → version of each file that was consulted.
        remarks: what the user should know, a line each.
    """

    scope: Scope = field(default_factory=Scope)
    common: Path | None = None
    versions: tuple[tuple[Path, Version], ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def is_stale(self) -> bool:
        """Return whether a file has changed since it was consulted."""
        return any(_version(path) != version for path, version in self.versions)


class _Files:
    """Files that are consulted, with their versions. In the root, they are opened as all others: never through a link.

    Args:
        sandbox: the root.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.versions: dict[Path, Version] = {}

    def read(self, path: Path, limit: int) -> bytes:
        """Return the contents of a regular file; b"" if it cannot be read. At most one byte over `limit` is read.

        Args:
            path: path without "..".
        """
        self.versions.setdefault(path, _version(path))
        return self.unlisted(path, limit)

    def unlisted(self, path: Path, limit: int) -> bytes:
        """Read a file, such as HEAD, whose changes change no rule."""
        try:
            if _is_within(path, (self._sandbox.root,)):
                return self._sandbox.read(path.relative_to(self._sandbox.root).as_posix(), limit + 1)[0]
            if not _is(stat.S_ISREG, path):  # a pipe is not even opened
                return b""
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:  # noqa: PTH123  it is open already
                return file.read(limit + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
        except (OSError, ValueError):
            return b""

    def rules(self, path: Path, base: str, prefix: str) -> tuple[Rules, ...]:
        """Return the rules of a file; none if it cannot be read."""
        data = self.read(path, MOST_BYTES)
        return (rules_of(base, data, prefix),) if data else ()


def own_checkout(sandbox: Sandbox, base: str, within: tuple[Path, ...], with_user: bool) -> Checkout | None:
    """Return the repository whose checkout a folder is; None if the folder is no checkout.

    Args:
        sandbox: the root.
        base: path of the folder relative to the root.
        within: folders to one of which `.git` may lead, if it is a file; () for any.
        with_user: apply the user's own rules, too.
    """
    top, files = sandbox.root / base, _Files(sandbox)
    git = _git_folder(top, files, within)
    if git is None:
        return None
    return _checkout(top, git, files, base, "", _user_rules(files, base, "") if with_user else ())


def enclosing_checkout(sandbox: Sandbox) -> Checkout:
    """Return the repository above a root that is no checkout itself; without one, the user's own rules apply.

    Raises:
        UserError: the root belongs to a repository's own files, such as a bare repository.
    """
    root, files = sandbox.root, _Files(sandbox)
    for folder in (root, *root.parents):
        if _device_of(folder) != sandbox.identity[0]:  # git stops at the border of a file system, too
            break
        git = _git_folder(folder, files, ()) if folder != root else None
        if git is not None:
            return _enclosed(folder, git, files, root.relative_to(folder).as_posix())
        if _is_git_folder(folder, files):
            what = "belongs to git" if folder.name == ".git" else "is a bare git repository, or lies in one"
            raise UserError(f"{str(root)!r} {what}, and has no file to explore; name the folder of a checkout")
    return _finished(Scope(_user_rules(files, "", "")), None, files)


def is_other_worktree(sandbox: Sandbox, base: str, within: tuple[Path, ...]) -> bool:
    """Return whether a folder is a linked worktree of a repository that has another checkout nearby.

    Args:
        sandbox: the root.
        base: path of the folder relative to the root.
        within: the root, and the folder of the repository around it. What lies in them is nearby.
    """
    files = _Files(sandbox)
    target = _target_of(sandbox.root / base, files)
    if target is None or target.parent.name != "worktrees":
        return False
    if not _is(stat.S_ISDIR, target):
        return True  # it was moved, or is mounted elsewhere: git does not know it, but it is a copy all the same
    common = _common_folder(target, files)
    if common == target or not _is_within(common, within):
        return False
    settings = dict(_settings(common / "config", files, includes=0))
    return not _is_true(settings.get("core.bare", "false"))  # the worktrees of a bare repository are its only ones


def _enclosed(top: Path, git: Path, files: _Files, prefix: str) -> Checkout:
    """Return the repository above a root, with the rules of all folders between.

    Args:
        prefix: path from the top to the root.
    """
    checkout = _checkout(top, git, files, "", prefix, _user_rules(files, "", prefix))
    rules, names = checkout.scope.rules, prefix.split("/")
    # The same rules once more, for the folders above the root.
    above = _checkout(top, git, files, "", "", _user_rules(files, "", "")).scope.rules
    is_root_ignored = False
    for depth in range(len(names)):
        path = top.joinpath(*names[:depth], ".gitignore")
        if not _is(stat.S_ISLNK, path):  # git does not follow such a link either
            rules += files.rules(path, "", "/".join(names[depth:]))
            above += files.rules(path, "/".join(names[:depth]), "")
        is_root_ignored |= is_ignored("/".join(names[: depth + 1]) + "/", above)
    if is_root_ignored and not checkout.scope.tracked.holds("", is_folder=True):
        remark = f"the folder is ignored by the git repository {str(top)!r}; its files are searched all the same"
        return _finished(Scope(_user_rules(files, "", "")), None, files, (*checkout.remarks, remark))
    scope = Scope(rules, checkout.scope.tracked, is_root_ignored)
    return _finished(scope, checkout.common, files, checkout.remarks)


def _checkout(top: Path, git: Path, files: _Files, base: str, prefix: str, rules: tuple[Rules, ...]) -> Checkout:
    """Return a repository by its folder of git's own files.

    Args:
        rules: weaker rules.
    """
    common, remarks = _common_folder(git, files), list[str]()
    named = dict(_settings(common / "config", files, includes=0)).get("core.excludesfile", "")
    exclude = common / "info" / "exclude"
    paths = [_joined(top, _expanded(named))] if named else []
    paths.append(_resolved(exclude) if _is(stat.S_ISLNK, exclude) else exclude)
    for path in paths:
        if path == exclude or _is_within(path, (top, *_home())):
            rules += files.rules(path, base, prefix)
        else:
            where = f"{shown(str(path))} lies neither in it nor in your home"
            remarks.append(f"rules that the repository {str(top)!r} names are not applied: {where}")
    data = files.read(git / "index", MOST_TRACKED_BYTES)
    tracked = _tracked(data if len(data) <= MOST_TRACKED_BYTES else b"", base, prefix)
    return _finished(Scope(rules, tracked), common, files, tuple(remarks))


def _finished(scope: Scope, common: Path | None, files: _Files, remarks: tuple[str, ...] = ()) -> Checkout:
    return Checkout(scope, common, tuple(files.versions.items()), remarks)


@lru_cache(maxsize=64)
def _tracked(data: bytes, base: str, prefix: str) -> Tracked:
    return Tracked(data, base, prefix)


def _user_rules(files: _Files, base: str, prefix: str) -> tuple[Rules, ...]:
    """Return the rules that the user's own configuration names, as `core.excludesFile` or by default."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    own = [Path(given)] if given else [home / ".config" for home in _home()]
    system = [] if _is_true(os.environ.get("GIT_CONFIG_NOSYSTEM", "no")) else [Path("/etc/gitconfig")]
    personal = [folder / "git" / "config" for folder in own] + [home / ".gitconfig" for home in _home()]
    for configs, variable in ((system, "GIT_CONFIG_SYSTEM"), (personal, "GIT_CONFIG_GLOBAL")):
        if variable in os.environ:
            configs[:] = [Path(os.environ[variable])]
    named = str(own[0] / "git" / "ignore") if own else ""
    for config in system + personal:
        if config.is_absolute():
            named = dict(_settings(config, files, _MOST_INCLUDES)).get("core.excludesfile", named)
    path = Path(_expanded(named))
    return files.rules(path, base, prefix) if path.is_absolute() else ()


def _home() -> tuple[Path, ...]:
    """Return the user's home, as git finds it; () if there is none."""
    home = Path(os.environ.get("HOME", ""))
    return (home,) if home.is_absolute() else ()


def _joined(folder: Path, path: str) -> Path:
    """Return a path that a file names, relative to a folder, without ".."."""
    return Path(os.path.normpath(folder / path))


def _expanded(path: str) -> str:
    """Return a path of a setting with the user's home in place of "~/"."""
    home = _home()
    return str(home[0]) + path[1:] if path.startswith("~/") and home else path


def _settings(path: Path, files: _Files, includes: int) -> Iterator[tuple[str, str]]:
    """Yield the settings of a configuration, as "section.key" in lower case and value, in their order.

    Args:
        includes: how many files may be included below each other. An included file counts whatever its condition is.
    """
    text = files.read(path, _MOST_CONFIG_BYTES).decode("utf-8", "replace")
    section = ""
    for line in _logical_lines(text.removeprefix("\ufeff")):
        header = _SECTION.match(line)
        if header is not None:
            section = f"{header[1]}.{header[2]}" if header[2] is not None else header[1]
            line = line[header.end() :]
        key = _KEY.fullmatch(line)
        if key is None:
            continue
        value = _value(key[3]) if key[2] else "true"
        if section.lower().partition(".")[0] in ("include", "includeif") and key[1].lower() == "path":
            if includes:
                yield from _settings(path.parent / _expanded(value), files, includes - 1)
        else:
            yield f"{section}.{key[1]}".lower(), value


def _logical_lines(text: str) -> Iterator[str]:
    """Yield lines, joined with the next one where they end with a backslash."""
    begun = ""
    for line in text.replace("\r\n", "\n").split("\n"):
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            begun += line[:-1]
        else:
            yield begun + line
            begun = ""


def _value(text: str) -> str:
    """Return the value of a setting, without quotes, escapes and comments."""
    value, length, is_quoted, index = "", 0, False, 0
    while index < len(text) and (is_quoted or text[index] not in "#;"):
        character = text[index]
        if character == '"':
            is_quoted = not is_quoted
        elif character == "\\":
            index += 1
            value += _ESCAPES.get(text[index : index + 1], text[index : index + 1])
        else:
            value += character
        if is_quoted or not character.isspace():
            length = len(value)
        index += 1
    return value[:length]


def _is_true(value: str) -> bool:
    return value.lower() in ("true", "yes", "on", "1")


def tracked_names(data: bytes) -> list[bytes]:
    """Return the paths in git's index; none if it is damaged, or of an unknown version."""
    if data[:4] != b"DIRC":
        return []
    for digest in (20, 32):  # SHA-1 and SHA-256, which the file does not tell
        try:
            return list(_entries(data, digest))
        except (ValueError, IndexError):
            continue
    return []


def _entries(data: bytes, digest: int) -> Iterator[bytes]:
    """Yield the paths in git's index, as gitformat-index(5) describes it.

    Args:
        digest: size of a digest in bytes.
    """
    version, count = int.from_bytes(data[4:8], "big"), int.from_bytes(data[8:12], "big")
    if version not in (2, 3, 4):
        raise ValueError("unknown version")
    start, name = 12, b""
    for _ in range(count):
        flags = int.from_bytes(data[start + 40 + digest : start + 42 + digest], "big")
        name_start = start + 42 + digest + (2 if flags & 0x4000 else 0)
        dropped = 0
        if version == 4:  # noqa: PLR2004
            dropped, name_start = _number(data, name_start)
        end = data.index(b"\0", name_start)
        if dropped > len(name):
            raise ValueError("a path that is shorter than nothing")
        shared = name[: len(name) - dropped] if version == 4 else b""  # noqa: PLR2004
        name = shared + data[name_start:end]
        if flags & 0xFFF != min(len(name), 0xFFF):
            raise ValueError("a path of another length")
        yield name
        start = end + 1 if version == 4 else start + (end - start + 8) // 8 * 8  # noqa: PLR2004


def _number(data: bytes, start: int) -> tuple[int, int]:
    """Return a number of variable length, and the index after it."""
    byte = data[start]
    number = byte & 0x7F
    while byte & 0x80:
        start += 1
        byte = data[start]
        number = ((number + 1) << 7) | (byte & 0x7F)
    return number, start + 1


def _git_folder(top: Path, files: _Files, within: tuple[Path, ...]) -> Path | None:
    """Return the folder with the repository's own files of the checkout `top`; None if it is no checkout."""
    path = top / ".git"
    files.versions.setdefault(path, _version(path))
    if _is(stat.S_ISLNK, path):
        if within:
            return None
        path = _resolved(path)
    target = path if _is(stat.S_ISDIR, path) else _target_of(top, files)
    if target is None or (target != path and within and not _is_within(target, within)):
        return None
    return target if _is_git_folder(target, files) else None


def _target_of(top: Path, files: _Files) -> Path | None:
    """Return the folder to which a file `.git` leads; None if there is no such file."""
    match = _GIT_FILE.match(os.fsdecode(files.read(top / ".git", _MOST_CONFIG_BYTES)))
    return None if match is None or "\0" in match[1] else _joined(top, match[1].rstrip("\r\n"))


def _is_git_folder(path: Path, files: _Files) -> bool:
    """Return whether a folder holds a repository's own files, as git decides it."""
    head = path / "HEAD"
    is_link = _is(stat.S_ISLNK, head)
    if not is_link and not _is(stat.S_ISREG, head):
        return False
    common = _common_folder(path, files)
    if not _is(stat.S_ISDIR, common / "objects") or not _is(stat.S_ISDIR, common / "refs"):
        return False
    return is_link or _HEAD.match(files.unlisted(head, 256)) is not None


def _common_folder(git: Path, files: _Files) -> Path:
    """Return the folder that all worktrees of a repository share."""
    named = os.fsdecode(files.unlisted(git / "commondir", _MOST_CONFIG_BYTES)).strip()
    return _joined(git, named) if named and "\0" not in named else git


def _is(kind: Callable[[int], bool], path: Path) -> bool:
    """Return whether a path leads to something of a kind; False if that cannot be determined."""
    try:
        return kind((path.lstat() if kind is stat.S_ISLNK else path.stat()).st_mode)
    except (OSError, ValueError):
        return False


def _resolved(path: Path) -> Path:
    """Return the path to which links lead; the path itself if they lead in a circle."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path


def _is_within(path: Path, folders: tuple[Path, ...]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _device_of(folder: Path) -> int:
    try:
        return folder.stat().st_dev
    except OSError:
        return -1


def _version(path: Path) -> Version:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    # A folder such as `.git` changes all the time.
    is_folder = stat.S_ISDIR(status.st_mode)
    return (status.st_ino,) if is_folder else (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
