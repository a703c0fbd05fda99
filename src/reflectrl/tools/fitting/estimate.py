"""Estimate of the memory that a run with pretrained models needs, from their files, before they are loaded.

Nothing is loaded for it, not even torch. The headers of safetensors files list every tensor with its shape, and
`config.json` gives the rest. So a dry run can show the estimate. `benchmarks/fitting.py` compares it with the memory
that is actually used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reflectrl.core.config import ModelConfig, Recipe
from reflectrl.core.json_lines import read_json
from reflectrl.core.types import UserError
from reflectrl.models.sources import files_of, find_model
from reflectrl.models.weights import BITS, GIB, is_linear, shapes_of, weight_bytes

KEPT_BYTES = {("float32", False): 4.0, ("float32", True): 3.8, ("bfloat16", False): 2.2, ("bfloat16", True): 3.0}
"""Bytes per activation that is kept for the gradient, by precision, and by whether only adapters are trained. Counted
with torch's hooks for saved tensors: adapters leave some out, and in 16 bits keep copies of their inputs in 32."""

PIECES = {"float32": 2.4, "bfloat16": 2.1}
"""Factor between the size of activations and the growth of a training process on a CPU. glibc cannot reuse all freed
memory, since tensors are aligned (measured 1.9 to 2.9, glibc 2.36)."""

HEAP = 1.1
"""Factor between used memory and the memory of a process that loads, plays or runs RL on a CPU in 16 bits. Most tensors
then fit glibc's heap, which keeps freed memory in pieces (measured 1.01 to 1.26)."""

PASS = 4 * GIB
"""Bytes of activations to which learners limit their passes on a CPU (`models.machine.pass_bytes`). A longer row is a
separate pass."""

WORKING = 2 * GIB
"""Largest number of bytes of keys and values that a call takes in addition to the kept caches (`sharing.WORKING`)."""

ROLES = ("policy", "reflector")


@dataclass(frozen=True)
class Shape:
    """Facts about a model from its files.

    Attributes:
        folder: folder of the weights (for an adapter, of its backbone's weights).
        tensors: name → shape of every weight.
        stored: bytes of the files with weights.
        inner: width within the layers' MLPs.
        kv: width of a token's keys in one layer, and of its values.
    """

    folder: Path
    tensors: Mapping[str, tuple[int, ...]]
    stored: float
    layers: int
    width: int
    inner: int
    kv: int
    vocab: int

    @property
    def activations(self) -> float:
        """Numbers that a layer keeps of a token for its gradient (counted in `forward.py`, for GPT-2's kind of layers
        and for Llama's with a gated MLP).
        """
        gated = any("gate" in name for name in self.tensors)
        return 8 * self.width + 5 * self.kv + 4 * self.inner if gated else 9 * self.width + 2 * self.inner


