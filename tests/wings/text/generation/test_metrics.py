"""Metrics against values worked out by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.wings.text.generation.metrics import (
    coverage_and_density,
    distinct,
    fragments,
    mean_length,
    meteor,
    synonyms,
    words,
)

TEXT = st.text("ab c.", max_size=30)


def test_words_are_lower_case_and_marks_stand_alone():
    assert words("It's raining, Bob!") == ["it", "'", "s", "raining", ",", "bob", "!"]


def test_distinct_counts_over_the_whole_corpus():
    texts = ["a b a", "a b"]
    assert distinct(texts, 1) == 2 / 5
    assert distinct(texts, 2) == 2 / 3
    assert distinct(texts, 3) == 1.0
    assert distinct(["a"], 2) == 0.0
    assert distinct([], 1) == 0.0


def test_mean_length_counts_words_and_marks():
    assert mean_length(["a b", "a, b!"]) == 3
    assert mean_length([]) == 0


def test_fragments_are_the_longest_from_the_left():
    source = ["the", "cat", "sat", "on", "the", "mat"]
    assert fragments(source, ["the", "mat", "and", "the", "cat", "sat"]) == [2, 3]
    assert fragments(source, ["dogs", "run"]) == []


def test_coverage_and_density_by_hand():
    assert coverage_and_density("the cat sat on the mat", "the mat and the cat sat") == (5 / 6, (4 + 9) / 6)
    assert coverage_and_density("the cat", "") == (0, 0)


@settings(deadline=None)
@given(TEXT, TEXT)
def test_coverage_is_a_share_and_density_lies_between_coverage_and_length(source, text):
    coverage, density = coverage_and_density(source, text)
    assert 0 <= coverage <= 1
    assert coverage <= density <= max(1, len(words(text)))


@settings(deadline=None)
@given(TEXT)
def test_a_copy_is_covered_whole(text):
    assert coverage_and_density(text, text) == ((1, len(words(text))) if words(text) else (0, 0))


def test_meteor_by_hand_takes_the_best_reference_and_says_how_it_matched():
    value, kind = meteor(["the cat sleeps"], [["a dog", "the cat sleeps"]])
    assert value == pytest.approx(1 - 0.5 * (1 / 3) ** 3)
    assert kind == synonyms()[1]
    assert kind in ("exact+stem", "exact+stem+synonyms")
    stemmed, _ = meteor(["cats sleeping"], [["cat sleep"]])
    assert stemmed == pytest.approx(1 - 0.5 * (1 / 2) ** 3)
    # precision 1/2, recall 1/3, one chunk of one match: 10PR / (R + 9P) halved
    half, _ = meteor(["cat xx"], [["cat yy zz"]])
    assert half == pytest.approx(0.5 * (10 * 0.5 / 3) / (1 / 3 + 9 * 0.5))


def test_meteor_without_references_or_words_is_0():
    assert meteor(["", "cat"], [["cat"], []])[0] == 0
    assert meteor([], [])[0] == 0


def test_synonyms_count_where_wordnet_is_there():
    import nltk

    try:
        nltk.data.find("corpora/wordnet.zip")
    except LookupError:
        assert synonyms()[1] == "exact+stem"
        pytest.skip("WordNet is not on this machine")
    assert synonyms()[1] == "exact+stem+synonyms"
