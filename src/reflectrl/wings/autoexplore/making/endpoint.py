"""Questions written by a language model that reads the files, one after another."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Protocol

from jinja2 import Environment, StrictUndefined

from reflectrl.models.endpoint import without_thinking
from reflectrl.types import named_seed
from reflectrl.wings.autoexplore.making.tasks import PER_FILE, Draft, Judge, as_questions
from reflectrl.wings.autoexplore.questions import Question
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.texts import Text

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


SHOWN_BYTES = 8 * 1024
"""So much of a file is shown to the model, from its beginning."""
ASKED_AT_ONCE = 4
ANSWER_TOKENS = 600
TEMPERATURE = 0.7
LONGER_THAN = 200
"""Files with fewer bytes are not asked about."""


class Chat(Protocol):
    """What answers: `reflectrl.models.endpoint.Endpoint`, or a stand-in."""

    def complete(self, messages: Sequence[dict[str, str]], max_tokens: int, temperature: float) -> str:
        """The answer to a conversation; UserError if there is none."""


class Remembered:
    """A model whose answers are kept in a file, so that the same command goes on where it was interrupted.

    Args:
        chat: the model.
        model: its name; another model's answers are not taken for its own.
        path: the file, a line of JSON per answer. A line that an interruption cut off counts for nothing.
    """

    def __init__(self, chat: Chat, model: str, path: Path) -> None:
        self._chat, self._model, self._path = chat, model, path
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        self._known = {row["request"]: row["answer"] for row in map(_row, lines) if row}

    def complete(self, messages: Sequence[dict[str, str]], max_tokens: int, temperature: float) -> str:
        """As the model's: its answer to this conversation, from the file if it is there."""
        request = json.dumps([self._model, list(messages), max_tokens, temperature])
        key = hashlib.sha256(request.encode()).hexdigest()
        if key not in self._known:
            self._known[key] = self._chat.complete(messages, max_tokens, temperature)
            with self._path.open("a", encoding="utf-8") as file:
                written = self._path.read_bytes()
                if written and not written.endswith(b"\n"):  # an interruption cut the last line off
                    file.write("\n")
                file.write(json.dumps({"request": key, "answer": self._known[key]}) + "\n")
        return self._known[key]


def _row(line: str) -> dict[str, str]:
    """A line of the file; nothing if it is none."""
    try:
        row = json.loads(line)
        return row if isinstance(row, dict) and {"request", "answer"} <= set(row) else {}
    except ValueError:
        return {}


class EndpointWriter:
    """Writes questions about a repository with the help of a model.

    Args:
        chat: the model. It is sent the path and the beginning of each file that is asked about.
        per_repo: at most so many questions about a repository.
        seed: decides which files are shown.
    """

    def __init__(self, chat: Chat, per_repo: int, seed: int) -> None:
        self.chat, self.per_repo, self.seed = chat, per_repo, seed

    def __call__(self, name: str, repository: Repository, licence: str) -> tuple[list[Question], Counter[str]]:
        """Questions about a repository, and why others were refused.

        Raises:
            UserError: the model does not answer.
        """
        rng = random.Random(named_seed("autoexplore-endpoint", self.seed, name))
        judge = Judge(repository, rng)
        kept: list[Draft] = []
        for path, text in self._shown(repository, rng):
            request = questions_request(path, text, ASKED_AT_ONCE)
            answer = self.chat.complete([{"role": "user", "content": request}], ANSWER_TOKENS, TEMPERATURE)
            asked = [judge.judged(Draft(question, path, "llm")) for question in questions_in(answer)]
            kept += [task for task in asked if task is not None][: min(PER_FILE, self.per_repo - len(kept))]
            if len(kept) == self.per_repo:
                break
        return as_questions(name, kept, licence), judge.dropped

    def _shown(self, repository: Repository, rng: random.Random) -> Iterator[tuple[str, str]]:
        """Files and how they begin, in an order of chance."""
        for path in rng.sample(repository.files, len(repository)):
            found = repository.read(path, SHOWN_BYTES) if repository.size(path) > LONGER_THAN else None
            if isinstance(found, Text):
                yield path, found.text