@dataclass(frozen=True)
class Need:
    """Bytes that a process needs.

    Attributes:
        weights: weights of each player's model; the second is 0 if both are adapters on one backbone.
        loading: additional memory while a model is loaded.
        adapter: adapter of one player; 0 without adapters.
        trained: weights of one player, or of its adapter.
        learned: the part of `trained` that is not frozen.
        references: number of reference copies of `trained` for the KL penalty of RL: 0 or 1.
        caches: keys and values of the episodes that are played, if prompts fill the context.
        rows: activations and logits of a pass of SFT, and of a pass of RL, if prompts fill the context.
        heap: factor between used and held memory in loading, play and RL.
    """

    weights: tuple[float, float]
    loading: float
    adapter: float
    trained: float
    learned: float
    references: int
    caches: float
    rows: tuple[float, float]
    heap: float = 1.0

    @property
    def load(self) -> float:
        """Memory while the last model is loaded."""
        return self.heap * (sum(self.weights) + self.adapter + self.loading)

    @property
    def play(self) -> float:
        """Memory of both players and the caches of their episodes."""
        return max(self.load, self.heap * (sum(self.weights) + 2 * self.adapter + self.caches))

    @property
    def sft(self) -> float:
        """Memory of SFT: a player, the optimiser's two averages, the best weights so far, and the larger of activations
        and gradient.

        In the backward pass, gradients take the place of activations.
        """
        learner = 3 * self.learned + max(self.rows[0], self.learned)
        return max(self.load, max(self.weights) + self.adapter + learner)

    @property
    def rl(self) -> float:
        """Memory of RL: both players, the learner's state, its reference model, and activations."""
        learner = self.references * self.trained + 3 * self.learned + max(self.rows[1], self.learned)
        return max(self.play, self.heap * (sum(self.weights) + 2 * self.adapter + learner))

    @property
    def peak(self) -> float:
        """Largest need of all stages."""
        return max(self.play, self.sft, self.rl)

    @property
    def least(self) -> Need:
        """The same need for the shortest texts: without caches and activations."""
        return replace(self, caches=0.0, rows=(0.0, 0.0))

    def __str__(self) -> str:
        stages = ", ".join(f"{name} {getattr(self, name) / GIB:.2f}" for name in ("play", "sft", "rl"))
        filled = f"about {self.peak / GIB:.2f} GiB where prompts fill the context ({stages})"
        return f"{filled}, {self.least.peak / GIB:.2f} before any text"


