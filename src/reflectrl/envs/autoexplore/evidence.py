"""What speaks for a file as the answer to a question: which share of the question its parts cover, and where best.

BM25 gives one number per file. What tells the file that *defines* a thing from those that mention it is where the
words stand: in the path, in the names of what is defined, in docstrings, or all together in one definition. A share is
that of the question's words, each weighing as much as it is rare in the repository.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from reflectrl.envs.autoexplore.outline import Definition, about, outline
from reflectrl.envs.autoexplore.repository import Repository
from reflectrl.envs.autoexplore.search import CONTENT_BYTES
from reflectrl.envs.autoexplore.texts import Text
from reflectrl.envs.autoexplore.words import count_words, words

PASSAGE_LINES = 80
"""A definition's words are looked for in so many lines from its beginning."""
ENOUGH = 3
"""So many occurrences of a word in a file count as "often"."""


@dataclass(frozen=True)
class Profile:
    """The words of a file by where they stand, each without its ending (`words.py`)."""

    about: str
    """One line, perhaps ""."""
    path: frozenset[str]
    names: frozenset[str]
    """In the names of what is defined."""
    docs: frozenset[str]
    """In docstrings and in what the file says of itself."""
    text: Mapping[str, int]
    """Anywhere in it, and how often."""
    definitions: tuple[Definition, ...]
    holders: Mapping[str, tuple[int, ...]]
    """Word → numbers of the definitions in whose lines, name or parent it stands."""


@dataclass(frozen=True)
class Evidence:
    """Shares from 0 to 1 of a question that parts of a file cover."""

    path: float
    names: float
    docs: float
    text: float
    often: float
    """By words that occur several times."""
    passage: float
    """By the definition that covers most."""
    best: Definition | None
    """That definition."""
    shared: tuple[str, ...]
    """Words of the question in it (in the whole file if there is none), the rarest first, as the question has them."""


def profile(path: str, text: str) -> Profile:
    """Take a file apart."""
    definitions = outline(path, text)
    said = about(path, text)
    return Profile(
        said,
        frozenset(words(path)),
        frozenset(words(" ".join(definition.name for definition in definitions))),
        frozenset(words(" ".join([said, *(definition.doc for definition in definitions)]))),
        count_words(text),
        definitions,
        _holders(definitions, text.split("\n")),
    )


def _holders(definitions: Sequence[Definition], lines: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The words from each definition's first line to the next definition."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    ends = [*(definition.line - 1 for definition in definitions[1:]), len(lines)]
    for number, (definition, end) in enumerate(zip(definitions, ends, strict=False)):
        start = definition.line - 1
        own = lines[start : min(max(end, start + 1), start + PASSAGE_LINES)]
        for word in count_words("\n".join([definition.parent, definition.name, *own])):
            found[word].append(number)
    return {word: tuple(numbers) for word, numbers in found.items()}


def weigh(found: Profile, weights: Mapping[str, float], forms: Mapping[str, str]) -> Evidence:
    """Hold a file against a question.

    Args:
        weights: what each word of the question is worth (its rarity); they need not sum to anything.
        forms: each word as the question has it.
    """
    total = sum(weights.values()) or 1.0

    def share(part: Container[str]) -> float:
        return sum(weight for word, weight in weights.items() if word in part) / total

    sums: defaultdict[int, float] = defaultdict(float)
    for word, weight in weights.items():
        for number in found.holders.get(word, ()):
            sums[number] += weight / total
    best = max(sums, key=lambda number: (sums[number], -number), default=None)
    inside = [word for word in weights if word in found.text or word in found.path]
    shared = inside if best is None else [word for word in weights if best in found.holders.get(word, ())]
    return Evidence(
        share(found.path),
        share(found.names),
        share(found.docs),
        share(inside),
        share([word for word in inside if found.text.get(word, 0) >= ENOUGH]),
        0.0 if best is None else sums[best],
        None if best is None else found.definitions[best],
        tuple(forms[word] for word in sorted(shared, key=lambda word: (-weights[word], word))),
    )


class Profiles:
    """The profiles of a repository's files, each made when it is first asked for, and kept."""

    def __init__(self, repository: Repository, most: int = 4096) -> None:
        self._repository = repository
        self._of = lru_cache(maxsize=most)(self._make)

    def of(self, path: str) -> Profile:
        """The profile of a file; one of its path alone where it cannot be read."""
        return self._of(path)

    def _make(self, path: str) -> Profile:
        read = self._repository.read(path, CONTENT_BYTES)
        return profile(path, read.text if isinstance(read, Text) else "")
