"""Grounds: the features by which the ranker decides how well a file answers a question.

The first group comes from the index, for all files. The files that score best on it are read, and compared passage by
passage. A ground about words is the share of the question's words, weighted by rarity, that occur in some zone of the
file or in a passage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reflectrl.wings.autoexplore.locate import kinds
from reflectrl.wings.autoexplore.locate.corpus import Corpus
from reflectrl.wings.autoexplore.locate.inquiry import Inquiry
from reflectrl.wings.autoexplore.locate.meaning import Kin, Meaning, Telling
from reflectrl.wings.autoexplore.locate.passages import ReadFile, prepare_vectors, rule_out
from reflectrl.wings.autoexplore.locate.segments import CODE, COMMENT_SHIFT, DEFINED, FOLDER, HEAD, STEM
from reflectrl.wings.autoexplore.words import composed, words

K1, B = 1.2, 0.75
"""Parameters of BM25."""
CANDIDATES = 64
"""Number of files that are ranked by all grounds."""
READ = 28
"""Number of files that are read."""
OFTEN = 3
GAP = 5
"""Largest number of characters between two words that follow each other, apart from the endings of the first."""
SHORT_STEM = 4
"""Shortest name of a file that is looked for in other files."""
PASSAGE_LENGTH = 800
"""Typical length of a passage, in characters."""
Read = Callable[[str], ReadFile | None]

SHARES = ("stem", "folder", "defined", "head", "told", "code", "anywhere", "often")
KIN = ("kin stem", "kin defined", "kin anywhere")
OF_PASSAGES = (
    "passage", "passage bm25", "passage named", "passage words", "three passages", "identifiers used", "phrases",
    "phrases named", "referred", "meaning name", "meaning names", "was read",
)  # fmt: skip
"""Grounds of files that were read; 0 for others."""
COLUMNS = (
    "bm25", *SHARES, "stem precision", "identifiers defined", "identifiers named like file", "path named", "neighbours",
    *KIN, *OF_PASSAGES[:9], "meaning path", *OF_PASSAGES[9:], "length", "depth",
    *(f"kind {name}" for name in kinds.NAMES), "test", "generated", "vendored", "example", "init", "root",
)  # fmt: skip


class Tables(NamedTuple):
    """Tables of words. None leaves out the grounds that need the table."""

    meaning: Meaning | None = None
    kin: Kin | None = None
    telling: Telling | None = None


@dataclass
class Candidates:
    """Files that may answer, with their grounds.

    Attributes:
        files: indices of the files, best first by the index alone.
        grounds: (F, len(COLUMNS)).
        best: for each file, the index of the passage that fits best; -1 if it was not read.
        words: for each file, the words of the question that it holds, rarest first.
        weights: weight of each word of the question that any file holds.
    """

    files: NDArray[np.int32]
    grounds: NDArray[np.float32]
    best: list[int]
    words: list[tuple[str, ...]]
    weights: dict[str, float]


def collect(corpus: Corpus, inquiry: Inquiry, read: Read, tables: Tables) -> Candidates:
    """Return the candidates for a question."""
    meaning, kin, telling = tables
    rarity = {word: corpus.rarity(word) * (telling.of(word) if telling else 1.0) for word in inquiry.forms}
    table, holders = _of_index(corpus, inquiry, rarity, kin)
    first = _first(corpus, table)
    columns = {name: values[first] for name, values in table.items()}
    weights = {word: weight for word, weight in rarity.items() if len(corpus.find(word)[0])}
    _of_paths(corpus, inquiry, first, columns, weights, meaning)
    best = _of_passages(corpus, inquiry, first, columns, weights, meaning, read)
    _of_kinds(corpus, first, columns)
    grounds = np.stack([columns[name].astype(np.float32) for name in COLUMNS], axis=1)
    order = sorted(weights, key=lambda word: (-weights[word], word))
    file_words = [tuple(word for word in order if holders[word][file]) for file in first.tolist()]
    return Candidates(first, grounds, best, file_words, weights)


def _of_index(
    corpus: Corpus, inquiry: Inquiry, rarity: dict[str, float], kin: Kin | None
) -> tuple[dict[str, NDArray[np.float32]], dict[str, NDArray[np.bool_]]]:
    """Return the grounds of all files by name, and for each word the files that hold it."""
    size = len(corpus)
    of_index = ("bm25", *SHARES, *KIN, "identifiers defined", "path named", "neighbours")
    table = {name: np.zeros(size, np.float32) for name in of_index}
    holders: dict[str, NDArray[np.bool_]] = {}
    norm = K1 * (1 - B + B * corpus.lengths / corpus.mean_length)
    total = sum(weight for word, weight in rarity.items() if len(corpus.find(word)[0])) or 1.0
    for word, weight in rarity.items():
        files, times, zones = corpus.find(word)
        holders[word] = np.zeros(size, bool)
        if not len(files):
            continue
        holders[word][files] = True
        share = weight / total
        table["bm25"][files] += weight * times * (K1 + 1) / (times + norm[files])
        comments = zones >> COMMENT_SHIFT
        for name, mask in (
            ("stem", zones & STEM > 0), ("folder", zones & FOLDER > 0), ("defined", zones & DEFINED > 0),
            ("head", zones & HEAD > 0), ("told", comments > 0), ("code", zones & CODE > 0), ("often", times >= OFTEN),
        ):  # fmt: skip
            table[name][files[mask]] += share
        table["anywhere"][files] += share
    if kin is not None:
        _of_kin(corpus, rarity, total, kin, table)
    for name in inquiry.identifiers:
        files, _, _ = corpus.find(name)
        if len(files):
            # A name that many files define, such as `main`, says little.
            table["identifiers defined"][files] += 1.0 / len(files) ** 0.5
    best = table["bm25"].max(initial=0.0)
    if best > 0:
        table["bm25"] /= best
    for path in inquiry.paths:
        named = [i for i, file in enumerate(corpus.paths) if f"/{composed(file).lower()}".endswith(f"/{path}")]
        table["path named"][named] = 1.0
    if size:
        count = np.bincount(corpus.folders)
        sums = np.bincount(corpus.folders, table["bm25"])
        table["neighbours"] = (
            (sums[corpus.folders] - table["bm25"]) / np.maximum(count[corpus.folders] - 1, 1)
        ).astype(np.float32)
    return table, holders


def _of_kin(
    corpus: Corpus, rarity: dict[str, float], total: float, kin: Kin, table: dict[str, NDArray[np.float32]]
) -> None:
    """Add the shares of the question's words for which a file holds a partner: a word with the same meaning."""
    for word, weight in rarity.items():
        best = {name: np.zeros(len(corpus), np.float32) for name in ("kin stem", "kin defined", "kin anywhere")}
        for partner, strength in kin.of(word):
            files, _, zones = corpus.find(partner)
            if partner in rarity or not len(files):
                continue
            # A common partner of a rare word must not count like the rare word.
            value = strength * min(1.0, corpus.rarity(partner) / max(weight, 0.1))
            masks = {"kin stem": zones & (STEM | FOLDER) > 0, "kin defined": zones & DEFINED > 0}
            for name, mask in {**masks, "kin anywhere": zones >= 0}.items():
                best[name][files[mask]] = np.maximum(best[name][files[mask]], value)
        for name, values in best.items():
            table[name] += weight / total * values


