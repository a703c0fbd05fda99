"""What a model is asked when it writes questions about a file, and how its answer is read."""

from __future__ import annotations

import re
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from reflectrl.models.endpoint import without_thinking

_NUMBER = re.compile(r"^\s*(?:[-*•]|\(?\d+[.):]|Q\d*[.:])?\s*")


def questions_request(path: str, text: str, count: int) -> str:
    """What a chat model is asked: `count` questions that a file answers, one per line.

    Args:
        path: the file's, from the repository's root.
        text: what it holds, or the beginning of that.
        count: so many are wished for.
    """
    source = files("reflectrl.wings.autoexplore.making").joinpath("questions.j2").read_text(encoding="utf-8")
    return Environment(undefined=StrictUndefined).from_string(source).render(path=path, text=text, count=count)


def questions_in(answer: str) -> list[str]:
    """The lines of an answer that end in a question mark, without numbers, bullets and quotation marks."""
    lines = (_NUMBER.sub("", line, count=1).strip().strip("\"'*") for line in without_thinking(answer).splitlines())
    return [line for line in lines if line.endswith("?")]
