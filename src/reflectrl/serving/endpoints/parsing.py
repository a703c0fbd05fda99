"""Parsing of chat models' answers into actions and reflections: lenient with the form, strict with the content.

An action counts if it is meant: not if it is only mentioned, asked about, denied, or cut off in its middle. What a
model writes after inventing the next observation belongs to no turn of its own, and is not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from reflectrl.serving.endpoints.answers import without_thinking
from reflectrl.serving.endpoints.meaning import (
    affirmed,
    affirmed_matches,
    first_turn,
    folded,
    lines_folded,
    plain_characters,
)

LONGEST = 20_000
"""Largest number of characters of an answer that are parsed. Patterns take too long on megabytes."""
LABEL = r"(?:my |the |so )?(?:(?P<final>final|chosen) )?(?:next |best )?(?:action|choice|answer)(?:\s*\d{1,3})?"
MARKED = re.compile(
    rf"""(?imx)
      ^[^\w\n]*{LABEL.replace(" ", "[ ]")}[^\w\n]*[:=\uff1a][^\S\n]*(?P<line>.*)$  # Action: go north
    | ^>[^\S\n]*(?P<prompt>[^\s>].*)$  # > go north
    | <(?:action|answer|choice)>(?P<tag>.{{0,400}}?)</(?:action|answer|choice)>  # <action>go north</action>
    | [{{,]\s*"(?:next_|final_)?(?:action|choice|answer)"\s*:\s*"(?P<json>(?:[^"\\\n]|\\.)*)"  # {{"action": "left"}}
    """,
)
"""A statement of the action, in one of four forms."""
NEXT_LABEL = re.compile(r"(?<!\s)\s+(?=(?:Observation|Thought|Action|Reason|Reflection)(?:\s*\d{1,3})?\s*:)")
"""A label within a line, where a model writes several steps without line breaks."""
INVENTED = re.compile(
    r"(?im)^[^\w\n]*(?:(?:new |next |current )?(?:observation|obs|state)|environment|env|user|human|system|result"
    r"|feedback|output|game|tool)(?:\s*\d{1,3})?[^\w\n]*[:\uff1a]|^#{2,}\s*(?:user|human|instruction|input)\b"
)
"""Beginning of a turn of somebody else. After a stated action, it is an invention of the model."""
THOUGHT_AGAIN = re.compile(
    r"(?im)^[^\w\n]*(?:thought|step|reason|reasoning|reflection|plan)\b(?:\s*\d{1,3})?[^\w\n]*[:\uff1a]"
)
CORRECTED = re.compile(
    r"(?i)\b(?:wait|no,|no\.|no!|actually|correction|instead|second thoughts?|mistake|scratch that|sorry|oops"
    r"|reconsider\w*|i mean|i change|let me change|let me correct)"
)
"""Words with which a model takes back the action that it has stated."""
DOUBTED = re.compile(r"(?i)\b(?:would|wrong|bad|better|rather|however)\b|\bbut\b|n[o\u2019']t\b")
"""Words that take an action back if no label between two statements shows that the second is a later step."""
REFLECTED = re.compile(r"(?is)\breflection\W*:[\s*_]*(.+?)(?=\n[^\w\n]*+(?:action|choice)[^\w\n]*[:=]|\Z)")
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
PREFERENCE: dict[Verdict, float | None] = {"first": 1.0, "second": 0.0, "tie": 0.5, "unclear": None}
"""Preference for the text that was shown first, by verdict. An unclear one is no tie, and is left out."""
VERDICTS: dict[str, Verdict] = {"A": "first", "B": "second", "TIE": "tie"}
VERDICT = r"\b(A|B|TIE|Tie|tie)\b"
LABELLED_VERDICT = re.compile(
    r"(?im)^[^\w\n]*(?:(?:final|my|overall) )*(?:verdict|winner|preference|judge?ment|decision|answer|choice)"
    r"[^\w:=]*+[:=]\W*+(?:(?:answer|attempt|text|response|option) )?(A|B|TIE)\W*$|\[\[(A|B|TIE)\]\]"
)
"""A verdict after a label, or in the form of MT-Bench."""
OPENING_VERDICT = re.compile(rf"\W*{VERDICT}\W*?(?:\Z|[.:\n]|,(?!\W*[AB]\b))")
FREE_VERDICT = re.compile(
    r"\bA\b(?!\s+(?!(?:is|was|wins?|has|does|seems|reads|sounds|looks|and|or|over|because|since|for|by|as|than|better)\b)[a-z])"
    r"|\bB\b|\b(?:TIE|Tie|tie)\b"
)
"""A verdict in a sentence, in which "A" may also be an article."""
PUNCTUATION = " .*\"'()[]\n"
PROMPT_WORDS = re.compile(r"(?im)^[^\w\n]*+(actions|legal actions|choice|action)\W*:")


# ---- actions ---------------------------------------------------------------------------------------------------------


class Statement(NamedTuple):
    """A statement of an action in an answer.

    Attributes:
        text: the words after the label.
        start, end: position of the statement in the answer.
        final: True if the label says that it is the final one.
    """

    text: str
    start: int
    end: int
    final: bool


def own_words(answer: str) -> str:
    """Return what a model says in its own turn: no thinking, and nothing after an observation that it has invented."""
    said = first_turn(without_thinking(answer))
    for excerpt in (said[:LONGEST], said[-LONGEST:]):
        visible = NEXT_LABEL.sub("\n", excerpt)
        statement = next(statements(visible), None)
        invention = INVENTED.search(visible, statement.end) if statement else None
        if invention:
            return visible[: invention.start()]
    return visible


def statements(text: str) -> Iterator[Statement]:
    """Yield the statements of actions in a text, in order."""
    for match in MARKED.finditer(text):
        words, end = next(filter(None, (match["line"], match["prompt"], match["tag"], match["json"])), ""), match.end()
        if match["line"] is not None and not re.search(r"\w", words):
            below = re.compile(r"[^\w\n]*\n(?:[^\w\n]*\n)*([^\n]*)").match(text, match.end())
            if below and not MARKED.match(below[1]) and not re.match(r"\W*\w[\w ]{0,20}[:\uff1a]", below[1]):
                words, end = below[1], below.end()
        yield Statement(words, match.start(), end, bool(match["final"]))


def read_action(answer: str, actions: Sequence[str], cut: bool = False) -> int | None:
    """Return the index of the action that an answer means; None if it means none, or several.

    A stated action ("Action: go north") decides. Without one, the whole answer or its last line may be an action, or
    the answer may affirm exactly one. Of several stated actions, the first is meant, unless the model takes it back or
    calls a later one final.

    Args:
        cut: True if the answer ended at its largest length. Then its last words may be a part of longer ones.
    """
    visible = own_words(answer)
    names = [folded(action) for action in actions]
    stated = list(statements(visible)) or _bare_lines(visible, actions, names)
    ends_open = cut and not answer.endswith("\n")
    meant = _of_statements(visible, stated, actions, names, ends_open)
    if meant is not None:
        return meant
    lines = [line for line in visible.splitlines() if line.strip()]
    for text in (visible, *lines[-1:]):
        if (same := _same(text, actions, names)) is not None and not (ends_open and _may_go_on(text, same, names)):
            return same
    if stated or cut:
        return None
    return next((hit for text in (visible, *lines[-1:]) if (hit := _mentioned(text, names)) is not None), None)


def _bare_lines(text: str, actions: Sequence[str], names: Sequence[str]) -> list[Statement]:
    """Return the lines that equal an action as statements, if the first line does. Else they may list the options."""
    lines = []
    for match in re.finditer(r"[^\n]+", text):
        if re.search(r"\w", match[0]):
            lines.append(Statement(match[0], match.start(), match.end(), False))
    bare = [line for line in lines if _same(line.text, actions, names) is not None]
    return bare if lines[:1] == bare[:1] else []


def _of_statements(
    visible: str, stated: Sequence[Statement], actions: Sequence[str], names: Sequence[str], ends_open: bool
) -> int | None:
    """Return the action that an answer's statements mean; None if they mean none."""
    meant: list[tuple[Statement, int]] = []
    for statement in stated:
        index = _same(statement.text, actions, names)
        at_the_end = ends_open and not visible[statement.end :].strip(" ")
        if index is None and not at_the_end:
            index = _mentioned(statement.text, names)
        if index is not None and not (at_the_end and _may_go_on(statement.text, index, names)):
            meant.append((statement, index))
    if not meant:
        return None
    if final := [index for statement, index in meant if statement.final]:
        return final[-1]
    current, choice = meant[0]
    for statement, index in meant[1:]:
        between = visible[current.end : statement.start]
        doubts = (CORRECTED,) if THOUGHT_AGAIN.search(between) else (CORRECTED, DOUBTED)
        if index == choice or any(pattern.search(between) for pattern in doubts):
            current, choice = statement, index
    taken_back = CORRECTED.search(visible, current.end) and current is meant[-1][0]
    return None if taken_back else choice


