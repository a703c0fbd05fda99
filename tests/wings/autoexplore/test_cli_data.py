"""`reflectrl data autoexplore`: from a real local package index, from folders, imports; and its refusals."""

import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import reflectrl
from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.cli.packages import (
    DEFAULT_INDEX,
    File,
    NoSuchPackageError,
    choose,
    files_of,
    index_url,
)
from reflectrl.wings.autoexplore.library import open_library
from reflectrl.wings.autoexplore.making import repositories as table
from reflectrl.wings.autoexplore.making.repositories import Pin, pin_of, pins
from tests.wings.autoexplore.commands import refused, run
from tests.wings.autoexplore.written import sdist, write_shop


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default library."""
    monkeypatch.setenv("REFLECTRL_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "autoexplore"


@pytest.fixture
def shops(tmp_path: Path) -> list[Path]:
    """Four repositories of a user's own."""
    things = ("ship", "sail"), ("bread", "cake", "roll"), ("lamp", "bulb"), ("chair", "table")
    return [write_shop(tmp_path / "own" / f"shop{number}", names) for number, names in enumerate(things)]


def dropped(store: Path, name: str) -> list[tuple[str, str, str]]:
    """Name, stage and reason of each entry of a list."""
    lines = (store / "dropped" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [(row["name"], row["stage"], row["reason"]) for row in map(json.loads, lines)]


class Index(BaseHTTPRequestHandler):
    """A package index of `server.files`, in JSON if `server.json`, else in HTML; sends `server.most` bytes at most."""

    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append(self.path)
        *_, last = [part for part in self.path.split("/") if part]
        if last in server.files:
            self._send(server.files[last], "application/octet-stream")
        elif self.path.startswith("/simple/") and any(self._named(name, last) for name in server.files):
            self._page([name for name in server.files if self._named(name, last)])
        else:
            self.send_error(404)

    def _named(self, file: str, package: str) -> bool:
        return re.sub(r"[-_.]+", "-", file).startswith(f"{package}-")

    def _page(self, names: list[str]) -> None:
        server: Any = self.server
        sums = {name: hashlib.sha256(server.files[name]).hexdigest() for name in names}
        if server.json == "broken":
            self._send(b"{}", "application/vnd.pypi.simple.v1+json")
        elif server.json:
            rows = [
                {"filename": n, "url": f"/files/{n}", "hashes": {"sha256": sums[n]}, "yanked": False} for n in names
            ]
            rows.append({"filename": "x-9.tar.gz", "url": "/files/x-9.tar.gz", "hashes": {}, "yanked": "broken"})
            self._send(json.dumps({"files": rows}).encode(), "application/vnd.pypi.simple.v1+json")
        else:
            links = "".join(f'<a href="../../files/{n}#sha256={sums[n]}">{n}</a><br/>' for n in names)
            self._send(f'<html><a data-yanked="" href="/x">x</a>{links}</html>'.encode(), "text/html")

    def _send(self, data: bytes, kind: str) -> None:
        server: Any = self.server
        begin = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        self.send_response(206 if begin else 200)
        self.send_header("Content-Type", kind)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - begin))
        self.end_headers()
        self.wfile.write(data[begin : begin + server.most])

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def server(shops: list[Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An index with three packages, which are those of the table; and one that only imported questions name."""
    monkeypatch.setenv("no_proxy", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        made: Any = server
        made.json, made.most, made.asked = True, 1 << 30, []
        made.files = {f"shop{n}-1.{n}.tar.gz": sdist(root, f"shop{n}", f"1.{n}") for n, root in enumerate(shops)}
        made.files["shop3-0.9.tar.gz"] = made.files["shop3-1.3.tar.gz"]
        rows = [
            Pin(
                f"shop{n}",
                f"1.{n}",
                f"shop{n}-1.{n}.tar.gz",
                hashlib.sha256(made.files[f"shop{n}-1.{n}.tar.gz"]).hexdigest(),
                split,
            )
            for n, split in enumerate(("train", "validation", "test"))
        ]
        monkeypatch.setattr(table, "pins", lambda: tuple(rows))
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        server.shutdown()


def address(server: Any) -> str:
    return f"http://127.0.0.1:{server.server_port}/simple"


class TestDownload:
    @pytest.mark.parametrize("speaks_json", [True, False])
    def test_packages_become_a_library(self, server: Any, store: Path, capsys: Any, speaks_json: bool) -> None:
        server.json = speaks_json
        assert run("--download", "--index", address(server), "--per-repo", 9) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"getting 3 packages from {address(server)}\n")
        assert re.search(r"^validation +shop1 +1\.1 +MIT +\d+ ", out, re.M)
        library = open_library()
        assert library.splits == ("train", "validation", "test")
        assert library.repos["shop0"].origin == "pkg:pypi/shop0@1.0?file_name=shop0-1.0.tar.gz"
        for split in library.splits:
            assert 3 <= len(library.questions(split)) <= 9
            assert all(path in library.repository(q.repo) for q in library.questions(split) for path in q.gold)
        assert sorted(path.name for path in store.iterdir()) == ["questions", "repos", "repos.jsonl", "written.json"]
        account = json.loads((store / "written.json").read_text(encoding="utf-8"))
        limits = {"seed": 0, "per_repo": 9, "commits": 10, "split_by": "repository"}
        assert account == {"writer": "rules", **limits, "reflectrl": reflectrl.__version__}
        assert run() == 0
        assert out.endswith(capsys.readouterr().out)

    def test_one_command_makes_a_data_set_and_the_same_again(
        self, server: Any, shops: list[Path], store: Path, tmp_path: Path, capsys: Any
    ) -> None:
        words = ["--download", "--index", address(server), "--per-repo", 9, "--pack"]
        for name in ("a", "b"):
            assert run(*words, tmp_path / f"{name}.tar.gz", "--store", tmp_path / name) == 0
        assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()
        assert "3 repositories, 27 questions" in capsys.readouterr().out
        with tarfile.open(tmp_path / "a.tar.gz") as tar:
            (row, *_) = [json.loads(line) for line in tar.extractfile("autoexplore/provenance.jsonl") or ()]
            datasheet = (tar.extractfile("autoexplore/DATASHEET.md") or io.BytesIO()).read().decode()
        assert row["origin"] == "pkg:pypi/shop0@1.0?file_name=shop0-1.0.tar.gz"
        assert row["sha256"] == hashlib.sha256(server.files["shop0-1.0.tar.gz"]).hexdigest()
        assert "--download --seed 0 --per-repo 9 --split-by repository --pack FILE` (reflectrl " in datasheet

    def test_an_unpacked_data_set_is_completed_by_a_download(
        self, server: Any, shops: list[Path], store: Path, tmp_path: Path, monkeypatch: Any
    ) -> None:
        (shops[0] / "LICENSE").unlink()  # so it is named only
        server.files["shop0-1.0.tar.gz"] = sdist(shops[0], "shop0", "1.0")
        digest = hashlib.sha256(server.files["shop0-1.0.tar.gz"]).hexdigest()
        first, *others = table.pins()
        monkeypatch.setattr(table, "pins", lambda: (first._replace(sha256=digest), *others))
        words = ["--download", "--index", address(server), "--per-repo", 9]
        assert run(*words, "--pack", tmp_path / "set.tar.gz") == 0
        assert run("--unpack", tmp_path / "set.tar.gz", "--store", tmp_path / "again") == 0
        assert open_library(str(tmp_path / "again")).splits == ("validation", "test")
        server.asked.clear()
        assert run(*words, "--store", tmp_path / "again") == 0
        assert server.asked == ["/simple/shop0/", "/files/shop0-1.0.tar.gz"]
        for name in ("repos.jsonl", *(f"questions/{split}.jsonl" for split in open_library().splits)):
            assert (tmp_path / "again" / name).read_bytes() == (store / name).read_bytes()
        assert sorted(path.name for path in (tmp_path / "again").iterdir()) == sorted(
            path.name for path in store.iterdir()
        ), "it no longer claims to be the published data set"

    def test_an_interrupted_one_goes_on(self, server: Any, store: Path, capsys: Any) -> None:
        server.most = 700
        assert "the connection ended" in refused(capsys, "--download", "--index", address(server))
        server.most = 1 << 30
        assert run("--download", "--index", address(server), "--stage", "repos") == 0
        server.asked.clear()
        assert run("--download", "--index", address(server), "--per-repo", 5) == 0
        assert server.asked == [] and open_library().splits == ("train", "validation", "test")

    def test_another_file_than_the_pinned_one_is_removed(self, server: Any, store: Path, capsys: Any) -> None:
        server.files["shop1-1.1.tar.gz"] = server.files["shop0-1.0.tar.gz"]
        err = refused(capsys, "--download", "--index", address(server))
        assert "shop1-1.1.tar.gz: its sha256 is " in err and "it was removed" in err
        assert not (store / "repos" / "shop1").exists()

    def test_a_package_that_is_not_there_or_too_small_is_said_and_listed(
        self, server: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
    ) -> None:
        del server.files["shop2-1.2.tar.gz"]
        (tmp_path / "small").mkdir()
        (tmp_path / "small" / "a.py").write_text("print('hello')\n", encoding="utf-8")
        server.files["shop1-1.1.tar.gz"] = sdist(tmp_path / "small", "shop1", "1.1")
        digest = hashlib.sha256(server.files["shop1-1.1.tar.gz"]).hexdigest()
        rows = [pin._replace(sha256=digest) if pin.package == "shop1" else pin for pin in table.pins()]
        monkeypatch.setattr(table, "pins", lambda: tuple(rows))
        assert run("--download", "--index", address(server), "--per-repo", 3) == 0
        absent = f"{address(server)} has no package 'shop2'"
        small = "shop1 has 1 files to explore; 5 to 20,000 are expected"
        assert dropped(store, "repos") == [("shop1", "repos", small), ("shop2", "repos", absent)]
        out = capsys.readouterr().out
        assert f"left out: {absent}\n" in out and f"left out: {small}\n" in out
        assert not (store / "repos" / "shop1").exists() and not (store / "downloads").exists()

    def test_nobody_answers(self, server: Any, store: Path, capsys: Any) -> None:
        index = address(server)
        server.shutdown()
        server.server_close()
        assert "Connection refused" in refused(capsys, "--download", "--index", index)
        assert not store.exists()

    def test_no_index_at_all(self, server: Any, store: Path, capsys: Any) -> None:
        server.json = "broken"
        assert "is not a page of a package index" in refused(capsys, "--download", "--index", address(server))


class TestFolders:
    def test_they_are_referenced_and_split_by_repository(self, shops: list[Path], store: Path, capsys: Any) -> None:
        assert run("--from", *shops[:2], "--from", *shops[2:], "--per-repo", 6) == 0
        library = open_library()
        assert sorted(entry.split for entry in library.repos.values()) == ["test", "train", "train", "validation"]
        assert library.repository("shop1").root == shops[1].resolve()
        assert not (store / "repos").exists()
        first = library.questions("train")
        assert run("--stage", "questions", "--per-repo", 6) == 0
        assert open_library().questions("train") == first
        assert run("--stage", "questions", "--per-repo", 6, "--seed", 1) == 0
        assert open_library().questions("train") != first

    def test_by_task(self, shops: list[Path], store: Path) -> None:
        assert run("--from", shops[1], "--split-by", "task") == 0
        library = open_library()
        sizes = {split: len(library.questions(split)) for split in library.splits}
        assert set(sizes) == {"train", "validation", "test"} and sizes["train"] > sizes["validation"] >= sizes["test"]

    def test_names_that_are_taken(self, shops: list[Path], tmp_path: Path, store: Path) -> None:
        others = [shutil.copytree(shop, tmp_path / "others" / shop.name) for shop in shops[:1]]
        assert run("--from", *shops[:3], *others, "--stage", "repos") == 0
        assert set(open_library().repos) == {"shop0", "shop0-2", "shop1", "shop2"}
        assert run("--from", *shops[:3], "--stage", "repos") == 0
        assert set(open_library().repos) == {"shop0", "shop0-2", "shop1", "shop2"}

    def test_replace_leaves_nothing_of_the_old(self, shops: list[Path], store: Path) -> None:
        assert run("--from", *shops, "--stage", "repos") == 0
        assert run("--from", *shops[:3], "--per-repo", 3, "--replace") == 0
        assert set(open_library().repos) == {"shop0", "shop1", "shop2"}
        assert [path.name for path in store.parent.iterdir()] == ["autoexplore"]

    def test_a_failure_to_replace_keeps_the_old(self, shops: list[Path], store: Path, capsys: Any) -> None:
        assert run("--from", *shops, "--stage", "repos") == 0
        refused(capsys, "--from", shops[0], store / "nowhere", "--replace")
        assert len(open_library().repos) == 4

    @pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
    def test_commits_of_clones(self, shops: list[Path], store: Path) -> None:
        git = ["git", "-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-C", str(shops[1])]
        for message in ("Begin", "Return the archived bread from the cupboard first"):
            with (shops[1] / "shop" / "breads.py").open("a", encoding="utf-8") as file:
                file.write("# more\n")
            for words in (["init", "-q"], ["add", "."], ["commit", "-qm", message]):
                subprocess.run([*git, *words], check=True, capture_output=True)
        for times in range(2):
            assert run("--from", *shops[:3], "--per-repo", 4) == 0, times
            library = open_library()
            (asked,) = [q for split in library.splits for q in library.questions(split) if q.source == "commit"]
            assert asked.repo.startswith("shop1@") and asked.gold == ("shop/breads.py",)
            assert library.repository(asked.repo).root.parent == store / "repos"
        assert run("--stage", "questions", "--per-repo", 4, "--commits", 0) == 0
        assert not any("@" in name for name in open_library().repos)


class TestDropped:
    def test_folders_that_cannot_be_explored(self, shops: list[Path], store: Path, tmp_path: Path, capsys: Any) -> None:
        tiny, empty = tmp_path / "tiny", tmp_path / "empty"
        for folder in (tiny, empty):
            folder.mkdir()
        (tiny / "a.py").write_text("print('hello')\n", encoding="utf-8")
        assert run("--from", tiny, *shops[:3], empty, "--stage", "repos") == 0
        assert set(open_library().repos) == {"shop0", "shop1", "shop2"}
        reasons = {
            tiny: f"{tiny} has 1 files to explore; 5 to 20,000 are expected",
            empty: f"'{empty}' holds no file to explore: it is empty",
        }
        assert dropped(store, "repos") == [(str(folder), "repos", reason) for folder, reason in reasons.items()]
        out = capsys.readouterr().out
        assert all(f"left out: {reason}\n" in out for reason in reasons.values())
        assert f"listed with reasons: {store}/dropped/repos.jsonl\n" in out
        assert "at least three, or split by task" in refused(capsys, "--from", *shops[:2], empty, "--replace")
        assert run("--from", *shops[:3], "--stage", "repos") == 0
        assert not (store / "dropped" / "repos.jsonl").exists(), "nothing was left out this time"

    def test_every_refused_draft_is_listed_and_the_list_is_the_same_again(
        self, tmp_path: Path, store: Path, capsys: Any
    ) -> None:
        assert run("--from", *(write_shop(tmp_path / name) for name in "abc"), "--replace") == 0
        first = (store / "dropped" / "questions.jsonl").read_bytes()
        listed = dropped(store, "questions")
        out = capsys.readouterr().out
        counts = Counter(reason for _, _, reason in listed)
        assert counts and {stage for _, stage, _ in listed} == {"tasks"}
        assert all(f"left out: {count} drafts, {reason}\n" in out for reason, count in counts.items())
        assert f"listed with reasons: {store}/dropped/questions.jsonl\n" in out and ".making" not in out
        library = open_library()
        for row in map(json.loads, first.splitlines()):
            repo, _, path = row["name"].partition(":")
            assert path in library.repository(repo) and row["question"]
        assert run("--stage", "questions") == 0
        assert (store / "dropped" / "questions.jsonl").read_bytes() == first

    def test_a_repository_that_cannot_be_read_any_more(self, shops: list[Path], store: Path, capsys: Any) -> None:
        assert run("--from", *shops[:3], "--stage", "repos") == 0
        shutil.rmtree(shops[1])
        assert run("--stage", "questions", "--per-repo", 3, "--split-by", "task") == 0
        gone = f"there is no folder '{shops[1]}'"
        assert [(name, stage) for name, stage, reason in dropped(store, "questions") if reason.startswith(gone)] == [
            ("shop1", "repos")
        ]
        assert f"left out: 1 repositories, {gone}" in capsys.readouterr().out
        assert set(open_library().repos) == {"shop0", "shop1", "shop2"}
        for shop in (shops[0], shops[2]):
            shutil.rmtree(shop)
        assert "there is no folder" in refused(capsys, "--stage", "questions")

    @pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
    def test_a_commit_that_gives_no_question(self, shops: list[Path], store: Path) -> None:
        git = ["git", "-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-C", str(shops[1])]
        for message in ("Begin", "Prevent zebras from leaving the zoo", "Zebras without a zoo of their own"):
            with (shops[1] / "shop" / "breads.py").open("a", encoding="utf-8") as file:
                file.write("# more\n")
            for words in (["init", "-q"], ["add", "."], ["commit", "-qm", message]):
                subprocess.run([*git, *words], check=True, capture_output=True)
        assert run("--from", *shops[:3], "--per-repo", 3) == 0
        listed = [row for row in dropped(store, "questions") if "@" in row[0]]
        assert {name.partition(":")[2] for name, _, _ in listed} == {"shop/breads.py"}
        assert {(stage, reason) for _, stage, reason in listed} == {
            ("tasks", "has nothing in common with its file"),
            ("questions", "the commit's message cannot be turned into a question"),
        }


class TestImport:
    @pytest.fixture
    def asked(self, tmp_path: Path) -> Path:
        path = tmp_path / "asked_elsewhere.jsonl"
        rows: list[dict[str, Any]] = [
            {"repo": "owner/shop3", "question": "where is lamp oil?", "gold": ["chairs.py"], "dominant": True},
            {"repo": "owner/shop3", "question": "where is it?", "gold": ["nowhere.py"]},
            {"repo": "owner/unknown", "question": "where is it?", "gold": ["a.py"]},
            {"repo": "owner/shop3", "question": "where is nothing?", "gold": []},
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    def test_with_repositories_beside_it(self, asked: Path, shops: list[Path], store: Path, capsys: Any) -> None:
        assert run("--import", asked, "--repos", shops[0].parent) == 0
        out = capsys.readouterr().out
        assert "asked-elsewhere: 1 of 4 questions have a repository and a gold file" in out
        assert "left out: 1 questions, no repository" in out and "1 questions, gold file not there" in out
        assert dropped(store, "import-asked-elsewhere") == [
            ("asked_elsewhere-1", "import", "gold file not there"),
            ("asked_elsewhere-2", "import", "no repository"),
            ("asked_elsewhere-3", "import", "no gold file is named"),
        ]
        assert f"listed with reasons: {store}/dropped/import-asked-elsewhere.jsonl\n" in out
        library = open_library()
        (question,) = library.questions("asked-elsewhere")
        assert (question.repo, question.gold, question.licence) == ("shop3", ("shop/chairs.py",), "MIT")
        assert question.dominant and library.repos["shop3"].split == "imported"

    def test_with_packages_of_the_same_names(self, asked: Path, server: Any, store: Path, capsys: Any) -> None:
        assert run("--import", asked, "--download", "--index", address(server)) == 0
        out = capsys.readouterr().out
        assert "has no package 'unknown'" in out
        library = open_library()
        assert (library.splits, library.repos["shop3"].version) == (("asked-elsewhere",), "1.3")
        assert run("--download", "--index", address(server), "--per-repo", 3) == 0
        assert open_library().splits == ("train", "validation", "test", "asked-elsewhere")
        server.asked.clear()
        assert run("--import", asked, "--download", "--index", address(server)) == 0
        assert server.asked == ["/simple/unknown/"]

    def test_none_can_be_asked(self, asked: Path, tmp_path: Path, store: Path, capsys: Any) -> None:
        (tmp_path / "empty").mkdir()
        err = refused(capsys, "--import", asked, "--repos", tmp_path / "empty")
        assert "not one of the 4 questions of asked-elsewhere can be asked: no repository: 3, no gold" in err

    def test_a_name_that_is_a_split(self, asked: Path, shops: list[Path], store: Path, capsys: Any) -> None:
        path = asked.rename(asked.with_name("train.jsonl"))
        assert "cannot be called 'train'" in refused(capsys, "--import", path, "--repos", shops[0].parent)


class TestRefusals:
    @pytest.mark.parametrize(
        ("words", "fragment"),
        [
            ([], "reflectrl data autoexplore --download"),
            (["--form", "x"], "did you mean '--from'"),
            (["--per-rep", "3"], "did you mean '--per-repo'"),
            (["--generate", "3"], "unknown option '--generate'"),
            (["--from"], "--from needs a folder"),
            (["--from", "nowhere"], "nowhere"),
            (["--from", ".", "--download"], "only one of"),
            (["--import", "x.jsonl"], "--import needs --repos DIR"),
            (["--import", "x.jsonl", "--repos", "."], "x.jsonl: No such file"),
            (["--import", "x.jsonl", "--repos", ".", "--from", "."], "not from --from"),
            (["--import", "x", "--download", "--replace"], "cannot --replace"),
            (["--import", "x.jsonl", "--repos", ".", "--download"], "--import needs --repos DIR, or --download"),
            (["--repos", "."], "--repos needs --import"),
            (["--replace"], "--replace needs --download, --from DIR or --unpack FILE"),
            (["--stage", "question"], "question"),
            (["--stage", "questions", "--download"], "leave out --download, --from and --import"),
            (["--per-repo", "0", "--download"], "at least 1"),
            (["--writer", "endpoint", "--download"], "--endpoint URL and --model NAME go together"),
            (["--endpoint", "http://x", "--model", "y", "--download"], "--endpoint URL and --model NAME go together"),
            (["--prompt", "own.j2", "--download"], "--prompt FILE needs --writer endpoint"),
            (["--api", "azure", "--api-version", "1", "--download"], "--api azure needs --writer endpoint"),
            (["--api-version", "1", "--download"], "--api azure and --api-version VERSION go together"),
            (["--download", "--index", "ftp://x"], "expected an http or https address"),
            (["--download", "--index", "https://me:secret@x/simple"], "with a user or password are not supported"),
        ],
    )
    def test_a_mistake_is_one_line_and_leaves_nothing(
        self, store: Path, tmp_path: Path, monkeypatch: Any, capsys: Any, words: list[str], fragment: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        err = refused(capsys, *words)
        assert fragment in err and "secret" not in err
        assert not store.exists()

    def test_two_repositories_are_too_few(self, shops: list[Path], store: Path, capsys: Any) -> None:
        assert "--split-by task" in refused(capsys, "--from", *shops[:2])

    def test_a_folder_without_enough_files(self, tmp_path: Path, store: Path, capsys: Any) -> None:
        (tmp_path / "a.py").write_text("print('hello')\n", encoding="utf-8")
        assert "has 1 files to explore" in refused(capsys, "--from", tmp_path)

    def test_a_library_that_cannot_be_written(self, shops: list[Path], tmp_path: Path, capsys: Any) -> None:
        (tmp_path / "file").touch()
        assert "cannot be written" in refused(capsys, "--from", *shops, "--store", tmp_path / "file")

    def test_questions_without_repositories(self, store: Path, capsys: Any) -> None:
        assert "no library" in refused(capsys, "--stage", "questions")


class TestHelp:
    def test_each_benchmark_has_its_own_options(self, command: Any) -> None:
        assert "--per-repo" in command("data", "autoexplore", "--help").stdout
        alfworld = command("data", "alfworld", "--help").stdout
        assert "--generate" in alfworld and "--per-repo" not in alfworld
        assert "data alfworld --help" in command("data", "--help").stdout


class TestIndex:
    def test_which_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("PIP_INDEX_URL", "VIRTUAL_ENV"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
        assert index_url("https://a/simple/") == "https://a/simple"
        (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://b/simple\n", encoding="utf-8")
        assert index_url() == "https://b/simple"
        monkeypatch.setenv("PIP_INDEX_URL", "https://c/simple")
        assert index_url() == "https://c/simple"
        assert DEFAULT_INDEX.startswith("https://")

    def test_which_file(self) -> None:
        names = [
            "t-1.0.zip",
            "t-1.0.tar.gz",
            "t-2.0-py3-none-any.whl",
            "t-3.0rc1.tar.gz",
            "t-1.0.exe",
            "t.txt",
            "t-x.tar.gz",
        ]
        files = [File(name, "") for name in names]
        assert choose(files, Pin("t")).name == "t-2.0-py3-none-any.whl"
        assert choose(files, Pin("t", "1.0")).name == "t-1.0.tar.gz"
        assert choose(files, Pin("t", file="t-1.0.zip")).name == "t-1.0.zip"
        assert choose(files[3:4], Pin("t")).name == "t-3.0rc1.tar.gz"
        for pin, there in ((Pin("t", "4"), files), (Pin("t"), []), (Pin("t", file="u.zip"), files)):
            with pytest.raises(NoSuchPackageError):
                choose(there, pin)

    def test_what_is_missing_is_told_from_what_is_broken(self, server: Any) -> None:
        with pytest.raises(NoSuchPackageError):
            files_of("nothing", address(server))
        with pytest.raises(UserError):
            files_of("shop0", "http://127.0.0.1:1/simple")


def test_the_table_of_packages() -> None:
    rows = pins()
    assert len({pin.package for pin in rows}) == len(rows)
    assert all(re.fullmatch("[0-9a-f]{64}", pin.sha256) and pin.version in pin.file for pin in rows)
    own = {pin.package for pin in rows if not pin.repo}
    assert len(own) >= 40
    kept_apart = {"django", "sphinx", "pylint", "scikit-learn", "sympy", "matplotlib", "conan", "astropy", "reflex"}
    kept_apart |= {"streamlink", "flask", "requests", "pytest", "xarray", "seaborn"}
    assert not own & kept_apart
    assert pin_of("django/django").version == "5.2" and pin_of("a/b") == Pin("b", split="imported", repo="a/b")
