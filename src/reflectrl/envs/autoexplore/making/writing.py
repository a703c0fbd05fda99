"""Questions about a repository, written without any language model."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

from reflectrl.envs.autoexplore.making.asking import Asker
from reflectrl.envs.autoexplore.making.tasks import Draft, Judge, taken_in_turn
from reflectrl.envs.autoexplore.making.topics import Topic, topics
from reflectrl.envs.autoexplore.questions import Question
from reflectrl.envs.autoexplore.repository import Repository
from reflectrl.envs.autoexplore.texts import Text
from reflectrl.types import named_seed

PER_REPO = 300
PER_FILE = 8
TOPICS_PER_FILE = 40
"""So many topics of a file are drawn and asked about; most questions are not taken."""


def write_questions_about(
    name: str, repository: Repository, licence: str, seed: int = 0, per_repo: int = PER_REPO
) -> tuple[list[Question], Counter[str]]:
    """Questions about a repository, the same ones for the same files and seed.

    Args:
        name: the repository's name in the library.
        repository: its files.
        licence: kept with each question.
        seed: for everything that is drawn.
        per_repo: at most so many.

    Returns:
        The questions, sorted by path of the answer; and reason → how many drafts were refused for it.
    """
    rng = random.Random(named_seed("autoexplore-questions", seed, name))
    judge = Judge(repository, rng)
    kept = taken_in_turn(_drafts(repository, rng), per_repo, PER_FILE, judge, rng)
    return as_questions(name, kept, licence), judge.dropped


def as_questions(name: str, drafts: list[Draft], licence: str) -> list[Question]:
    """Drafts as questions, numbered in the order of the files that answer them."""
    ordered = sorted(drafts, key=lambda draft: (draft.path, draft.question))
    return [
        Question(f"{name}-{number}", name, draft.question, (draft.path,), draft.source, licence)
        for number, draft in enumerate(ordered)
    ]


def _drafts(repository: Repository, rng: random.Random) -> Iterator[Draft]:
    asker = Asker(rng)
    for topic in _drawn(repository, rng):
        asked = asker.ask(topic)
        if asked is not None:
            yield Draft(asked[0], topic.path, topic.source, asked[1])


def _drawn(repository: Repository, rng: random.Random) -> Iterator[Topic]:
    """Some topics of every file, without what several files say in the same words."""
    found = {path: _topics(repository, path) for path in repository}
    files_saying = Counter(told for each in found.values() for told in {topic.told for topic in each if topic.told})
    for each in found.values():
        own = [topic for topic in each if files_saying[topic.told] <= 1]
        yield from rng.sample(own, min(len(own), TOPICS_PER_FILE))


def _topics(repository: Repository, path: str) -> list[Topic]:
    text = repository.read(path)
    return topics(path, text.text) if isinstance(text, Text) else []
