"""Changes of text files as a patch that `git apply` takes."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass

_QUOTED = {ord('"'): '\\"', ord("\\"): "\\\\", ord("\n"): "\\n", ord("\t"): "\\t", ord("\r"): "\\r"}


@dataclass(frozen=True)
class Change:
    """What became of one file. None stands for no file."""

    path: str
    before: str | None
    after: str | None
    executable: bool = False

    @property
    def kind(self) -> str:
        """added, deleted or modified."""
        if self.before is None:
            return "added"
        return "deleted" if self.after is None else "modified"

    def patch(self) -> str:
        """The change in git's extended unified format."""
        old, new = _quoted(f"a/{self.path}"), _quoted(f"b/{self.path}")
        mode = "100755" if self.executable else "100644"
        kind = {"added": f"new file mode {mode}\n", "deleted": f"deleted file mode {mode}\n"}.get(self.kind, "")
        heading = f"diff --git {old} {new}\n{kind}"
        hunks = _hunks(self.before or "", self.after or "")
        if not hunks:  # an empty file comes or goes
            return heading
        old, new = (_in_header(name, text) for name, text in ((old, self.before), (new, self.after)))
        return f"{heading}--- {old}\n+++ {new}\n{hunks}"


def _in_header(name: str, text: str | None) -> str:
    if text is None:
        return "/dev/null"
    return name + "\t" * (" " in name and not name.startswith('"'))  # a tab ends a name that holds spaces


def _quoted(path: str) -> str:
    """A path as git writes it: in quotes, with octal bytes, if it holds anything but printable ASCII."""
    data = os.fsencode(path)
    if re.fullmatch(rb"[ !#-\[\]-~]*", data):
        return path
    octal = "".join(_QUOTED.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in data)
    return f'"{octal}"'


def _hunks(before: str, after: str) -> str:
    lines = list(difflib.unified_diff(_lines(before), _lines(after)))[2:]
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """Lines as git sees them: they end with a line feed, and with nothing else."""
    return [line for line in re.split(r"(?<=\n)", text) if line]
