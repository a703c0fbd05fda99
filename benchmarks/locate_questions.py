"""Mine questions for `locate` from git clones: a commit's message asks, the files that it changed answer.

    python -m benchmarks.locate_questions CLONES --splits benchmarks/locate_splits.toml --out DIR

CLONES holds a folder OWNER+NAME/repo per clone. Each repository gets one tree, that of an older commit, and questions
from the commits that came later and changed files of that tree. So a question is asked before its answer was
written, as an issue is. DIR receives `trees/NAME` and `SPLIT.jsonl` with lines of repo, question and gold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from reflectrl.core.types import named_seed
from reflectrl.wings.autoexplore.making.commits import question_of_message

LATER = 1500
"""Number of commits, merges not counted, between the tree and the newest commit."""
PER_REPOSITORY = 100
WORDS = (5, 60)
"""Smallest and largest number of words of a usable message."""
MOST_FILES = 3
REPHRASED = 0.35
"""Share of messages that are turned into a question; the others are asked as they are written, like an issue."""
_TRIMMED = re.compile(
    r"^(?:\[[^\]]*\]\s*|[\w/.,*-]+(?:\([^)]*\))?!?:\s+|(?:fixe?[sd]?|refs?|closes?)\s+#?\d+\s*(?:--|-|:)?\s*)+"
    r"|\s*\(?#\d+\)?\.?\s*$",
    re.IGNORECASE,
)
_USELESS = re.compile(
    r"\bmerge|\brevert|\bbump|\breleas|version \d|typo|\blint|reformat|whitespace|rename|copyright|changelog|"
    r"clean ?up|refactor|\bupgrade|dependabot|dependenc|backport|translation|transifex|submodule|\bnits?\b|gofmt",
    re.IGNORECASE,
)
NO_ANSWER = re.compile(
    r"(?:^|/)(?:tests?|testing|__tests__|specs?|testdata|fixtures?|snapshots?|vendor|third_party|node_modules|dist)/|"
    r"(?:^|/)(?:test_[^/]*|[^/]*[._-](?:tests?|spec)\.\w+|conftest\.py|[^/]*(?:lock|lock\.\w+|\.sum|\.mod|\.po|\.mo|"
    r"\.snap|\.min\.js|\.svg|\.png))$|(?:^|/)(?:changes?|changelog|news|history|authors|contributors)[^/]*$|"
    r"(?:^|/)(?:changes?|changelogs?|news|newsfragments|releases?|\.changeset)/",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Change:
    """Later commit that changed files of the tree."""

    message: str
    files: tuple[str, ...]


def main(words: Sequence[str] | None = None) -> None:
    """Mine the questions of every clone that the splits name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("clones", type=Path)
    parser.add_argument("--splits", type=Path, default=Path(__file__).with_name("locate_splits.toml"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(words)
    (args.out / "trees").mkdir(parents=True, exist_ok=True)
    for split, names in tomllib.loads(args.splits.read_text(encoding="utf-8"))["mined"].items():
        rows = []
        for name in names:
            clone = args.clones / name.replace("/", "+") / "repo"
            rng = random.Random(named_seed("locate-questions", args.seed, name))
            questions = list(_questions(clone, name, args.out / "trees" / name.replace("/", "+"), rng))
            rows += questions
            print(f"{split} {name}: {len(questions)} questions", flush=True)
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (args.out / f"{split}.jsonl").write_text(lines, encoding="utf-8")


def _questions(clone: Path, name: str, tree: Path, rng: random.Random) -> Iterator[dict[str, object]]:
    commits = _git(clone, "rev-list", "--no-merges", f"--max-count={LATER}", "HEAD").split()
    start = commits[-1]
    if not tree.exists():
        write_tree(clone, start, tree)
    changes = list(_changes(clone, start, tree))
    rng.shuffle(changes)
    for i, change in enumerate(changes[:PER_REPOSITORY]):
        rephrased = question_of_message(change.message.split("\n")[0], rng) if rng.random() < REPHRASED else None
        question = rephrased or change.message
        yield {
            "id": f"{name}-{i}",
            "source": "commit",
            "repo": name,
            "commit": start,
            "question": question,
            "gold": list(change.files),
        }


def write_tree(clone: Path, commit: str, tree: Path) -> None:
    """Write the ordinary files of a commit to a folder. Files that the clone lacks are left out."""
    listed = [line.split("\t", 1) for line in _git(clone, "ls-tree", "-r", "-z", commit).split("\0") if line]
    wanted = [(about.split()[2], path) for about, path in listed if about.startswith("100")]
    stdin = "".join(f"{digest}\n" for digest, _ in wanted).encode()
    command = ["git", "-C", str(clone), "cat-file", "--batch"]
    surroundings = {**os.environ, "GIT_NO_LAZY_FETCH": "1"}
    data = subprocess.run(command, input=stdin, capture_output=True, check=True, env=surroundings).stdout
    start = 0
    for _, path in wanted:
        head, start = data[start : data.index(b"\n", start)], data.index(b"\n", start) + 1
        if head.endswith(b" missing"):
            continue
        size = int(head.split()[2])
        target = tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data[start : start + size])
        start += size + 1


def _changes(clone: Path, start: str, tree: Path) -> Iterator[Change]:
    shape = ("--no-merges", "--no-renames", "--name-status", "-z", "--format=%x01%s%x03%b%x02")
    for record in _git(clone, "log", *shape, f"{start}..HEAD").split("\x01")[1:]:
        message, names = record.split("\x02", 1)
        fields = [field for field in names.strip("\0\n").split("\0") if field]
        changed = [(kind.strip(), path) for kind, path in zip(fields[::2], fields[1::2], strict=False)]
        files = tuple(path for kind, path in changed if kind == "M" and not NO_ANSWER.search(path))
        added = any(kind == "A" and not NO_ANSWER.search(path) for kind, path in changed)
        text = message_text(message)
        if not added and 1 <= len(files) <= MOST_FILES and text and all((tree / path).is_file() for path in files):
            yield Change(text, files)


def message_text(message: str) -> str:
    """Return a message's subject and the first paragraph of its body, without tags; "" if it says too little."""
    subject, _, body = message.partition("\x03")
    subject = _TRIMMED.sub("", subject.strip())
    if _USELESS.search(subject) or len(subject.split()) < WORDS[0] - 1:
        return ""
    paragraph = re.split(r"\n\s*\n", body.strip())[0]
    if re.search(r"^[\w-]+(?:-by)?: |^\* |https?://|^- ", paragraph, re.MULTILINE):
        paragraph = ""
    text = " ".join(f"{subject}\n{paragraph}".split())
    return " ".join(text.split()[: WORDS[1]]) if len(text.split()) >= WORDS[0] else ""


def _git(clone: Path, *words: str) -> str:
    return _git_bytes(clone, *words).decode("utf-8", "replace")


def _git_bytes(clone: Path, *words: str) -> bytes:
    return subprocess.run(["git", "-C", str(clone), *words], capture_output=True, check=True).stdout


if __name__ == "__main__":
    main()
