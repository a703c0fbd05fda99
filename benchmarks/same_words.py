"""Count how often a word is made of other tokens than elsewhere, with and without `same_words`, by environment.

    python -m benchmarks.same_words

For each environment, a tokenizer is trained on the prompts and actions of random play in training tasks, and tried on
those of validation tasks. A word's occurrences (in any case, before and after any character) are compared with its most
frequent spelling in tokens. "tokens" is the mean length of a prompt, relative to the tokenizer without `same_words`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer

from benchmarks.strangers import STRANGERS, make
from reflectrl.core.envs import make as make_known
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.prompts import words_prompt
from reflectrl.models.byte_pairs import train_byte_pairs

WINGS = ("taxi", "frozenlake", "babyai", "portals")
WORD = re.compile(r"[A-Za-z]+")
EPISODES, STEPS, VOCAB = 60, 10, 512


def texts_of(env: TextEnv, split: str) -> list[str]:
    """Return prompts and actions of random play."""
    rng, texts = np.random.default_rng(0), list[str]()
    for task in list(env.tasks(split))[:EPISODES]:
        _, info = env.reset(seed=0, options={"task": task})
        for _ in range(STEPS):
            if env.done:
                break
            prompt = words_prompt(info["observation"], None)
            texts.append(prompt.history + prompt.rest)
            texts += [f" {action}" for action in info["actions"]]
            _, _, _, _, info = env.step(int(rng.integers(len(info["actions"]))))
    return texts


def differing(tokenizer: Tokenizer, texts: Sequence[str]) -> float:
    """Return the share of words that are made of other tokens than their most frequent spelling."""
    mark = tokenizer.token_to_id("Ď")  # of a capital letter, as byte-level BPE writes it
    spellings: dict[str, Counter[tuple[int, ...]]] = defaultdict(Counter)
    for text in texts:
        encoded = tokenizer.encode(text)
        for match in WORD.finditer(text):
            inside = [
                token
                for token, (start, end) in zip(encoded.ids, encoded.offsets, strict=True)
                if start < match.end() and end > match.start()
            ]
            # The mark of a capital letter stands before a word, and is no part of it.
            spellings[match[0].lower()][tuple(token for token in inside if token != mark)] += 1
    total = sum(sum(counts.values()) for counts in spellings.values())
    usual = sum(max(counts.values()) for counts in spellings.values())
    return 1 - usual / total


def main() -> None:
    """Print a row for each environment."""
    print("| environment | words that differ, before | with `same_words` | tokens |\n|---|---|---|---|")
    for name in (*STRANGERS, *WINGS):
        env = make(name) if name in STRANGERS else make_known({"name": name})
        train, held_out = (texts_of(env, split) for split in ("train", "validation"))
        plain, same = (train_byte_pairs(train, VOCAB, same_words=same_words) for same_words in (False, True))
        lengths = [sum(len(encoded.ids) for encoded in t.encode_batch(held_out)) for t in (plain, same)]
        row = [f"{100 * differing(tokenizer, held_out):.1f} %" for tokenizer in (plain, same)]
        print(f"| {name} | {row[0]} | {row[1]} | {lengths[1] / lengths[0]:.2f} |", flush=True)
        env.close()


if __name__ == "__main__":
    main()
