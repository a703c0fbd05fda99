"""Mine pairs of words that mean the same: one from a docstring or commit message, one from names in the code.

    python -m benchmarks.locate_pairs TREES... --clones CLONES --out .../locate/data/pairs.txt

Two sources: the first sentence of a definition's documentation and the words of its name; the message of a commit and
the names of the files and folders that it changed. Pairs that occur in at least `LEAST` repositories are ranked by
normalized mutual information (Bouma 2009); rarer ones could be the private language of a project. Only training
repositories are read.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.outline import about, outline
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.texts import Text
from reflectrl.wings.autoexplore.words import words

LEAST = 3
TIMES = 5
STRENGTH = 0.2
"""Smallest normalized mutual information of a pair."""
PARTNERS = 6
COMMITS = 6000
MOST_FILES = 4
MOST_BYTES = 200_000


def main(words: Sequence[str] | None = None) -> None:
    """Count pairs in all repositories, and write the strongest partners of every word."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("trees", nargs="+", type=Path)
    parser.add_argument("--clones", type=Path, required=True)
    parser.add_argument("--splits", type=Path, default=Path(__file__).with_name("locate_splits.toml"))
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(words)
    pairs = PairCounts()
    for tree in args.trees:
        pairs.add(_documented(tree))
    for name in tomllib.loads(args.splits.read_text(encoding="utf-8"))["mined"]["train"]:
        pairs.add(_committed(args.clones / name.replace("/", "+") / "repo"))
    lines = [
        f"{word} {' '.join(f'{other}:{value:.2f}' for other, value in partners)}" for word, partners in pairs.partners()
    ]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} words, {args.out.stat().st_size:,} bytes")


class PairCounts:
    """Counts of said words, of words in names, and of both together, and the number of repositories of each pair."""

    def __init__(self) -> None:
        self.said: Counter[str] = Counter()
        self.named: Counter[str] = Counter()
        self.both: Counter[tuple[str, str]] = Counter()
        self.repositories: Counter[tuple[str, str]] = Counter()
        self.total = 0

    def add(self, observed: Iterable[tuple[set[str], set[str]]]) -> None:
        """Add the observations of a repository: words said about something, words of its name."""
        pairs: Counter[tuple[str, str]] = Counter()
        for said_words, name_words in observed:
            said_words, name_words = {w for w in said_words if w.isalpha()}, {w for w in name_words if w.isalpha()}
            self.total += 1
            self.said.update(said_words)
            self.named.update(name_words)
            pairs.update(
                (said_word, name_word) for said_word in said_words for name_word in name_words if said_word != name_word
            )
        # A pair that a repository repeats a thousand times must not outweigh all others.
        self.both.update({pair: min(times, 30) for pair, times in pairs.items()})
        self.repositories.update(pairs.keys())

    def partners(self) -> Iterator[tuple[str, list[tuple[str, float]]]]:
        """Yield words with their strongest partners."""
        partners: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
        for (said_word, name_word), times in self.both.items():
            if times < TIMES or self.repositories[said_word, name_word] < LEAST:
                continue
            joint = times / self.total
            mutual = math.log(joint * self.total**2 / (self.said[said_word] * self.named[name_word]))
            strength = mutual / -math.log(joint)
            if strength >= STRENGTH:
                partners[said_word].append((name_word, strength))
        for word in sorted(partners):
            yield word, sorted(partners[word], key=lambda pair: -pair[1])[:PARTNERS]


def _documented(tree: Path) -> Iterator[tuple[set[str], set[str]]]:
    try:
        repository = Repository.open(tree)
    except UserError:
        return
    for path in repository.files:
        read = repository.read(path, MOST_BYTES)
        if not isinstance(read, Text) or not read.complete:
            continue
        for definition in outline(path, read.text):
            if definition.doc and definition.kind in ("class", "function", "method", "constant"):
                yield set(words(definition.doc)), set(words(definition.name))
        summary = about(path, read.text)
        if summary and not path.endswith((".md", ".rst", ".txt", ".json", ".csv")):
            yield set(words(summary)), set(words(path.rpartition("/")[2].partition(".")[0]))


def _committed(clone: Path) -> Iterator[tuple[set[str], set[str]]]:
    command = [
        "git",
        "-C",
        str(clone),
        "log",
        "--no-merges",
        f"--max-count={COMMITS}",
        "--name-only",
        "-z",
        "--format=%x01%s%x02",
        "HEAD",
    ]
    log = subprocess.run(command, capture_output=True, check=False).stdout.decode(
        "utf-8", "replace"
    )  # a clone may lack old objects
    for record in log.split("\x01")[1:]:
        subject, names = record.split("\x02", 1)
        paths = [path for path in names.strip("\0\n").split("\0") if path]
        if 1 <= len(paths) <= MOST_FILES:
            yield set(words(subject)), {word for path in paths for word in words(path.rpartition(".")[0] or path)}


if __name__ == "__main__":
    main()
