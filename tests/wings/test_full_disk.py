"""A full disk, at every file that a command writes: one line, exit code 2, and nothing that is not whole is left."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.core.config.folders import replacing, writing
from reflectrl.core.episodes import EpisodeLog, read_episodes
from reflectrl.core.types import Episode, Task, UserError
from tests.full_disk import files_in, full_disk, walked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system limits files in another way")
FIXTURES = Path(__file__).parent / "text/samples/fixtures"
RECORD = ("play", "taxi", "--player", "expert", "--record", "log.jsonl", "--episodes")


def _samples() -> None:
    rows = [{"prompt": "p", "completion": f" {word}", "reward": i} for i, word in enumerate(("a", "b"))]
    Path("s.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def _log() -> None:
    assert main([*RECORD, "2"]) == 0


def _games() -> None:
    assert main(["data", "alfworld", "--generate", "1", "--store", "games"]) == 0


COMMANDS: dict[str, tuple[tuple[str, ...], Callable[[], None]]] = {
    "record": ((*RECORD, "2"), lambda: None),
    "record more": ((*RECORD, "3"), _log),
    "import": (("import-episodes", "log.jsonl", "--out", "other.jsonl", "--env", "taxi"), _log),
    "convert": (("data", "convert", "--from", "s.jsonl", "--to", "new/o.jsonl"), _samples),
    "convert, packed": (("data", "convert", "--from", "s.jsonl", "--to", "o.jsonl.gz", "--as", "preference"), _samples),
    "hha": (("data", "hha", "--from", str(FIXTURES / "hha"), "--store", "store", "--held-out", "0"), lambda: None),
    "init": (("init", "my_room"), lambda: None),
    "alfworld": (("data", "alfworld", "--generate", "1", "--store", "games", "--replace"), _games),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_file_of_a_command(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    words, prepare = COMMANDS[name]
    prepare()
    capsys.readouterr()
    walked(words, tmp_path, capsys)


def test_a_full_disk_that_takes_what_is_printed_is_one_line() -> None:
    words = [sys.executable, "-m", "reflectrl", "list"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("reflectrl: ") and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.endswith("cannot be written: No space left on device\n")


def test_a_log_is_as_it_was_when_an_episode_does_not_fit(tmp_path: Path) -> None:
    path, episode = tmp_path / "log.jsonl", Episode(Task("t", "e", {"long": "x" * 500}), (), True, False, 0)
    with EpisodeLog(path) as log:
        log.append(episode)
        whole = path.read_bytes()
        with full_disk(0, room=len(whole) + 100), pytest.raises(UserError, match=r"log\.jsonl cannot be written: File"):
            (tmp_path / "other").touch()  # from here on
            log.append(episode)
        assert path.read_bytes() == whole
        log.append(episode)
    assert len(list(read_episodes(path))) == 2


def test_a_page_is_as_it_was_when_the_new_one_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before", encoding="utf-8")
    said = pytest.raises(UserError, match=r"page\.html cannot be written: File too large")
    with full_disk(0), said, writing(path), replacing(path) as file:
        file.write("x" * 100_000)
    assert files_in(tmp_path) == {"page.html": b"before"}
