"""Safe reading of the commits of a git repository, whatever its settings are.

A repository may come from a stranger, and its configuration can name programs that git runs (filters, signatures,
monitors, hooks, aliases ...). So git never sees the repository. It runs in a temporary empty repository of our own,
which borrows only the objects. Configurations of the user and of the system are left out too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from reflectrl.core.types import UserError

SECONDS = 120
"""Longest time in seconds for a git command."""
LARGEST = 2**20
"""Largest size in bytes of a repository's file that is read here, such as its list of branches."""
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_BRANCH = re.compile(r"refs/heads/[^\x00-\x20\\:?*~^\[]+")
_FILES = ("100644", "100755")
"""Modes of ordinary files in a tree; links and submodules have others."""


def is_clone(root: Path) -> bool:
    """Tell whether a folder is a git clone, and git is installed."""
    return os.path.lexists(root / ".git") and shutil.which("git") is not None


def head_of(root: Path) -> str | None:
    """Return the commit that is checked out in a folder; None if the folder is not a clone, or has no commit."""
    folders = _place_of(root)
    if folders is None:
        return None
    git_dir, common_dir = folders
    head = _line(git_dir / "HEAD")
    if not head.startswith("ref: "):
        return head if _DIGEST.fullmatch(head) else None
    branch = head.removeprefix("ref: ")
    if not _BRANCH.fullmatch(branch) or ".." in branch:
        return None
    loose = _line(common_dir / branch)
    packed = dict(line.split(" ", 1)[::-1] for line in _text(common_dir / "packed-refs").splitlines() if " " in line)
    digest = loose or packed.get(branch, "")
    return digest if _DIGEST.fullmatch(digest) else None


