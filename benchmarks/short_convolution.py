"""Time play and updates of a model with short convolutions, beside the same model without them.

    python -m benchmarks.short_convolution --width 64 --layers 3 --repeat 15

Both are Llama blocks of the same size with random weights, without positions in the first and with rotary positions in
the second. Play scores the actions of 32 growing episodes by a trie, step by step, from KV caches. An update is the
forward and backward pass of 64 decisions. The two models take turns; processor time, medians and ratios are printed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import reflectrl.models.canon  # noqa: F401  (registers the family)
from benchmarks.families import Marks
from reflectrl.models.backend import Candidates
from reflectrl.models.lm import EngineOptions, LanguageModel
from reflectrl.models.sharing import Ids, KVCache, pack

VOCAB, EPISODES, STEPS, DECISIONS = 600, 32, 6, 64


def model_of(family: str, width: int, layers: int) -> LanguageModel:
    """Make a model with random weights."""
    shape: dict[str, Any] = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 4, "intermediate_size": 8 * width // 3 // 8 * 8, "vocab_size": VOCAB}
    config = AutoConfig.for_model(family, **shape, max_position_embeddings=512, tie_word_embeddings=True)
    model = AutoModelForCausalLM.from_config(config).eval()
    return LanguageModel(model, Marks(), context=512, engine_options=EngineOptions())


def texts_of(rng: np.random.Generator) -> Candidates:
    """Make six actions of three tokens."""
    return Candidates(tuple((*rng.integers(2, VOCAB, 3).tolist(), 1) for _ in range(6)), (1,) * 6)


def play(lm: LanguageModel) -> None:
    """Score the actions of growing episodes, step by step."""
    rng = np.random.default_rng(0)
    histories: list[Ids] = [()] * EPISODES
    caches = [KVCache() for _ in histories]
    with torch.inference_mode():
        for _ in range(STEPS):
            histories = [(*history, *rng.integers(2, VOCAB, 20).tolist()) for history in histories]
            prompts = [(*history, *rng.integers(2, VOCAB, 40).tolist()) for history in histories]
            lm.backend.score(prompts, [texts_of(rng) for _ in prompts], "trie", caches)


def update(lm: LanguageModel) -> None:
    """Compute the gradient of the log-probabilities of 64 decisions, in groups that share half of their prompts."""
    rng = np.random.default_rng(0)
    prompts: list[Ids] = []
    for _ in range(DECISIONS // 4):
        shared = tuple(rng.integers(2, VOCAB, 50).tolist())
        prompts += [(*shared, *rng.integers(2, VOCAB, 50).tolist()) for _ in range(4)]
    logits_PA, _ = lm.backend.score(pack(prompts), [texts_of(rng) for _ in prompts], "trie")
    logits_PA.log_softmax(-1)[:, 0].sum().backward()
    lm.core.zero_grad()


def main() -> None:
    """Time both models in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    models = {family: model_of(family, args.width, args.layers) for family in ("canon_llama", "llama")}
    work: dict[str, Callable[[LanguageModel], None]] = {"play": play, "update": update}
    print(f"| width {args.width}, {args.layers} layers | with (ms) | without (ms) | ratio |\n|---|---|---|---|")
    for name, run in work.items():
        spent: dict[str, list[float]] = {family: [] for family in models}
        for _ in range(args.repeat + 1):
            for family, lm in models.items():
                began = time.process_time()
                run(lm)
                spent[family].append(1000 * (time.process_time() - began))
        own, other = (median(times[1:]) for times in spent.values())
        ratios = [a / b for a, b in zip(*(times[1:] for times in spent.values()), strict=True)]
        print(f"| {name} | {own:.0f} | {other:.0f} | {median(ratios):.3f} |")


if __name__ == "__main__":
    main()
