"""`session`: read, change and try out files of a repository, and take the changes home as a patch."""

from __future__ import annotations

import cmd
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from reflectrl.core.json_lines import LONGEST_LINE, parse_json
from reflectrl.core.plugins import suggestion
from reflectrl.core.types import UserError

OPTIONS = ("--repo", "--allow-run", "--json", "--patch", "--seconds", "--memory")


@dataclass(frozen=True)
class EditSession:
    """Change files of a repository in memory, try the changes out, and write them as a patch."""

    repo: Annotated[str, tyro.conf.arg(metavar="DIR")] = "."
    """Folder of the repository. No file in it is ever changed."""
    allow_run: bool = False
    """Allow `run COMMAND`: on a copy of the files, in a bubblewrap container without network."""
    json: bool = False
    """Read one JSON request per line from stdin, and answer each with a JSON line, for programs."""
    patch: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """File to which the changes are written at the end, for `git apply`. It must not exist yet."""
    seconds: Annotated[float, tyro.conf.arg(metavar="S")] = 60.0
    """Time limit of a command, in seconds."""
    memory: Annotated[int, tyro.conf.arg(metavar="MIB")] = 2048
    """Largest address space of each process of a command, in MiB."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Serve requests until stdin ends or the user quits; then write the patch."""
        if settings:
            option = settings[0].partition("=")[0]
            raise UserError(f"unknown option {option!r}{suggestion(option, OPTIONS)}")
        if self.seconds <= 0 or self.memory < 64:
            raise UserError("--seconds must be above 0, and --memory at least 64")
        if self.patch and os.path.lexists(self.patch):
            raise UserError(f"--patch {self.patch}: exists already; name a new file")
        from reflectrl.wings.autoexplore.session.execution import Limits
        from reflectrl.wings.autoexplore.session.requests import Session

        limits = Limits(seconds=self.seconds, memory=self.memory * 2**20) if self.allow_run else None
        session = Session(self.repo, limits)
        try:
            if self.json:
                serve(session)
            else:
                Prompt(session).cmdloop()
        finally:  # an interrupted session loses nothing
            text = session.overlay.patch()
            if self.patch and text:
                with Path(self.patch).open("x", encoding="utf-8", errors="surrogateescape", newline="") as file:
                    file.write(text)
        if text and not self.patch:
            paths = ", ".join(change.path for change in session.overlay.changed())
            _note(f"changed in this session only: {paths}; --patch FILE keeps changes")


def serve(session: Any) -> None:
    """Answer a JSON request per line of stdin until it ends. An error is an answer, too."""
    while line := sys.stdin.buffer.readline(LONGEST_LINE + 1):
        if not line.strip():
            continue
        try:
            reply = {"ok": True, **session.do(_parsed(line))}
        except UserError as error:
            reply = {"ok": False, "error": str(error)}
        print(json.dumps(reply), flush=True)


def _parsed(line: bytes) -> Any:
    """Parse a request. The rest of a line that is too long is passed over."""
    if len(line) > LONGEST_LINE:
        while line and not line.endswith(b"\n"):
            line = sys.stdin.buffer.readline(LONGEST_LINE)
        raise UserError(f"the request has more than {LONGEST_LINE:,} bytes")
    try:
        return parse_json(line)
    except ValueError as error:
        raise UserError(f"not valid JSON: {error}") from None