class Commits:
    """Commits of a clone up to the checked-out commit. Use it as a context manager.

    Attributes:
        head: the checked-out commit.

    Raises:
        UserError: the folder is not a clone. In all methods: git cannot be run or fails.
    """

    def __init__(self, root: Path) -> None:
        head, folders = head_of(root), _place_of(root)
        if head is None or folders is None:
            raise UserError(f"{root}: its .git has no readable commit (or borrows objects of another repository)")
        self.root, self.head, self._shared = root, head, folders[1]
        self._own = tempfile.TemporaryDirectory(prefix="reflectrl-git-")
        self._prepare(Path(self._own.name))

    def _prepare(self, folder: Path) -> None:
        """Make the empty repository that borrows the clone's objects."""
        for name in ("refs", "objects/info"):
            (folder / name).mkdir(parents=True)
        (folder / "HEAD").write_text("ref: refs/heads/none\n", encoding="ascii")
        sha256 = "repositoryformatversion = 1\n[extensions]\nobjectformat = sha256\n"
        version = "repositoryformatversion = 0\n" if len(self.head) == 40 else sha256
        (folder / "config").write_text(f"[core]\nbare = true\n{version}", encoding="ascii")
        # git unquotes a line that begins with a quotation mark, and ends it at a line break
        borrowed = str((self._shared / "objects").resolve())
        if borrowed.startswith('"') or "\n" in borrowed:
            raise UserError(f"{self.root}: git cannot be pointed at a folder of that name")
        (folder / "objects/info/alternates").write_text(f"{borrowed}\n", encoding="utf-8", errors="surrogateescape")
        shallow = [line for line in _text(self._shared / "shallow").splitlines() if _DIGEST.fullmatch(line)]
        if shallow:  # the clone was made without the commits before these
            (folder / "shallow").write_text("".join(f"{line}\n" for line in shallow), encoding="ascii")

    def __enter__(self) -> Commits:
        return self

    def __exit__(self, *_: object) -> None:
        self._own.cleanup()

    def run(self, *words: str, given: bytes = b"") -> bytes:
        """Run a git command and return what it prints.

        Args:
            given: the command's standard input.
        """
        command = ["git", "--no-pager", "--no-replace-objects", *words]
        try:
            done = subprocess.run(
                command,
                cwd=self._own.name,
                env=_surroundings(self._own.name),
                input=given,
                capture_output=True,
                timeout=SECONDS,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise UserError(f"{self.root}: git cannot be run: {error}") from error
        if done.returncode:
            raise UserError(f"{self.root}: git says: {' '.join(done.stderr.decode('utf-8', 'replace').split())}")
        return done.stdout

    def digests(self, commit: str, below: str = ".") -> dict[str, str]:
        """Map the ordinary files of a commit's tree to the digests of their content.

        Args:
            commit: a revision as git takes it ("COMMIT", "COMMIT^").
            below: a folder of the tree; "." takes all.
        """
        listing = self.run("ls-tree", "-r", "-z", "--full-tree", commit, below)
        digests = {}
        for line in listing.decode("utf-8", "surrogateescape").split("\0"):
            entry, _, path = line.partition("\t")
            if entry and entry.split()[0] in _FILES:
                digests[path] = entry.split()[2]
        return digests

    def write_tree(self, commit: str, folder: Path) -> None:
        """Write the ordinary files of a commit's tree into a new folder, byte for byte.

        Raises:
            UserError: the files cannot be written, or a path of the tree leads out of the folder.
        """
        digests = self.digests(commit)
        for path in digests:
            parts = PurePosixPath(path).parts
            if path.startswith("/") or ".." in parts or "\\" in path or ".git" in map(str.lower, parts):
                raise UserError(f"{self.root}: {commit} holds a file that leads out of its folder: {path!r:.80}")
        folder.mkdir(parents=True)
        try:
            for path, content in self._contents(digests):
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        except (OSError, ValueError) as error:
            raise UserError(f"{self.root}: {commit} cannot be written: {error}") from error

    def _contents(self, digests: dict[str, str]) -> Iterator[tuple[str, bytes]]:
        """Yield every path with its content."""
        answer = self.run("cat-file", "--batch", given="".join(f"{digest}\n" for digest in digests.values()).encode())
        offset = 0
        for path in digests:
            end = answer.index(b"\n", offset)
            size = int(answer[offset:end].split()[2])  # "DIGEST blob SIZE"
            yield path, answer[end + 1 : end + 1 + size]
            offset = end + size + 2


def _place_of(root: Path) -> tuple[Path, Path] | None:
    """Find a clone's own git folder (with HEAD), and the folder shared with other worktrees (branches, objects).

    If a folder's `.git` only points to a repository elsewhere, that repository must point back, as for a worktree.
    Otherwise a stranger's folder could make us read another repository. For the same reason, borrowed or linked objects
    are refused.
    """
    git = root / ".git"
    if git.is_symlink() or not git.exists():
        return None
    git_dir, common_dir = git, git
    if git.is_file():
        git_dir = root / _line(git).removeprefix("gitdir: ")
        if not git_dir.is_dir() or (git_dir / _line(git_dir / "gitdir")).resolve() != git.resolve():
            return None
        common_dir = git_dir / (_line(git_dir / "commondir") or ".")
    objects = common_dir / "objects"
    if not objects.is_dir() or any((objects / "info" / name).exists() for name in ("alternates", "http-alternates")):
        return None
    linked = any(path.is_symlink() for path in (common_dir, objects, *objects.iterdir(), *objects.glob("pack/*")))
    return None if linked else (git_dir, common_dir)


def _line(path: Path) -> str:
    return _text(path).strip("\n")


def _text(path: Path) -> str:
    """Read a small ordinary file; "" if there is none."""
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST:
            return ""
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _surroundings(folder: str) -> dict[str, str]:
    """Return the environment in which git runs: no settings of the user, of the system or of the environment itself."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return variables | {
        "GIT_DIR": folder,
        "HOME": folder,
        "XDG_CONFIG_HOME": folder,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "LC_ALL": "C",
    }
