"""Folders that a user names: where data goes, whether it can be written, and no links that lead elsewhere."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from reflectrl.types import UserError


def data_folder(name: str, chosen: str | os.PathLike[str] = "") -> Path:
    """Where data is kept: the chosen folder, else $REFLECTRL_DATA/NAME, else ~/.cache/reflectrl/NAME."""
    if chosen != "":
        return Path(chosen).expanduser()
    return Path(os.environ.get("REFLECTRL_DATA") or "~/.cache/reflectrl").expanduser() / name


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
        probe.unlink(missing_ok=True)  # what an earlier try may have left, be it a link
        probe.touch(exist_ok=False)
        probe.unlink()
    except (OSError, ValueError) as error:
        raise UserError(f"{complaint}: {getattr(error, 'strerror', None) or error}") from error


def read_regular(path: Path) -> bytes:
    """Read a file that may come from a stranger.

    Raises:
        OSError: it cannot be read, or is a pipe or a device, whose end might never come.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return path.read_bytes()


def apply_umask(folder: Path) -> None:
    """Give all files below a folder the mode of new files, since some libraries write theirs for their owner only."""
    probe = folder / ".mode"
    probe.touch()
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)


def no_link(path: str, flags: int) -> int:
    """For `open(..., opener=no_link)`: raises OSError if the path is a symbolic link, wherever it leads."""
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
                    " links may lead elsewhere, so remove it, or put what it leads to in its place"
                )
