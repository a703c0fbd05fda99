"""Many changes, made in place: rankings and grounds equal those of an index that is made from nothing."""

from pathlib import Path

import pytest

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.locate import live, scanning, store
from reflectrl.wings.autoexplore.locate.engine import Engine
from reflectrl.wings.autoexplore.locate.inquiry import Inquiry
from reflectrl.wings.autoexplore.locate.live import LiveIndex
from tests.wings.autoexplore.locate.test_watching import WORDS, Edits, needs_inotify

QUESTIONS = (
    "where is an apple peeled?",
    "how does `banana_split` use cherries in inner/part0.py?",
    "which steps return elder figs?",
    "what did the docs say about moved damsons?",
)


class CodeEdits(Edits):
    """Random edits that write code: definitions, comments, and some files that are left out."""

    def text(self) -> str:
        first, second, third = self.draw.choices(WORDS, k=3)
        if self.draw.random() < 0.1:
            return "\0binary" + first
        lines = [f"def {first}_{second}({third}):", f"    # {third} of {first}", f"    return step({second!r})"]
        return "\n".join(lines * self.draw.randint(1, 3)) + "\n"

    def visible(self) -> None:
        """Edit so that a walk sees it: nothing is exchanged for something with the same stamp."""
        self.draw.choice(
            (self.write, self.write, self.save_through_rename, self.delete, self.new_tree, self.move, self.exchange,
             self.ignore, self.link, self.mode)
        )()  # fmt: skip


def make_repo(root: Path) -> Path:
    for folder in ("net", "net/inner", "docs"):
        (root / folder).mkdir(parents=True)
        for number in range(4):
            text = f"def {WORDS[number]}_split():\n    # peels\n    return {WORDS[number + 1]}\n"
            (root / folder / f"part{number}.py").write_text(text)
    return root


def content(engine: Engine) -> tuple[object, ...]:
    """Return everything that answers depend on, to the bit."""
    answers = []
    for question in QUESTIONS:
        candidates = engine.candidates(Inquiry.of(question))
        paths = [engine.index.corpus.paths[file] for file in candidates.files]
        answers.append((paths, candidates.grounds.tobytes(), candidates.best, candidates.words))
    searched = [engine.search(question, 5) for question in QUESTIONS]
    remarks = [engine.index.remarks(bit) for bit in (scanning.CUT, scanning.UNDECODABLE, scanning.UNREADABLE)]
    return list(engine.index.corpus.paths), engine.index.left_out, answers, searched, remarks


def agrees(engine: Engine, repo: Path) -> None:
    """Compare with an engine that is made from nothing. Both refuse a folder without a file."""
    try:
        fresh = content(Engine(repo, cached=False))
    except UserError as error:
        with pytest.raises(UserError) as refusal:
            engine.index.refresh()
        assert str(refusal.value).partition(":")[0] == str(error).partition(":")[0]
        return
    engine.index.refresh()
    assert content(engine) == fresh


