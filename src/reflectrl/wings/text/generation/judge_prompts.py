"""The words that a judge reads when it compares two answers, and how its verdict is read back."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal

from jinja2 import Environment, StrictUndefined

from reflectrl.models.endpoint import without_thinking

Verdict = Literal["first", "second", "tie", "unclear"]
PUNCTUATION = " .*\"'()[]\n"


@lru_cache(maxsize=1)
def _words() -> Any:
    source = files("reflectrl.wings.text.generation").joinpath("judge.j2").read_text(encoding="utf-8")
    return Environment(undefined=StrictUndefined).from_string(source).module


def compare_request(prompt: str, first: str, second: str) -> str:
    """What a judge is asked about two answers to a prompt."""
    return str(_words().compare(prompt.strip(), first.strip(), second.strip()))


NAMED = r"\b(A|B|TIE|Tie|tie)\b"


def read_verdict(answer: str) -> Verdict:
    """Which answer a judge prefers; "unclear" if it does not say.

    Understood are, in this order: a first word that is "A", "B" or "TIE"; such a word alone on the last line; the only
    one of these words in the whole answer.
    """
    said = without_thinking(answer)
    if len(said.strip(PUNCTUATION)) == 1:
        said = said.upper()  # in a sentence, "a" is an article
    lines = said.splitlines() or [""]
    first, last = re.match(rf"\W*{NAMED}\W*(\Z|[.:,\n])", said), re.fullmatch(rf"\W*{NAMED}\W*", lines[-1])
    found = first or last
    named = {found[1]} if found else set(re.findall(NAMED, said))
    if len(named) != 1:
        return "unclear"
    word = named.pop()
    return "first" if word == "A" else "second" if word == "B" else "tie"
