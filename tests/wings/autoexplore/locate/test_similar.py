"""Soft matches: words of similar meaning count in part, and probabilities never claim to be sure."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.wings.autoexplore.locate.engine import Engine
from reflectrl.wings.autoexplore.locate.grounds import COLUMNS, Tables, collect
from reflectrl.wings.autoexplore.locate.inquiry import Inquiry
from reflectrl.wings.autoexplore.locate.meaning import Meaning, shipped_vectors
from reflectrl.wings.autoexplore.locate.passages import ReadFile
from reflectrl.wings.autoexplore.locate.ranker import MOST_CERTAIN, shipped_ranker
from reflectrl.wings.autoexplore.locate.similar import COLUMNS as SOFT
from reflectrl.wings.autoexplore.locate.similar import Lexicon, SoftMatch
from reflectrl.wings.autoexplore.words import stem

TINY = Meaning(["car", "fruit", "vehicl"], np.array([[100, 0], [0, 100], [98, 20]], np.int8))


def matches(text: str, weights: dict[str, float], path: str = "x.py") -> dict[str, float]:
    lexicon = Lexicon(TINY)
    terms = ReadFile(path, text).terms(lexicon.of_run)
    match = SoftMatch(lexicon, weights)
    return dict(zip(SOFT, match.file(terms, match.of([])), strict=True))


def test_a_similar_word_counts_less_than_the_word_itself_and_an_unrelated_one_nothing() -> None:
    same, similar, unrelated = (
        matches(f"def {name}():\n    return 1\n", {"vehicl": 1.0}) for name in ("vehicle", "car", "fruit")
    )
    for place in ("soft passage", "soft name", "soft file", "soft outline"):
        assert same[place] == pytest.approx(1) and 0.5 < similar[place] < 0.8 and unrelated[place] == 0


def test_words_without_a_vector_match_themselves_alone() -> None:
    held = matches("def zorgblatt():\n    return car\n", {stem("zorgblatt"): 1.0, "fruit": 3.0})
    assert held["soft passage"] == pytest.approx(0.25) and held["soft name"] == pytest.approx(0.25)


@given(st.text(max_size=300), st.sampled_from(["a.py", "a.md", "a.bin", "a"]))
def test_soft_matches_are_shares_for_any_text(text: str, path: str) -> None:
    values = matches(text, {"car": 1.0, "fruit": 0.5}, path)
    assert all(0 <= value <= 1 + 1e-6 for value in values.values())
    assert values["soft three"] <= values["soft passage"] <= values["soft file"] + 1e-6


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    for number in range(12):
        (tmp_path / f"part{number}.py").write_text(f"def step_{number}():\n    return {number}\n\nTOTAL = {number}\n")
    (tmp_path / "delete.py").write_text("def delete(entry):\n    return entry.drop()\n")
    (tmp_path / "window.py").write_text("def resize(width):\n    return width * 2\n")
    return tmp_path


def test_a_file_without_a_word_of_the_question_can_be_found_by_meaning(repo: Path) -> None:
    lexicon = Lexicon(shipped_vectors())
    engine = Engine(repo, cached=False)
    inquiry = Inquiry.of("which entry gets removed?")
    grounds = collect(engine.index.corpus, inquiry, engine.index.read, Tables(lexicon))
    paths = [engine.index.corpus.paths[file] for file in grounds.files.tolist()]
    by_name = grounds.grounds[:, COLUMNS.index("soft name")]
    assert paths[int(by_name.argmax())] == "delete.py" and by_name.max() > 0.05
    without = collect(engine.index.corpus, inquiry, engine.index.read, Tables())
    assert not without.grounds[:, [COLUMNS.index(name) for name in SOFT]].any()


def test_a_test_that_is_named_points_to_what_it_tests() -> None:
    identifiers = Inquiry.of("Why does test_mutual_info call TestRetryPolicy?").identifiers
    assert {"=mutualinfo", "=testmutualinfo", "=retrypolicy"} <= set(identifiers)


def test_probabilities_leave_room_for_nowhere(repo: Path) -> None:
    ranker, engine = shipped_ranker(), Engine(repo, cached=False)
    for question in ("where is delete defined?", "resize(width)", "who feeds the zebra on step_3?"):
        candidates = engine.candidates(Inquiry.of(question))
        scores = ranker.scores(candidates.grounds)
        probabilities = ranker.probabilities(scores, candidates.grounds)
        assert 0 < probabilities.sum() < 1 and probabilities.max() <= MOST_CERTAIN
        assert probabilities.argmax() == scores.argmax()
    assert len(ranker.probabilities(scores[:0], candidates.grounds[:0])) == 0
