"""A language model as an ONNX graph that reads tokens with a KV cache, verified against the model itself."""

from __future__ import annotations

import copy
import importlib.util
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from reflectrl.core.advice import install
from reflectrl.core.plugins import one_line
from reflectrl.core.types import UserError
from reflectrl.models.lm import LanguageModel

NEEDED = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-3
"""Largest difference between logits, about a hundred times the float32 rounding error of a small model."""


class Reader(nn.Module):
    """The exported graph: new tokens, past keys and values → logits of the next token, all keys and values.

    The keys of all layers are one tensor, [layers, 1, heads, tokens, width], and so are the values. A graph has three
    inputs and three outputs whatever the model's size. With zero past tokens the cache is empty.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids_1T: Tensor, keys_L1HPD: Tensor, values_L1HPD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits (V,) after the last token, and keys and values of all tokens (L, 1, H, P + T, D)."""
        cache = DynamicCache()
        for layer_index, (keys, values) in enumerate(zip(keys_L1HPD, values_L1HPD, strict=True)):
            cache.update(keys, values, layer_index)
        past, new = keys_L1HPD.shape[3], ids_1T.shape[1]
        # A token attends to all past tokens and, among the new ones, to itself and those before it.
        positions_T = torch.arange(past, past + new)
        hidden_TS = torch.arange(past + new)[None, :] > positions_T[:, None]
        mask = torch.zeros(hidden_TS.shape).masked_fill(hidden_TS, torch.finfo(torch.float32).min)
        output = self.model(
            input_ids=ids_1T,
            position_ids=positions_T[None],
            attention_mask=mask[None, None],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        layers = output.past_key_values.layers
        return (
            output.logits[0, -1],
            torch.stack([layer.keys for layer in layers]),
            torch.stack([layer.values for layer in layers]),
        )


def shape_of_cache(lm: LanguageModel) -> tuple[int, int, int, int]:
    """Return the layers, heads, and widths of the keys and of the values that a model keeps."""
    config: Any = lm.core.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    value_width = width
    if hasattr(config, "canon_taps"):  # values hold the inputs of short convolutions as well
        value_width += config.hidden_size // heads
    return int(config.num_hidden_layers), int(heads), int(width), int(value_width)


def require_packages() -> None:
    """Refuse to begin without the packages of the extra `browser`.

    Raises:
        UserError: a package is missing; the message names all that are.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"exporting to a browser needs {', '.join(missing)}; {install('browser')}")


def export_onnx(lm: LanguageModel, path: Path) -> None:
    """Write a model, with its adapter merged into it, as one file, and compare it with the model itself.

    Raises:
        UserError: the model's architecture cannot be exported, or the graph computes something else.
    """
    model = copy.deepcopy(lm.model)
    if lm.adapter is not None:
        model.set_adapter(lm.adapter)
        model = model.merge_and_unload()
    reader = Reader(model.float().cpu().eval().requires_grad_(False))
    layers, heads, *widths = shape_of_cache(lm)
    example = (torch.zeros(1, 3, dtype=torch.long), *(torch.zeros(layers, 1, heads, 5, width) for width in widths))
    new, past = torch.export.Dim("new", min=1), torch.export.Dim("past", min=0)
    shapes: Any = ({1: new}, {3: past}, {3: past})
    names = ["logits", "all_keys", "all_values"]
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.inference_mode(False):
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(
                reader,
                example,
                dynamo=True,
                dynamic_shapes=shapes,
                input_names=["ids", "keys", "values"],
                output_names=names,
                verbose=False,
            )
            program.save(path, external_data=False)
    except Exception as error:  # the exporter raises many kinds; all mean that it does not know this architecture
        family = getattr(lm.core.config, "model_type", "unknown")
        why = one_line(error)[:200]
        raise UserError(f"a model of the family {family!r} cannot be written as ONNX: {why}") from error
    _prove(reader, path, shape_of_cache(lm))


def _prove(reader: Reader, path: Path, shape: tuple[int, int, int, int]) -> None:
    """Compare the graph with the model: a prompt with an empty cache, then single tokens after it."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    layers, heads, *widths = shape
    keys, values = (np.zeros((layers, 1, heads, 0, width), np.float32) for width in widths)
    rng = np.random.default_rng(0)
    for length in (17, 1, 1):
        ids = rng.integers(0, reader.model.config.vocab_size, (1, length))
        with torch.inference_mode():
            expected = [output.numpy() for output in reader(*map(torch.from_numpy, (ids, keys, values)))]
        actual = session.run(None, {"ids": ids, "keys": keys, "values": values})
        worst = max(float(np.abs(output - other).max()) for output, other in zip(expected, actual, strict=True))
        if not worst < TOLERANCE:
            raise UserError(f"{path} computes other numbers than the model (a difference of {worst:.2g})")
        _, keys, values = actual
