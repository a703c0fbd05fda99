"""Words of questions and of code: what is cut where, and which forms are one word."""

import string
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.wings.autoexplore.words import LONGEST, STOP_WORDS, count_words, spoken, stem, words

ANY = st.text(st.characters(codec=None, exclude_categories=[]), max_size=60)
CODE = st.text(st.sampled_from("aeiouAEbdgnrstTSy019_./-( \n"), max_size=60)
LETTERS = st.text(st.sampled_from("aeinrstdlgoy"), min_size=1, max_size=14)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max_retry_count", ["max", "retry", "count"]),
        ("HTTPServer2Config", ["http", "serv", "2", "config"]),
        ("getURL sha256 X1", ["get", "url", "sha", "256", "x", "1"]),
        ("src/net-io/retry_policy.py", ["src", "net", "io", "retry", "policy", "py"]),
        ("Where are the retries configured?", ["retry", "configur"]),
        ("naïve ÜberKlasse 日本語", ["naïve", "überklasse", "日本", "本語"]),
        ("nai\u0308ve", ["naïve"]),
        ("v2退款API", ["v", "2", "退款", "api"]),
        ("退", ["退"]),
        ("在哪里", []),
        ("文" * (LONGEST + 1), ["文文"] * LONGEST),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("what is it, and why?", []),
        ("x" * (LONGEST + 1), []),
        ("", []),
    ],
)
def test_text_is_cut_into_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    "forms",
    [
        "retry retries retried",
        "file files filed",
        "class classes",
        "status statuses",
        "map maps mapped mapping",
        "cancel cancels cancelled canceled cancelling",
        "filter filters filtered filtering",
        "validate validates validated validating validation validator",
        "configure configures configured configuring configuration configurations",
        "connect connects connected connecting connection",
    ],
)
def test_forms_of_one_word_are_one(forms: str) -> None:
    assert len({stem(form) for form in forms.split()}) == 1


def test_different_words_stay_different() -> None:
    different = "string speed need axis status class use error cache connect template filter file format retry set"
    stems = [stem(word) for word in different.split()]
    assert len(set(stems)) == len(stems)


@settings(deadline=None)
@given(LETTERS)
def test_a_stem_is_its_own_stem_and_not_longer(word: str) -> None:
    assert stem(stem(word)) == stem(word)
    assert 0 < len(stem(word)) <= len(word)


@settings(deadline=None)
@given(ANY | CODE)
def test_words_are_made_of_lower_case_letters_and_digits_and_are_no_stop_words(text: str) -> None:
    for form, word in spoken(text):
        assert form == form.lower() and word and "_" not in word
        assert not {form, word} & STOP_WORDS
        assert not any(character.isspace() or character in string.punctuation for character in word)


@settings(deadline=None)
@given(ANY | CODE)
def test_counting_is_the_same_as_listing(text: str) -> None:
    assert count_words(text) == Counter(words(text)) == Counter(word for _, word in spoken(text))


@settings(deadline=None)
@given(CODE)
def test_words_joined_again_give_the_same_words(text: str) -> None:
    found = words(text)
    assert words(" ".join(found)) == words("_".join(found)) == words("/".join(found)) == found


@settings(deadline=None)
@given(st.lists(st.sampled_from(["retry", "parse", "user", "config", "load"]), max_size=6))
def test_the_ways_of_writing_a_name_agree(parts: list[str]) -> None:
    camel = "".join(part.capitalize() for part in parts)
    assert words(camel) == words("_".join(parts)) == words("-".join(parts).upper()) == words("/".join(parts))
