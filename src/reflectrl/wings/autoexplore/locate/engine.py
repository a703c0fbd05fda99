"""Search of `locate`: index, grounds and ranker, and for each file the passage, the reason and the probability."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import numpy as np

from reflectrl.wings.autoexplore.index import Filters
from reflectrl.wings.autoexplore.locate.decision import FIRST, Decider, shipped_decider
from reflectrl.wings.autoexplore.locate.excerpts import Excerpt, excerpt
from reflectrl.wings.autoexplore.locate.grounds import Candidates, Tables, collect
from reflectrl.wings.autoexplore.locate.inquiry import Inquiry
from reflectrl.wings.autoexplore.locate.live import FILTERS, LiveIndex
from reflectrl.wings.autoexplore.locate.meaning import shipped_kin, shipped_telling, shipped_vectors
from reflectrl.wings.autoexplore.locate.passages import ReadFile
from reflectrl.wings.autoexplore.locate.ranker import Floats, Ranker, shipped_ranker, softmax
from reflectrl.wings.autoexplore.locate.reader import SHARPNESS, Reader
from reflectrl.wings.autoexplore.locate.scanning import CUT, UNDECODABLE, UNREADABLE
from reflectrl.wings.autoexplore.search import LINE_CHARACTERS, Hit, check_question
from reflectrl.wings.autoexplore.texts import printable
from reflectrl.wings.autoexplore.words import spoken

WORDS_IN_REASON = 5


class Engine:
    """Search engine of a folder that may change.

    Args:
        root: folder of the repository.
        filters: files to search.
        cached: keep the index in the user's cache folder.
        ranker: ranker; by default the one in the package.
        watched: as for `LiveIndex`.
        reader: language model that reads the first files where the decision model is not certain enough; None for none.
        decider: decision model; by default the one in the package.
        refreshed: as for `LiveIndex`.

    Raises:
        UserError: the folder does not exist, cannot be read, or has no file to search.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        filters: Filters = FILTERS,
        cached: bool = True,
        ranker: Ranker | None = None,
        watched: bool = False,
        reader: Reader | None = None,
        decider: Decider | None = None,
        refreshed: bool = True,
    ) -> None:
        self.index = LiveIndex(root, filters, cached, watched, refreshed)
        self._ranker, self._reader = ranker or shipped_ranker(), reader
        self.tables = Tables(shipped_vectors(), shipped_kin(), shipped_telling())
        self.decider = decider or shipped_decider(shipped_vectors())

    def search(self, question: str, k: int) -> list[Hit]:
        """Return the best `k` files, best first; fewer if fewer share a word with the question.

        Raises:
            UserError: the question has no word to search for.
        """
        check_question(question)
        inquiry = Inquiry.of(question)
        candidates = self.candidates(inquiry)
        scores = self._ranker.scores(candidates.grounds)
        shares = self._ranker.shares(scores)
        if len(scores):
            scores, shares = self._decide(inquiry, candidates, scores, shares)
        probabilities = self._ranker.probabilities(shares)
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[:k]
        return [
            self._hit(candidates, inquiry, index, float(scores[index]), float(probabilities[index])) for index in order
        ]

    def candidates(self, inquiry: Inquiry) -> Candidates:
        """Return the files that may answer, with their grounds."""
        return collect(self.index.corpus, inquiry, self.index.read, self.tables)

    def excerpts(self, inquiry: Inquiry, candidates: Candidates, indices: Iterable[int]) -> list[Excerpt]:
        """Return what a reader sees of some candidates."""
        paths = [self.index.corpus.paths[int(candidates.files[index])] for index in indices]
        read = {path: file for path in paths if (file := self.index.read(path)) is not None}
        weights, files = candidates.weights, list(read.values())
        excerpts = {path: excerpt(file, inquiry, weights, files) for path, file in read.items()}
        return [excerpts.get(path) or Excerpt(path) for path in paths]

    def _decide(
        self, inquiry: Inquiry, candidates: Candidates, scores: Floats, shares: Floats
    ) -> tuple[Floats, Floats]:
        """Let the decision model choose among the first files, and the reader if there is one and the first file is not
        certain enough. Return all scores and shares anew.

        Both say which of the first files answers, not whether one of them does. So they divide the share that the
        search gave to these together.
        """
        first = np.argsort(-scores, kind="stable")[:FIRST]
        excerpts, together = self.excerpts(inquiry, candidates, first.tolist()), shares[first].sum()
        decided = self.decider.scores(candidates.weights, excerpts, scores[first])
        divided = together * softmax(decided * self.decider.sharpness)
        reader = self._reader
        if reader is not None and self._ranker.probabilities(divided).max() < reader.unsure:
            decided = reader.scores(inquiry.text, excerpts, decided)
            divided = together * softmax(decided * SHARPNESS)
        # Files that were not looked at stand below, in their order.
        scores, shares = scores - scores[first].max(), np.minimum(shares, divided.min())
        scores[first], shares[first] = decided - decided.min(), divided
        return scores, shares

    def remarks(self) -> list[str]:
        """Describe, one line each, what was not searched or only in part."""
        kinds = (
            (CUT, "searched only in part, because they are long"),
            (UNDECODABLE, "read as Latin-1, because they are not UTF-8"),
            (UNREADABLE, "found by their names alone, because they cannot be read"),
        )
        return [line for bit, what in kinds if (line := _remark(self.index.remarks(bit), what))]

    def _hit(self, candidates: Candidates, inquiry: Inquiry, rank: int, score: float, probability: float) -> Hit:
        path = self.index.corpus.paths[int(candidates.files[rank])]
        words = tuple(inquiry.forms[word] for word in candidates.words[rank])
        named = {word for _, word in spoken(path)}
        in_path = [inquiry.forms[word] for word in candidates.words[rank] if word in named]
        file = self.index.read(path)
        if file is None or not (candidates.words[rank] or inquiry.line_in(path)):
            return Hit(path, score, words, why=_reason(in_path, "", [], words), probability=probability)
        hits = file.hits({word: inquiry.forms[word] for word in candidates.words[rank]})
        passage = candidates.best[rank]
        if passage < 0:
            passage_words = file.counts(hits)
            passage = max(passage_words, key=lambda index: len(passage_words[index]), default=0)
        named_line = inquiry.line_in(path)
        if named_line is not None and 1 <= named_line <= file.line(len(file.text)):
            passage = file.passage_of(named_line)
        else:
            named_line = None
        start, end = file.span(passage)
        line, text, inside = _best_line(file, hits, candidates.words[rank], start, end)
        if named_line is not None:
            line, text = named_line, printable(file.text.split("\n")[named_line - 1])[:LINE_CHARACTERS]
        name = printable(file.names[passage])
        why = _reason(in_path, name, [inquiry.forms[word] for word in inside], words)
        return Hit(path, score, words, line, text, start, end, name, why, probability)


