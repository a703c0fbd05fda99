"""Walks of a repository that changes: a walk that knows an earlier one finds the same as a fresh one."""

import contextlib
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.wings.autoexplore import sandbox
from reflectrl.wings.autoexplore.index import Filters, Visited, index
from reflectrl.wings.autoexplore.sandbox import Sandbox

EDITS = st.lists(
    st.tuples(
        st.sampled_from(["write", "remove", "ignore", "clone", "link", "mkdir"]),
        st.sampled_from(["", "a", "a/b", "c"]),
        st.sampled_from(["one.py", "two.py", "test_x.py", "c"]),
    ),
    max_size=4,
)


def change(root: Path, how: str, folder: str, name: str) -> None:
    """Change a folder as a user might between two questions. What is impossible is left undone."""
    inside = root / folder
    with contextlib.suppress(OSError):
        if how == "mkdir":
            (inside / name).mkdir()
        elif how == "write":
            (inside / name).write_text(f"text of {name} in {folder}, {len(list(inside.iterdir()))}\n")
        elif how == "remove":
            (inside / name).unlink()
        elif how == "ignore":
            (inside / ".gitignore").write_text(f"{name}\n")
        elif how == "clone":
            (inside / ".git").mkdir()
        else:
            (inside / name).unlink()
            (inside / name).symlink_to("/etc/passwd")


@settings(max_examples=25, deadline=None)
@given(rounds=st.lists(EDITS, min_size=1, max_size=3))
def test_a_walk_that_knows_an_earlier_one_finds_what_a_fresh_one_finds(rounds: list[Any]) -> None:
    """Whatever changed: files, rules, clones below, links in the place of files."""
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox, "SETTLED_NS", 15_000_000)
        for folder in ("", "a", "a/b", "c"):
            (Path(place) / folder).mkdir(exist_ok=True)
            for name in ("one.py", "two.py"):
                (Path(place) / folder / name).write_text(f"long enough to be kept: {name}\n")
        box, folders, former = Sandbox(place), dict[str, Visited](), dict[str, Any]()
        for edits in [[], *rounds]:
            for edit in edits:
                change(Path(place), *edit)
            time.sleep(0.02)
            known = index(box, Filters(), former.get, folders)
            fresh = index(box, Filters())
            assert (known.files, known.left_out, known.refused) == (fresh.files, fresh.left_out, fresh.refused)
            former = {path: (stamp, None) for path, stamp in known.files.items()} | known.refused


def test_an_unchanged_folder_is_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "SETTLED_NS", 0)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file.py").write_text("text of a file\n")
    box, folders = Sandbox(tmp_path), dict[str, Visited]()
    index(box, Filters(), folders=folders)
    before = dict(folders)
    (tmp_path / "b" / "new.py").write_text("text of another file\n")
    assert list(index(box, Filters(), folders=folders).files) == ["a/file.py", "b/file.py", "b/new.py"]
    assert folders["a"].listing is before["a"].listing and folders["b"].listing is not before["b"].listing
