"""Which drafts of questions become tasks: those that one file answers rather than many, each only once."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from reflectrl.types import named_seed
from reflectrl.wings.autoexplore.making.asking import Asker
from reflectrl.wings.autoexplore.making.rewording import leaks, without_name
from reflectrl.wings.autoexplore.making.topics import Topic, topics
from reflectrl.wings.autoexplore.questions import Question
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.texts import Text
from reflectrl.wings.autoexplore.words import count_words, words

LENGTH = (3, 60)
"""Words of a question, at least and at most."""
CONTENT_WORDS = 2
"""So many words that say something a question has at least, and shares with the file that answers it."""
ALIKE = 0.7
"""Share of common words (Jaccard) from which on two questions about one repository are the same."""
MANY = 3
"""A question whose words all stand in more than so many other files (or a twentieth of them) fits many."""
NAMED = 0.15
"""Of the questions from which the file's own name cannot be removed, so many are kept: people do name files."""


class Draft(NamedTuple):
    """A question that may become a task."""

    question: str
    path: str
    source: str


@dataclass
class Judge:
    """Judges drafts about one repository, one after another.

    Attributes:
        repository: what they ask about.
        rng: decides which questions keep a file's name.
        dropped: reason → how many drafts were refused for it.
    """

    repository: Repository
    rng: random.Random
    dropped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._words: dict[str, frozenset[str]] = {}
        self._files_of: defaultdict[str, set[str]] = defaultdict(set)
        for path in self.repository:
            found = self.repository.read(path)
            self._words[path] = frozenset(count_words(f"{path}\n{found.text if isinstance(found, Text) else ''}"))
            for word in self._words[path]:
                self._files_of[word].add(path)
        self._kept: list[frozenset[str]] = []
        self._by_word: defaultdict[str, list[int]] = defaultdict(list)

    def judged(self, draft: Draft) -> Draft | None:
        """The draft as a task, its file's name removed, or None. Later ones must differ from what is kept."""
        question: str | None = draft.question
        if leaks(draft.question, draft.path):
            changed = without_name(draft.question, draft.path, self.rng)
            question = changed or (draft.question if self.rng.random() < NAMED else None)
        reason = "names the file" if question is None else self._fault(question, draft.path)
        if question is None or reason:
            self.dropped[reason] += 1
            return None
        asked = frozenset(words(question))
        for word in asked:
            self._by_word[word].append(len(self._kept))
        self._kept.append(asked)
        return draft._replace(question=question)

    def _fault(self, question: str, path: str) -> str:
        """Why a question is no task, "" if it is one."""
        if not LENGTH[0] <= len(question.split()) <= LENGTH[1] or not question.isprintable():
            return "too short or too long"
        asked = frozenset(words(question))
        shared = asked & self._words.get(path, frozenset())
        if len(shared) < CONTENT_WORDS:
            return "has nothing in common with its file"
        fitting = set.intersection(*sorted((self._files_of[word] for word in shared), key=len))
        if len(fitting) - 1 > max(MANY, len(self._words) // 20):
            return "fits many files"
        near = (self._kept[number] for number in {number for word in asked for number in self._by_word[word]})
        return "asked before" if any(len(asked & kept) >= ALIKE * len(asked | kept) for kept in near) else ""


def taken_in_turn(
    drafts: Mapping[str, Iterator[Draft]], weights: Mapping[str, float], most: int, per_file: int, judge: Judge
) -> list[Draft]:
    """At most `most` tasks, from all files in turn and at most `per_file` from each.

    Args:
        drafts: file → drafts that it answers, read as far as need be.
        weights: file → the chance that it uses its turn, by which documentation stands back behind code.
        most: tasks, at most.
        per_file: tasks that one file answers, at most.
        judge: decides which drafts are tasks.
    """
    kept: list[Draft] = []
    paths = sorted(drafts)
    for _ in range(per_file):
        for path in judge.rng.sample(paths, len(paths)):
            if judge.rng.random() < weights.get(path, 1.0):
                tasks = (judge.judged(draft) for draft in drafts[path])
                if (task := next((task for task in tasks if task is not None), None)) is not None:
                    kept.append(task)
            if len(kept) == most:
                return kept
    return kept


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
