"""What a library holds, in a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from reflectrl.wings.autoexplore.library import Library
from reflectrl.wings.autoexplore.making.rewording import leaks
from reflectrl.wings.autoexplore.questions import Question


def lines(library: Library) -> Iterator[str]:
    """One line per set and repository, with the licence, files to explore, and questions by source; then the totals."""
    sources = sorted({question.source for split in library.splits for question in library.questions(split)})
    heading = f"{'set':12} {'repository':28} {'version':14} {'licence':18} {'files':>6}"
    yield heading + "".join(f"{source:>11}" for source in sources) + f"{'all':>8}  names file"
    for split in library.splits:
        by_repo: dict[str, list[Question]] = {}
        for question in library.questions(split):
            by_repo.setdefault(question.repo, []).append(question)
        for name, questions in sorted(by_repo.items()):
            entry = library.repos[name]
            files = len(library.repository(name))
            head = f"{split:12} {name[:28]:28} {entry.version[:14]:14} {entry.licence[:18]:18} {files:6}"
            yield head + _counts(questions, sources)
        yield f"{split:12} {'all ' + str(len(by_repo)) + ' repositories':69}" + _counts(
            library.questions(split), sources
        )
    unasked = sorted({*library.repos} - {each.repo for split in library.splits for each in library.questions(split)})
    if unasked:
        yield f"without questions: {', '.join(unasked)}"


def leak_share(questions: Sequence[Question]) -> float:
    """The share of questions that name a file which answers them (`rewording.leaks`); 0 of none."""
    named = sum(any(leaks(question.question, path) for path in question.gold) for question in questions)
    return named / len(questions) if questions else 0.0


def _counts(questions: Sequence[Question], sources: Sequence[str]) -> str:
    counts = Counter(question.source for question in questions)
    return "".join(f"{counts[source]:11}" for source in sources) + f"{len(questions):8}  {leak_share(questions):10.1%}"
