"""A run folder at an address: it goes on from there on another machine, whenever the first one was taken away."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reflectrl.cli import main
from reflectrl.core.digests import seal
from reflectrl.core.types import UserError
from reflectrl.tools.mirror.option import begin
from reflectrl.tools.mirror.option import copy as copied
from reflectrl.tools.mirror.store import Moved, Store, at, ordered
from tests.command_line import refused
from tests.runs.launcher import LIMIT, Launcher

Said = Callable[[Path], dict[str, str]]


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket/run"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a log, and a checkpoint under digests."""
    made = tmp_path / "run"
    (made / "checkpoints" / "policy").mkdir(parents=True)
    (made / "log.jsonl").write_text("one\n", encoding="utf-8")
    (made / "checkpoints" / "policy" / "weights").write_bytes(b"1234")
    return made


def wait_for_a_state(address: str) -> None:
    """Until there is a snapshot of online RL under way."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        latest = Store(address).latest()
        if latest is not None and any("rl-reflect-rl.learner" in name for name in latest.files):
            return
        time.sleep(0.05)
    raise AssertionError("no state has come to the address")


def test_a_killed_run_goes_on_in_another_folder_and_ends_as_if_nothing_had_happened(
    launcher: Launcher, tmp_path: Path, address: str, recipe_file: Path, finished: Path, said: Said
) -> None:
    words = ["run", str(recipe_file), "--mirror", address, "--mirror-every", "0.05", "--folder"]
    (process,) = launcher.begin(1, *words, str(tmp_path / "here"))
    wait_for_a_state(address)
    os.kill(process, signal.SIGKILL)
    assert launcher.end()[0] == [-signal.SIGKILL]
    shutil.rmtree(tmp_path / "here")  # the machine is gone
    assert main([*words, str(tmp_path / "there")]) == 0
    assert said(tmp_path / "there") == said(finished)
    begin(Store(address), tmp_path / "copy")  # and the end has been copied, too
    assert said(tmp_path / "copy") == said(finished)
    names = {path.relative_to(tmp_path / "there") for path in (tmp_path / "there").rglob("*") if path.name[0] != "."}
    assert names == {
        path.relative_to(tmp_path / "copy") for path in (tmp_path / "copy").rglob("*") if path.name[0] != "."
    }
    assert main([*words, str(tmp_path / "there")]) == 0  # the folder is at the last snapshot, and goes on as it is


def test_what_did_not_change_is_copied_once_and_what_nobody_needs_is_cleared_away(folder: Path, address: str) -> None:
    store, place = Store(address), Path(address.removeprefix("file://"))
    copied(store, folder)
    weights = store.latest().files["checkpoints/policy/weights"]  # type: ignore[union-attr]
    before = (place / "files" / weights).stat().st_mtime_ns
    (folder / "checkpoints" / "policy").rename(folder / "checkpoints" / "old")
    for text in ("two\n", "three\n"):
        with (folder / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(text)
        copied(store, folder)
    copied(store, folder)  # in which nothing is new
    assert sorted(path.name for path in (place / "snapshots").iterdir()) == ["2.json", "3.json"]
    assert (place / "files" / weights).stat().st_mtime_ns == before
    assert len(list((place / "files").iterdir())) == 3  # weights, and the log as it was and as it is
    assert at(folder)[:2] == (address, 3)


def test_a_damaged_snapshot_gives_way_to_the_one_before_and_a_damaged_file_is_refused(
    folder: Path, address: str, tmp_path: Path
) -> None:
    store, place = Store(address), Path(address.removeprefix("file://"))
    copied(store, folder)
    (folder / "log.jsonl").write_text("two\n", encoding="utf-8")
    copied(store, folder)
    newest = place / "snapshots" / "2.json"
    newest.write_text(newest.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    begin(Store(address), tmp_path / "other")
    assert (tmp_path / "other" / "log.jsonl").read_text(encoding="utf-8") == "one\n"
    for file in (place / "files").iterdir():
        file.write_bytes(b"9" * file.stat().st_size)
    with pytest.raises(UserError, match="is not what was written there"):
        begin(Store(address), tmp_path / "third")
    assert not ordered(tmp_path / "third")


def test_a_folder_that_is_replaced_while_it_is_read_is_no_snapshot(folder: Path, address: str) -> None:
    digests = {"weights": "that of other weights"}
    (folder / "checkpoints" / "policy" / "digests.json").write_text(json.dumps(digests), encoding="utf-8")
    store = Store(address)
    with pytest.raises(Moved):
        store.copy(folder)
    assert store.latest() is None


def test_two_machines_do_not_write_over_each_other(folder: Path, address: str, tmp_path: Path) -> None:
    first, second, other = Store(address), Store(address), tmp_path / "other"
    begin(first, folder)
    copied(first, folder)
    begin(second, other)
    (other / "log.jsonl").write_text("more\n", encoding="utf-8")
    copied(second, other)
    with pytest.raises(UserError, match="another command is at work on file://"):
        copied(first, folder)
    with pytest.raises(UserError, match="another machine has gone on at file://.*; remove .*run to go on from there"):
        begin(Store(address), folder)
    with pytest.raises(UserError, match="both hold a run"):
        (tmp_path / "third").mkdir()
        (tmp_path / "third" / "log.jsonl").touch()
        begin(Store(address), tmp_path / "third")


def test_a_command_that_is_killed_before_its_snapshot_is_there_goes_on(folder: Path, address: str) -> None:
    store = Store(address)
    copied(store, folder)
    (folder / "log.jsonl").write_text("two\n", encoding="utf-8")
    copied(store, folder)
    (Path(address.removeprefix("file://")) / "snapshots" / "2.json").unlink()  # as if it had not been written yet
    begin(Store(address), folder)
    assert (folder / "log.jsonl").read_text(encoding="utf-8") == "two\n"


def test_a_snapshot_writes_nothing_outside_of_the_folder(folder: Path, address: str, tmp_path: Path) -> None:
    copied(Store(address), folder)
    files = Store(address).latest().files  # type: ignore[union-attr]
    line = seal(json.dumps({"writer": "x", "files": {"../outside": files["log.jsonl"]}}, separators=(",", ":")))
    (Path(address.removeprefix("file://")) / "snapshots" / "2.json").write_text(line, encoding="utf-8")
    with pytest.raises(UserError, match=r"names a file outside of the folder: '\.\./outside'"):
        begin(Store(address), tmp_path / "inner" / "other")
    assert not (tmp_path / "inner" / "outside").exists()


def test_an_address_that_nobody_knows_is_refused(
    capsys: pytest.CaptureFixture[str], recipe_file: Path, tmp_path: Path
) -> None:
    line = refused(capsys, "run", str(recipe_file), "--folder", str(tmp_path / "run"), "--mirror", "nowhere://x")
    assert "nowhere://x" in line and "nowhere" in line
    assert not (tmp_path / "run").exists()
