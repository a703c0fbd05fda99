"""Split text and code into words, so that "Where are retries configured?" and `max_retry_config(...)` share some.

CamelCase is split, and digits are words of their own: `HTTPServer2_config` is "http", "server", "2", "config". Words
are in lower case. The most common English words are dropped.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache

LONGEST = 64
"""Longest run of letters and digits. Longer runs are data, not words, and are dropped."""
_USUAL = (
    "a about above after again all also am an and any are aren as at be because been before being below between both "
    "but by can cannot could couldn d did didn do does doesn doing don down during each few for from further had has "
    "have having he her here hers him his how i if in into is isn it its just ll m may me might more most must my no "
    "nor not now of off on once only or other our out over own please re s same shall she should so some such t than "
    "that the their them then there these they this those through to too under until up upon us ve very was we were "
    "what when where which while who whom whose why will with would you your"
)
STOP_WORDS = frozenset(_USUAL.split())
"""Common English words that carry no information about a file."""

_RUN = re.compile(r"[^\W_]+")
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_OTHER_PART = re.compile(r"\d+|\D+")
_VOWEL = re.compile("[aeiouy]")
_ENDINGS = {
    last: [(re.compile(rf".*{pattern}"), cut, put) for pattern, cut, put in endings]
    for last, endings in {
        "s": [("..ies", 3, "y"), ("...(?<![sui])s", 1, "")],  # retries, files; not class, status, analysis
        "d": [("..ied", 3, "y"), ("...(?<!e)ed", 2, "")],  # retried; not speed
        "g": [("...ing", 3, "")],
        "n": [("....(?<=[st])ion", 3, "")],  # connection, permission
        "r": [("....(?<=t)or", 2, ""), ("....er", 2, "")],
        "y": [("....ly", 2, "")],
        "t": [(".....at", 2, "")],  # what is left of configuration and validate
        "e": [("...e", 1, "")],
    }.items()
}
"""Last letter → suffix rules: pattern of the word, number of letters to cut, and replacement."""
_DOUBLE = re.compile(r".{2,}([b-df-hj-np-rtvwxz])\1")


def words(text: str) -> list[str]:
    """Return the words of a text in order: lower case, stemmed, without stop words."""
    return [word for run in _RUN.findall(text) for word in words_of(run)]


def count_words(text: str) -> Counter[str]:
    """Count the words of a text. Equals `Counter(words(text))`, but is much faster for long texts."""
    counts: Counter[str] = Counter()
    for run, times in count_runs(text).items():
        for word in words_of(run):
            counts[word] += times
    return counts


def distinct_words(text: str) -> set[str]:
    """Return `set(words(text))`, as fast as `count_words`."""
    return {word for run in set(_RUN.findall(text)) for word in words_of(run)}


def spoken(text: str) -> list[tuple[str, str]]:
    """Return pairs (form in the text, word), in order: ("retries", "retry")."""
    return [pair for run in _RUN.findall(text) for pair in _parts(run)]


def count_runs(text: str) -> Counter[str]:
    """Count the runs of letters and digits, as they are written."""
    return Counter(_RUN.findall(text))


@lru_cache(maxsize=1 << 16)
def words_of(run: str) -> tuple[str, ...]:
    """Return the words of a run of letters and digits."""
    return tuple(word for _, word in _parts(run))


def _parts(run: str) -> tuple[tuple[str, str], ...]:
    """Split a run of letters and digits; return each piece in lower case with its stemmed word."""
    if len(run) > LONGEST:
        return ()
    pieces = (PART if run.isascii() else _OTHER_PART).findall(run)
    return tuple([pair for piece in pieces if (pair := _pair(piece))])


@lru_cache(maxsize=1 << 16)
def _pair(piece: str) -> tuple[str, str] | None:
    """Return a piece in lower case with its stemmed word; None for a stop word. Runs share many pieces."""
    lower = piece.lower()
    pair = lower, stem(lower)
    return pair if STOP_WORDS.isdisjoint(pair) else None


def word_of(part: str) -> str:
    """Return the word of a part of an identifier in lower case; "" for a stop word."""
    word = stem(part)
    return "" if part in STOP_WORDS or word in STOP_WORDS else word


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """Stem a word in lower case: "retries", "retried" and "retry" become equal.

    This is much simpler than Porter's stemmer and sometimes wrong. It only matters that questions and files are stemmed
    alike. Suffixes are removed until none is left, so that `stem(stem(word)) == stem(word)`.
    """
    while (shorter := _shortened(word)) != word:
        word = shorter
    return word


def _shortened(word: str) -> str:
    if not word.isascii():
        return word
    for pattern, cut, put in _ENDINGS.get(word[-1:], ()):
        if pattern.fullmatch(word) and _VOWEL.search(word[:-cut]):
            return word[:-cut] + put
    return word[:-1] if word[-2:-1] == word[-1:] and _DOUBLE.fullmatch(word) else word
