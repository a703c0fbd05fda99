"""Parsing of chat models' answers into actions and reflections: lenient with the form, strict with the content."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from reflectrl.serving.endpoints.answers import without_thinking

LONGEST = 20_000
"""Largest number of characters of an answer that are parsed. Patterns take too long on megabytes."""
MARKED = re.compile(r"(?im)^[^\w\n]*(?:next |final |my |chosen )?(?:action|choice|answer)\W*[:=]\s*(.+)$")
REFLECTED = re.compile(r"(?is)\breflection\W*:[\s*_]*(.+?)(?=\n[^\w\n]*+(?:action|choice)\W*[:=]|\Z)")
TOLD = re.compile(
    r"(?i)\bhint(s|ed)?\b|\b(was|were|am|been|being) (told|given|informed|instructed)\b|\byou (told|gave|said)\b"
    r"|\baccording to (the )?(expert|teacher|instruction|solution)|\b(expert|teacher|oracle|ground.truth)\b"
    r"|\bthe (correct|optimal|best|right|known|given|provided) (next )?(action|move|answer|choice)( now| here| next)?"
    r" (is|was|would be)\b"
    r"|\bwrite (the|a) reflection\b|\b(somebody|someone) who does not know\b"
    r"|\b(provided|given|specified|as) (best|optimal|correct) action\b|\bfor (you|me) alone\b|\bas an ai\b"
)
"""Words by which a reflection gives away that its author knew the best action, or repeats the instructions."""
Verdict = Literal["first", "second", "tie", "unclear"]
"""Answers of a judge that compares two texts, A and B."""
PREFERENCE: dict[Verdict, float] = {"first": 1.0, "second": 0.0, "tie": 0.5, "unclear": 0.5}
"""Preference for the text that was shown first, by verdict."""
VERDICT = r"\b(A|B|TIE|Tie|tie)\b"
PUNCTUATION = " .*\"'()[]\n"
PROMPT_WORDS = re.compile(r"(?im)^[^\w\n]*+(actions|legal actions|choice|action)\W*:")


def plain(text: str) -> str:
    """Normalise a text to compare actions: lower case, single spaces, no quotes, markup or full stops around."""
    return re.sub(r"\s+", " ", text).strip(" \t\n.,;:!\"'`*_<>[](){}").casefold()


def read_action(answer: str, actions: Sequence[str]) -> int | None:
    """Return the index of the action that an answer names; None if it names none, or several.

    Three parts are searched, in this order: the text after the last "Action:", the whole answer, and its last line. A
    part that equals an action decides; if there is none, the first part that mentions exactly one action does. The
    model's thoughts in <think> tags do not count.
    """
    visible = without_thinking(answer)[-LONGEST:]
    lines = [line for line in visible.splitlines() if line.strip()]
    parts = [*[hit[1] for hit in MARKED.finditer(visible)][-1:], visible, *lines[-1:]]
    for part in parts:
        if part.strip() in actions:
            return list(actions).index(part.strip())
        same = [i for i, action in enumerate(actions) if plain(action) == plain(part)]
        if len(same) == 1:
            return same[0]
    return next((hit for part in parts if (hit := _mentioned(plain(part), actions)) is not None), None)


def _mentioned(text: str, actions: Sequence[str]) -> int | None:
    """Return the longest action that occurs in a text; None if none does, or another one occurs outside of it."""
    mentioned = [i for i, action in enumerate(actions) if plain(action) and _occurs(plain(action), text)]
    longest = max(mentioned, key=lambda i: len(plain(actions[i])), default=None)
    if longest is None:
        return None
    rest = text.replace(plain(actions[longest]), " ")
    others = [
        i
        for i in mentioned
        if i != longest and (_occurs(plain(actions[i]), rest) or plain(actions[i]) == plain(actions[longest]))
    ]
    return None if others else longest


def _occurs(words: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text) is not None


def read_verdict(answer: str) -> Verdict:
    """Return the judge's preference: "first", "second", "tie", or "unclear" if it does not say.

    Three forms are tried in this order: the first word is "A", "B" or "TIE"; such a word stands alone on the last line;
    only one of these words occurs in the whole answer.
    """
    visible = without_thinking(answer)
    if len(visible.strip(PUNCTUATION)) == 1:
        visible = visible.upper()  # in a sentence, "a" is an article
    lines = visible.splitlines() or [""]
    first, last = re.match(rf"\W*{VERDICT}\W*(\Z|[.:,\n])", visible), re.fullmatch(rf"\W*{VERDICT}\W*", lines[-1])
    match = first or last
    named = {match[1]} if match else set(re.findall(VERDICT, visible))
    if len(named) != 1:
        return "unclear"
    word = named.pop()
    return "first" if word == "A" else "second" if word == "B" else "tie"


def read_reflection(answer: str) -> str:
    """Return an answer's reflection on one line: the text after "Reflection:", or all but the action; "" if none."""
    visible = without_thinking(answer)[:LONGEST]
    match = REFLECTED.search(visible)
    text = match[1] if match else MARKED.sub("", visible)
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def problem_of(reflection: str, longest: int, leak: Literal["source", "action"], best: str = "") -> str | None:
    """Return why a reflection cannot be taught, in words for its author; None if it can.

    Args:
        longest: largest number of characters.
        leak: "source" lets it name the best action, "action" does not.
        best: the best action, if its author knew it.
    """
    if not reflection:
        return "there is no reflection"
    if len(reflection) > longest:
        return f"the reflection is longer than {longest} characters"
    if PROMPT_WORDS.search(reflection):
        return "the reflection holds a list of actions or a choice"
    if best and TOLD.search(reflection):
        return "the reflection gives away that the best action was known"
    if best and leak == "action" and _occurs(plain(best), plain(reflection)):
        return "the reflection names the action"
    return None
