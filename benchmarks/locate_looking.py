"""Further looks of `locate`: files beyond the first ones that a decision model could look at.

It could go on in the order of the search, follow the names that the first files use to the files that define them, or
ask again with the words that name the best passages of the first files. `benchmarks.locate_walks` measures what that is
worth. It is not part of the package, since it turned out to be worth nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from reflectrl.wings.autoexplore.locate.decision import FIRST
from reflectrl.wings.autoexplore.locate.engine import Engine
from reflectrl.wings.autoexplore.locate.excerpts import PASSAGES
from reflectrl.wings.autoexplore.locate.grounds import Candidates
from reflectrl.wings.autoexplore.locate.inquiry import Inquiry
from reflectrl.wings.autoexplore.locate.passages import ReadFile
from reflectrl.wings.autoexplore.locate.ranker import Floats, Ranker
from reflectrl.wings.autoexplore.locate.segments import identifier

FURTHER = 4
"""Number of files that a further look shows."""
LEADING = 3
"""Number of first files that are followed, and whose words are used."""
MOST_DEFINING = 5
"""Largest number of files that may define a name: a name that more files define leads nowhere."""
OTHER_WORDS = 6
PASSAGE_CHARACTERS = 4000
_NAME = re.compile(r"[A-Za-z_]\w{3,}")


def further_looks(
    engine: Engine, ranker: Ranker, inquiry: Inquiry, candidates: Candidates, scores: Floats
) -> dict[str, list[int]]:
    """Return the candidates that each further look shows: "more", "follow" and "ask again".

    Args:
        engine: search of the repository.
        ranker: ranker of the second search.
        inquiry: parts of the question.
        candidates: files that may answer.
        scores: their scores.
    """
    order = np.argsort(-scores, kind="stable").tolist()
    leading, first = order[:LEADING], set(order[:FIRST])
    row_of = {int(file): row for row, file in enumerate(candidates.files)}
    again = engine.candidates(other_words(engine, inquiry, candidates, leading))
    asked = again.files[np.argsort(-ranker.scores(again.grounds), kind="stable")].tolist()
    looks = {
        "more": order[FIRST:],
        "follow": followed(engine, inquiry, candidates, leading),
        "ask again": [row_of[file] for file in asked if file in row_of],
    }
    return {name: [row for row in rows if row not in first][:FURTHER] for name, rows in looks.items()}


def followed(engine: Engine, inquiry: Inquiry, candidates: Candidates, leading: Sequence[int]) -> list[int]:
    """Return the candidates that define names which the best passages of the leading files use, strongest first."""
    row_of = {int(file): row for row, file in enumerate(candidates.files)}
    strength: defaultdict[int, float] = defaultdict(float)
    for rank, row in enumerate(leading, 1):
        file, passages = _best_passages(engine, inquiry, candidates, row)
        if file is None:
            continue
        text = "\n".join(file.passage_text(passage)[:PASSAGE_CHARACTERS] for passage in passages)
        for joined in {identifier(name) for name in _NAME.findall(text)}:
            defining = engine.index.corpus.find(joined)[0].tolist()
            for other in defining if len(defining) <= MOST_DEFINING else ():
                if other in row_of and row_of[other] != row:
                    strength[row_of[other]] += 1 / (rank * len(defining))
    return sorted(strength, key=lambda row: (-strength[row], row))


def other_words(engine: Engine, inquiry: Inquiry, candidates: Candidates, leading: Sequence[int]) -> Inquiry:
    """Return the question with the rarest words that name the best passages of the leading files (Rocchio, 1971)."""
    weights: defaultdict[str, float] = defaultdict(float)
    for rank, row in enumerate(leading, 1):
        file, passages = _best_passages(engine, inquiry, candidates, row)
        if file is None:
            continue
        for word in {word for passage in passages for word in file.words[passage]} - set(inquiry.forms):
            weights[word] += engine.index.corpus.rarity(word) / rank
    rarest = sorted(weights, key=lambda word: (-weights[word], word))[:OTHER_WORDS]
    return replace(inquiry, forms={**inquiry.forms, **{word: word for word in rarest}})


def _best_passages(
    engine: Engine, inquiry: Inquiry, candidates: Candidates, row: int
) -> tuple[ReadFile | None, list[int]]:
    file = engine.index.read(engine.index.corpus.paths[int(candidates.files[row])])
    if file is None:
        return None, []
    hits = file.hits({word: inquiry.forms[word] for word in candidates.weights})
    return file, file.ranked(file.counts(hits), candidates.weights)[:PASSAGES]
