"""Datasheet of a published library: `datasheet.md`, filled in from the library's contents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import PurePosixPath

from reflectrl.core.terminal import printable_line
from reflectrl.wings.autoexplore.making.make import leak_share
from reflectrl.wings.autoexplore.making.packing import Contents
from reflectrl.wings.autoexplore.questions import Question

MOST_ENDINGS = 12
"""Largest number of endings of files that are listed separately."""
_RULES = (
    "The questions were written by rules, without a language model, from docstrings, names, comments, documentation,"
    " headers of data files and messages of commits. The answer is the file from which a question was made."
)
_MODEL = (
    "The questions were written by a language model that was sent the beginning of each file, and by rules from"
    " messages of commits. The answer is the file from which a question was made."
)
_UNKNOWN = "The settings with which the questions were written were not recorded."


def datasheet(contents: Contents) -> str:
    """Return the datasheet as Markdown. It depends on the contents only, not on a clock or a path."""
    included = [each for each in contents.repositories if not each.left_out]
    questions = [question for own in contents.questions.values() for question in own]
    answered = sum(
        any(f"repos/{question.repo}/{path}" in contents.files for path in question.gold) for question in questions
    )
    template = files("reflectrl.wings.autoexplore.making").joinpath("datasheet.md").read_text(encoding="utf-8")
    return template.format(
        total=f"{len(questions):,}",
        repositories=len(included),
        answered="All" if answered == len(questions) else f"{answered:,}",
        splits=_splits(contents.questions),
        shared=_shared(contents.questions),
        licences=_licences(contents.questions),
        files=f"{len(contents.files):,}",
        size=f"{sum(each.bytes for each in included) / 2**20:.1f} MiB",
        endings=_endings(contents),
        collection=_collection(contents),
        labelling=_labelling(contents.account),
        left_out=_left_out(contents),
        again=_again(contents),
    )


def _splits(questions: Mapping[str, Sequence[Question]]) -> str:
    """Return a table of the counts of each split, with its leak measure and its questions by source."""
    sources = sorted({question.source for own in questions.values() for question in own})
    rows: list[list[str]] = []
    for split, own in questions.items():
        counts = Counter(question.source for question in own)
        repositories = {question.repo for question in own}
        answers = {(question.repo, path) for question in own for path in question.gold}
        row = [split, f"{len(repositories)}", f"{len(own):,}", f"{len(answers):,}", f"{leak_share(own):.1%}"]
        rows.append(row + [f"{counts[source]:,}" for source in sources])
    return _table(["split", "repositories", "questions", "answering files", "names the file", *sources], rows)


def _shared(questions: Mapping[str, Sequence[Question]]) -> str:
    """Describe how the splits were divided: by repository, or by question."""
    repositories = [{question.repo for question in own} for own in questions.values()]
    shared = sum(map(len, repositories)) - len(set().union(*repositories))
    if not shared:
        return "The splits have no repository in common."
    return "The splits are divided by question, and have repositories in common."


def _licences(questions: Mapping[str, Sequence[Question]]) -> str:
    """Return a table of the number of questions by licence of the repository and split."""
    counts = {split: Counter(question.licence for question in own) for split, own in questions.items()}
    licences = sorted({question.licence for own in questions.values() for question in own})
    rows = [[licence] + [f"{counts[split][licence]:,}" for split in questions] for licence in licences]
    return _table(["licence", *questions], rows)


def _endings(contents: Contents) -> str:
    """Return a table of the number of files by the ending of their names."""
    counts = Counter(PurePosixPath(path).suffix.lower() or "without" for path in contents.files)
    listed = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_ENDINGS]
    rows = [[ending, f"{count:,}"] for ending, count in listed]
    if others := counts.total() - sum(count for _, count in listed):
        rows.append(["others", f"{others:,}"])
    return _table(["ending", "files"], rows)


def _collection(contents: Contents) -> str:
    """Describe the sources of the repositories."""
    included = [each for each in contents.repositories if not each.left_out]
    packages = sum(bool(each.origin) for each in included)
    sentences = []
    if packages:
        sentences.append(
            f"{packages} repositories are releases from a package index. `provenance.jsonl` has their package URLs, and"
            " the SHA-256 of the files that were downloaded. Nothing in them was run."
        )
    if folders := len(included) - packages:
        sentences.append(f"{folders} repositories were folders of the maker, or trees of commits in them.")
    return " ".join(sentences)


def _labelling(account: Mapping[str, object]) -> str:
    """Describe the writer of the questions, and its settings."""
    if not account:
        return _UNKNOWN
    settings = ", ".join(f"{key} {value}" for key, value in account.items())
    return printable_line(f"{_RULES if account.get('writer') == 'rules' else _MODEL} Settings: {settings}.")


def _left_out(contents: Contents) -> str:
    """Name the repositories and imported sets that are not included."""
    sentences = []
    if left_out := [each for each in contents.repositories if each.left_out]:
        named = [f"{each.name} {each.version}".strip() + f" ({each.licence}, {each.left_out})" for each in left_out]
        questions = sum(each.questions for each in left_out)
        sentences.append(
            f"Only the origin and the digest are given of {', '.join(named)}."
            f" The questions about what is not included ({questions:,}) are left out, too."
        )
    if contents.imported:
        sets = [f"{name} ({count:,} questions)" for name, count in contents.imported.items()]
        sentences.append(f"Imported sets are for others to publish: {', '.join(sets)}.")
    return printable_line(" ".join(sentences)) or "Nothing of the library was left out."


def _again(contents: Contents) -> str:
    """Give the command that makes the data set again, if it is made of packages by rules."""
    account = contents.account
    if account.get("writer") != "rules" or not all(each.origin for each in contents.repositories):
        return "The same files and settings give the same data set."
    options = f"--seed {account.get('seed')} --per-repo {account.get('per_repo')} --split-by {account.get('split_by')}"
    command = f"reflectrl data autoexplore --download {options} --pack FILE"
    return printable_line(f"`{command}` (reflectrl {account.get('reflectrl')}) makes it again.")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = []
    for line in (columns, ["---"] * len(columns), *rows):
        cells = [printable_line(cell).replace("|", "\\|") for cell in line]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
