"""Forms of words, what sentences say, saying it in other words, and not giving a file's name away."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.wings.autoexplore.making.english import (
    Said,
    gerund,
    in_words,
    main_clause,
    object_of,
    participle,
    phrases,
    plain,
    said,
    shortened,
    tables,
    third,
    verb_of,
)
from reflectrl.wings.autoexplore.making.rewording import leaks, reworded, stem_of, tidy, without_name

TEXTS = st.text(st.sampled_from("abcXYZ_. ,()`:'-=\n9é"), max_size=60) | st.text(max_size=40)


@pytest.mark.parametrize(
    ("verb", "does", "doing", "done"),
    [
        ("return", "returns", "returning", "returned"),
        ("set", "sets", "setting", "set"),
        ("carry out", "carries out", "carrying out", "carried out"),
        ("write", "writes", "writing", "written"),
        ("submit", "submits", "submitting", "submitted"),
        ("parse", "parses", "parsing", "parsed"),
        ("match", "matches", "matching", "matched"),
        ("free", "frees", "freeing", "freed"),
    ],
)
def test_forms_of_verbs(verb: str, does: str, doing: str, done: str) -> None:
    assert (third(verb), gerund(verb), participle(verb)) == (does, doing, done)


def test_every_form_of_every_verb_is_known_again() -> None:
    for verb in tables()["verbs"]:
        assert verb_of(third(verb)) and verb_of(gerund(verb)) and verb_of(verb) == verb


@pytest.mark.parametrize(
    ("sentence", "what"),
    [
        ("Return the absolute URL of a page.", Said("return", "the absolute URL of a page")),
        ("This method returns :class:`~a.b.Page` objects (if any).", Said("return", "Page objects")),
        ("A helper function to parse dates", Said("parse", "dates")),
        ("Create or update the fields", Said("update", "the fields")),
        ("We skip empty lines here", Said("skip", "empty lines here")),
        ("don't send the mail twice", Said("avoid", "sending the mail twice")),
        ("Base class for all fitters.", Said("", "base class for all fitters")),
        ("List of names", Said("", "list of names")),
        ("The main tree", Said("", "main tree")),
        ("Really?", None),
        ("x", None),
    ],
)
def test_what_a_sentence_says(sentence: str, what: Said | None) -> None:
    assert said(sentence) == what


def test_pieces_of_sentences() -> None:
    assert object_of("the request to the server") == ("the request", "to the server")
    assert shortened("the request to the server of the bank in the other town", 6) == "the request to the server"
    assert main_clause("If nothing was found, an empty list is returned") == "an empty list is returned"
    assert in_words("HTTPServer_config2") == "http server config 2"
    assert plain("Use `x <http://y>`_ and [this](http://z) -- see **that**.") == "Use x and this -- see that"


@given(TEXTS)
def test_nothing_makes_them_fail(text: str) -> None:
    rng = random.Random(1)
    what = said(text)
    assert what is None or what.rest
    object_of(text), shortened(main_clause(plain(text)), 8), tidy(text)
    assert reworded(text, rng, 1.0) is not None
    changed = without_name(text, "a/ab_c.py", rng)
    assert changed is None or not leaks(changed, "a/ab_c.py")


def test_rewording_keeps_identifiers_and_form() -> None:
    rng = random.Random(3)
    text = reworded("It removes max_removes from settings.remove and removed options", rng, 1.0)
    assert "max_removes" in text and "settings.remove" in text
    assert not {"removes", "removed"} & set(text.split())
    assert reworded("the file is simply there", rng, 0.0) in ("the file is there", "the file is simply there")


@pytest.mark.parametrize(
    ("question", "path", "leak"),
    [
        ("where is the retry config?", "a/retry_config.py", True),
        ("what does RetryConfig do?", "a/retry_config.py", True),
        ("why retry the config?", "a/retry_config.py", False),
        ("which retryconfig is used?", "a/retry_config.py", True),
        ("where are retries configured?", "a/retry.py", False),
        ("Where is the README?", "README.md", True),
        ("what runs at init?", "a/__init__.py", True),
        ("how are initial values set?", "a/__init__.py", False),
        ("anything", ".py", False),
    ],
)
def test_when_a_question_names_the_file(question: str, path: str, leak: bool) -> None:
    assert leaks(question, path) == leak


@given(
    st.text(st.sampled_from("abc_"), min_size=1, max_size=8), st.sampled_from(["{}", "where is {}?", "the {} class"])
)
def test_a_stem_as_it_stands_is_always_a_leak(stem: str, phrase: str) -> None:
    assert leaks(phrase.format(stem), f"src/{stem}.py") == any(map(str.isalnum, stem)) or "_" in stem


def test_a_name_is_said_in_other_words_if_there_are_any() -> None:
    assert stem_of("a/settings.py") == "settings"
    changed = without_name("where are the settings of the mail?", "a/settings.py", random.Random(0))
    assert changed is not None and "mail" in changed and "settings" not in changed
    assert without_name("where is the zebra?", "a/zebra.py", random.Random(0)) is None


def test_every_phrase_can_be_filled() -> None:
    given = dict.fromkeys(
        ("base", "third", "doing", "done", "rest", "the_rest", "noun", "place", "thing", "detail", "other", "role",
         "relation", "instead", "effort", "goal", "listed", "owner", "clause", "what"), "x",
    )  # fmt: skip
    for name in (
        "short_things",
        "medium_actions",
        "long",
        "whole",
        "reports",
        "how_to",
        "stated",
        "fixing",
        "changing",
    ):
        assert all("{" not in phrase.format("x", **given) for phrase in phrases(name))
