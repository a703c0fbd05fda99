"""Folders and files that a user names: where data is kept, atomic writes, locks, and refusal of links.

Nothing is written through links that lead elsewhere.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

from reflectrl.core.plugins import reason
from reflectrl.core.types import UserError

XDG = {"cache": ("XDG_CACHE_HOME", ".cache"), "config": ("XDG_CONFIG_HOME", ".config")}
"""Variable and default, below the home folder, of each kind of user folder (XDG Base Directory Specification)."""


def home() -> Path:
    """Return the user's home folder. Raises UserError if there is none, as for users without an account."""
    try:
        folder = Path.home()
    except RuntimeError:
        folder = Path()
    if not folder.is_absolute():
        raise UserError("this user has no home folder; set HOME")
    return folder


def user_folder(kind: Literal["cache", "config"]) -> Path:
    """Return our folder for this user's caches or settings, such as ~/.cache/reflectrl.

    As the specification asks, a variable that holds a relative path is ignored.

    Raises:
        UserError: neither the variable nor the home folder is known.
    """
    variable, default = XDG[kind]
    setting = Path(os.environ.get(variable, ""))
    base = setting if setting.is_absolute() else home() / default
    return base / "reflectrl"


def data_folder(name: str, given: str | os.PathLike[str] = "") -> Path:
    """Return the folder for data: the given one, else $REFLECTRL_DATA/NAME, else NAME in `user_folder("cache")`.

    Earlier versions did not read $XDG_CACHE_HOME. Data that they have put into ~/.cache/reflectrl are used there.
    """
    if given != "":
        return Path(given).expanduser()
    if setting := os.environ.get("REFLECTRL_DATA"):
        return Path(setting).expanduser() / name
    folder = user_folder("cache") / name
    with suppress(UserError):
        earlier = home() / ".cache" / "reflectrl" / name
        if earlier.is_dir() and not folder.exists():
            return earlier
    return folder


def require_writable(folder: Path, complaint: str) -> None:
    """Make a folder if it does not exist, and check that something can be written there.

    Args:
        complaint: the beginning of the error message; the reason follows it.

    Raises:
        UserError: nothing can be written there.
    """
    probe = folder / ".writable"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.unlink(missing_ok=True)  # a leftover of an earlier try, which may be a link
        probe.touch(exist_ok=False)
        probe.unlink()
    except (OSError, ValueError) as error:
        raise UserError(f"{complaint}: {reason(error)}") from error


@contextmanager
def writing(path: str | os.PathLike[str], *begun: Path) -> Iterator[None]:
    """Turn an OSError in the block, such as a full disk, into a one-line error.

    Args:
        path: what could not be written, for the message.
        begun: files and folders to remove after an error, because they are incomplete.

    Raises:
        UserError: instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        for incomplete in begun:
            shutil.rmtree(incomplete, ignore_errors=True)
            with suppress(OSError):
                incomplete.unlink(missing_ok=True)
        raise UserError(f"{path} cannot be written: {reason(error)}") from error


@contextmanager
def replacing(path: Path, beside: str = ".writing", errors: str = "strict") -> Iterator[IO[str]]:
    """Open a text file beside `path`, and move it over `path` at the end of the block. After an error, remove it.

    Args:
        beside: ending that is added to the file's name until it is complete.
        errors: treatment of characters that UTF-8 cannot hold, as in `open`.

    Raises:
        OSError: the file cannot be written. `path` is unchanged.
    """
    temporary = path.with_name(path.name + beside)
    file = open(temporary, "w", encoding="utf-8", errors=errors, opener=no_link)  # noqa: SIM115  (closed below)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def locked(file: IO[Any]) -> bool:
    """Try to lock an open file until it is closed or the process ends. Returns False if another process holds the lock.

    If the system has no such locks (Windows, some network disks), it counts as locked.
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def apply_umask(folder: Path) -> None:
    """Give all files below a folder the mode of new files. Some libraries write theirs for the owner only."""
    probe = folder / ".mode"
    probe.touch()
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)


def no_link(path: str, flags: int) -> int:
    """Open a path, unless it is a symbolic link; for `open(..., opener=no_link)`. Raises OSError if it is one."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def refuse_links(folder: Path) -> None:
    """Refuse to write in a folder if anything below it is a symbolic link, because writing would follow the link.

    The folder itself may be reached through links, and need not exist.

    Raises:
        UserError: names the first link.
    """
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in sorted([*folders, *files])):
            if path.is_symlink():
                raise UserError(
                    f"{folder} holds a link: {path.relative_to(folder)} -> {path.readlink()}; nothing is written where"
                    " links may lead elsewhere, so remove it, or replace it by what it points to"
                )
