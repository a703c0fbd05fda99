"""Folders that a user names."""

from __future__ import annotations

import os
from pathlib import Path

from reflectrl.types import UserError


def data_folder(name: str, chosen: str | os.PathLike[str] = "") -> Path:
    """The folder of some data: the chosen one, or $REFLECTRL_DATA/NAME, or ~/.cache/reflectrl/NAME without either."""
    if chosen != "":
        return Path(chosen).expanduser()
    return Path(os.environ.get("REFLECTRL_DATA") or "~/.cache/reflectrl").expanduser() / name


def require_writable(folder: Path, complaint: str) -> None:
    """Make a folder if need be, and try whether something can be written there.

    Args:
        complaint: what to say otherwise, before the reason.

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


def no_link(path: str, flags: int) -> int:
    """`open(..., opener=no_link)`: an OSError where the path is a symbolic link, whatever it leads to."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def refuse_links(folder: Path) -> None:
    """Refuse a folder to be written in if anything below it is a symbolic link: writing would follow it elsewhere.

    The folder itself may be reached through links. What does not exist is fine.

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
