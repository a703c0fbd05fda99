"""A library as a published data set: the same bytes each time, the same library again, and no trust in an archive."""

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import reflectrl
from reflectrl.cli import main
from reflectrl.core.types import UserError
from reflectrl.tools.exporting.archive import read_archive, write_archive
from reflectrl.wings.autoexplore.library import Library
from reflectrl.wings.autoexplore.making.licences import is_licence_file, is_permissive
from tests.wings.autoexplore.commands import refused, run
from tests.wings.autoexplore.written import write_shop

THINGS = {"alpha": ("ship", "sail"), "beta": ("bread", "cake"), "gamma": ("lamp", "bulb"), "delta": ("chair", "table")}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library of four folders: two under MIT, one under the GPL, and one that only names its licence."""
    folder = tmp_path_factory.mktemp("library")
    shops = [write_shop(folder / "own" / name, things) for name, things in THINGS.items()]
    (shops[2] / "LICENSE").write_text("GNU GENERAL PUBLIC LICENSE\nVersion 3\n", encoding="utf-8")
    (shops[3] / "LICENSE").unlink()
    (shops[3] / "pyproject.toml").write_text('[project]\nlicense = "MIT"\n', encoding="utf-8")
    (shops[0] / ".secret").write_text("a hidden file of mine\n", encoding="utf-8")
    assert run("--from", *shops, "--store", folder / "store", "--split-by", "task", "--per-repo", 8, "--seed", 3) == 0
    return folder / "store"


@pytest.fixture(scope="module")
def archive(library: Path) -> Path:
    path = library.parent / "set.tar.gz"
    assert run("--store", library, "--pack", path) == 0
    return path


def contents(archive: Path) -> dict[str, bytes]:
    """Path below the archive's folder → content."""
    with tarfile.open(archive) as tar:
        members = [(member.name.removeprefix("autoexplore/"), tar.extractfile(member)) for member in tar]
        return {name: file.read() for name, file in members if file}


def files_of(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def sums(files: dict[str, bytes]) -> bytes:
    """`SHA256SUMS` of files."""
    lines = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(files.items())]
    return "".join(lines).encode()


