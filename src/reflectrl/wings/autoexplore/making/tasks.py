"""Select the drafts of questions that become tasks: a single file answers the question, and no other asks the same."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from reflectrl.core.types import named_seed
from reflectrl.wings.autoexplore.making.asking import Asker
from reflectrl.wings.autoexplore.making.dropped import Dropped
from reflectrl.wings.autoexplore.making.rewording import leaks, without_name
from reflectrl.wings.autoexplore.making.topics import Topic, topics
from reflectrl.wings.autoexplore.questions import Question
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.texts import Text
from reflectrl.wings.autoexplore.words import count_words, words

LENGTH = (3, 60)
"""Smallest and largest number of words in a question."""
CONTENT_WORDS = 2
"""Smallest number of content words that a question shares with the file that answers it."""
ALIKE = 0.7
"""Jaccard similarity of words from which two questions about a repository count as the same."""
MANY = 3
"""Largest number of other files (or a twentieth of all files) that hold the question's words. With more, the question
fits many files and is refused."""
NAMED = 0.15
"""Share of questions that are kept although the file's name cannot be removed, since users do name files."""


class Draft(NamedTuple):
    """Question that may become a task."""

    question: str
    path: str
    source: str


@dataclass
class DraftFilter:
    """Filter of the drafts about one repository.

    Attributes:
        repository: repository that the drafts ask about.
        rng: source of randomness for the questions that keep a file's name.
        dropped: refused drafts, each with the reason.
    """

    repository: Repository
    rng: random.Random
    dropped: list[tuple[Draft, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._words: dict[str, frozenset[str]] = {}
        self._files_of: defaultdict[str, set[str]] = defaultdict(set)
        for path in self.repository:
            content = self.repository.read(path)
            self._words[path] = frozenset(count_words(f"{path}\n{content.text if isinstance(content, Text) else ''}"))
            for word in self._words[path]:
                self._files_of[word].add(path)
        self._kept: list[frozenset[str]] = []
        self._by_word: defaultdict[str, list[int]] = defaultdict(list)

    def accepted(self, draft: Draft) -> Draft | None:
        """Return the draft without its file's name, or None to refuse it. Later drafts must differ from this one."""
        question: str | None = draft.question
        if leaks(draft.question, draft.path):
            changed = without_name(draft.question, draft.path, self.rng)
            question = changed or (draft.question if self.rng.random() < NAMED else None)
        reason = "names the file" if question is None else self._fault(question, draft.path)
        if question is None or reason:
            self.dropped.append((draft, reason))
            return None
        question_words = frozenset(words(question))
        for word in question_words:
            self._by_word[word].append(len(self._kept))
        self._kept.append(question_words)
        return draft._replace(question=question)

    def _fault(self, question: str, path: str) -> str:
        """Return the reason to refuse a question; "" to accept it."""
        if not LENGTH[0] <= len(question.split()) <= LENGTH[1] or not question.isprintable():
            return "too short or too long"
        question_words = frozenset(words(question))
        shared = question_words & self._words.get(path, frozenset())
        if len(shared) < CONTENT_WORDS:
            return "has nothing in common with its file"
        fitting = set.intersection(*sorted((self._files_of[word] for word in shared), key=len))
        if len(fitting) - 1 > max(MANY, len(self._words) // 20):
            return "fits many files"
        near = (self._kept[index] for index in {index for word in question_words for index in self._by_word[word]})
        return (
            "asked before"
            if any(len(question_words & earlier) >= ALIKE * len(question_words | earlier) for earlier in near)
            else ""
        )


def taken_in_turn(
    drafts: Mapping[str, Iterator[Draft]],
    weights: Mapping[str, float],
    most: int,
    per_file: int,
    draft_filter: DraftFilter,
) -> list[Draft]:
    """Take at most `most` tasks, from all files in turn, at most `per_file` from each.

    Args:
        drafts: file → iterator of drafts that it answers, consumed as far as needed.
        weights: file → probability of using its turn, which is lower for documentation than for code.
        most: largest number of tasks.
        per_file: largest number of tasks that a file answers.
        draft_filter: filter of the drafts.
    """
    tasks: list[Draft] = []
    paths = sorted(drafts)
    for _ in range(per_file):
        for path in draft_filter.rng.sample(paths, len(paths)):
            if draft_filter.rng.random() < weights.get(path, 1.0):
                accepted = (draft_filter.accepted(draft) for draft in drafts[path])
                if (task := next((task for task in accepted if task is not None), None)) is not None:
                    tasks.append(task)
            if len(tasks) == most:
                return tasks
    return tasks


PER_REPO = 300
PER_FILE = 8
TOPICS_PER_FILE = 40
"""Largest number of topics that are drawn from a file."""
_WEIGHTS = {"docs": 0.45, "header": 0.15}
"""Probability that a documentation or data file uses its turn. Most questions should be about code."""


def write_questions_about(
    name: str, repository: Repository, licence: str, seed: int = 0, per_repo: int = PER_REPO
) -> tuple[list[Question], list[Dropped]]:
    """Write questions about a repository. The result is deterministic for the same files and seed.

    Args:
        name: name of the repository in the library.
        repository: files to ask about.
        licence: licence, which is stored with each question.
        seed: seed of all random choices.
        per_repo: largest number of questions.

    Returns:
        The questions, sorted by path of the answer, and the refused drafts.
    """
    rng = random.Random(named_seed("autoexplore-questions", seed, name))
    draft_filter = DraftFilter(repository, rng)
    drawn = _drawn(repository, rng)
    weights = {path: _WEIGHTS.get(found[0].source, 1.0) for path, found in drawn.items() if found}
    asker = Asker(rng)

    def drafts_of(found: Iterable[Topic]) -> Iterator[Draft]:
        for topic in found:
            if (question := asker.ask(topic)) is not None:
                yield Draft(question, topic.path, topic.source)

    drafts = {path: drafts_of(found) for path, found in drawn.items() if found}
    tasks = taken_in_turn(drafts, weights, per_repo, PER_FILE, draft_filter)
    return as_questions(name, tasks, licence), dropped_drafts(name, draft_filter.dropped)


def as_questions(name: str, drafts: list[Draft], licence: str) -> list[Question]:
    """Turn drafts into questions, numbered in the order of the files that answer them."""
    ordered = sorted(drafts, key=lambda draft: (draft.path, draft.question))
    return [
        Question(f"{name}-{index}", name, draft.question, (draft.path,), draft.source, licence)
        for index, draft in enumerate(ordered)
    ]


def dropped_drafts(name: str, refused: Iterable[tuple[Draft, str]]) -> list[Dropped]:
    """Turn the refused drafts about a repository into entries of a list."""
    return [Dropped(f"{name}:{draft.path}", "tasks", reason, draft.question) for draft, reason in refused]


def _drawn(repository: Repository, rng: random.Random) -> dict[str, list[Topic]]:
    """Draw topics of every file in random order, without topics whose text occurs in several files."""
    all_topics = {
        path: topics(path, text.text) if isinstance(text := repository.read(path), Text) else [] for path in repository
    }
    files_saying = Counter(
        sentence for each in all_topics.values() for sentence in {topic.told for topic in each if topic.told}
    )
    own = {path: [topic for topic in each if files_saying[topic.told] <= 1] for path, each in all_topics.items()}
    return {path: rng.sample(each, min(len(each), TOPICS_PER_FILE)) for path, each in own.items()}