def _first(corpus: Corpus, table: dict[str, NDArray[np.float32]]) -> NDArray[np.int32]:
    """Return the candidates: the files with the largest sum of grounds, weighted by hand, that match the question."""
    rough = (
        table["bm25"] + 0.6 * table["defined"] + 0.5 * table["stem"] + 0.2 * table["folder"] + 0.3 * table["head"]
        + 0.3 * table["kin stem"] + 0.3 * table["kin defined"] + table["identifiers defined"] + 2 * table["path named"]
    )  # fmt: skip
    rough += 0.15 * (corpus.kinds == kinds.CODE)
    tests = (corpus.properties & (kinds.TEST | kinds.GENERATED | kinds.VENDORED) > 0) * 0.3
    rough = np.where(table["anywhere"] + table["kin anywhere"] + table["path named"] > 0, rough - tests, -1.0)
    order = np.argsort(-rough, kind="stable")[:CANDIDATES]
    return order[rough[order] > -1.0].astype(np.int32)


def _of_paths(
    corpus: Corpus,
    inquiry: Inquiry,
    first: NDArray[np.int32],
    columns: dict[str, NDArray[np.float32]],
    weights: dict[str, float],
    meaning: Meaning | None,
) -> None:
    paths = [corpus.paths[file] for file in first.tolist()]
    question_words = set(inquiry.forms)
    stems = [words(path.rpartition("/")[2].partition(".")[0]) for path in paths]
    columns["stem precision"] = np.array(
        [len(question_words & set(stem)) / len(stem) if stem else 0.0 for stem in stems]
    )
    joined = [
        "=" + path.rpartition("/")[2].partition(".")[0].replace("_", "").replace("-", "").lower() for path in paths
    ]
    columns["identifiers named like file"] = np.array([float(name in inquiry.identifiers) for name in joined])
    columns["length"] = (np.log1p(corpus.lengths[first]) / 10).astype(np.float32)
    columns["depth"] = np.array([min(path.count("/"), 8) / 8 for path in paths])
    columns["meaning path"] = np.zeros(len(first), np.float32)
    if meaning is not None and len(first):
        path_vectors = meaning.groups([words(path) for path in paths], {})
        columns["meaning path"] = path_vectors @ meaning.of(weights or dict.fromkeys(inquiry.forms, 1.0))


