"""Meaning of chat models' words: the model's own turn, and the phrases that it affirms.

A phrase that is only mentioned, asked about or denied is not affirmed. English only. Where a sentence is too involved
for these rules, nothing is affirmed, and a player asks the model again.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

LOOKS_OF = {
    "'": "\u2018\u2019\u201a\u201b\u2032\u2035\u02b9\u02bb\u02bc\u02bd\u02c8\u00b4`\u055a\u05f3\ua78c",
    '"': "\u201c\u201d\u201e\u201f\u2033\u2036\u00ab\u00bb\u2039\u203a\u05f4\u300c\u300d\u300e\u300f\u301d\u301e\u301f",
    "-": "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u2043\u02d7\u058a\u05be\u1806\u2e3a\u2e3b\u30a0",
    ",": "\u3001\u060c",
    ".": "\u3002",
    "/": "\u2044\u2215",
}
"""Characters that word processors and chat models write in place of a plain one. NFKC joins further ones."""
SHAPELESS = re.compile("[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufe00-\ufe0f\ufeff]")
"""Characters without a shape: soft hyphens, joiners, directions and variants."""
LOOKALIKES = str.maketrans({look: plain for plain, looks in LOOKS_OF.items() for look in looks})
EDGES = " \t\n.,;:!\"'`*_<>[](){}"
"""Characters around an action that do not belong to it: quotes, markup and full stops."""


def plain_characters(text: str) -> str:
    """Return a text with one form of quotes, hyphens, widths and composed characters."""
    # Looks are replaced before and after NFKC, which turns some of them into a space and an accent.
    text = unicodedata.normalize("NFKC", SHAPELESS.sub("", text).translate(LOOKALIKES))
    return text.translate(LOOKALIKES)


def lines_folded(text: str) -> str:
    """Normalise a text line by line: lower case, single spaces, and the same characters for the same looks."""
    text = unicodedata.normalize("NFKC", plain_characters(text).casefold())
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


def folded(text: str) -> str:
    """Normalise a text to compare actions: as `lines_folded`, on one line, without quotes and markup around it."""
    return " ".join(lines_folded(text).split()).strip(EDGES)


# ---- the model's own turn --------------------------------------------------------------------------------------------

CONTROL = re.compile(r"<\|[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|</?s>|<(?:start|end)_of_turn>|\[/?INST\]")
"""Special tokens of chat templates, which some servers return as text when a model does not stop after its turn."""
ROLE = re.compile(r"\s*(assistant|model|user|system|tool|observation|human)\s*(?:\n|\Z)")


def first_turn(text: str) -> str:
    """Return what the model says in its own turn, without turns of others that it has invented after it."""
    if not CONTROL.search(text):
        return text
    speaker = "assistant"
    for segment in CONTROL.split(text):
        role = ROLE.match(segment)
        if role:
            speaker, segment = role[1], segment[role.end() :]  # noqa: PLW2901
        if segment.strip() and speaker in ("assistant", "model"):
            return segment
    return ""


# ---- affirmed, mentioned or denied -----------------------------------------------------------------------------------

BOUNDARY = re.compile(
    r"[.;:!?\n]+(?=\s|\Z)|,|\s(?:-|--)\s|\b(?:but|so|then|instead(?! of)|therefore|thus|hence|however)\b"
)
"""End of a clause. A negation in one clause does not deny what the next one says."""
DENIED_BEFORE = re.compile(
    r"n't\b|\b(?:not|never|cannot|cant|dont|wont|shouldnt|avoid\w*|without|instead of|rather than|no longer|neither|nor"
    r"|refus\w+|unable|against|except|stop|nothing|unsure|unclear|illegal|impossible|wrong|bad|forbidden)\b"
)
"""Words that deny a phrase that follows them in the same clause."""
MENTIONED_BEFORE = re.compile(
    r"\b(?:if|unless|until|whether|before|after|when|once|because|since|although|while|already|tried|trying|previous\w*"
    r"|earlier|last time|such as|for example|could|might|perhaps|maybe|consider\w*)\b"
)
"""Words after which a phrase is a condition, a reason, a memory or a possibility."""
DENIED_AFTER = re.compile(
    r"""(?:'s\s\w+)?["'*_`)\]]*+\s*+(?:
        (?:is|was|are|does|do|did|has|have|can|could|would|will|should|must|may|might|seems?|looks?)
        \s*+(?:n't|not\b|never\b|no\b|be\b(?:\s++\w++)?)?\s*+(?:a\s++|an\s++|the\s++|too\s++|very\s++|so\s++)?
        (?:wrong|bad|worse|useless|pointless|illegal|impossible|dangerous|risky|fatal|mistake|unsafe|blocked|fail\w*|lose\w*
           |lead\w*\s+(?:nowhere|away)|hit\w*|crash\w*)\b
      | (?:is|was|are|does|do|did|has|have|can|could|would|will|should|must|may|might)\s*+(?:n't|not|never)\b
      | cannot\b
      | (?:fails|failed|loses|hits|leads\s+(?:nowhere|away|astray))\b
    )""",
    re.VERBOSE,
)
"""Continuation of a clause that speaks against the phrase before it."""
LISTED = re.compile(r"\W*(?:and|or|nor)?\W*")
"""Text between two phrases of a list."""
CONTEXT = 240
"""Largest number of characters of a sentence that are read on each side of a phrase."""
MARK = "\ue000"
"""Stand-in for a phrase while its sentence is read, so that punctuation within the phrase ends no clause."""


def affirmed(text: str, phrases: Sequence[str]) -> set[str]:
    """Return the phrases that a text affirms. Where several overlap, the longest counts.

    Args:
        text: a text after `lines_folded`.
        phrases: phrases after `folded`.
    """
    ordered = sorted({phrase for phrase in phrases if phrase}, key=len, reverse=True)
    if not ordered:
        return set()
    words = "|".join(re.escape(phrase).replace(r"\ ", r"\s+") for phrase in ordered)
    hits = affirmed_matches(text, re.compile(rf"(?<!\w)(?:{words})(?!\w)"))
    return {" ".join(hit.split()) for hit in hits}


def affirmed_matches(text: str, pattern: re.Pattern[str]) -> list[str]:
    """Return the parts of a text that match a pattern and are affirmed."""
    text = text.replace(MARK, " ")
    hits = [match[0] for match in pattern.finditer(text)]
    marked = pattern.sub(MARK, text).lower()
    positions = [i for i, character in enumerate(marked) if character == MARK]
    return [hit for hit, at in zip(hits, positions, strict=True) if _is_affirmed(marked, at)]


def _is_affirmed(text: str, at: int) -> bool:
    """Return whether the clause around a stand-in neither denies it nor only mentions it."""
    before, after = text[max(0, at - CONTEXT) : at], text[at + 1 : at + 1 + CONTEXT]
    clause = BOUNDARY.split(before)[-1]
    # A negation before an earlier phrase holds for this one only if the two are listed: "neither left nor right".
    _, earlier, between = clause.rpartition(MARK)
    if earlier and not LISTED.fullmatch(between):
        clause = between
    is_question = re.match(r"[^.;!?\n]*\?", after)
    return not (
        is_question or DENIED_BEFORE.search(clause) or MENTIONED_BEFORE.search(clause) or DENIED_AFTER.match(after)
    )