@pytest.fixture
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make everything happen in a small repository: segments are merged, the list is written as a whole."""
    monkeypatch.setattr(live, "SMALL", 5)
    monkeypatch.setattr(live, "MOST_SMALL", 2)
    monkeypatch.setattr(live, "MOST_IN_PLACE", 12)
    monkeypatch.setattr(store, "MOST_RECENT", 6)


@needs_inotify
@pytest.mark.usefixtures("low_limits")
@pytest.mark.parametrize("seed", range(4))
def test_rankings_equal_those_of_an_index_from_nothing(tmp_path: Path, seed: int) -> None:
    repo = make_repo(tmp_path / "repo")
    engine, edits = Engine(repo, watched=True), CodeEdits(repo, seed)
    for _ in range(25):
        for _ in range(edits.draw.choice((0, 1, 1, 2, 6))):
            edits.any()
        agrees(engine, repo)


@pytest.mark.usefixtures("low_limits")
@pytest.mark.parametrize("seed", range(4))
def test_processes_that_share_a_cache_rank_as_without_one(tmp_path: Path, seed: int) -> None:
    repo = make_repo(tmp_path / "repo")
    lasting, edits = [Engine(repo, watched=True), Engine(repo)], CodeEdits(repo, seed)
    for _ in range(20):
        for _ in range(edits.draw.choice((0, 1, 1, 2, 6))):
            edits.visible()
        for engine in lasting:
            if edits.draw.random() < 0.5:
                agrees(engine, repo)
        if edits.draw.random() < 0.3 and any(repo.rglob("part*.py")):
            agrees(Engine(repo), repo)


def test_a_change_is_saved_beside_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST_RECENT", 3)
    repo = make_repo(tmp_path / "repo")
    index = LiveIndex(repo)
    base = store.cache_folder()
    assert base is not None
    (whole,) = base.rglob("files")
    before = whole.read_bytes()
    (repo / "docs" / "part0.py").write_text("def persimmon():\n    return 'changed'\n")
    (repo / "docs" / "part1.py").unlink()
    index.refresh()
    assert whole.read_bytes() == before
    again = LiveIndex(repo)
    assert again.indexed == 0 and again.corpus.paths == index.corpus.paths and len(again.corpus) == 11
    for number in range(4):
        (repo / "net" / f"part{number}.py").write_text(f"def quince():\n    return {number}\n")
    index.refresh()
    assert whole.read_bytes() != before
    assert LiveIndex(repo).indexed == 0


@pytest.mark.parametrize("damage", [b"", b"something else entirely", None])
def test_lost_changes_cost_their_files_only(tmp_path: Path, damage: bytes | None) -> None:
    repo = make_repo(tmp_path / "repo")
    index = LiveIndex(repo)
    (repo / "docs" / "part0.py").write_text("def persimmon():\n    return 'changed'\n")
    (repo / "docs" / "part1.py").unlink()
    index.refresh()
    base = store.cache_folder()
    assert base is not None
    (recent,) = base.rglob("*.recent")
    if damage is None:
        recent.unlink()
    else:
        recent.write_bytes(damage)
    anew = LiveIndex(repo)
    assert anew.indexed == 1 and anew.corpus.paths == index.corpus.paths
    assert LiveIndex(repo).indexed == 0


def test_many_changes_at_once(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo")
    engine = Engine(repo, watched=True)
    for number in range(live.MOST_IN_PLACE + 1):
        (repo / "net" / f"new{number}.py").write_text(f"def apple_{number}():\n    return banana_{number % 7}\n")
    agrees(engine, repo)
    for number in range(0, live.MOST_IN_PLACE, 3):
        (repo / "net" / f"new{number}.py").unlink()
    agrees(engine, repo)


def test_a_file_that_comes_back_is_not_taken_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its former segment is gone, and another one has got the number."""
    repo = make_repo(tmp_path / "repo")
    LiveIndex(repo)
    (repo / "late.py").write_text("def persimmon():\n    return 'late'\n")
    monkeypatch.setattr(store, "MOST_RECENT", 0)
    index = LiveIndex(repo)
    monkeypatch.setattr(store, "MOST_RECENT", 100)
    (repo / "late.py").rename(tmp_path / "late.py")
    index.refresh()
    (repo / "other.py").write_text("def quince():\n    return 'other'\n")
    index.refresh()
    (tmp_path / "late.py").rename(repo / "late.py")
    agrees(Engine(repo), repo)
    assert [hit.path for hit in Engine(repo).search("persimmon", 5)] == ["late.py"]


def test_a_lost_segment_of_a_file_that_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = make_repo(tmp_path / "repo")
    LiveIndex(repo)
    base = store.cache_folder()
    assert base is not None
    before = set(base.rglob("*.segment"))
    (repo / "late.py").write_text("def persimmon():\n    return 'late'\n")
    monkeypatch.setattr(store, "MOST_RECENT", 0)
    LiveIndex(repo)
    monkeypatch.setattr(store, "MOST_RECENT", 100)
    (lost,) = set(base.rglob("*.segment")) - before
    lost.unlink()
    (repo / "late.py").rename(tmp_path / "late.py")
    (repo / "other.py").write_text("def quince():\n    return 'other'\n")
    LiveIndex(repo)
    (tmp_path / "late.py").rename(repo / "late.py")
    agrees(Engine(repo), repo)
    assert [hit.path for hit in Engine(repo).search("persimmon", 5)] == ["late.py"]