class TestPacking:
    def test_what_may_be_passed_on_is_in_it(self, library: Path, archive: Path) -> None:
        packed, own = contents(archive), Library(library)
        assert {name.split("/")[1] for name in packed if name.startswith("repos/")} == {"alpha", "beta"}
        assert packed["repos/alpha/shop/ships.py"] == (library.parent / "own/alpha/shop/ships.py").read_bytes()
        assert "repos/alpha/.secret" not in packed
        for split in ("train", "validation", "test"):
            asked = [json.loads(line) for line in packed[f"questions/{split}.jsonl"].splitlines()]
            wanted = [question for question in own.questions(split) if question.repo in ("alpha", "beta")]
            assert [row["question"] for row in asked] == [question.question for question in wanted] != []
        assert packed.pop("SHA256SUMS") == sums(packed)

    def test_provenance_names_all_and_no_path_of_this_machine(self, library: Path, archive: Path) -> None:
        packed = contents(archive)
        rows = {row["name"]: row for row in map(json.loads, packed["provenance.jsonl"].splitlines())}
        assert [(name, row["licence"], row["left_out"]) for name, row in rows.items()] == [
            ("alpha", "MIT", ""),
            ("beta", "MIT", ""),
            ("delta", "MIT", "no text of its licence"),
            ("gamma", "GPL", "no permissive licence"),
        ]
        own = {
            name.removeprefix("repos/beta/"): data for name, data in packed.items() if name.startswith("repos/beta/")
        }
        assert rows["beta"]["digest"] == hashlib.sha256(sums(own)).hexdigest()
        assert (rows["beta"]["files"], rows["beta"]["bytes"]) == (len(own), sum(map(len, own.values())))
        assert rows["beta"]["licence_files"] == ["LICENSE"] and rows["delta"]["licence_files"] == []
        assert not [name for name, data in packed.items() if str(library.parent).encode() in data]

    def test_the_datasheet_is_filled_in(self, archive: Path) -> None:
        packed = contents(archive)
        text = packed["DATASHEET.md"].decode()
        counts = {name: data.count(b"\n") for name, data in packed.items() if name.startswith("questions/")}
        assert text.startswith(f"# AutoExplore: {sum(counts.values())} questions about 2 repositories\n")
        assert f"| validation | 2 | {counts['questions/validation.jsonl']} |" in text
        assert "divided by question" in text and "seed 3, per_repo 8" in text and "| .py | 4 |" in text
        assert "delta (MIT, no text of its licence), gamma (GPL, no permissive licence)" in text
        assert json.loads(packed["written.json"]) == {
            "writer": "rules",
            "seed": 3,
            "per_repo": 8,
            "commits": 10,
            "split_by": "task",
            "reflectrl": reflectrl.__version__,
        }
        headings = ["Motivation", "Composition", "Collection process", "Preprocessing, cleaning and labelling", "Uses"]
        assert [line[3:] for line in text.splitlines() if line[:3] == "## "] == [
            *headings,
            "Distribution",
            "Maintenance",
        ]

    def test_the_same_library_gives_the_same_bytes(self, library: Path, archive: Path, tmp_path: Path) -> None:
        shutil.copytree(library.parent / "own", tmp_path / "own")  # other times, another place
        shutil.copytree(library, tmp_path / "store")
        text = (library / "repos.jsonl").read_text(encoding="utf-8").replace(str(library.parent), str(tmp_path))
        (tmp_path / "store" / "repos.jsonl").write_text(text, encoding="utf-8")
        for path in tmp_path.rglob("*"):
            os.utime(path, (1, 1))
        assert run("--store", tmp_path / "store", "--pack", tmp_path / "again.tar.gz") == 0
        assert (tmp_path / "again.tar.gz").read_bytes() == archive.read_bytes()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["again.tar.gz", "own", "store"]

    def test_what_is_left_out_is_said(self, library: Path, tmp_path: Path, capsys: Any) -> None:
        shutil.copytree(library, tmp_path / "store")
        (question, *_) = (library / "questions" / "test.jsonl").read_text(encoding="utf-8").splitlines()
        (tmp_path / "store" / "questions" / "swe-qa.jsonl").write_text(question + "\n", encoding="utf-8")
        assert run("--store", tmp_path / "store", "--pack", tmp_path / "set.tar.gz") == 0
        out = capsys.readouterr().out
        assert "by reference only: gamma (GPL, no permissive licence), 8 questions" in out
        assert "left out: swe-qa, 1 imported questions" in out
        assert "questions/swe-qa.jsonl" not in contents(tmp_path / "set.tar.gz")
        digest = hashlib.sha256((tmp_path / "set.tar.gz").read_bytes()).hexdigest()
        assert f"archive {digest}\n" in out

    def test_nothing_that_may_be_passed_on(self, tmp_path: Path, capsys: Any) -> None:
        shop = write_shop(tmp_path / "shop")
        (shop / "LICENSE").unlink()
        assert run("--from", shop, "--store", tmp_path / "store", "--split-by", "task", "--per-repo", 5) == 0
        err = refused(capsys, "--store", tmp_path / "store", "--pack", tmp_path / "set.tar.gz")
        assert "none of its repositories may be passed on" in err and not (tmp_path / "set.tar.gz").exists()


