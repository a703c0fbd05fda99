"""Compare the decisions of a model in three runtimes: the engine (torch), the light runtime (numpy), and ONNX.

    python -m benchmarks.runtimes --decisions 10000 --family canon_llama

A model made from scratch gets larger random weights, so that its choices are far from uniform, and chooses among six
labels in states of random words. Printed are the decisions in which each runtime agrees with the engine, and the
largest difference of a probability.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reflectrl.core.config import ModelConfig
from reflectrl.core.prompts import policy_prompt, tokenize
from reflectrl.core.types import Observation
from reflectrl.models.labels import find_labels
from reflectrl.models.light import load_light
from reflectrl.models.load import load_model
from reflectrl.models.scratch import save_scratch
from reflectrl.tools.browser.graph import export_onnx, shape_of_cache

WORDS = ("red", "blue", "door", "key", "box", "take", "open", "Left", "Right", "north;", "(south)", "3", "17", "lamp:")
ACTIONS = ("go north", "go south", "take key", "open door", "wait", "look")
BATCH = 64


def prompts_of(tokenizer: Any, model: Any, count: int) -> list[tuple[int, ...]]:
    """Return the tokens of prompts about states of random words."""
    rng, labels = np.random.default_rng(0), find_labels(tokenizer, len(ACTIONS))
    prompts = []
    for _ in range(count):
        state = " ".join(rng.choice(WORDS, size=int(rng.integers(3, 40)))) + "\n"
        prompt = policy_prompt(Observation("", state, ACTIONS), None, labels.texts)
        prompts.append(tokenize(model, prompt._replace(rest=prompt.rest + labels.gap)))
    return prompts


def probabilities(logits_A: np.ndarray) -> np.ndarray:
    """Return the softmax of some logits."""
    exponents = np.exp(logits_A.astype(float) - logits_A.max())
    return exponents / exponents.sum()


def main() -> None:
    """Make the model, ask every runtime, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decisions", type=int, default=10_000)
    parser.add_argument("--family", default="canon_llama", choices=["canon_llama", "llama", "gpt2"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    import onnxruntime

    config: Any = ModelConfig(family=args.family, layers=3, width=64, context=256)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        texts = [" ".join(WORDS), *(f"{action};" for action in ACTIONS), "Actions:\nChoice: 1 2 3 4 5 6"]
        save_scratch(folder, config, texts * 5, 9, 0)
        lm = load_model(folder, config)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for weight in lm.parameters():
                weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
        lm.save(folder)
        light = load_light(folder, 256)
        assert light is not None
        export_onnx(lm, Path(name) / "model.onnx")
        session = onnxruntime.InferenceSession(str(Path(name) / "model.onnx"), providers=["CPUExecutionProvider"])
    layers, heads, *widths = shape_of_cache(lm)
    keys, values = (np.zeros((layers, 1, heads, 0, width), np.float32) for width in widths)
    labels = list(find_labels(lm.tokenizer, len(ACTIONS)).token_ids)
    prompts = prompts_of(lm.tokenizer, lm, args.decisions)
    engine: list[np.ndarray] = []
    with torch.inference_mode():
        for start in range(0, len(prompts), BATCH):
            hidden_BD = lm.backend.read(prompts[start : start + BATCH])
            engine += [probabilities(row) for row in lm.backend.logits(hidden_BD, torch.tensor(labels)).float().numpy()]
    others: dict[str, list[np.ndarray]] = {"light": [], "ONNX": []}
    for prompt in prompts:
        others["light"].append(probabilities(light.logits(light.read(prompt)[0], labels)))
        logits_V, *_ = session.run(None, {"ids": np.array([prompt]), "keys": keys, "values": values})
        others["ONNX"].append(probabilities(logits_V[labels]))
    print("| runtime | same action | largest difference of a probability |\n|---|---|---|")
    for runtime, rows in others.items():
        same = sum(int(a.argmax() == b.argmax()) for a, b in zip(rows, engine, strict=True))
        worst = max(float(np.abs(a - b).max()) for a, b in zip(rows, engine, strict=True))
        print(f"| {runtime} | {same} of {len(prompts)} | {worst:.1e} |")
    confident = np.mean([row.max() for row in engine])
    print(f"mean probability of the engine's choice: {confident:.2f}")


if __name__ == "__main__":
    main()
