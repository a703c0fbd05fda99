"""Further looks: the candidates that an agent can look at beyond the first ones.

It can go on in the order of the search, follow the names that the first files use to the files that define them, or ask
again with the words that the first files use for what was asked.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from reflectrl.wings.autoexplore.locate.corpus import Corpus
from reflectrl.wings.autoexplore.locate.excerpts import PASSAGES
from reflectrl.wings.autoexplore.locate.grounds import Candidates, Read
from reflectrl.wings.autoexplore.locate.inquiry import Inquiry
from reflectrl.wings.autoexplore.locate.passages import ReadFile
from reflectrl.wings.autoexplore.locate.segments import identifier

FIRST, FURTHER = 8, 4
"""Number of files that an agent looks at first, and with each further look."""
LEADING = 3
"""Number of first files that are followed, and whose words are used."""
MOST_DEFINING = 5
"""Largest number of files that may define a name: a name that more files define leads nowhere."""
OTHER_WORDS = 6
PASSAGE_CHARACTERS = 4000
_NAME = re.compile(r"[A-Za-z_]\w{3,}")
Ask = Callable[[Inquiry], Sequence[str]]


def further_looks(
    corpus: Corpus, read: Read, ask: Ask, inquiry: Inquiry, candidates: Candidates, order: Sequence[int]
) -> dict[str, list[int]]:
    """Return the candidates that each further look shows: "more", "follow" and "ask again".

    Args:
        corpus: index of the repository.
        read: function that reads a file.
        ask: function that returns the paths of the files that a search finds, best first.
        inquiry: parts of the question.
        candidates: files that may answer.
        order: indices of the candidates, best first.
    """
    leading, known = order[:LEADING], set(order[:FIRST])
    row_of = {corpus.paths[int(file)]: row for row, file in enumerate(candidates.files)}
    asked = [row_of[path] for path in ask(other_words(corpus, read, inquiry, candidates, leading)) if path in row_of]
    looks = {
        "more": order[FIRST:],
        "follow": followed(corpus, read, inquiry, candidates, leading),
        "ask again": asked,
    }
    return {name: [row for row in rows if row not in known][:FURTHER] for name, rows in looks.items()}


def followed(corpus: Corpus, read: Read, inquiry: Inquiry, candidates: Candidates, leading: Sequence[int]) -> list[int]:
    """Return the candidates that define names which the best passages of the leading files use, strongest first."""
    row_of = {int(file): row for row, file in enumerate(candidates.files)}
    strength: defaultdict[int, float] = defaultdict(float)
    for rank, row in enumerate(leading, 1):
        file, passages = _best_passages(corpus, read, inquiry, candidates, row)
        if file is None:
            continue
        text = "\n".join(file.passage_text(passage)[:PASSAGE_CHARACTERS] for passage in passages)
        for joined in {identifier(name) for name in _NAME.findall(text)}:
            defining = corpus.find(joined)[0].tolist()
            for other in defining if len(defining) <= MOST_DEFINING else ():
                if other in row_of and row_of[other] != row:
                    strength[row_of[other]] += 1 / (rank * len(defining))
    return sorted(strength, key=lambda row: (-strength[row], row))


def other_words(
    corpus: Corpus, read: Read, inquiry: Inquiry, candidates: Candidates, leading: Sequence[int]
) -> Inquiry:
    """Return the question with the rarest words that name the best passages of the leading files (Rocchio, 1971)."""
    weights: defaultdict[str, float] = defaultdict(float)
    for rank, row in enumerate(leading, 1):
        file, passages = _best_passages(corpus, read, inquiry, candidates, row)
        if file is None:
            continue
        for word in {word for passage in passages for word in file.words[passage]} - set(inquiry.forms):
            weights[word] += corpus.rarity(word) / rank
    rarest = sorted(weights, key=lambda word: (-weights[word], word))[:OTHER_WORDS]
    return replace(inquiry, forms={**inquiry.forms, **{word: word for word in rarest}})


def _best_passages(
    corpus: Corpus, read: Read, inquiry: Inquiry, candidates: Candidates, row: int
) -> tuple[ReadFile | None, list[int]]:
    file = read(corpus.paths[int(candidates.files[row])])
    if file is None:
        return None, []
    hits = file.hits({word: inquiry.forms[word] for word in candidates.weights})
    return file, file.ranked(file.counts(hits), candidates.weights)[:PASSAGES]