def _same(text: str, actions: Sequence[str], names: Sequence[str]) -> int | None:
    """Return the index of the action that a text equals: literally, or after normalisation. None if it is ambiguous."""
    if text.strip() in actions:
        return list(actions).index(text.strip())
    same = [i for i, name in enumerate(names) if name == folded(text)]
    return same[0] if len(same) == 1 else None


def _may_go_on(text: str, index: int, names: Sequence[str]) -> bool:
    """Return whether a text that was cut off may be the beginning of another action."""
    ends_open = bool(re.search(r"[\w'-]\Z", text))
    return ends_open and any(i != index and name.startswith(names[index]) for i, name in enumerate(names))


def _mentioned(text: str, names: Sequence[str]) -> int | None:
    """Return the only action that a text affirms; None if it affirms none, or several."""
    hits = affirmed(lines_folded(text), names)
    indices = [i for i, name in enumerate(names) if name in hits]
    return indices[0] if len(indices) == 1 else None


def _occurs(words: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text) is not None


# ---- verdicts --------------------------------------------------------------------------------------------------------


def read_verdict(answer: str, cut: bool = False) -> Verdict:
    """Return the judge's preference: "first", "second", "tie", or "unclear" if it does not say.

    Four forms are tried in this order: the word alone; after a label ("Verdict: A", "[[A]]"); as the first word, or
    alone on the last line; as the only one of the words in the whole answer. A word that is denied does not count.

    Args:
        cut: True if the answer ended at its largest length. Then the whole answer is not searched for words.
    """
    visible = plain_characters(first_turn(without_thinking(answer))[-LONGEST:])
    if len(visible.strip(PUNCTUATION)) == 1:
        visible = visible.upper()  # in a sentence, "a" is an article
    labelled = {match[1] or match[2] for match in LABELLED_VERDICT.finditer(visible)}
    if not labelled:
        lines = visible.splitlines() or [""]
        about_both = all(re.search(rf"(?m)^[^\w\n]*{letter}[^\w\n]*:[^\S\n]*\S", visible) for letter in "AB")
        first = None if about_both else OPENING_VERDICT.match(visible)
        last = re.fullmatch(rf"\W*{VERDICT}\W*", lines[-1])
        labelled = {match[1] for match in (first, last) if match}
    if not labelled and not cut:
        labelled = set(affirmed_matches(visible, FREE_VERDICT))
    words = {word.upper() for word in labelled}
    return VERDICTS[words.pop()] if len(words) == 1 else "unclear"


# ---- reflections -----------------------------------------------------------------------------------------------------


def read_reflection(answer: str) -> str:
    """Return an answer's reflection on one line: the text after "Reflection:", or all but the action; "" if none."""
    visible = own_words(answer)
    match = REFLECTED.search(visible)
    text = match[1] if match else MARKED.sub("", visible)
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def whole_sentences(reflection: str) -> str:
    """Return a reflection that was cut off without its last sentence, if it has others."""
    match = re.match(r".*[.!?](?=\s|\Z)", reflection)
    return match[0] if match else reflection


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
    if best and leak == "action" and _occurs(folded(best), folded(reflection)):
        return "the reflection names the action"
    return None
