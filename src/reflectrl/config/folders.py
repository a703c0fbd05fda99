"""Folders that a user names."""

from __future__ import annotations

from pathlib import Path

from reflectrl.types import UserError


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
        probe.touch()
        probe.unlink()
    except (OSError, ValueError) as error:
        raise UserError(f"{complaint}: {getattr(error, 'strerror', None) or error}") from error
