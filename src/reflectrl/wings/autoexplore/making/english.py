"""Simple English grammar for questions: forms of verbs, words of identifiers, and parsing of sentences."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SHORT_SYLLABLE = re.compile(r"[^aeiou]*[aeiou][^aeiouwxy]")
_SIBILANT = ("s", "x", "z", "ch", "sh", "o")
_NOUN_FOLLOWS = (
    "of",
    "for",
    "to",
    "class",
    "that",
    "which",
    "object",
    "is",
    "are",
    "with",
    "used",
    "in",
    "type",
    "and",
)
"""Words that show that the word before them is a noun, not a verb: "List of names", "Test for ...", "Map to ..."."""
_SUBJECT = re.compile(
    r"(?:this|the|these|a|an)\s+(?:(?:helper|utility|base|abstract|internal|private|public|static|class|simple)\s+)*"
    r"(?:function|method|class|module|package|file|script|decorator|property|routine|helper|command|view|mixin|it)s?\s+"
    r"(?:(?:that|which|will|can|is|are|used|should|may|also|to)\s+)*(?=[a-z])",
    re.IGNORECASE,
)


@cache
def tables() -> dict[str, dict[str, str]]:
    """Return the tables of `words.toml`."""
    return tomllib.loads(_resource("words.toml"))


@cache
def word_list(name: str) -> frozenset[str]:
    """Return a list of `words.toml`."""
    return frozenset(tables()["lists"][name].split())


@cache
def phrases(name: str) -> tuple[str, ...]:
    """Return the templates of an entry of `phrases.toml`."""
    table = tomllib.loads(_resource("phrases.toml"))
    return tuple(table[name])


def _resource(name: str) -> str:
    return files("reflectrl.wings.autoexplore.making").joinpath(name).read_text(encoding="utf-8")


# ---- verbs -----------------------------------------------------------------------------------------------------------


def third(verb: str) -> str:
    """Return the third person of a verb: "tries". In a verb of several words, the first changes: "sets up"."""
    first, rest = _first(verb)
    if first.endswith("y") and first[-2:-1] not in "aeiou":
        return f"{first[:-1]}ies{rest}"
    return f"{first}{'es' if first.endswith(_SIBILANT) else 's'}{rest}"


def gerund(verb: str) -> str:
    """Return the gerund of a verb: "trying", "setting up"."""
    first, rest = _first(verb)
    if first.endswith("e") and not first.endswith(("ee", "ye", "oe")):
        return f"{first[:-1]}ing{rest}"
    return f"{_doubled(first)}ing{rest}"


def participle(verb: str) -> str:
    """Return the past participle of a verb: "tried", "set up"."""
    first, rest = _first(verb)
    irregular = tables()["participles"].get(first)
    if irregular:
        return irregular + rest
    if first.endswith("y") and first[-2:-1] not in "aeiou":
        return f"{first[:-1]}ied{rest}"
    return f"{_doubled(first)}{'d' if first.endswith('e') else 'ed'}{rest}"


def _first(verb: str) -> tuple[str, str]:
    first, space, rest = verb.partition(" ")
    return first, space + rest


def _doubled(word: str) -> str:
    double = _SHORT_SYLLABLE.fullmatch(word) or word in word_list("doubling")
    return word + word[-1] if double else word


@cache
def _forms() -> dict[str, str]:  # form of a known verb → verb
    verbs = tables()["verbs"]
    forms = {make(verb): verb for verb in verbs for make in (participle, gerund, third)}
    return forms | {verb: verb for verb in verbs}


def verb_of(word: str) -> str | None:
    """Return the base form of a verb in any form; None if the verb is unknown."""
    return _forms().get(word.lower())


# ---- identifiers -----------------------------------------------------------------------------------------------------


def parts(identifier: str) -> list[str]:
    """Split an identifier into words in lower case: `HTTPServer_config2` is "http", "server", "config", "2"."""
    return [part.lower() for part in _PART.findall(identifier)]


def in_words(identifier: str) -> str:
    """Return an identifier as words with spaces."""
    return " ".join(parts(identifier))


# ---- sentences -------------------------------------------------------------------------------------------------------


class Said(NamedTuple):
    """Parsed sentence of documentation."""

    verb: str
    """Verb in its base form; "" if the sentence only names a thing."""
    rest: str
    """Object of the verb and what follows; or the thing."""


_LEADING = re.compile(
    r"^(?:(?:notice|note|remember|keep in mind|be aware|make sure|as you can see),? that|(?:here )?we|you|to|also|now|"
    r"then|next|finally|first|internally|simply|just|please|always|only|optionally|must|should|need to|safely|directly)"
    r"\b,? ",
    re.IGNORECASE,
)
_FORBIDDEN = re.compile(r"^(?:don't|do not|never|not) ", re.IGNORECASE)
_DOUBLE_VERB = re.compile(r"^[A-Za-z]+(?: and/or | or | and |/)(?=[a-z]+ )(?!the |a |an )", re.I)
"""First of two verbs, which is dropped: "Create or update fields" becomes "update fields"."""
_SUBORDINATE = re.compile(
    r"^(?:if|when|while|once|after|before|because|since|although|though|unless|to|for|in|by|with|as|at|on|sometimes|"
    r"however|note|therefore|alternatively|finally|additionally|furthermore|moreover|similarly|for example|"
    r"for instance|yes|no)\b"
    r"[^,]*,\s+", re.I
)  # fmt: skip

_MARKUP = (
    (
        re.compile(r":[\w:+-]{1,40}:`[~!]?(?:[^`<]{0,200}\.)?([^`<.]{1,200})(?:<[^`>]{0,200}>)?`"),
        r"\1",
    ),  # :class:`~a.b.C`
    (re.compile(r"(?<!`)`+([^`<]{0,200}?)\s{0,20}+(?:<[^`>]{0,200}>)?`++_{0,2}"), r"\1"),
    (re.compile(r"!?\[([^\]]{0,200})\]\([^)]{0,300}\)"), r"\1"),
    (re.compile(r"<[^<>]*+>"), " "),
    (re.compile(r"https?://\S+"), " "),
    (re.compile(r"\*\*|__|(?<!\w)[*|](?=\w)|(?<=\w)[*|](?!\w)"), ""),
    (re.compile(r"\([^()]*+\)"), " "),
    (re.compile(r"\b(?:e\.g\.|i\.e\.|etc\.|see also\b|see :).*", re.I), ""),
    (re.compile(r"[\"“”]"), ""),
    (re.compile(r"[=~^#*+_-]{3,}|…"), " "),
    (re.compile(r"\s+"), " "),
)


def plain(text: str) -> str:
    """Remove markup, text in parentheses, and the full stop from a sentence."""
    for pattern, put in _MARKUP:
        text = pattern.sub(put, text)
    return text.strip().rstrip(".:;,! ").strip()


def said(sentence: str) -> Said | None:
    """Parse a sentence; return None if that fails (no prose, a question, a mere name)."""
    text = _LEADING.sub("", plain(sentence), count=1)
    forbidden, text = _FORBIDDEN.match(text), _FORBIDDEN.sub("", text, count=1)
    predicate = _SUBJECT.sub("", text, count=1) if _SUBJECT.match(text) else text
    text = predicate if verb_of(predicate.partition(" ")[0]) else text
    words = _DOUBLE_VERB.sub("", text, count=1).split()
    if len(words) < 2 or not words[0][:1].isalpha() or text.endswith("?"):
        return None
    verb = verb_of(words[0])
    noun = verb == words[0].lower() and words[1].lower() in _NOUN_FOLLOWS
    if forbidden:
        return Said("avoid", f"{gerund(verb)} {' '.join(words[1:])}") if verb else None
    if verb and not noun and not words[0].lower().endswith("ed"):
        return Said(verb, " ".join(words[1:]))
    if words[0].lower() in ("a", "an", "the"):
        return Said("", " ".join(words[1:]))
    return Said("", lowered(text))


def lowered(text: str) -> str:
    """Return a text with its first letter in lower case, unless the first word is an identifier."""
    first = text.split(" ", 1)[0]
    return text if any(map(str.isupper, first[1:])) or "_" in first else text[:1].lower() + text[1:]


_CLAUSE = re.compile(
    r"(?:,| -+ |;|:|\b(?:so that|such that|which|because|since|unless|although|where|whereas|while|but|note that)\b)",
    re.I,
)
_LOOSE_WORDS = (
    "a an the of to for in on with and or by from as at is are if when that this its be any into it not will can using "
    "than via per was has have you your we"
)
_LOOSE = frozenset(_LOOSE_WORDS.split())
"""Words that cannot end a phrase."""


def shortened(text: str, most: int) -> str:
    """Cut a text to at most `most` words, if possible at the end of a phrase, and never after a preposition."""
    clause = _CLAUSE.split(text, maxsplit=1)[0].strip()
    words = (clause if len(clause.split()) >= 4 else text).split()
    if len(words) > most:
        ends = [
            position
            for position, word in enumerate(words[: most + 1])
            if position >= 4 and word.lower() in word_list("boundaries")
        ]
        words = words[: ends[-1] if ends else most]
    while len(words) > 1 and words[-1].lower() in _LOOSE:
        words.pop()
    return " ".join(words).rstrip(",;:- ")


def main_clause(text: str) -> str:
    """Remove the introduction of a sentence: "If it rains, the whole call fails" is "the whole call fails"."""
    rest = _SUBORDINATE.sub("", text, count=1)
    return rest if len(rest.split()) >= 4 else text


_FINITE = re.compile(
    r"\b(?:is|are|was|were|has|have|had|can|cannot|can't|will|won't|must|should|do|does|don't|doesn't|may|need|needs)\b"
)


def is_clause(text: str) -> bool:
    """Return whether a text is a clause with a finite verb, rather than a noun phrase."""
    return _FINITE.search(text) is not None


_PREPOSITION = re.compile(
    r"\s(?:from|to|for|in|into|on|onto|with|by|as|when|if|using|based|before|after|via|against|at|without|through|during|"
    r"under|until|over|between|according|given|whether|so|and|that|which|containing|used)\s", re.I
)  # fmt: skip


def object_of(rest: str) -> tuple[str, str]:
    """Split the text after a verb into its object and the remainder: "a page", "from the server"."""
    match = _PREPOSITION.search(f" {rest} ")
    return (rest, "") if match is None else (rest[: max(match.start() - 1, 0)].strip(), rest[match.start() :].strip())
