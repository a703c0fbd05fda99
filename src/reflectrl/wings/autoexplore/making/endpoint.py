"""Questions written by a language model that reads the files, one after another."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from itertools import islice

from jinja2 import Environment, StrictUndefined

from reflectrl.endpoints.answers import without_thinking
from reflectrl.endpoints.client import Ask, Endpoint
from reflectrl.endpoints.journal import Cost
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


def _ask(path: str, text: str) -> Ask:
    request = questions_request(path, text, ASKED_AT_ONCE)
    return Ask([{"role": "user", "content": request}], ANSWER_TOKENS, TEMPERATURE)


SHOWN_BYTES = 8 * 1024
"""So much of a file is shown to the model, from its beginning."""
ASKED_AT_ONCE = 4
ANSWER_TOKENS = 600
TEMPERATURE = 0.7
LONGER_THAN = 200
"""Files with fewer bytes are not asked about."""


class EndpointWriter:
    """Writes questions about a repository with the help of a model.

    Args:
        chat: the model. It is sent the path and the beginning of each file that is asked about.
        per_repo: at most so many questions about a repository.
        seed: decides which files are shown.
    """

    def __init__(self, chat: Endpoint, per_repo: int, seed: int) -> None:
        self.chat, self.per_repo, self.seed = chat, per_repo, seed

    def __call__(self, name: str, repository: Repository, licence: str) -> tuple[list[Question], Counter[str]]:
        """Questions about a repository, and why others were refused.

        Raises:
            UserError: the model does not answer.
        """
        rng = random.Random(named_seed("autoexplore-endpoint", self.seed, name))
        judge = Judge(repository, rng)
        kept: list[Draft] = []
        shown = self._shown(repository, rng)
        while len(kept) < self.per_repo and (part := list(islice(shown, self.chat.config.concurrency))):
            for (path, _), answer in zip(part, self.chat.complete_all([_ask(*one) for one in part]), strict=True):
                asked = [judge.judged(Draft(question, path, "llm")) for question in questions_in(answer)]
                kept += [task for task in asked if task is not None][: min(PER_FILE, self.per_repo - len(kept))]
        return as_questions(name, kept, licence), judge.dropped

    def estimate(self, name: str, repository: Repository) -> Cost:
        """About what the questions about a repository will cost at most: if every file has to be asked about."""
        rng = random.Random(named_seed("autoexplore-endpoint", self.seed, name))
        return self.chat.estimate([_ask(path, text) for path, text in self._shown(repository, rng)])

    def _shown(self, repository: Repository, rng: random.Random) -> Iterator[tuple[str, str]]:
        """Files and how they begin, in an order of chance."""
        for path in rng.sample(repository.files, len(repository)):
            found = repository.read(path, SHOWN_BYTES) if repository.size(path) > LONGER_THAN else None
            if isinstance(found, Text):
                yield path, found.text
