"""`reflectrl data`: importing, downloading from a real server, generating, listing; and its refusals."""

import gzip
import lzma
import os
import re
import tarfile
import threading
import tracemalloc
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.wings.alfworld.game import TYPES
from tests.wings.alfworld.houses import kitchen, write_kitchen


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """A folder in the official layout: a game of each type to train on, one in valid_seen."""
    folder = tmp_path / "json_2.1.1"
    for task_type in TYPES:
        write_kitchen(folder, "train", task_type)
    write_kitchen(folder, "valid_seen", TYPES[0], 2)
    return folder


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default store."""
    monkeypatch.setenv("REFLECTRL_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "alfworld"


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line on stderr with which words are refused."""
    assert main(["data", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith("reflectrl: ") and err.count("\n") == 1, err
    return err


def claiming(path: Path, size: int, kind: bytes, pack: Any) -> Path:
    """Write an archive whose first header claims a size, with that many zeros."""
    header = tarfile.TarInfo("././@LongLink")
    header.size, header.type = size, kind
    with pack(path, "wb") as file:
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
        file.write(tarfile.TarInfo("x").tobuf() + bytes(1024))
    return path


class TestImport:
    @pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, b"x", b"g", b"X"])
    @pytest.mark.parametrize(("suffix", "pack"), [("tar.gz", gzip.open), ("tar.xz", lzma.open)])
    def test_a_header_that_claims_too_much_takes_no_memory(
        self, store: Path, tmp_path: Path, capsys: Any, kind: bytes, suffix: str, pack: Any
    ) -> None:
        archive = claiming(tmp_path / f"a.{suffix}", 32 << 20, kind, pack)
        tracemalloc.start()
        try:
            assert "a header is too long" in refused(capsys, "alfworld", "--from", str(archive))
            assert tracemalloc.get_traced_memory()[1] < 16 << 20
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("target", ["pipe", "/dev/zero", "/proc/kmsg"])
    def test_what_has_no_end_is_refused_in_a_folder_and_as_an_archive(
        self, official: Path, store: Path, tmp_path: Path, capsys: Any, target: str
    ) -> None:
        os.mkfifo(tmp_path / "pipe")
        for name in ("a.zip", "a.tar.gz"):
            (tmp_path / name).symlink_to(target)
            assert "not a regular file" in refused(capsys, "alfworld", "--from", str(tmp_path / name))
        for path in official.rglob("traj_data.json"):
            path.unlink()
            path.symlink_to(target if target != "pipe" else tmp_path / "pipe")
        assert "not a regular file" in refused(capsys, "alfworld", "--from", str(official))

    def test_deeply_nested_games_are_bad_games(self, official: Path, store: Path, capsys: Any) -> None:
        for path in official.rglob("traj_data.json"):
            path.write_text("[" * 200_000)
        assert "too deeply nested" in refused(capsys, "alfworld", "--from", str(official))
        for path in official.rglob("initial_state.pddl"):
            path.write_text("(define (:init) (:goal " + "(and " * 100_000 + ")" * 100_002)
        refused(capsys, "alfworld", "--from", str(official))

    def test_it_says_what_the_store_then_holds(self, official: Path, store: Path, capsys: Any) -> None:
        assert main(["data", "alfworld", "--from", str(official)]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert re.search(rf"^{store}$", out, re.M)
        assert re.search(r"^ +train +valid_seen$", out, re.M)
        assert re.search(r"^ +pick_and_place_simple +1 +1$", out, re.M)
        assert re.search(r"^ +all +6 +1$", out, re.M)
        assert main(["data", "alfworld"]) == 0
        assert out.endswith(capsys.readouterr().out)

    @pytest.mark.parametrize("again", [[], ["--from"]])
    def test_several_sources_into_a_store_elsewhere(
        self, official: Path, tmp_path: Path, capsys: Any, again: list[str]
    ) -> None:
        sources = [str(official / "train"), *again, str(official / "valid_seen")]
        assert main(["data", "--store", str(tmp_path / "s"), "alfworld", "--from", *sources]) == 0
        assert sorted(path.name for path in (tmp_path / "s").iterdir()) == [
            "train.games.jsonl", "valid_seen.games.jsonl"
        ]  # fmt: skip

    def test_bad_games_are_named_up_to_ten_and_counted(self, official: Path, store: Path, capsys: Any) -> None:
        for trial in range(20, 33):
            home = write_kitchen(official, "train", TYPES[0], trial)
            (home / "traj_data.json").unlink()
        assert main(["data", "alfworld", "--from", str(official)]) == 0
        err = capsys.readouterr().err
        assert err.count("\n") == 11 and err.endswith("and 3 more bad games\n")
        assert f"bad game: train/{kitchen(TYPES[0], 20)[0]}: there is no traj_data.json\n" in err

    def test_what_is_left_out_is_counted(self, official: Path, store: Path, capsys: Any) -> None:
        write_kitchen(official, "tests_seen", TYPES[0])
        assert main(["data", "alfworld", "--from", str(official)]) == 0
        assert "left out: 1 games, in none of train, " in capsys.readouterr().out


class TestGenerate:
    def test_the_table_says_that_these_are_no_alfworld_scores(self, store: Path, capsys: Any) -> None:
        assert main(["data", "alfworld", "--generate", "3", "--seed", "4"]) == 0
        out = capsys.readouterr().out
        assert f"{store} (generated games" in out and re.search(r"^ +all +3 +1 +1 +1$", out, re.M)

    def test_real_games_are_not_mixed_in(self, official: Path, store: Path, capsys: Any) -> None:
        assert main(["data", "alfworld", "--generate", "1"]) == 0
        capsys.readouterr()
        assert "--replace" in refused(capsys, "alfworld", "--from", str(official))
        assert main(["data", "alfworld", "--from", str(official), "--replace"]) == 0
        assert "generated" not in capsys.readouterr().out


class TestRefusals:
    @pytest.mark.parametrize(
        ("words", "fragment"),
        [
            (["alfwrold"], "unknown benchmark 'alfwrold' (did you mean 'alfworld'?)"),
            (["alfworld"], "--download"),
            (["alfworld", "--form", "x"], "did you mean '--from'"),
            (["alfworld", "--from"], "--from needs a folder"),
            (["alfworld", "--from", "nowhere"], "nowhere: no such folder"),
            (["alfworld", "--generate", "0"], "at least 1"),
            (["alfworld", "--generate", "ten"], "ten"),
            (["alfworld", "--generate", "1", "--download"], "only one of"),
            (["alfworld", "--replace"], "--replace needs"),
            (["alfworld", "--url", "http://x/y.zip"], "--url needs --download"),
            (["alfworld", "--download", "--url", "http://x/y"], "http://x/y: expected the http or https address"),
            (["alfworld", "--download", "--url", "ftp://x/y.zip"], "expected the http or https address"),
            (["alfworld", "--download", "--url", "http://[x/y.zip"], "not a valid address: Invalid IPv6"),
        ],
    )
    def test_a_mistake_is_one_line_and_leaves_nothing(
        self, store: Path, capsys: Any, words: list[str], fragment: str
    ) -> None:
        assert fragment in refused(capsys, *words)
        assert not store.exists()

    def test_a_store_that_cannot_be_written(self, official: Path, tmp_path: Path, capsys: Any) -> None:
        (tmp_path / "file").touch()
        words = ["alfworld", "--from", str(official), "--store", str(tmp_path / "file")]
        assert "cannot be written" in refused(capsys, *words)


class Files(BaseHTTPRequestHandler):
    """Serves `server.files`; honours ranges if `server.ranges`; breaks off after `server.most` bytes."""

    def do_GET(self) -> None:
        server: Any = self.server
        content = server.files.get(self.path)
        begin = int((self.headers.get("Range") or "bytes=0-")[6:-1]) if server.ranges else 0
        server.asked.append((self.path, begin))
        if content is None:
            self.send_error(404)
        elif begin and begin >= len(content):
            self.send_error(416)
        else:
            self.send_response(206 if begin else 200)
            if begin:
                self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - begin))
            self.end_headers()
            self.wfile.write(content[begin : begin + server.most])

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def server(official: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server with the two halves of the games in a zip archive each."""
    monkeypatch.setenv("no_proxy", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        server.files, server.ranges, server.most, server.asked = {}, True, 1 << 30, []  # type: ignore[attr-defined]
        for half in ("traj_data.json", "initial_state.pddl"):
            path = tmp_path / f"{half}.zip"
            with zipfile.ZipFile(path, "w") as archive:
                for file in sorted(official.rglob(half)):
                    archive.write(file, file.relative_to(official.parent))
            server.files[f"/{half}.zip"] = path.read_bytes()  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def addresses(server: Any) -> list[str]:
    words = ["alfworld", "--download"]
    for path in server.files:
        words += ["--url", f"http://127.0.0.1:{server.server_port}{path}"]
    return words


class TestDownload:
    def test_what_is_fetched_is_said_imported_and_cleared_away(self, server: Any, store: Path, capsys: Any) -> None:
        assert main(["data", *addresses(server)]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"downloading http://127.0.0.1:{server.server_port}/traj_data.json.zip to {store}")
        assert re.search(r"^ +all +6 +1$", out, re.M)
        assert sorted(path.name for path in store.iterdir()) == ["train.games.jsonl", "valid_seen.games.jsonl"]

    def test_a_broken_download_goes_on_where_it_ended(self, server: Any, store: Path, capsys: Any) -> None:
        server.most = 1000
        assert "the connection ended after 1000 of" in refused(capsys, *addresses(server))
        server.most = 1 << 30
        assert main(["data", *addresses(server)]) == 0
        assert [begin for _, begin in server.asked] == [0, 1000, 0]

    def test_a_server_without_ranges_sends_it_all_again(self, server: Any, store: Path, capsys: Any) -> None:
        server.most, server.ranges = 1000, False
        refused(capsys, *addresses(server))
        server.most = 1 << 30
        assert main(["data", *addresses(server)]) == 0

    def test_a_beginning_longer_than_the_file_is_thrown_away(self, server: Any, store: Path, capsys: Any) -> None:
        server.most = 1000
        refused(capsys, *addresses(server))
        (part,) = (store / "downloads").iterdir()
        part.write_bytes(b" " * (1 << 20))
        server.most = 1 << 30
        assert main(["data", *addresses(server)]) == 0

    def test_a_missing_file(self, server: Any, store: Path, capsys: Any) -> None:
        words = [word.replace("traj", "trash") for word in addresses(server)]
        assert "trash_data.json.zip: the server says 404" in refused(capsys, *words)

    def test_a_page_in_place_of_the_archive_is_thrown_away(self, server: Any, store: Path, capsys: Any) -> None:
        server.files["/traj_data.json.zip"] = b"<html>please log in</html>"
        assert "is not an archive of games" in refused(capsys, *addresses(server))
        assert not store.exists()

    def test_nobody_answers(self, server: Any, store: Path, capsys: Any) -> None:
        words = addresses(server)
        server.shutdown()
        server.server_close()
        assert "Connection refused" in refused(capsys, *words)
