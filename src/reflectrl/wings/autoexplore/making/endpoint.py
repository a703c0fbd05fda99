"""Questions written by a language model that reads the files one by one."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from pathlib import Path

from jinja2 import Environment, meta

from reflectrl.core.plugins import one_line, reason
from reflectrl.core.prompts.rendering import render_file
from reflectrl.core.regular_files import read_regular
from reflectrl.core.types import UserError, named_seed
from reflectrl.serving.endpoints.answers import without_thinking
from reflectrl.serving.endpoints.client import Ask, Endpoint
from reflectrl.serving.endpoints.journal import Cost
from reflectrl.wings.autoexplore.making.dropped import Dropped
from reflectrl.wings.autoexplore.making.tasks import PER_FILE, Draft, DraftFilter, as_questions, dropped_drafts
from reflectrl.wings.autoexplore.questions import Question
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.texts import Text

_NUMBER = re.compile(r"^\s*(?:[-*•]|\(?\d+[.):]|Q\d*[.:])?\s*")


@dataclass(frozen=True)
class QuestionPrompt:
    """Prompt that asks a chat model for questions that a file answers, one per line.

    Attributes:
        source: Jinja template. Its variables are `path` (from the repository's root), `text` (of the file, or its
            beginning) and `count` (number of questions).
        name: its file, for messages.
    """

    source: str
    name: str = "questions.j2"

    @property
    def sha256(self) -> str:
        """Return the hash of the template."""
        return hashlib.sha256(self.source.encode("utf-8")).hexdigest()

    def render(self, path: str, text: str, count: int) -> str:
        """Render the prompt about a file.

        Raises:
            UserError: the template has an error, or another variable.
        """
        try:
            return render_file(self.source, path=path, text=text, count=count)
        except Exception as error:  # a template is a program, so any kind is possible
            raise UserError(f"{self.name}: the template cannot be rendered: {one_line(error)}") from error


def built_in_prompt() -> QuestionPrompt:
    """Return the prompt that is used where no other is named."""
    source = files("reflectrl.wings.autoexplore.making").joinpath("questions.j2")
    return QuestionPrompt(source.read_text(encoding="utf-8"))


def read_prompt(path: Path) -> QuestionPrompt:
    """Read a prompt from a user's file.

    Raises:
        UserError: the file cannot be read or is no template, the variable `text` is missing, or another is unknown.
    """
    try:
        source = read_regular(path).decode("utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {reason(error)}") from error
    prompt = QuestionPrompt(source, str(path))
    prompt.render("a.py", "x = 1\n", 1)  # so that a mistake is found before anything is sent
    if "text" not in meta.find_undeclared_variables(Environment().parse(source)):
        raise UserError(f"{path}: the template lacks {{{{ text }}}}, so the model would not see the file")
    return prompt


def questions_in(answer: str) -> list[str]:
    """Return the lines of a completion that end in a question mark, without numbers, bullets and quotation marks."""
    lines = (_NUMBER.sub("", line, count=1).strip().strip("\"'*") for line in without_thinking(answer).splitlines())
    return [line for line in lines if line.endswith("?")]


SHOWN_BYTES = 8 * 1024
"""Largest part of a file that is sent to the model, from its beginning."""
ASKED_AT_ONCE = 4
ANSWER_TOKENS = 600
TEMPERATURE = 0.7
BEYOND = "beyond the largest number per file or repository"
LONGER_THAN = 200
"""Largest size in bytes of a file that is skipped."""


class EndpointWriter:
    """Writer of questions about a repository that uses a language model.

    Args:
        chat: endpoint of the model, which is sent the path and the beginning of each chosen file.
        per_repo: largest number of questions about a repository.
        seed: seed of the choice of files.
        prompt: prompt that asks for the questions.
    """

    def __init__(self, chat: Endpoint, per_repo: int, seed: int, prompt: QuestionPrompt) -> None:
        self.chat, self.per_repo, self.seed, self.prompt = chat, per_repo, seed, prompt

    def __call__(self, name: str, repository: Repository, licence: str) -> tuple[list[Question], list[Dropped]]:
        """Write questions about a repository.

        Returns:
            The questions; and the answers without a question, the refused drafts, and those beyond a limit.

        Raises:
            UserError: the model does not answer.
        """
        rng = random.Random(named_seed("autoexplore-endpoint", self.seed, name))
        draft_filter = DraftFilter(repository, rng)
        tasks: list[Draft] = []
        unused: list[Dropped] = []
        excerpts = self._shown(repository, rng)
        while len(tasks) < self.per_repo and (batch := list(islice(excerpts, self.chat.config.concurrency))):
            for (path, _), answer in zip(
                batch, self.chat.complete_all([self._ask(*excerpt) for excerpt in batch]), strict=True
            ):
                asked = questions_in(answer)
                if not asked:
                    unused.append(Dropped(f"{name}:{path}", "questions", "the model's answer holds no question"))
                drafts = [draft_filter.accepted(Draft(question, path, "llm")) for question in asked]
                accepted = [draft for draft in drafts if draft is not None]
                most = min(PER_FILE, self.per_repo - len(tasks))
                tasks += accepted[:most]
                unused += dropped_drafts(name, [(draft, BEYOND) for draft in accepted[most:]])
        return as_questions(name, tasks, licence), unused + dropped_drafts(name, draft_filter.dropped)

    def estimate(self, name: str, repository: Repository) -> Cost:
        """Estimate the largest cost of the questions about a repository: a request for every file."""
        rng = random.Random(named_seed("autoexplore-endpoint", self.seed, name))
        return self.chat.estimate([self._ask(path, text) for path, text in self._shown(repository, rng)])

    def _ask(self, path: str, text: str) -> Ask:
        request = self.prompt.render(path, text, ASKED_AT_ONCE)
        return Ask([{"role": "user", "content": request}], ANSWER_TOKENS, TEMPERATURE)

    def _shown(self, repository: Repository, rng: random.Random) -> Iterator[tuple[str, str]]:
        """Yield path and beginning of the files in random order."""
        for path in rng.sample(repository.files, len(repository)):
            content = repository.read(path, SHOWN_BYTES) if repository.size(path) > LONGER_THAN else None
            if isinstance(content, Text):
                yield path, content.text
