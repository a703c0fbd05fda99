"""Mine pairs of texts that mean the same: a commit's message and what it changed, a comment and its definition.

`benchmarks.locate_words` learns word vectors from them. Commits are older than the tree that `locate_questions` asks
about, so no question is among them.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.locate_questions import LATER, NO_ANSWER, message_text
from reflectrl.core.types import UserError, named_seed
from reflectrl.wings.autoexplore.legible import legible
from reflectrl.wings.autoexplore.locate.live import FILTERS
from reflectrl.wings.autoexplore.locate.passages import ReadFile
from reflectrl.wings.autoexplore.locate.syntax import syntax_of
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.words import spoken

COMMITS = 2000
MOST_FILES = 4
MOST_PAIRS = 3000
MOST_CHARACTERS = 6000
MOST_WORDS = 250
_UNREAD = [f":!*.{suffix}" for suffix in ("po", "pot", "svg", "lock", "json", "snap", "min.js", "css", "csv", "html")]
_RUN = re.compile(r"[^\W_]+")
_END_OF_SUMMARY = re.compile(r"\n\s*\n|\n\s*(?::|@|Args|Param|Return)")


Words = tuple[NDArray[np.int32], NDArray[np.float32]]
"""Numbers of distinct words, most frequent first, and their counts."""


class Pair(NamedTuple):
    """Text that says something, and the file that it is about: its path, and the code in question."""

    said: Words
    path: Words
    body: Words


class Reader:
    """Number and count words. The forms in which they occur are kept for texts that people wrote."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.forms: dict[str, Counter[str]] = {}

    def words(self, text: str, most: int = MOST_WORDS, with_forms: bool = False) -> Words:
        """Return the most frequent words of a text."""
        counts: Counter[str] = Counter()
        for run, times in Counter(_RUN.findall(text)).items():
            for form, word in _split(run):
                counts[word] += times
                if with_forms:
                    self.forms.setdefault(word, Counter())[form] += times
        kept = counts.most_common(most)
        numbers = [self.numbers.setdefault(word, len(self.numbers)) for word, _ in kept]
        return np.array(numbers, np.int32), np.array([times for _, times in kept], np.float32)

    def path(self, path: str) -> Words:
        """Return the words of a path without its suffix."""
        return self.words(path.rpartition(".")[0] or path, 20, with_forms=True)


@lru_cache(maxsize=1 << 16)
def _split(run: str) -> list[tuple[str, str]]:
    return spoken(run)


def committed(clone: Path, reader: Reader) -> Iterator[Pair]:
    """Yield messages of old commits with the surroundings of what they changed, as they were before."""
    newest = _git(clone, "rev-list", "--no-merges", f"--max-count={LATER}", "HEAD").split()[-1]
    shape = ("-p", "-U3", "--no-renames", "--no-merges", "--no-color", "--format=%x01%s%x03%b%x02")
    log = _git(clone, "log", *shape, f"--max-count={COMMITS}", newest, "--", ".", *_UNREAD)
    for record in log.split("\x01")[1:]:
        message, _, changes = record.partition("\x02")
        text = message_text(message)
        if not text or len(record) > 400_000:
            continue
        hunks = list(_hunks(changes))
        if 1 <= len(hunks) <= MOST_FILES:
            said = reader.words(text, 60, with_forms=True)
            for path, body in hunks:
                yield Pair(said, reader.path(path), reader.words(body))


def _hunks(changes: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^diff --git ", changes, flags=re.MULTILINE)[1:]:
        former = re.search(r"^--- a/(.*)$", part, re.MULTILINE)
        if former is None or "\n@@" not in part or NO_ANSWER.search(former[1]):
            continue
        lines = part[part.index("\n@@") :].split("\n")
        before = "\n".join(line[1:] for line in lines if line[:1] in "- ")
        enclosing = " ".join(re.findall(r"^@@.*?@@(.*)$", part, re.MULTILINE))
        yield former[1], f"{enclosing}\n{before[:MOST_CHARACTERS]}"


def documented(tree: Path, reader: Reader) -> Iterator[Pair]:
    """Yield the longest comment of each definition with the code of the definition."""
    try:
        repository = Repository.open(tree, FILTERS)
    except UserError:
        return
    files = list(repository.files)
    random.Random(named_seed("locate-texts", 0, tree.name)).shuffle(files)
    for path in files:
        syntax = syntax_of(path)
        if syntax.comments is None or syntax.definitions is None:
            continue
        file = ReadFile(path, legible(repository, path).text)
        for passage, name in enumerate(file.names):
            body = file.passage_text(passage).encode("utf-8", "replace")[:MOST_CHARACTERS]
            comments = syntax.comments.findall(body) if name else []
            if not comments:
                continue
            comment = max(comments, key=len).decode("utf-8", "replace").strip("\"'/*# \n")
            summary = _END_OF_SUMMARY.split(comment)[0][:400]
            said = reader.words(summary, 40, with_forms=True)
            code = reader.words(syntax.comments.sub(b" ", body).decode("utf-8", "replace"))
            if len(said[0]) >= 4 and len(code[0]) >= 5 and len(summary.split()) >= 5:
                yield Pair(said, reader.path(path), code)


def _git(clone: Path, *words: str) -> str:
    surroundings = {**os.environ, "GIT_NO_LAZY_FETCH": "1"}
    command = ["git", "-C", str(clone), *words]
    return subprocess.run(command, capture_output=True, check=False, env=surroundings).stdout.decode("utf-8", "replace")
