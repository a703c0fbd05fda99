"""What speaks for a file, against the plain way of telling it, and searches that put only the first files in order."""

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.wings.autoexplore.finder import ENOUGH, GROUNDS, PASSAGE_LINES, WEIGHTS, Finder, profile, weigh
from reflectrl.wings.autoexplore.outline import about, outline
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.search import Postings, Search
from reflectrl.wings.autoexplore.view import View
from reflectrl.wings.autoexplore.words import count_runs, count_words, distinct_words, stem, words, words_of

from .test_search import FILES, repository

RETRY = '''"""Loads pages."""

LIMIT = 3


class PageLoader:
    """Retries requests."""

    def load(self, page):
        return page or page.retry(LIMIT)
'''
VOCABULARY = (stem("page"), "load", "retry", "limit", "request", "client", "unknown")
SOURCES = st.lists(
    st.sampled_from(["def load_page(limit):", "class Retry:", '    """Requests a page."""', "    page = limit", ""]),
    max_size=30,
).map("\n".join)


def plain_shares(path: str, text: str, weights: dict[str, float]) -> list[float]:
    """As the definition of each share says it, part by part."""
    definitions, lines, total = outline(path, text), text.split("\n"), sum(weights.values()) or 1.0

    def share(part: Iterable[str]) -> float:
        inside = set(part)
        return sum([weight for word, weight in weights.items() if word in inside]) / total

    passages = [0.0]
    for one, after in zip(definitions, [*definitions[1:], None], strict=False):
        end = max(after.line - 1 if after else len(lines), one.line)
        own = lines[one.line - 1 : min(end, one.line - 1 + PASSAGE_LINES)]
        passages.append(share(words("\n".join([one.parent, one.name, *own]))))
    return [
        share(words(path)),
        share(words(" ".join(one.name for one in definitions))),
        share(words(" ".join([about(path, text), *(one.doc for one in definitions)]))),
        share([*words(path), *words(text)]),
        share(word for word, times in count_words(text).items() if times >= ENOUGH),
        max(passages),
    ]


def test_shares_are_those_of_the_words_where_they_stand() -> None:
    found = weigh(profile("net/client.py", RETRY), {"client": 1.0, stem("page"): 2.0, "retry": 4.0, "unknown": 8.0})
    assert found == (1 / 15, 2 / 15, 6 / 15, 7 / 15, 2 / 15, 6 / 15)


@settings(deadline=None)
@given(SOURCES, st.dictionaries(st.sampled_from(VOCABULARY), st.floats(0.1, 9)))
def test_shares_are_those_of_the_plain_way(text: str, weights: dict[str, float]) -> None:
    found = weigh(profile("client/load.py", text), weights)
    assert found == pytest.approx(plain_shares("client/load.py", text, weights), rel=1e-12, abs=0)


def test_nothing_speaks_for_an_empty_file_or_an_empty_question() -> None:
    assert weigh(profile("a.py", ""), {"retry": 1.0}) == (0.0,) * 6 == weigh(profile("a.py", RETRY), {})


@given(st.text(max_size=200))
def test_distinct_words_are_the_words(text: str) -> None:
    assert distinct_words(text) == set(words(text))
    assert {word for run in count_runs(text) for word in words_of(run)} == set(words(text))


TEXTS = st.lists(st.text(st.sampled_from("retries retry_ page2 PageRetry "), max_size=60), max_size=12)


@settings(deadline=None)
@given(TEXTS)
def test_runs_are_indexed_as_their_words(texts: list[str]) -> None:
    """ "retries" and "retry" in one document are one word that occurs twice."""
    by_words, by_runs = Postings(map(count_words, texts)), Postings(map(count_runs, texts), words_of)
    for word in {word for text in texts for word in words(text)}:
        assert by_words.rarity(word) == by_runs.rarity(word) and by_runs.holds(word)
        assert np.array_equal(by_words.scores({word: 2}), by_runs.scores({word: 2}))


def test_the_first_of_a_ranking_are_those_of_the_whole(tmp_path: Path) -> None:
    """Also where many files are equal, so that paths decide, and where a sixteenth of them tells little."""
    files = {f"part{i % 7}/file{i:03}.py": "retry = 1\n" + "page = 2\n" * (i % 3) for i in range(400)}
    search = Search(repository(tmp_path, files))
    for question in ("retry", "retry page", "page file 123"):
        whole = search.rank(question)
        assert all(search.rank(question, most) == whole[:most] for most in (0, 1, 5, 24, 25, 26, 50, 399, 1000))


def test_the_order_is_that_of_what_speaks_for_files(tmp_path: Path) -> None:
    finder = Finder(repository(tmp_path, FILES))
    question = "where are failing requests retried?"
    found = finder.ranked(question, "", View(finder.repository))
    promises = [finder.promise(path, question) for path in found]
    assert promises == sorted(promises, reverse=True)
    assert len(finder.grounds(found[0], question)) == len(GROUNDS) == len(WEIGHTS)
    assert math.isclose(
        promises[0], sum(w * g for w, g in zip(WEIGHTS, finder.grounds(found[0], question), strict=True))
    )


def test_a_view_without_some_files_finds_the_others_in_the_same_order(tmp_path: Path) -> None:
    finder = Finder(repository(tmp_path, FILES))
    everything: Repository = finder.repository
    view = View(everything, frozenset(), 0.5, "salt")
    found = finder.ranked("request retried", "", View(everything))
    assert finder.ranked("request retried", "", view) == tuple(path for path in found if view.shows(path))
