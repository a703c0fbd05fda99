"""Make the table of word vectors of `locate`, for words of code and English, from the package `wordllama` (MIT).

    python -m benchmarks.locate_words TREES... --out src/reflectrl/wings/autoexplore/locate/data/words.npz

Every folder in TREES is a repository. A stemmed word that occurs in `LEAST` of them gets the mean of the vectors of its
most frequent forms, cut to `SIZE` numbers of one byte. Needs `pip install wordllama`.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.repository import Repository
from reflectrl.wings.autoexplore.texts import Text
from reflectrl.wings.autoexplore.words import count_runs, spoken

LEAST = 3
FORMS = 3
SIZE = 64
MOST = 24_000
LETTERS = (2, 24)


def main(words: Sequence[str] | None = None) -> None:
    """Count words, look up their vectors, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("trees", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", type=int, default=SIZE)
    args = parser.parse_args(words)
    holding: Counter[str] = Counter()
    forms: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for tree in args.trees:
        holding.update(_count(tree, forms))
    vocabulary = [word for word, repositories in holding.most_common(MOST) if repositories >= LEAST]
    vectors = embed([[form for form, _ in forms[word].most_common(FORMS)] for word in vocabulary])[:, : args.size]
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    scale = 127 / np.abs(vectors).max()
    order = np.argsort(vocabulary)
    table = {
        "words": np.array("\n".join(vocabulary[i] for i in order)),
        "vectors": np.round(vectors * scale)[order].astype(np.int8),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.out, **table)
    print(f"{len(vocabulary)} words, {args.out.stat().st_size:,} bytes")


def _count(tree: Path, forms: defaultdict[str, Counter[str]]) -> set[str]:
    """Return the words of a repository, and count their forms."""
    words: set[str] = set()
    try:
        repository = Repository.open(tree)
    except UserError:
        return words
    runs: Counter[str] = Counter()
    for path in repository.files:
        read = repository.read(path)
        runs.update(count_runs(f"{path}\n{read.text if isinstance(read, Text) else ''}"))
    for run, times in runs.items():
        for form, word in spoken(run):
            if LETTERS[0] <= len(word) <= LETTERS[1] and word.isascii() and word.isalpha():
                forms[word][form] += times
                words.add(word)
    return words


def embed(forms: Sequence[Sequence[str]]) -> np.ndarray:
    """Return the mean of the vectors of each group of forms."""
    # The package itself would look for the tokenizer on the internet, although it carries it.
    package = Path(find_spec("wordllama").submodule_search_locations[0])
    tokenizer = Tokenizer.from_file(str(package / "tokenizers/l2_supercat_tokenizer_config.json"))
    [table] = load_file(package / "weights/l2_supercat_256.safetensors").values()
    table = table.astype(np.float32)
    flat = [form for group in forms for form in group]
    encoded = tokenizer.encode_batch(flat, add_special_tokens=False)
    vectors = np.stack([table[each.ids].mean(axis=0) for each in encoded])
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    starts = np.cumsum([0, *map(len, forms)])[:-1]
    return np.add.reduceat(vectors, starts)


if __name__ == "__main__":
    main()
