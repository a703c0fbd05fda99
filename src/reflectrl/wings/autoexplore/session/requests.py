"""Requests of a session: plain objects in, plain objects out.

session = Session(".")
session.do({"do": "replace", "path": "app/settings.py", "old": "RETRIES = 3", "new": "RETRIES = 5"})
session.do({"do": "run", "command": ["python", "-m", "pytest", "-q"]})
session.do({"do": "patch"})["patch"]
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from reflectrl.core.plugins import suggestion
from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.names import shown
from reflectrl.wings.autoexplore.session.execution import Limits, bubblewrap, run
from reflectrl.wings.autoexplore.session.overlay import Overlay, open_for_session

if TYPE_CHECKING:  # slow to import, and needed only by `find`
    from reflectrl.wings.autoexplore.locate.answers import Locator

FILES_SHOWN = 5
"""Number of files that `find` returns."""

REQUESTS: Mapping[str, tuple[str, ...]] = {
    "ls": ("path",),
    "find": ("question",),
    "read": ("path",),
    "write": ("path", "text"),
    "replace": ("path", "old", "new"),
    "delete": ("path",),
    "restore": ("path",),
    "run": ("command",),
    "changed": (),
    "patch": (),
}
"""Arguments of each request: strings, and for `command` a list of strings. The path of `ls` may be left out."""


class Session:
    """Repository whose files are read and changed by requests. The files on disk stay as they are.

    Args:
        root: folder of the repository.
        limits: limits of commands; None if commands are refused.

    Raises:
        UserError: the folder cannot be opened, or commands are allowed and bubblewrap is missing.
    """

    def __init__(self, root: str | os.PathLike[str], limits: Limits | None = None) -> None:
        repository = open_for_session(root)
        self.root, self.overlay, self.limits = repository.root, Overlay(repository), limits
        if limits is not None:
            bubblewrap()

    def do(self, request: Any) -> dict[str, Any]:
        """Carry out a request, an object with "do" and its arguments (`REQUESTS`).

        Raises:
            UserError: the request is malformed, or cannot be carried out. Nothing has changed then.
        """
        name, arguments = _checked(request)
        return getattr(self, f"_{name}")(**arguments)

    @cached_property
    def _locator(self) -> Locator:
        from reflectrl.wings.autoexplore.locate.answers import Locator

        return Locator(self.root, lasting=True)

    def _ls(self, path: str = "") -> dict[str, Any]:
        folder = self.overlay.folder(path.rstrip("/"))
        return {"folders": list(folder.folders), "files": list(folder.files)}

    def _find(self, question: str) -> dict[str, Any]:
        """Search the files as they are on disk."""
        hits = self._locator.locate(question, FILES_SHOWN).files
        return {"files": [{"path": hit.path, "line": hit.start or hit.line, "name": hit.name} for hit in hits]}

    def _read(self, path: str) -> dict[str, Any]:
        return {"text": self.overlay.read(path)}

    def _write(self, path: str, text: str) -> dict[str, Any]:
        self.overlay.write(path, text)
        return self._changed()

    def _replace(self, path: str, old: str, new: str) -> dict[str, Any]:
        self.overlay.replace(path, old, new)
        return self._changed()

    def _delete(self, path: str) -> dict[str, Any]:
        self.overlay.delete(path)
        return self._changed()

    def _restore(self, path: str) -> dict[str, Any]:
        self.overlay.restore(path)
        return self._changed()

    def _run(self, command: list[str]) -> dict[str, Any]:
        if self.limits is None:
            raise UserError("commands are not allowed in this session; start it with --allow-run")
        before = dict(self.overlay.get_state())
        ran = run(self.overlay, command, self.limits)
        after = self.overlay.get_state()
        touched = [path for path in sorted({*before, *after}) if before.get(path, ...) != after.get(path, ...)]
        return {
            "status": ran.status,
            "output": ran.output,
            "cut": ran.cut,
            "seconds": round(ran.seconds, 2),
            "changed": touched,
            "not_kept": list(ran.not_kept),
        }

    def _changed(self) -> dict[str, Any]:
        return {"changed": [change._asdict() for change in self.overlay.changed()]}

    def _patch(self) -> dict[str, Any]:
        return {"patch": self.overlay.patch()}


def _checked(request: Any) -> tuple[str, dict[str, Any]]:
    """Return the name of a request and its arguments; raise UserError if it is malformed."""
    if not isinstance(request, dict) or not isinstance(request.get("do"), str):
        raise UserError('a request is an object with "do", such as {"do": "read", "path": "README.md"}')
    name = request["do"]
    if name not in REQUESTS:
        raise UserError(
            f"there is no request {name!r}{suggestion(name, tuple(REQUESTS))}; there are: {', '.join(REQUESTS)}"
        )
    arguments = {key: value for key, value in request.items() if key != "do"}
    for key in arguments:
        if key not in REQUESTS[name]:
            raise UserError(f"{name} has no argument {key!r}{suggestion(key, REQUESTS[name])}")
    for key in REQUESTS[name]:
        if key not in arguments:
            if name == "ls":
                continue
            raise UserError(f"{name} needs {key!r}")
        is_valid: Callable[[Any], bool] = _is_command if key == "command" else _is_text
        if not is_valid(arguments[key]):
            kind = "a list of strings, the program first" if key == "command" else "a string"
            raise UserError(f"{key!r} of {name} must be {kind}")
        words = arguments[key] if key == "command" else [arguments[key]]
        if not all(_can_be_written(word, is_path=key in ("path", "command")) for word in words):
            raise UserError(f"{key!r} of {name} holds a NUL or half a character (a lone surrogate)")
    if "path" in arguments and len(arguments["path"]) > 10_000:
        raise UserError(f"the path {shown(arguments['path'][:40])} … is too long")
    return name, arguments


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _can_be_written(text: str, is_path: bool) -> bool:
    """Return whether a text can be written as UTF-8. In paths, surrogates may stand for bytes that are not UTF-8."""
    try:
        text.encode("utf-8", "surrogateescape" if is_path else "strict")
    except UnicodeEncodeError:
        return False
    return not is_path or "\0" not in text


def _is_command(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_text, value))
