"""Split text and code into words, so that "Where are retries configured?" and `max_retry_config(...)` share some.

CamelCase is split, and digits are words of their own: `HTTPServer2_config` is "http", "server", "2", "config". Words
are in lower case. The most common English words are dropped.

Chinese, Japanese, Korean, Thai, Lao, Khmer and Burmese are written without spaces, or with endings that are part of a
word. Their words are all pairs of neighbouring characters: "退款金额" is "退款", "款金", "金额". Letters that consist
of several characters are composed first (NFC).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import lru_cache
from itertools import pairwise

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
_USUAL_PAIRS = (
    "在哪 哪里 哪裡 哪儿 哪個 哪个 哪些 什么 什麼 怎么 怎麼 怎样 怎樣 如何 为什 為什 是否 这个 這個 这里 這裡 "
    "です ます した する して てい いる どこ どの どう これ それ から まで とき のか すか です "
    "어디 무엇 어떻 떻게 에서 니다 습니 합니 니까 있나 나요 하는"
)
STOP_WORDS = frozenset((*_USUAL.split(), *_USUAL_PAIRS.split()))
"""Common English words, and pairs of East Asian characters, that carry no information about a file."""

_UNSPACED = (
    "\u0e00-\u0e3a\u0e40-\u0e4e\u0e80-\u0ece\u0edc-\u0edf\u1000-\u103f\u1050-\u108f\u1100-\u11ff\u1780-\u17d3"
    "\u2e80-\u2fdf\u3005-\u3007\u3041-\u3096\u3099-\u309a\u309d-\u309f\u30a1-\u30fa\u30fc-\u318f\u31a0-\u31bf"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff"
)
"""Characters of scripts without spaces between words."""
_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0730-\u074a"
    "\u0900-\u0963\u0980-\u0dff\u0f71-\u0f84"
)
"""Marks that are part of a letter, such as the vowels of Hindi, and letters among them."""
_RUN = re.compile(rf"(?:[^\W_]|[{_MARKS}{_UNSPACED}])+")
_SCRIPT = re.compile(rf"([{_UNSPACED}]+)|[^{_UNSPACED}]+")
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


def composed(text: str) -> str:
    """Return a text in composed letters: "é" may be one character or two (NFC, Unicode Standard Annex 15)."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def is_unspaced(text: str) -> bool:
    """Return whether a text consists of characters of a script without spaces between words."""
    match = _SCRIPT.match(text)
    return match is not None and match[1] == text


def spaced(text: str) -> str:
    """Return a text with a space in place of each run in a script without spaces: what is left are names in code."""
    return text if text.isascii() else _SCRIPT.sub(lambda match: " " if match[1] else match[0], text)


def words(text: str) -> list[str]:
    """Return the words of a text in order: lower case, stemmed, without stop words."""
    return [word for run in _runs(text) for word in words_of(run)]


def single_characters(text: str) -> list[str]:
    """Return the characters of scripts without spaces. A question may be a single one, where a file holds pairs."""
    return [character for match in _SCRIPT.finditer(composed(text)) for character in match[1] or ""]


def count_words(text: str) -> Counter[str]:
    """Count the words of a text. Equals `Counter(words(text))`, but is much faster for long texts."""
    counts: Counter[str] = Counter()
    for run, times in count_runs(text).items():
        for word in words_of(run):
            counts[word] += times
    return counts


def distinct_words(text: str) -> set[str]:
    """Return `set(words(text))`, as fast as `count_words`."""
    return {word for run in set(_runs(text)) for word in words_of(run)}


def spoken(text: str) -> list[tuple[str, str]]:
    """Return pairs (form in the text, word), in order: ("retries", "retry")."""
    return [pair for run in _runs(text) for pair in _parts(run)]


def count_runs(text: str) -> Counter[str]:
    """Count the runs of letters and digits, as they are written."""
    return Counter(_runs(text))


def _runs(text: str) -> list[str]:
    return _RUN.findall(composed(text))


@lru_cache(maxsize=1 << 16)
def words_of(run: str) -> tuple[str, ...]:
    """Return the words of a run of letters and digits."""
    return tuple(word for _, word in _parts(run))


def _parts(run: str) -> tuple[tuple[str, str], ...]:
    """Split a run of letters and digits; return each piece in lower case with its stemmed word."""
    return tuple([pair for piece in _pieces(run) if (pair := _pair(piece))])


def _pieces(run: str) -> list[str]:
    if run.isascii():
        return PART.findall(run) if len(run) <= LONGEST else []
    pieces = list[str]()
    for match in _SCRIPT.finditer(run):
        part = match[0]
        if match[1]:
            pieces += map("".join, pairwise(part)) if len(part) > 1 else [part]
        elif len(part) <= LONGEST:
            pieces += (PART if part.isascii() else _OTHER_PART).findall(part)
    return pieces


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
