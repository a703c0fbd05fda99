"""Count the words of questions. A word that occurs in questions about any repository says little about a file.

    python -m benchmarks.locate_asked QUESTIONS.jsonl... --out src/reflectrl/wings/autoexplore/locate/data/asked.txt

Every file is a style of questions. A word's share is that of the style in which it is most common. No answer is read.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from reflectrl.wings.autoexplore.words import words

LEAST = 0.0025
"""Smallest share of questions of a word in the table."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Count, and write a line per common word."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("questions", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    shares: dict[str, float] = {}
    for path in args.questions:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        holding = Counter(word for row in rows for word in set(words(row["question"])))
        repositories = Counter(word for row in _first_of_each(rows) for word in row)
        for word, count in holding.items():
            if repositories[word] > 1:
                shares[word] = max(shares.get(word, 0.0), count / len(rows))
    lines = [f"{word} {share:.4f}" for word, share in sorted(shares.items()) if share >= LEAST]
    args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} words")


def _first_of_each(rows: Sequence[dict[str, str]]) -> list[set[str]]:
    """Return the words that are asked about each repository."""
    words_by_repository: dict[str, set[str]] = {}
    for row in rows:
        words_by_repository.setdefault(row["repo"], set()).update(words(row["question"]))
    return list(words_by_repository.values())


if __name__ == "__main__":
    main()
