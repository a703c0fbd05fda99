"""Learn the word vectors of `locate` from commits and comments, beginning with the package `wordllama`'s (MIT).

    python -m benchmarks.locate_words TREES... --clones CLONES --out .../locate/data/words.npz

A text's vector is the sum of its words' vectors. Those of a commit's message and of the code that it changed shall be
similar, and those of other code of the same repository shall not (a softmax over a batch from one repository). So a
word learns the company that it keeps in code, and common words become short. Needs `pip install wordllama torch`.

TREES are repositories whose comments are read, CLONES those whose commits are. The dev and test repositories of the
splits and those of SWE-QA are left out.
"""

from __future__ import annotations

import argparse
import random
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from torch.nn import functional

from benchmarks.locate_texts import MOST_PAIRS, Pair, Reader, Words, committed, documented

LEAST = 4
"""Smallest number of groups of pairs that hold a word of the table."""
FORMS = 3
SIZE = 64
LETTERS = (2, 24)
BATCH = 192
SMALLEST = 32
EPOCHS = 3
RATE = 1e-3
KEPT = 0.7
"""Share of a body's words that a batch sees, so that no single word is relied upon."""
Floats = NDArray[np.float32]
_Numbers = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], Floats]


def main(words: Sequence[str] | None = None) -> None:
    """Mine pairs, learn the vectors, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("trees", nargs="+", type=Path)
    parser.add_argument("--clones", type=Path, required=True)
    parser.add_argument("--splits", type=Path, default=Path(__file__).with_name("locate_splits.toml"))
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(words)
    splits = tomllib.loads(given.splits.read_text(encoding="utf-8"))
    kept_out = {name.replace("/", "+") for split in ("dev", "test") for name in splits["mined"][split]}
    kept_out |= {name.rpartition("+")[2] for name in kept_out} | set(splits["swe-qa"])
    reader, groups = Reader(), list[list[Pair]]()
    for name in splits["mined"]["train"]:
        groups.append(list(islice(committed(given.clones / name.replace("/", "+") / "repo", reader), MOST_PAIRS)))
    for tree in sorted(given.trees, key=lambda tree: tree.name):
        if tree.name not in kept_out:
            groups.append(list(islice(documented(tree, reader), MOST_PAIRS)))
    groups = [group for group in groups if len(group) >= SMALLEST]
    print(f"{len(groups)} groups, {sum(map(len, groups)):,} pairs", flush=True)
    table = learn(groups, reader)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(given.out, **table)
    print(f"{len(table['vectors']):,} words, {given.out.stat().st_size:,} bytes")


def learn(groups: Sequence[Sequence[Pair]], reader: Reader) -> dict[str, NDArray[Any]]:
    """Return the table: sorted words, their vectors in bytes, and the logarithm of each word's weight in a question."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # sums in another order would give other bytes
    holding = _holding(groups, len(reader.numbers))
    vocabulary = sorted(
        word
        for word, number in reader.numbers.items()
        if holding[number] >= LEAST and LETTERS[0] <= len(word) <= LETTERS[1] and word.isascii() and word.isalpha()
    )
    old = [reader.numbers[word] for word in vocabulary]
    rows = np.full(len(holding), -1, np.int64)
    rows[old] = np.arange(len(old))
    model = Bags(_first_vectors(vocabulary, reader.forms, holding[old]))
    numbered = [[numbers for pair in group if (numbers := _numbered(pair, rows)) is not None] for group in groups]
    rng = random.Random(0)
    steps = EPOCHS * len(list(_batches(numbered, rng)))
    optimizer = torch.optim.Adam([{"params": [model.vectors.weight]}, {"params": model.scalars, "lr": 5 * RATE}], RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.02, 1 - step / steps))
    for step, batch in enumerate(batch for _ in range(EPOCHS) for batch in _batches(numbered, rng)):
        loss, right = model.loss(batch, np.random.default_rng(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 200 == 0:
            print(f"step {step} of {steps}: loss {loss.item():.3f}, right {right:.2f}", flush=True)
    vectors = model.vectors.weight.detach().numpy()
    scale = 127 / np.quantile(np.abs(vectors), 0.9999)
    return {
        "words": np.array("\n".join(vocabulary)),
        "vectors": np.clip(np.round(vectors * scale), -127, 127).astype(np.int8),
        "asked": np.round(model.asked.detach().numpy(), 2).astype(np.float16),
    }


class Bags(torch.nn.Module):
    """Sums of word vectors.

    Args:
        first: (W, size), the vectors to begin with.
    """

    def __init__(self, first: Floats) -> None:
        super().__init__()
        self.vectors = torch.nn.Embedding.from_pretrained(torch.from_numpy(first), freeze=False)
        self.asked = torch.nn.Parameter(torch.zeros(len(first)))  # log of a word's weight in a question
        self.path = torch.nn.Parameter(torch.tensor(-0.7))
        self.sharpness = torch.nn.Parameter(torch.tensor(2.7))
        self.scalars = [self.asked, self.path, self.sharpness]

    def loss(self, batch: Sequence[_Numbers], rng: np.random.Generator) -> tuple[torch.Tensor, float]:
        """Return the loss of a batch, and the share of texts whose own code is the most similar."""
        said, path, body, counts = zip(*batch, strict=True)
        seen = [rng.random(len(rows)) < KEPT for rows in body]
        kept = [mask if mask.sum() >= 3 else np.ones(len(mask), bool) for mask in seen]
        questions = self._asked(said)
        bodies = self._sums(
            [rows[mask] for rows, mask in zip(body, kept, strict=True)],
            [values[mask] for values, mask in zip(counts, kept, strict=True)],
        )
        paths = self._sums(path, [np.ones(len(rows), np.float32) for rows in path])
        files = functional.normalize(bodies + torch.exp(self.path) * paths, dim=1)
        similar = questions @ files.T * torch.exp(self.sharpness)
        # Files of one commit share its message, and none of them is a wrong answer.
        keys = [rows.tobytes() for rows in said]
        shared = torch.tensor([[one == other for other in keys] for one in keys])
        similar = similar.masked_fill(shared & ~torch.eye(len(keys), dtype=torch.bool), -1e4)
        target = torch.arange(len(keys))
        loss = functional.cross_entropy(similar, target) + 0.3 * functional.cross_entropy(similar.T, target)
        return loss, float((similar.argmax(1) == target).float().mean())

    def _asked(self, rows: Sequence[NDArray[np.int64]]) -> torch.Tensor:
        flat, offsets = _flat(rows)
        summed = functional.embedding_bag(
            flat, self.vectors.weight, offsets, mode="sum", per_sample_weights=torch.exp(self.asked[flat])
        )
        return functional.normalize(summed, dim=1)

    def _sums(self, rows: Sequence[NDArray[np.int64]], weights: Sequence[Floats]) -> torch.Tensor:
        flat, offsets = _flat(rows)
        values = torch.from_numpy(np.concatenate(weights))
        summed = functional.embedding_bag(
            flat, self.vectors.weight, offsets, mode="sum", per_sample_weights=values.float()
        )
        return functional.normalize(summed, dim=1)


def _flat(rows: Sequence[NDArray[np.int64]]) -> tuple[torch.Tensor, torch.Tensor]:
    sizes = np.array([len(each) for each in rows])
    return torch.from_numpy(np.concatenate(rows)), torch.from_numpy(sizes.cumsum() - sizes)


def _holding(groups: Sequence[Sequence[Pair]], size: int) -> NDArray[np.int64]:
    """Return the number of groups that hold each word."""
    holding = np.zeros(size, np.int64)
    for group in groups:
        holding[np.unique(np.concatenate([numbers for pair in group for numbers, _ in pair]))] += 1
    return holding


def _numbered(pair: Pair, rows: NDArray[np.int64]) -> _Numbers | None:
    """Return the rows of a pair's words, with damped counts of the body's; None if too few are in the table."""
    said, path, body = (_in_table(words, rows) for words in pair)
    if len(said[0]) < 2 or len(body[0]) < 5:
        return None
    return said[0], path[0], body[0], np.log1p(body[1])


def _in_table(words: Words, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], Floats]:
    numbers, counts = words
    found = rows[numbers]
    return found[found >= 0], counts[found >= 0]


def _batches(groups: Sequence[Sequence[_Numbers]], rng: random.Random) -> Iterator[list[_Numbers]]:
    """Yield batches, each from one group, in random order."""
    cut = list[list[_Numbers]]()
    for group in groups:
        shuffled = rng.sample(group, len(group))
        cut += [shuffled[start : start + BATCH] for start in range(0, len(shuffled), BATCH)]
    rng.shuffle(cut)
    yield from (batch for batch in cut if len(batch) >= SMALLEST)


def _first_vectors(vocabulary: Sequence[str], forms: Mapping[str, Counter[str]], holding: NDArray[np.int64]) -> Floats:
    """Return the main directions of the package's vectors, longer for rarer words."""
    found = [forms.get(word, Counter({word: 1})) for word in vocabulary]
    vectors = embed([[form for form, _ in counts.most_common(FORMS)] for counts in found])
    centred = vectors - vectors.mean(axis=0)
    _, directions = np.linalg.eigh(centred.T.astype(float) @ centred)  # ascending
    turned = centred @ directions[:, ::-1][:, :SIZE]
    turned /= np.maximum(np.linalg.norm(turned, axis=1, keepdims=True), 1e-9)
    rarity = np.log1p((holding.max() - holding + 0.5) / (holding + 0.5))
    return np.asarray(turned * (0.3 + rarity / rarity.mean())[:, None], np.float32)


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
