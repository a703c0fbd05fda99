"""The index that stays: only changed files anew, and whatever is damaged or somebody else's is made anew."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.locate import arrays, live, store
from reflectrl.wings.autoexplore.locate.answers import Locator
from reflectrl.wings.autoexplore.locate.engine import Engine
from reflectrl.wings.autoexplore.locate.live import LiveIndex
from reflectrl.wings.autoexplore.locate.scanning import Scanned, Scanner
from reflectrl.wings.autoexplore.words import stem


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    (root / "net").mkdir(parents=True)
    for number in range(30):
        (root / "net" / f"part{number}.py").write_text(f"def step_{number}():\n    return 'word{number}'\n")
    (root / "retry.py").write_text("def retry(times):\n    # tries again\n    return times\n")
    return root


def found(index: LiveIndex, word: str) -> set[str]:
    word = word if word.startswith("=") else stem(word)
    return {index.corpus.paths[file] for file in index.corpus.find(word)[0]}


def cached_files() -> Iterator[Path]:
    base = store.cache_folder()
    assert base is not None
    return (path for path in base.rglob("*") if path.is_file())


def test_a_second_start_takes_nothing_apart(repo: Path) -> None:
    assert LiveIndex(repo).indexed == 31
    second = LiveIndex(repo)
    assert second.indexed == 0 and found(second, "retry") == {"retry.py"} and len(second.corpus) == 31


def test_without_a_cache_nothing_is_kept(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LiveIndex(repo, cached=False).indexed == 31 and list(cached_files()) == []
    monkeypatch.setenv(store.VARIABLE, "off")
    assert LiveIndex(repo).indexed == 31 and LiveIndex(repo).indexed == 31


def test_changed_new_and_removed_files(repo: Path) -> None:
    index = LiveIndex(repo)
    (repo / "retry.py").write_text("def backoff(seconds):\n    return seconds * 2\n")
    (repo / "new.py").write_text("def brandnew():\n    return 1\n")
    (repo / "net" / "part3.py").unlink()
    index.refresh()
    assert index.indexed == 2 and found(index, "retry") == {"retry.py"} and found(index, "backoff") == {"retry.py"}
    assert found(index, "brandnew") == {"new.py"} and "net/part3.py" not in index.corpus.paths
    again = LiveIndex(repo)
    assert again.indexed == 0 and again.corpus.paths == index.corpus.paths and found(again, "word3") == set()


def test_many_small_changes_stay_few_segments(repo: Path) -> None:
    index = LiveIndex(repo)
    for number in range(25):
        (repo / "net" / f"part{number}.py").write_text(f"def changed_{number}():\n    return 'other{number}'\n")
        index.refresh()
    assert len(index._listing.segments) <= live.MOST_SMALL + 2  # noqa: SLF001
    assert found(index, "chang") == {f"net/part{number}.py" for number in range(25)}


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign", "link", "writable"])
def test_a_damaged_or_foreign_cache_is_made_anew(repo: Path, tmp_path: Path, damage: str) -> None:
    LiveIndex(repo)
    for path in list(cached_files()):
        data = path.read_bytes()
        if damage == "cut":
            path.write_bytes(data[: len(data) // 2])
        elif damage == "flip":
            path.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])
        elif damage == "empty":
            path.write_bytes(b"")
        elif damage == "foreign":
            path.write_bytes(b"something else entirely")
        elif damage == "link":
            path.rename(tmp_path / path.name)
            path.symlink_to(tmp_path / path.name)
        else:
            path.chmod(0o666)
    anew = LiveIndex(repo)
    assert anew.indexed == 31 and found(anew, "retry") == {"retry.py"}


@pytest.mark.parametrize("kind", ["files", ".segment", ".recent"])
@pytest.mark.parametrize("change", ["shorter", "longer", "huge", "reals", "backwards", "none"])
def test_a_cache_with_a_right_digest_and_wrong_arrays_is_made_anew(repo: Path, kind: str, change: str) -> None:
    LiveIndex(repo)
    (repo / "later.py").write_text("def later():\n    return 1\n")
    LiveIndex(repo)
    path = max((path for path in cached_files() if path.name.endswith(kind)), key=lambda path: path.stat().st_size)
    saved = arrays.read(path)
    for name, array in saved.items():
        changed = {
            "shorter": {name: array[: len(array) // 2]},
            "longer": {name: np.repeat(array, 2)},
            "huge": {name: np.full_like(array, np.iinfo(array.dtype).max if array.dtype.kind in "iu" else np.inf)},
            "reals": {name: array.astype(np.float64) + 0.5},
            "backwards": {name: array[::-1]},
        }.get(change, {})
        arrays.write(path, arrays.pack({**{key: saved[key] for key in saved if key != name}, **changed}))
        Engine(repo).search("where is retry?", 3)
        assert found(LiveIndex(repo), "later") <= {"later.py"}
    Engine(repo).search("where is retry?", 3)


def test_a_header_of_a_thousand_brackets_is_a_damaged_cache(repo: Path) -> None:
    LiveIndex(repo)
    header = b"[" * 500_000
    body = len(header).to_bytes(8, "big") + header
    for path in list(cached_files()):
        arrays.write(path, arrays.MAGIC + arrays.digest(body) + body)
    assert LiveIndex(repo).indexed == 31


@pytest.mark.parametrize("year", [1902, 2263, 2300, 2446])
def test_a_file_of_another_century_is_indexed_once(repo: Path, year: int) -> None:
    changed = (year - 1970) * 31_557_600 * 10**9
    os.utime(repo / "retry.py", ns=(changed, changed))
    assert LiveIndex(repo).indexed == 31
    again = LiveIndex(repo)
    assert again.indexed == 0 and found(again, "retry") == {"retry.py"}


def test_a_missing_segment_costs_its_files_only(repo: Path) -> None:
    LiveIndex(repo)
    (repo / "late.py").write_text("def late():\n    return 0\n")
    LiveIndex(repo)
    small = min((path for path in cached_files() if path.suffix == ".segment"), key=lambda path: path.stat().st_size)
    small.unlink()
    anew = LiveIndex(repo)
    assert anew.indexed == 1 and found(anew, "late") == {"late.py"}


def test_a_cache_that_cannot_be_written_is_no_error(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, where a folder should be")
    monkeypatch.setenv(store.VARIABLE, str(blocked))
    assert found(LiveIndex(repo), "retry") == {"retry.py"}


def test_two_processes_at_once(repo: Path) -> None:
    def work(number: int) -> set[str]:
        (repo / f"own{number}.py").write_text(f"def own{number}():\n    return 1\n")
        return found(LiveIndex(repo), "retry")

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(8))) == [{"retry.py"}] * 8
    assert len(LiveIndex(repo).corpus) == 39 and LiveIndex(repo).indexed == 0


def test_processes_and_one_process_give_the_same_index(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = LiveIndex(repo, cached=False)
    monkeypatch.setattr(live, "WORTH_PROCESSES", 1)
    monkeypatch.setattr(live, "AT_ONCE", 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    together = LiveIndex(repo, cached=False)
    assert len(together._listing.segments) == 2 and alone.corpus.paths == together.corpus.paths  # noqa: SLF001
    for word in ("retry", "step", "word7", "net", "=step7"):
        assert found(alone, word) == found(together, word)
        assert alone.corpus.rarity(word) == together.corpus.rarity(word)


def test_a_new_content_of_the_same_size_and_time_is_read(repo: Path) -> None:
    path = repo / "retry.py"
    os.utime(path, (978307200, 978307200))
    LiveIndex(repo)
    path.write_text(path.read_text().replace("retry", "sleep"))
    os.utime(path, (978307200, 978307200))
    assert found(LiveIndex(repo), "sleep") == {"retry.py"}


def test_the_same_content_of_another_time_is_not_parsed_again(repo: Path) -> None:
    segments = LiveIndex(repo)._listing.segments  # noqa: SLF001
    for path in repo.rglob("*.py"):
        path.touch()
    touched = LiveIndex(repo)
    assert touched.indexed == 31 and touched._listing.segments == segments  # noqa: SLF001
    assert LiveIndex(repo).indexed == 0 and found(touched, "retry") == {"retry.py"}


def test_what_is_interrupted_is_continued(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "AT_ONCE", 4)
    monkeypatch.setattr(live, "WORTH_PROCESSES", 1)
    take_in, chunks = LiveIndex._take_in, list[Scanned]()  # noqa: SLF001

    def interrupted(index: LiveIndex, scanned: Scanned) -> None:
        take_in(index, scanned)
        chunks.append(scanned)
        if len(chunks) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LiveIndex, "_take_in", interrupted)
        with pytest.raises(KeyboardInterrupt):
            LiveIndex(repo)
    assert multiprocessing.active_children() == []
    begun = LiveIndex(repo, refreshed=False)
    assert len(begun.corpus) == 12
    begun.refresh()
    assert begun.indexed == 19 and len(begun.corpus) == 31 and LiveIndex(repo).indexed == 0


def test_forks_that_die_cost_time_only(repo: Path) -> None:
    paths = sorted(str(path.relative_to(repo)) for path in repo.rglob("*.py"))
    scanner = Scanner(repo)
    scanner.fork(3)
    dead, stopped, _ = multiprocessing.active_children()
    dead.kill()
    dead.join()
    os.kill(stopped.pid or 0, signal.SIGSTOP)
    for path in paths:
        scanner.put([path], {})
    scanned = [next(rest) for rest in [scanner.rest()] for _ in range(len(paths) - 1)]
    os.kill(stopped.pid or 0, signal.SIGKILL)
    scanned += scanner.rest()
    assert sorted(path for each in scanned for path in each.paths) == paths
    scanner.close()
    assert multiprocessing.active_children() == []


def test_questions_are_answered_while_the_index_is_made(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "AT_ONCE", 1)
    monkeypatch.setattr(live, "WORTH_PROCESSES", 1)
    locator = Locator(repo, cached=False, lasting=True, behind=True)
    assert locator.locate("retry", 5).files == ()
    ticket, done = locator.begin(), [0]
    while not locator.is_ready(ticket):
        answer = locator.locate("step", 50, is_whole=False)
        assert answer.is_sure is False and "so far; ask again" in answer.remarks[0]
        done.append(locator.progress[0])
    assert done == sorted(done) and locator.progress == (31, 31) and len(locator.locate("step", 50).files) == 30


def test_an_index_that_nobody_uses_is_removed(repo: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.py").write_text("def anchor():\n    return 1\n")
    LiveIndex(other)
    base = store.cache_folder()
    assert base is not None
    (base / "notes").mkdir()
    old = time.time() - (store.UNUSED_DAYS + 1) * 86400
    for path in base.rglob("*"):
        os.utime(path, (old, old))
    LiveIndex(repo)
    assert [index.root for index in store.saved_indexes(base)] == [str(repo)] and (base / "notes").is_dir()
    for path in base.rglob("*"):
        os.utime(path, (old, old))
    LiveIndex(repo)  # nothing has changed, but it is used
    LiveIndex(other)
    assert {index.root for index in store.saved_indexes(base)} == {str(repo), str(other)}


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(store.VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert store.cache_folder() == tmp_path / ".cache" / "reflectrl" / "locate"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert store.cache_folder() == tmp_path / "cache" / "reflectrl" / "locate"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 54321)  # as in a container: no account
    assert store.cache_folder() is None


def test_the_same_question_gets_the_same_answer_warm_and_cold(repo: Path) -> None:
    question = "how many times is it retried?"
    cold = Engine(repo).search(question, 3)
    assert cold == Engine(repo).search(question, 3) and cold[0].path == "retry.py"


def test_a_folder_that_became_a_link_or_empty_is_refused(repo: Path) -> None:
    index = LiveIndex(repo)
    repo.rename(repo.with_name("elsewhere"))
    repo.symlink_to(repo.with_name("elsewhere"))
    with pytest.raises(UserError, match="link to another folder"):
        index.refresh()
    repo.unlink()
    repo.mkdir()
    with pytest.raises(UserError, match="it is empty"):
        index.refresh()