def shape_of(source: str) -> Shape | None:
    """Return the facts from a model's files; None if there are no files here.

    A saved adapter's facts are the facts of its backbone.
    """
    folder = files_of(source)
    if (folder / "adapter_config.json").is_file():
        folder = files_of(str(_json(folder / "adapter_config.json").get("base_model_name_or_path")))
    if not (tensors := shapes_of(folder)):
        return None
    about = _json(folder / "config.json")
    size = about.get("text_config") or about

    def number(*names: str) -> int:
        return int(next((size[name] for name in names if isinstance(size.get(name), int)), 0))

    width, heads = number("hidden_size", "n_embd"), max(1, number("num_attention_heads", "n_head"))
    kv = (number("num_key_value_heads") or heads) * (number("head_dim") or width // heads)
    if "canon_taps" in size:  # the inputs of short convolutions are kept as well, once, beside keys and values
        kv += width // 2
    stored = sum(path.stat().st_size for path in folder.glob("model*.safetensors"))
    inner = number("intermediate_size", "n_inner", "ffn_dim") or 4 * width
    layers = number("num_hidden_layers", "n_layer")
    return Shape(folder, tensors, stored, layers, width, inner, kv, number("vocab_size"))


def adapter_bytes(shapes: Mapping[str, tuple[int, ...]], model: ModelConfig) -> float:
    """Return the bytes of a player's adapter, in float32: rank · (inputs + outputs) of every linear layer."""
    return 4.0 * model.lora_rank * sum(sum(shape) for name, shape in shapes.items() if is_linear(name, shape))


def estimate(recipe: Recipe, pass_bytes: float = PASS) -> Need | None:
    """Estimate the need of a run's process; None if a player is made from scratch or its files are not here.

    Args:
        pass_bytes: bytes of activations to which learners limit their passes.
    """
    model = recipe.model
    if "scratch" in model.sources:
        return None
    try:
        role_shapes = [shape_of(find_model(model.source_of(role))) for role in ROLES]
    except UserError:  # the run itself will report it
        return None
    if not all(role_shapes):
        return None
    shapes = [shape for shape in role_shapes if shape is not None]
    weights = [weight_bytes(shape.tensors, model) for shape in shapes]
    shared = model.lora_rank > 0 and shapes[0].folder == shapes[1].folder
    adapter = max(adapter_bytes(shape.tensors, model) for shape in shapes)
    half = model.dtype == "bfloat16" and model.quantisation == "none"
    loading = max(shape.stored for shape in shapes)
    if half:
        loading = max(loading, 2 * max(weights))
    # Tables that embeddings and head share get a gradient from each before these are added.
    sft_rows = rl_rows = 0.0
    for shape in shapes:
        table = 0.0
        if not adapter and not model.frozen_layers:
            table = shape.vocab * shape.width * BITS[model.dtype] / 8
        sft_rows = max(sft_rows, table + _sft_rows(shape, recipe, pass_bytes))
        rl_rows = max(rl_rows, table + _rl_rows(shape, recipe, pass_bytes))
    played = max(recipe.rl.episodes, recipe.eval.batch)
    return Need(
        (weights[0], 0.0 if shared else weights[1]),
        loading,
        adapter,
        adapter or max(weights),
        adapter or max(size * _learning_share(shape, model) for shape, size in zip(shapes, weights, strict=True)),
        int(recipe.rl.kl_coef > 0),
        sum(_cache_bytes(shape, recipe, played) for shape in shapes)
        + min(WORKING, played * (model.context + recipe.play.reflection_tokens) * _token_bytes(shapes[1], model)),
        (sft_rows, rl_rows),
        HEAP if half and model.device in ("auto", "cpu") else 1.0,
    )


def _learning_share(shape: Shape, model: ModelConfig) -> float:
    """Return the share of a model's weights that is trained, with frozen layers left out."""
    if not model.frozen_layers:
        return 1.0

    def learns(name: str) -> bool:
        layer = re.search(r"\.(\d+)\.", name)
        return int(layer[1]) >= model.frozen_layers if layer else not re.search(r"emb|wte|wpe", name)

    sizes = {name: math.prod(size) for name, size in shape.tensors.items()}
    return sum(count for name, count in sizes.items() if learns(name)) / sum(sizes.values())


def row_bytes(shape: Shape, model: ModelConfig, scored: int) -> float:
    """Return the bytes by which a pass grows per row that fills the context, with `scored` tokens scored."""
    activation_bytes = shape.activations * KEPT_BYTES[model.dtype, model.lora_rank > 0]
    size = BITS[model.dtype] / 8
    learning = max(1, shape.layers - model.frozen_layers)
    layers = learning * activation_bytes
    if model.gradient_checkpointing:
        layers = learning * shape.width * size + activation_bytes
    pieces = PIECES[model.dtype] if model.device in ("auto", "cpu") else 1.0
    return pieces * model.context * layers + scored * shape.vocab * 12.0


def _sft_rows(shape: Shape, recipe: Recipe, pass_bytes: float) -> float:
    """Return the bytes of a pass of SFT, with as many rows of a batch as `micro_batches` puts together."""
    sft, model = recipe.sft, recipe.model
    scored = min(recipe.play.reflection_tokens, model.context)
    if sft.accumulate:
        rows = -(-sft.batch_size // sft.accumulate)
    else:
        rows = _per_pass(shape, model, scored, sft.batch_size, pass_bytes)
    return rows * row_bytes(shape, model, scored)


def _rl_rows(shape: Shape, recipe: Recipe, pass_bytes: float) -> float:
    """Return the bytes of a pass of RL, with as many prompts as `passes` puts together."""
    rows = _per_pass(shape, recipe.model, 1, recipe.rl.minibatch, pass_bytes)
    return rows * row_bytes(shape, recipe.model, 1)


def _per_pass(shape: Shape, model: ModelConfig, scored: int, most: int, pass_bytes: float) -> int:
    """Return the number of rows in a pass if each fills the context, as learners count them (`learn.examples`)."""
    activation_bytes = 20 * shape.width * shape.layers * BITS[model.dtype] / 8 * model.context
    return max(1, min(most, int(pass_bytes // (activation_bytes + scored * shape.vocab * 12.0))))


def _token_bytes(shape: Shape, model: ModelConfig) -> float:
    return 2 * shape.layers * shape.kv * BITS[model.dtype] / 8


def _cache_bytes(shape: Shape, recipe: Recipe, episodes: int) -> float:
    """Return the bytes of the KV caches that a player keeps of its episodes."""
    return min(recipe.play.kv_cache_mib * 2.0**20, episodes * recipe.model.context * _token_bytes(shape, recipe.model))


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(read_json(path))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
