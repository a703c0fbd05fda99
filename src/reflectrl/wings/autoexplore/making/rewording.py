"""Replace words by synonyms, and remove the name of the answer's file from a question."""

from __future__ import annotations

import random
import re
from functools import cache

from reflectrl.wings.autoexplore.making.english import gerund, participle, parts, tables, third, verb_of, word_list

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
_PLURAL = re.compile(r"(?<![su])s$")


def reworded(text: str, rng: random.Random, rate: float) -> str:
    """Replace words by synonyms with probability `rate`, and drop most filler words.

    Args:
        text: prose. Identifiers (with "_", "." or capitals inside) are kept.
        rng: source of randomness.
        rate: probability per word with synonyms; 0 only drops filler words.
    """

    def put(match: re.Match[str]) -> str:
        word = match[0]
        if word.lower() in word_list("dropped") and rng.random() < 0.7:
            return ""
        if rng.random() >= rate or is_identifier(word):
            return word
        return other_word(word, rng) or word

    return tidy(_WORD.sub(put, text))


def other_word(word: str, rng: random.Random) -> str | None:
    """Return a synonym in the same form; None if none is known."""
    lower = word.lower()
    if others := tables()["others"].get(lower):
        return _in_case(rng.choice(others.split()).replace("_", " "), word)
    verb = verb_of(lower)
    if verb is not None:
        for form in (third, gerund, participle):
            if (
                form(verb) == lower != verb
                and _others_of(verb)
                and not (form is third and verb in word_list("nouns_too"))
            ):
                return _in_case(form(rng.choice(_others_of(verb))), word)
        if verb == lower and _others_of(verb) and lower not in word_list("nouns_too"):
            return _in_case(rng.choice(_others_of(verb)), word)
    single = _PLURAL.sub("", lower)
    if single != lower and (others := tables()["others"].get(single)):
        noun = rng.choice(others.split()).replace("_", " ")
        plural = noun if noun.endswith("s") else third(noun) if " " not in noun else f"{noun}s"
        return _in_case(plural, word)
    return None


@cache
def _others_of(verb: str) -> tuple[str, ...]:
    return tuple(other.replace("_", " ") for other in tables()["verbs"].get(verb, "").split())


def _in_case(other: str, word: str) -> str:
    return other.capitalize() if word[:1].isupper() else other


def is_identifier(word: str) -> bool:
    """Return whether a word looks like an identifier in code."""
    return "_" in word or "." in word or any(map(str.isdigit, word)) or any(map(str.isupper, word[1:]))


def tidy(text: str) -> str:
    """Fix spaces, repeated words, and "a" or "an" before the next word."""
    text = re.sub(r" ([,.?;:])", r"\1", " ".join(text.split()))
    text = re.sub(r"\b(\w+)( \1\b)+", r"\1", text)
    return re.sub(r"\b([Aa])n? (?=(\w+))", lambda match: f"{match[1]}{'n' * _is_vowel(match[2])} ", text)


def _is_vowel(word: str) -> bool:
    return word[:1].lower() in "aeiou" and not word.lower().startswith(
        ("uni", "use", "usa", "one", "eu", "url", "util")
    )


# ---- the file's own name ---------------------------------------------------------------------------------------------


def stem_of(path: str) -> str:
    """Return the name of a file without its suffix."""
    name = path.rpartition("/")[2]
    return name.rpartition(".")[0] or name.lstrip(".")


def leaks(question: str, path: str) -> bool:
    """Return whether a question contains the file's name: as a word, or as its parts in sequence.

    Case does not matter, nor how the parts are joined (`_`, `-`, CamelCase or spaces).
    """
    name_parts = parts(stem_of(path))
    question_parts = parts(question)
    stem = re.escape(stem_of(path))
    as_word = re.search(rf"(?<![^\W_]){stem}(?![^\W_])", question, re.IGNORECASE) is not None
    in_parts = bool(name_parts) and any(
        question_parts[i : i + len(name_parts)] == name_parts for i in range(len(question_parts) - len(name_parts) + 1)
    )
    joined = "".join(name_parts)
    return as_word or in_parts or (len(joined) > 3 and joined in question_parts)


def without_name(question: str, path: str, rng: random.Random) -> str | None:
    """Replace the file's name in a question by synonyms; return None if that is impossible."""
    name_parts = set(parts(stem_of(path)))

    def put(match: re.Match[str]) -> str:
        word = match[0]
        if not name_parts & set(parts(word)):
            return word
        if is_identifier(word):
            return " ".join(other_word(part, rng) or part if part in name_parts else part for part in parts(word))
        return other_word(word, rng) or word

    changed = tidy(_WORD.sub(put, question))
    return None if leaks(changed, path) else changed
