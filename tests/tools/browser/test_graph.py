"""A model as an ONNX graph: by onnxruntime it writes and chooses as the model does. (Pages are tried in a browser.)"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reflectrl.core.envs import make
from reflectrl.core.players import LiveEpisode
from reflectrl.core.prompts import policy_prompt, reflector_prompt, tokenize
from reflectrl.core.types import Sampling, UserError
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import Policy, Reflector
from reflectrl.tools.browser.graph import Reader, _prove, export_onnx, shape_of_cache


class Reading:
    """A graph as the page uses it."""

    def __init__(self, lm: LanguageModel, path: Path) -> None:
        import onnxruntime

        export_onnx(lm, path)
        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        layers, heads, *widths = shape_of_cache(lm)
        self.nothing = [np.zeros((layers, 1, heads, 0, width), np.float32) for width in widths]

    def read(self, ids: tuple[int, ...], past: Any = None) -> tuple[np.ndarray, Any]:
        keys, values = past or self.nothing
        logits, *past = self.session.run(None, {"ids": np.array([ids]), "keys": keys, "values": values})
        return logits, past

    def write(self, ids: tuple[int, ...], most: int, end: int) -> tuple[int, ...]:
        written: list[int] = []
        logits, past = self.read(ids)
        while len(written) < most and (token := int(logits.argmax())) != end:
            written.append(token)
            logits, past = self.read((token,), past)
        return tuple(written)


@pytest.mark.parametrize(("family", "adapters"), [("gpt2", False), ("llama", True), ("canon_llama", False)])
def test_it_writes_and_chooses_as_the_model_does(
    pair: Callable[..., Any], exporter: None, tmp_path: Path, family: str, adapters: bool
) -> None:
    _, lm = pair(family, adapters)  # the second adapter of the two
    policy, reflector, reading = Policy(lm, Sampling(0.0)), Reflector(lm, 12), Reading(lm, tmp_path / "model.onnx")
    env = make({"name": "frozenlake"})
    for task in env.tasks("test"):
        _, info = env.reset(options={"task": task})
        seen = info["observation"]
        live = LiveEpisode(env, task, 0, np.random.default_rng(0), seen)
        [said] = reflector.turns([live])
        prompt = tokenize(lm, reflector_prompt(seen), reserve=12)
        assert reading.write(prompt, 12, lm.tokenizer.eos_token_id) == said.token_ids
        live.turns.append(said)
        [chosen] = policy.turns([live])
        labels = policy.labels(len(seen.actions))
        prompt = tokenize(lm, policy_prompt(seen, said.text, labels.texts))
        logits = reading.read(prompt)[0][list(labels.token_ids)].astype(float)
        assert np.exp(logits - np.logaddexp.reduce(logits)) == pytest.approx(chosen.probs, abs=1e-4)


def test_a_graph_of_other_weights_is_found_out(pair: Callable[..., Any], exporter: None, tmp_path: Path) -> None:
    first, second = pair("gpt2", False)
    export_onnx(first, tmp_path / "first.onnx")
    with torch.inference_mode(), pytest.raises(UserError, match="computes other numbers than the model"):
        _prove(Reader(second.model), tmp_path / "first.onnx", shape_of_cache(second))