def _best_line(
    file: ReadFile, hits: dict[str, list[int]], words: Sequence[str], start: int, end: int
) -> tuple[int | None, str, list[str]]:
    """Return the line of a passage with the most words (the first at ties), its text, and the passage's words."""
    lines: dict[int, set[str]] = {}
    for word, offsets in hits.items():
        for offset in offsets:
            line = file.line(offset)
            if start <= line <= end:
                lines.setdefault(line, set()).add(word)
    if not lines:
        return (start if hits else None), "", []
    worth = {word: len(words) - rank for rank, word in enumerate(words)}  # rarest first
    best = min(lines, key=lambda line: (-sum(worth[word] for word in lines[line]), line))
    text = file.text.split("\n", best)[best - 1]
    passage_words = set().union(*lines.values())
    return best, printable(text[:LINE_CHARACTERS]), [word for word in words if word in passage_words]


def _reason(in_path: Sequence[str], name: str, inside: Sequence[str], words: Sequence[str]) -> str:
    """Say in one line why a file may answer."""
    reasons = []
    if in_path:
        reasons.append(f"its path says {_listed(in_path)}")
    if name and inside:
        reasons.append(f"{name!r} holds {_listed(inside)}")
    elif inside:
        reasons.append(f"a passage holds {_listed(inside)}")
    return "; ".join(reasons) or (f"it holds {_listed(words)}" if words else "words of similar meaning")


def _listed(words: Sequence[str]) -> str:
    first_words = list(words[:WORDS_IN_REASON])
    more = len(words) - len(first_words)
    return ", ".join(first_words) + (f" and {more} more" if more > 0 else "")


def _remark(paths: Sequence[str], what: str) -> str:
    from reflectrl.wings.autoexplore.names import shown

    if not paths:
        return ""
    named = ", ".join(map(shown, paths[:3]))
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return f"{named}{more}: {what}"
