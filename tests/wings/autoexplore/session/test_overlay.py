"""An overlay changes nothing on disk, and its patch is what git applies."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.session.overlay import EDITED_BYTES, Overlay, open_for_session

FILES: dict[str, bytes] = {
    "README.md": b"# Mailer\n\nSends letters.\n",
    "app/settings.py": b"RETRIES = 3\nTIMEOUT = 10\n",
    "app/no newline.txt": b"first\nlast line",
    "app/windows.ini": b"[mail]\r\nretries=3\r\n",
    "app/run.sh": b"#!/bin/sh\nexit 0\n",
    "tests/test_app.py": b"def test_it():\n    assert True\n",
    "data/empty.csv": b"",
    "data/picture.bin": bytes(range(256)) * 3,
    "docs/ärger.md": b"Umlaut\n",
}


def write_all(root: Path) -> None:
    for path, data in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    (root / "app/run.sh").chmod(0o755)


def digests(root: Path) -> dict[str, str]:
    return {
        str(file.relative_to(root)): hashlib.sha256(file.read_bytes()).hexdigest() + oct(file.stat().st_mode)
        for file in sorted(root.rglob("*"))
        if file.is_file()
    }


def contents(root: Path) -> dict[str, bytes]:
    return {str(file.relative_to(root)): file.read_bytes() for file in sorted(root.rglob("*")) if file.is_file()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    write_all(folder)
    return folder


def applied(root: Path, patch: str) -> dict[str, bytes]:
    """Return the files of a copy after `git apply`."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(root, copy)
        if patch:
            subprocess.run(
                ["git", "apply", "--whitespace=nowarn", "-"],
                input=patch.encode("utf-8", "surrogateescape"),
                cwd=copy,
                check=True,
                env={"PATH": os.environ["PATH"], "GIT_CEILING_DIRECTORIES": folder},
            )
        return contents(copy)


def test_changes_are_seen_in_the_overlay_and_never_on_disk(root: Path) -> None:
    before, overlay = digests(root), Overlay(open_for_session(root))
    overlay.replace("app/settings.py", "RETRIES = 3", "RETRIES = 5")
    overlay.write("app/new/deep.txt", "new\n")
    overlay.delete("README.md")
    assert overlay.read("app/settings.py") == "RETRIES = 5\nTIMEOUT = 10\n"
    assert [tuple(change) for change in overlay.changed()] == [
        ("README.md", "deleted"),
        ("app/new/deep.txt", "added"),
        ("app/settings.py", "modified"),
    ]
    assert "README.md" not in overlay.files and overlay.folder("app/new").files == ("deep.txt",)
    assert digests(root) == before
    overlay.restore("README.md")
    overlay.write("app/settings.py", FILES["app/settings.py"].decode())
    assert [change.path for change in overlay.changed()] == ["app/new/deep.txt"], "an undone change is none"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("../out.txt", "not a path below"),
        ("/etc/passwd", "not a path below"),
        ("app/../../out", "not a path below"),
        ("app//x", "not a path below"),
        ("", "not a path below"),
        ("a\0b", "not a path below"),
        (".git/hooks/pre-commit", "git's own"),
        ("sub/.GIT/config", "git's own"),
        ("app/settings.py/x", "is a file"),
        ("app", "is a folder"),
        ("x" * 300, "longer than"),
        ("half \ud800", "an unpaired surrogate"),
    ],
)
def test_a_file_is_written_below_the_root_only(root: Path, path: str, message: str) -> None:
    overlay = Overlay(open_for_session(root))
    with pytest.raises(UserError, match=message):
        overlay.write(path, "x")
    assert overlay.changed() == ()


def test_links_and_ignored_files_are_not_written_over(root: Path) -> None:
    (root / ".gitignore").write_text("secret.txt\n")
    (root / "secret.txt").write_text("a secret of mine\n")
    (root / "link.txt").symlink_to("/etc/hostname")
    (root / "folder").symlink_to("/etc")
    overlay = Overlay(open_for_session(root))
    for path in ("secret.txt", "link.txt", "folder/x.txt", ".gitignore"):
        assert path not in overlay.files
        with pytest.raises(UserError, match="left out|no path"):
            overlay.write(path, "x")


def test_what_is_no_text_or_too_large_is_not_edited(root: Path) -> None:
    (root / "large.txt").write_bytes(b"x" * (EDITED_BYTES + 1))
    overlay = Overlay(open_for_session(root))
    for path in ("data/picture.bin", "large.txt"):
        with pytest.raises(UserError):
            overlay.write(path, "x")
    with pytest.raises(UserError, match="at most"):
        overlay.write("new.txt", "x" * (EDITED_BYTES + 1))
    assert overlay.changed() == ()


def test_a_passage_has_to_occur_exactly_once(root: Path) -> None:
    overlay = Overlay(open_for_session(root))
    for old in ("absent", "T", ""):
        with pytest.raises(UserError, match="exactly once"):
            overlay.replace("app/settings.py", old, "x")


def test_a_file_that_changed_on_disk_is_refused(root: Path) -> None:
    overlay = Overlay(open_for_session(root))
    (root / "README.md").write_text("somebody else was quicker\n")
    with pytest.raises(UserError, match="has changed"):
        overlay.read("README.md")


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=60)
LINES = st.lists(st.sampled_from(["RETRIES = 3", "TIMEOUT = 10", "x", "", "\f", "a\u2028b", "end\r"]), max_size=12)
NAMES = st.sampled_from(
    [*FILES, "new.txt", "a b.txt", 'quo"te.txt', "tab\there.txt", "näh.txt", "deep/er/file.md", "tests/new.py"]
)
EDITS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), NAMES, TEXTS | LINES.map("\n".join)),
        st.tuples(st.just("delete"), NAMES),
        st.tuples(st.just("restore"), NAMES),
        st.tuples(st.just("put"), NAMES, st.binary(max_size=80)),
        st.tuples(st.just("replace"), NAMES, st.sampled_from(["3", "RETRIES", "first"]), TEXTS),
    ),
    max_size=12,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=EDITS)
def test_whatever_is_edited_the_disk_stays_and_the_patch_applies(root: Path, edits: list[tuple[str, ...]]) -> None:
    before, overlay = digests(root), Overlay(open_for_session(root))
    for name, *arguments in edits:
        try:
            getattr(overlay, name)(*arguments)
        except UserError:
            continue
    assert digests(root) == before
    assert applied(root, overlay.patch()) == {path: overlay.data(path) for path in overlay.files}
