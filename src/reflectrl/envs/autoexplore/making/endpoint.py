"""Questions written by a language model that reads the files, one after another."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

from reflectrl.envs.autoexplore.making.tasks import Draft, Judge
from reflectrl.envs.autoexplore.making.writing import PER_FILE, as_questions
from reflectrl.envs.autoexplore.questions import Question
from reflectrl.envs.autoexplore.repository import Repository
from reflectrl.envs.autoexplore.texts import Text
from reflectrl.prompts.questions import questions_in, questions_request
from reflectrl.types import named_seed

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
            asked = [judge.judged(Draft(question, path, "llm")) for question in self._ask(path, text)]
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

    def _ask(self, path: str, text: str) -> list[str]:
        request = questions_request(path, text, ASKED_AT_ONCE)
        return questions_in(self.chat.complete([{"role": "user", "content": request}], ANSWER_TOKENS, TEMPERATURE))