class Prompt(cmd.Cmd):
    """Prompt for a person. Every command makes a request of the session."""

    intro = "Changes stay in this session; the files on disk are not touched. Type help, or quit."
    prompt = "(session) "

    def __init__(self, session: Any) -> None:
        super().__init__()
        self.session = session
        if not sys.stdin.isatty():
            self.intro, self.prompt = "", ""
            self.use_rawinput = False

    def onecmd(self, line: str) -> bool:
        """Carry out a command. A mistake is reported, and the session goes on."""
        try:
            return bool(super().onecmd(line))
        except UserError as error:
            print(f"error: {error}")
        except ValueError as error:  # an unclosed quotation mark
            print(f"error: {error}")
        return False

    def emptyline(self) -> bool:
        """Do nothing; the base class would repeat the last command."""
        return False

    def default(self, line: str) -> None:
        """Report an unknown command, and end at the end of the input."""
        name = line.split()[0]
        names = tuple(name[3:] for name in self.get_names() if name.startswith("do_") and name != "do_EOF")
        raise UserError(f"there is no command {name!r}{suggestion(name, names)}")

    def do_ls(self, line: str) -> None:
        """List a folder: `ls [FOLDER]`."""
        listing = self.session.do({"do": "ls", "path": _only_word(line, "ls [FOLDER]", "")})
        print(*(f"{name}/" for name in listing["folders"]), *listing["files"], sep="\n")

    def do_find(self, line: str) -> None:
        """Search the files as they are on disk: `find QUESTION`."""
        for file in self.session.do({"do": "find", "question": line})["files"]:
            print(f"{file['path']}:{file['line'] or 1}" + (f"  {file['name']}" if file["name"] else ""))

    def do_read(self, line: str) -> None:
        """Print a file with line numbers: `read FILE`."""
        text = self.session.do({"do": "read", "path": _only_word(line, "read FILE")})["text"]
        for line_number, row in enumerate(text.split("\n"), 1):
            print(f"{line_number:>5}  {row}")

    def do_replace(self, line: str) -> None:
        """Replace a passage that occurs exactly once: `replace FILE OLD NEW`. Quote texts that hold spaces."""
        words = shlex.split(line)
        if len(words) != 3:
            raise UserError("usage: replace FILE OLD NEW")
        self._report(self.session.do({"do": "replace", "path": words[0], "old": words[1], "new": words[2]}))

    def do_edit(self, line: str) -> None:
        """Open a file, new or not, in $VISUAL or $EDITOR: `edit FILE`."""
        path = _only_word(line, "edit FILE")
        exists = path in self.session.overlay.files
        text = self.session.do({"do": "read", "path": path})["text"] if exists else ""
        self._report(self.session.do({"do": "write", "path": path, "text": _edited(text, Path(path).suffix)}))

    def do_delete(self, line: str) -> None:
        """Delete a file in this session: `delete FILE`."""
        self._report(self.session.do({"do": "delete", "path": _only_word(line, "delete FILE")}))

    def do_restore(self, line: str) -> None:
        """Undo all changes of a file: `restore FILE`."""
        self._report(self.session.do({"do": "restore", "path": _only_word(line, "restore FILE")}))

    def do_run(self, line: str) -> None:
        """Try the changes out, on a copy in a container without network: `run COMMAND`."""
        ran = self.session.do({"do": "run", "command": shlex.split(line)})
        print(ran["output"], end="" if ran["output"].endswith("\n") or not ran["output"] else "\n")
        ended = "ran out of time" if ran["status"] is None else f"ended with {ran['status']}"
        print(f"{ended} after {ran['seconds']} s" + ("; its output was cut" if ran["cut"] else ""))
        for path in ran["changed"]:
            print(f"changed {path}")
        for path in ran["not_kept"]:
            print(f"not kept: {path}")

    def do_changed(self, line: str) -> None:
        """List the files that differ from the ones on disk."""
        self._report(self.session.do({"do": "changed"}))

    def do_patch(self, line: str) -> None:
        """Print all changes as a patch."""
        print(self.session.do({"do": "patch"})["patch"], end="")

    def do_quit(self, line: str) -> bool:
        """End the session."""
        return True

    do_EOF = do_quit

    def _report(self, reply: dict[str, Any]) -> None:
        for change in reply["changed"]:
            print(f"{change['kind']:<9} {change['path']}")


def _only_word(line: str, usage: str, default: str | None = None) -> str:
    """Return the only argument of a command."""
    words = shlex.split(line)
    if not words and default is not None:
        return default
    if len(words) != 1:
        raise UserError(f"usage: {usage}")
    return words[0]


def _edited(text: str, suffix: str) -> str:
    """Let the user edit a text in a temporary file."""
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "")
    if not editor:
        raise UserError("edit needs an editor; set EDITOR, for example to vim")
    with tempfile.TemporaryDirectory(prefix="reflectrl-session-") as folder:
        file = Path(folder) / f"file{suffix}"
        file.write_bytes(text.encode("utf-8"))
        try:
            status = subprocess.run([*editor, str(file)], check=False).returncode
        except OSError as error:
            raise UserError(f"{editor[0]!r} cannot be started: {error.strerror}") from None
        if status:
            raise UserError(f"{editor[0]!r} ended with {status}; nothing was changed")
        try:
            return file.read_bytes().decode("utf-8")
        except (OSError, UnicodeDecodeError):
            raise UserError("the edited file is not UTF-8 text any more; nothing was changed") from None


def _note(text: str) -> None:
    print(f"reflectrl: {text}", file=sys.stderr, flush=True)