def _of_passages(
    corpus: Corpus,
    inquiry: Inquiry,
    first: NDArray[np.int32],
    columns: dict[str, NDArray[np.float32]],
    weights: dict[str, float],
    meaning: Meaning | None,
    read: Read,
) -> list[int]:
    """Read the best files, and add the grounds of their passages; return the best passage of each."""
    for name in OF_PASSAGES:
        columns[name] = np.zeros(len(first), np.float32)
    total = sum(weights.values()) or 1.0
    forms = {word: inquiry.forms[word] for word in weights}
    question_vector = meaning.of(weights) if meaning is not None else None
    best = [-1] * len(first)
    worth = {
        pair: (weights[pair[0]] + weights[pair[1]]) / 2
        for pair in inquiry.pairs
        if pair[0] in weights and pair[1] in weights
    }
    total_pairs = sum(worth.values()) or 1.0
    texts: dict[int, ReadFile] = {}
    for row, file_index in enumerate(first[:READ].tolist()):
        file = read(corpus.paths[file_index])
        if file is not None:
            texts[row] = file
    if meaning is not None:
        prepare_vectors(texts.values(), meaning)
    for row, file in texts.items():
        columns["was read"][row] = 1.0
        hits = file.hits(forms)
        adjacent = [pair for pair in worth if _follow(hits.get(pair[0]), hits.get(pair[1]), len(forms[pair[0]]))]
        columns["phrases"][row] = sum(worth[pair] for pair in adjacent) / total_pairs
        in_names = (*file.words, words(file.path)) if adjacent else ()
        named = [pair for pair in adjacent if any(pair[0] in names and pair[1] in names for names in in_names)]
        columns["phrases named"][row] = sum(worth[pair] for pair in named) / total_pairs
        sizes, counts = file.sizes(), file.counts(hits)
        scores = [_bm25_of(passage_words, weights, sizes[passage]) for passage, passage_words in counts.items()]
        columns["passage bm25"][row] = max(scores, default=0.0) / total
        values = {
            passage: (
                sum(weights[word] for word in passage_words) / total,
                sum(weights[word] for word in passage_words if word in file.words[passage]) / total,
            )
            for passage, passage_words in counts.items()
        }
        ranked = file.ranked(counts, weights)
        if ranked:
            best[row] = ranked[0]
            columns["passage"][row] = max(value for value, _ in values.values())
            columns["passage named"][row] = max(named for _, named in values.values())
            columns["passage words"][row] = sum(values[ranked[0]])
            columns["three passages"][row] = sum(values[passage][0] for passage in ranked[:3]) / 3
        used = [name for form in inquiry.identifiers.values() if file.mentions(form.lower())]
        columns["identifiers used"][row] = len(used) / max(len(inquiry.identifiers), 1)
        if question_vector is not None and meaning is not None:
            similar = file.vectors(meaning) @ question_vector
            top = np.sort(similar)[::-1][:3] if len(similar) else np.zeros(1)
            columns["meaning name"][row] = top[0]
            columns["meaning names"][row] = top.mean()
    _of_references(corpus, first, texts, columns["referred"])
    return best


def _bm25_of(counts: Mapping[str, int], rarity: Mapping[str, float], size: int) -> float:
    """Return BM25 of a passage."""
    norm = K1 * (1 - B + B * size / PASSAGE_LENGTH)
    return sum(rarity[word] * times * (K1 + 1) / (times + norm) for word, times in counts.items())


def _follow(before: Sequence[int] | None, after: Sequence[int] | None, length: int) -> bool:
    """Return whether one word follows another anywhere, as in `retry_policy` or "policy of retries"."""
    if not before or not after:
        return False
    later = iter(after)
    offset = next(later)
    for start in before:
        while offset <= start:
            offset = next(later, -1)
            if offset < 0:
                return False
        if offset <= start + length + GAP:
            return True
    return False


def _of_references(
    corpus: Corpus, first: NDArray[np.int32], texts: Mapping[int, ReadFile], column: NDArray[np.float32]
) -> None:
    """Add the share of the other files that were read and that name this file, as its callers do."""
    stems = {row: file_stem(corpus.paths[int(first[row])]) for row in texts}
    rule_out(texts.values(), list(dict.fromkeys(filter(None, stems.values()))))
    for row, stem in stems.items():
        if not stem:
            continue
        naming = [other for other, file in texts.items() if other != row and file.mentions(stem)]
        column[row] = len(naming) / max(len(texts) - 1, 1)


def file_stem(path: str) -> str:
    """Return a file's name without its ending, in lower case; "" if it is too short to look for in other files."""
    stem = path.rpartition("/")[2].partition(".")[0].lower()
    return stem if len(stem) >= SHORT_STEM else ""


def _of_kinds(corpus: Corpus, first: NDArray[np.int32], columns: dict[str, NDArray[np.float32]]) -> None:
    for kind, name in enumerate(kinds.NAMES):
        columns[f"kind {name}"] = (corpus.kinds[first] == kind).astype(np.float32)
    bits = {"test": kinds.TEST, "generated": kinds.GENERATED, "vendored": kinds.VENDORED, "example": kinds.EXAMPLE,
            "init": kinds.INIT, "root": kinds.ENTRY}  # fmt: skip
    for name, bit in bits.items():
        columns[name] = (corpus.properties[first] & bit > 0).astype(np.float32)
