"""Questions about a repository, written without any language model."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator

from reflectrl.types import named_seed
from reflectrl.wings.autoexplore.making.asking import Asker
from reflectrl.wings.autoexplore.making.tasks import Draft, Judge, taken_in_turn
from reflectrl.wings.autoexplore.making.topics import Topic, topics
from reflectrl.wings.autoexplore.questions import Question
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.texts import Text

PER_REPO = 300
PER_FILE = 8
TOPICS_PER_FILE = 40
"""So many topics of a file are drawn, and asked about until enough questions are taken."""
_WEIGHTS = {"docs": 0.45, "header": 0.15}
"""How often documentation and data files use their turn, so that most questions are about code."""


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
    drawn = _drawn(repository, rng)
    weights = {path: _WEIGHTS.get(found[0].source, 1.0) for path, found in drawn.items() if found}
    asker = Asker(rng)

    def drafts_of(found: Iterable[Topic]) -> Iterator[Draft]:
        for topic in found:
            if (question := asker.ask(topic)) is not None:
                yield Draft(question, topic.path, topic.source)

    drafts = {path: drafts_of(found) for path, found in drawn.items() if found}
    kept = taken_in_turn(drafts, weights, per_repo, PER_FILE, judge)
    return as_questions(name, kept, licence), judge.dropped


def as_questions(name: str, drafts: list[Draft], licence: str) -> list[Question]:
    """Drafts as questions, numbered in the order of the files that answer them."""
    ordered = sorted(drafts, key=lambda draft: (draft.path, draft.question))
    return [
        Question(f"{name}-{number}", name, draft.question, (draft.path,), draft.source, licence)
        for number, draft in enumerate(ordered)
    ]


def _drawn(repository: Repository, rng: random.Random) -> dict[str, list[Topic]]:
    """Some topics of every file in an order of chance, without what several files say in the same words."""
    found = {
        path: topics(path, text.text) if isinstance(text := repository.read(path), Text) else [] for path in repository
    }
    files_saying = Counter(told for each in found.values() for told in {topic.told for topic in each if topic.told})
    own = {path: [topic for topic in each if files_saying[topic.told] <= 1] for path, each in found.items()}
    return {path: rng.sample(each, min(len(each), TOPICS_PER_FILE)) for path, each in own.items()}