class TestUnpacking:
    def test_it_is_a_library_that_a_run_accepts(self, archive: Path, tmp_path: Path, capsys: Any) -> None:
        assert run("--unpack", archive, "--store", tmp_path / "store") == 0
        packed = contents(archive)
        assert files_of(tmp_path / "store") == packed
        digest = hashlib.sha256(packed["SHA256SUMS"]).hexdigest()
        assert f"all digests fit; content {digest}\n" in capsys.readouterr().out
        assert [path.name for path in tmp_path.iterdir()] == ["store"]
        words = ["--env.library", str(tmp_path / "store"), "--arms", "random,expert", "--eval.episodes", "2"]
        assert main(["run", "autoexplore", *words, "--seeds", "0", "--folder", str(tmp_path / "run")]) == 0
        rows = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))["rows"]
        assert {row["success"] for row in rows if row["arm"] == "expert"} == {1.0}

    def test_packed_again_it_has_the_same_questions_and_files(self, archive: Path, tmp_path: Path) -> None:
        assert run("--unpack", archive, "--store", tmp_path / "store") == 0
        for name in ("a", "b"):
            assert run("--store", tmp_path / "store", "--pack", tmp_path / f"{name}.tar.gz") == 0
        assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()
        first, again = contents(archive), contents(tmp_path / "a.tar.gz")
        differing = {name for name in {*first, *again} if first.get(name) != again.get(name)}
        assert differing == {"DATASHEET.md", "SHA256SUMS", "provenance.jsonl"}  # it knows of no others any more

    def test_a_library_that_is_there_is_replaced_only_if_asked(
        self, archive: Path, tmp_path: Path, capsys: Any
    ) -> None:
        (tmp_path / "store").mkdir()
        (tmp_path / "store" / "mine.txt").write_text("mine", encoding="utf-8")
        assert "already exists" in refused(capsys, "--unpack", archive, "--store", tmp_path / "store")
        assert "is not a library" in refused(capsys, "--unpack", archive, "--store", tmp_path / "store", "--replace")
        assert [path.name for path in (tmp_path / "store").iterdir()] == ["mine.txt"]
        (tmp_path / "store" / "mine.txt").rename(tmp_path / "store" / "repos.jsonl")
        assert run("--unpack", archive, "--store", tmp_path / "store", "--replace") == 0
        assert files_of(tmp_path / "store") == contents(archive)

    @pytest.mark.parametrize(
        ("words", "fragment"),
        [
            (["--unpack", "nowhere.tar.gz"], "there is no file nowhere.tar.gz"),
            (["--unpack", "x.tar.gz", "--download"], "--unpack FILE goes with no other source"),
            (["--unpack", "x.tar.gz", "--pack", "y.tar.gz"], "--unpack FILE goes with no other source"),
            (["--pack", "x.zip"], "x.zip cannot be written: name a file that ends in .tar.gz"),
            (["--pack", "x.tar.gz", "--stage", "repos", "--download"], "--pack needs questions"),
            (["--pack", "x.tar.gz"], "there is no library"),
        ],
    )
    def test_a_mistake_is_one_line(
        self, tmp_path: Path, monkeypatch: Any, capsys: Any, words: list[str], fragment: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert fragment in refused(capsys, *words, "--store", "store")
        assert list(tmp_path.iterdir()) == []


# ---- archives from elsewhere -----------------------------------------------------------------------------------------


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = kind, target, size
    return made


def written(path: Path, files: dict[str, bytes], *more: tuple[tarfile.TarInfo, bytes]) -> Path:
    """An archive of files, with further members before them."""
    with tarfile.open(path, "w:gz") as tar:
        for made, content in more:
            tar.addfile(made, io.BytesIO(content))
        for name, content in files.items():
            tar.addfile(member(f"autoexplore/{name}", size=len(content)), io.BytesIO(content))
    return path


def changed(files: dict[str, bytes], **changes: bytes | None) -> dict[str, bytes]:
    """The files with some replaced or removed, and with the right digests."""
    made = {name: content for name, content in {**files, **changes}.items() if content is not None}
    made.pop("SHA256SUMS", None)
    return {**made, "SHA256SUMS": sums(made)}


BAD_MEMBERS = {
    "absolute": (member("/elsewhere/x.py", size=1), "does not lie in the archive's folder"),
    "parent": (member("autoexplore/repos/a/../../../x.py", size=1), "does not lie in the archive's folder"),
    "parent-first": (member("../x.py", size=1), "does not lie in the archive's folder"),
    "backslash": (member("autoexplore/repos\\a\\x.py", size=1), "does not lie in the archive's folder"),
    "control": (member("autoexplore/repos/a/\x1b[2J.py", size=1), "does not lie in the archive's folder"),
    "beside": (member("x.py", size=1), "does not lie in the archive's folder"),
    "link": (member("autoexplore/repos/a/x", tarfile.SYMTYPE, "/etc/passwd"), "is not a plain file"),
    "hard-link": (member("autoexplore/repos/a/x", tarfile.LNKTYPE, "/etc/passwd"), "is not a plain file"),
    "device": (member("autoexplore/repos/a/x", tarfile.CHRTYPE), "is not a plain file"),
    "pipe": (member("autoexplore/repos/a/x", tarfile.FIFOTYPE), "is not a plain file"),
    "folder": (member("autoexplore/repos/a", tarfile.DIRTYPE), "is not a plain file"),
    "hidden": (member("autoexplore/repos/a/.git/config", size=1), "does not belong"),
    "other-set": (member("autoexplore/questions/mine.jsonl", size=1), "does not belong"),
    "other": (member("autoexplore/setup.py", size=1), "does not belong"),
    "twice": (member("autoexplore/repos.jsonl", size=1), "File exists"),
    "unlisted": (member("autoexplore/repos/alpha/new.py", size=1), "has another SHA-256"),
}


class TestHostile:
    @pytest.fixture
    def store(self, tmp_path: Path) -> Path:
        return tmp_path / "home" / "store"

    def check(self, capsys: Any, path: Path, store: Path, fragment: str) -> None:
        err = refused(capsys, "--unpack", path, "--store", store)
        assert fragment in err and path.name in err
        assert not list(store.parent.iterdir()), "nothing is left"

    @pytest.mark.parametrize("name", BAD_MEMBERS)
    def test_members(self, archive: Path, tmp_path: Path, store: Path, capsys: Any, name: str) -> None:
        bad, fragment = BAD_MEMBERS[name]
        with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as tar:
            for path, content in contents(archive).items():
                tar.addfile(member(f"autoexplore/{path}", size=len(content)), io.BytesIO(content))
            tar.addfile(bad, io.BytesIO(b"x" * bad.size))
        self.check(capsys, tmp_path / "bad.tar.gz", store, fragment)

    @pytest.mark.parametrize(
        ("name", "content", "fragment"),
        [
            ("repos/alpha/README.md", b"other", "'repos/alpha/README.md' has another SHA-256"),
            ("repos/alpha/README.md", None, "'repos/alpha/README.md' is missing"),
            ("SHA256SUMS", b"no digests\n", "SHA256SUMS is damaged"),
            ("SHA256SUMS", b"\xff", "utf-8"),
            ("SHA256SUMS", None, "it has no SHA256SUMS"),
        ],
    )
    def test_digests(
        self, archive: Path, tmp_path: Path, store: Path, capsys: Any, name: str, content: bytes | None, fragment: str
    ) -> None:
        files: dict[str, Any] = {**contents(archive), name: content}
        files = {name: content for name, content in files.items() if content is not None}
        self.check(capsys, written(tmp_path / "bad.tar.gz", files), store, fragment)

    @pytest.mark.parametrize(
        ("name", "content", "fragment"),
        [
            ("repos.jsonl", b'{"name": "alpha", "split": "train", "path": "/etc"}\n', "lies outside of it, in '/etc'"),
            ("repos.jsonl", b'{"name": "../alpha", "split": "train"}\n', "is not a valid name of a repository"),
            ("repos.jsonl", b'{"name": "missing", "split": "train"}\n', "there is no folder"),
            ("repos.jsonl", b'{"name": "alpha", "split": "train"}\n', "asks about 'beta', which is not in repos.jsonl"),
            ("questions/test.jsonl", b"[]\n", "questions/test.jsonl:1: not a question"),
        ],
    )
    def test_right_digests_of_a_wrong_library(
        self, archive: Path, tmp_path: Path, store: Path, capsys: Any, name: str, content: bytes, fragment: str
    ) -> None:
        path = written(tmp_path / "bad.tar.gz", changed(contents(archive), **{name: content}))
        self.check(capsys, path, store, fragment)

    def test_a_header_that_says_it_is_long(self, tmp_path: Path, store: Path, capsys: Any) -> None:
        header = member("autoexplore/x", tarfile.XHDTYPE, size=2 << 30).tobuf(tarfile.USTAR_FORMAT)
        path = tmp_path / "bad.tar.gz"
        path.write_bytes(gzip.compress(header + bytes(10240)))
        self.check(capsys, path, store, "a header is too long")

    def test_a_chain_of_headers(self, tmp_path: Path, store: Path, capsys: Any) -> None:
        header = member("autoexplore/x", tarfile.XHDTYPE, size=13).tobuf(tarfile.USTAR_FORMAT)
        path = tmp_path / "bad.tar.gz"
        path.write_bytes(gzip.compress((header + b"13 path=aaaa\n".ljust(512, b"\0")) * 5000))
        self.check(capsys, path, store, "cannot be unpacked")

    def test_a_sparse_file_of_many_zeros(self, tmp_path: Path, store: Path, capsys: Any) -> None:
        sparse = member("autoexplore/repos/a/x", size=4)
        sparse.pax_headers = {"GNU.sparse.size": str(1 << 40), "GNU.sparse.map": "0,4", "GNU.sparse.major": "0"}
        path = written(tmp_path / "bad.tar.gz", {}, (sparse, b"1234"))
        self.check(capsys, path, store, "is not a plain file")

    @pytest.mark.parametrize("size", [5_000, 3_000_000])
    def test_a_bomb(self, tmp_path: Path, size: int) -> None:
        path = tmp_path / "bomb.tar.gz"
        write_archive(path, "set", [("zeros", bytes(size))])
        (tmp_path / "out").mkdir()
        limit = 4_000 if size == 5_000 else 2_500_000
        with pytest.raises(UserError, match=rf"bomb.tar.gz cannot be unpacked: it would unpack to more than {limit:,}"):
            read_archive(path, tmp_path / "out", lambda name: True, most_bytes=limit)
        assert sum(file.stat().st_size for file in (tmp_path / "out").rglob("*")) <= limit

    def test_zeros_after_the_end_count(self, tmp_path: Path) -> None:
        path = tmp_path / "bomb.tar.gz"
        write_archive(path, "set", [("a", b"x")])
        path.write_bytes(path.read_bytes() + gzip.compress(bytes(3_000_000)))
        (tmp_path / "out").mkdir()
        with pytest.raises(UserError, match="it would unpack to more than"):
            read_archive(path, tmp_path / "out", lambda name: True, most_bytes=1_000_000)

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(position=st.integers(min_value=0, max_value=10**6), value=st.integers(0, 255), cut=st.booleans())
    def test_a_damaged_archive_is_refused_or_harmless(
        self, tmp_path_factory: pytest.TempPathFactory, position: int, value: int, cut: bool
    ) -> None:
        folder = tmp_path_factory.mktemp("damaged")
        files = {"a/b.txt": b"some words\n" * 50, "c.txt": b"others"}
        path = folder / "set.tar.gz"
        write_archive(path, "set", files.items())
        data = path.read_bytes()
        position %= len(data)
        path.write_bytes(data[:position] if cut else data[:position] + bytes([value]) + data[position + 1 :])
        (folder / "out").mkdir()
        try:
            read_archive(path, folder / "out", lambda name: True)
        except UserError as error:
            assert str(path) in str(error) and "\n" not in str(error)
        else:
            assert files_of(folder / "out") == {**files, "SHA256SUMS": sums(files)}


@pytest.mark.parametrize(
    ("licence", "permissive"),
    [
        ("MIT", True),
        ("BSD License", True),
        ("Apache-2.0 AND MIT", True),
        ("MIT OR GPL-2.0", True),
        ("MIT AND GPL-2.0", False),
        ("MIT, GPL", False),
        ("LGPL-2.1", False),
        ("MPL-2.0", False),
        ("(MIT OR GPL-2.0) AND X", False),
        ("Apache 2.0 with Commons Clause", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_permissive_licences(licence: str, permissive: bool) -> None:
    assert is_permissive(licence) == permissive


def test_names_of_licence_files() -> None:
    names = ["LICENSE", "LICENCE.rst", "LICENSE-MIT", "COPYING.txt", "UNLICENSE", "licenses/MIT.txt", "LICENSES/a/b"]
    assert all(map(is_licence_file, names))
    others = ["licenses.py", "license.py", "docs/LICENSE", "README.md", "copyingtool", "src/licenses/x"]
    assert not any(map(is_licence_file, others))
