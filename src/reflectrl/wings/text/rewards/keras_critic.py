"""Conversion of the critic of ATOMIC-10x (West et al. 2022, arXiv 2110.07178), which was trained and saved by Keras 2.

The published model is a RoBERTa whose pooled output goes through two dense layers. Keras saves it as a folder (a
SavedModel, the published form) or as an HDF5 file of the model or of its weights. All three hold arrays with names like
"tf_roberta_model/roberta/encoder/layer_._0/output/dense/kernel". Neither configuration nor tokenizer is among them, so
both come from the RoBERTa that the critic was trained from.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer

from reflectrl.core.advice import install
from reflectrl.core.plugins import one_line
from reflectrl.core.types import UserError
from reflectrl.learn.checkpoint import write_folder
from reflectrl.models.soundness import require_sound
from reflectrl.models.strangers import bounded, hushed, require_all_loaded
from reflectrl.wings.text.rewards.published import HEAD, AtomicCritic
from reflectrl.wings.text.rewards.saved_model import read_variables

LEAVES = {
    "kernel": "weight",
    "embeddings": "weight",
    "weight": "weight",
    "gamma": "weight",
    "bias": "bias",
    "beta": "bias",
}
"""Names of a layer's arrays in Keras, and in torch. Kernels are transposed."""
DENSE = re.compile(r"dense(?:_(\d+))?")
"""Name that Keras gives to a dense layer."""
HEAD_LAYERS = ("dense", "out_proj")
"""Names of the two dense layers after the RoBERTa."""


def convert(source: Path, base: str, folder: Path) -> None:
    """Write a critic that Keras saved as a folder that `load_classifier` reads, atomically.

    Args:
        source: folder or HDF5 file that Keras wrote.
        base: folder or hub name of the RoBERTa from which the critic was trained.
        folder: folder to write. It must be empty or absent.

    Raises:
        UserError: the source holds no such critic, the base is not a RoBERTa on this machine or of another size, or the
            folder cannot be written.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder} already exists; name a new folder")
    config, tokenizer = _load_base(base)
    with open_weights(source) as weights:
        arrays = _torch_names(weights, source)
        tensors = _fitted(arrays, _shapes(config, arrays, source), f"{source} (as a {base})")
    config.architectures, config.num_labels = ["RobertaModel"], 1
    head = {name: tensor for name, tensor in tensors.items() if name.startswith(HEAD_LAYERS)}
    backbone = {name: tensor for name, tensor in tensors.items() if name not in head}

    def fill(path: Path) -> None:
        config.save_pretrained(path)
        tokenizer.save_pretrained(path)
        save_file(backbone, path / "model.safetensors", {"format": "pt"})
        save_file(head, path / f"{HEAD}.safetensors", {"format": "pt"})

    try:
        write_folder(folder, fill, share=False)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from error


def _load_base(base: str) -> tuple[Any, Any]:
    """Return configuration and tokenizer of a RoBERTa on this machine."""
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    require_sound(Path(base))
    try:
        with hushed():
            config = AutoConfig.from_pretrained(base, **options)
            tokenizer = AutoTokenizer.from_pretrained(base, **options)
    except Exception as error:  # the loaders raise many kinds
        if not Path(base).exists():
            problem = "is neither a folder nor the name of a model on this machine (to fetch one: hf download NAME)"
            raise UserError(f"base {base!r} {problem}") from error
        raise UserError(f"base {base!r} cannot be loaded: {one_line(error)[:200]}") from error
    if config.model_type != "roberta":
        raise UserError(f"base {base!r} is not a RoBERTa but a {config.model_type}")
    return config, tokenizer


# ---- names and shapes ------------------------------------------------------------------------------------------------


def _torch_names(weights: Mapping[str, Any], source: Path) -> dict[str, tuple[Any, bool]]:
    """Map torch's names to the arrays, and to whether each is a kernel. Arrays of other layers are left out."""
    arrays: dict[str, tuple[Any, bool]] = {}
    dense: dict[int, dict[str, Any]] = {}
    for name, array in weights.items():
        *layers, leaf = name.split("/")
        if leaf not in LEAVES:
            continue
        if "roberta" in layers:  # Keras may have put any number of names before it
            first = len(layers) - layers[::-1].index("roberta")
            path = ".".join([*layers[first:], LEAVES[leaf]])
            arrays[path.replace("layer_._", "layer.")] = array, leaf == "kernel"
        elif layers and (match := DENSE.fullmatch(layers[-1])):
            dense.setdefault(int(match[1] or 0), {})[leaf] = array
    if len(dense) != len(HEAD_LAYERS) or not arrays:
        raise UserError(f"{source} is not a critic of Keras: a RoBERTa ('roberta') and two dense layers after it")
    for layer, (_, parts) in zip(HEAD_LAYERS, sorted(dense.items()), strict=True):
        for leaf, array in parts.items():
            arrays[f"{layer}.{LEAVES[leaf]}"] = array, leaf == "kernel"
    return arrays


def _shapes(config: Any, arrays: Mapping[str, tuple[Any, bool]], source: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a critic's weights. None are made."""
    bias = arrays.get("dense.bias", (None, False))[0]
    if bias is None or len(bias.shape) != 1:
        raise UserError(f"{source}: its first dense layer has no bias")
    numbers = sum(prod(array.shape) for array, _ in arrays.values())
    try:
        with bounded(len(arrays), numbers), torch.device("meta"):
            model = AtomicCritic(config, bias.shape[0])
    except ValueError as error:
        raise UserError(f"{source}: {error}") from error
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _fitted(
    arrays: Mapping[str, tuple[Any, bool]], shapes: Mapping[str, tuple[int, ...]], about: str
) -> dict[str, Tensor]:
    """Return the arrays as tensors. Arrays that are missing, that have no place, or that do not fit are refused."""
    require_all_loaded(about, shapes.keys() - arrays.keys(), arrays.keys() - shapes.keys())
    tensors = {}
    for name, (array, is_kernel) in arrays.items():
        shape = tuple(array.shape[::-1] if is_kernel else array.shape)
        if shape != shapes[name]:  # compared before anything is read, since a small file may claim a huge array
            raise UserError(f"{about}: {name} has the shape {shape}; it must have {shapes[name]}")
        if array.dtype.kind != "f":
            raise UserError(f"{about}: {name} holds {array.dtype}, not floating-point numbers")
        values = array[()]
        tensors[name] = torch.from_numpy(np.array(values.T if is_kernel else values, np.float32, order="C"))
    return tensors


# ---- files of Keras --------------------------------------------------------------------------------------------------


@contextmanager
def open_weights(source: Path) -> Iterator[Mapping[str, Any]]:
    """Open the arrays of a model that Keras saved, by name. They have a shape and a dtype, and `[()]` reads them.

    Raises:
        UserError: there is nothing there that Keras has written, or it is damaged.
    """
    if source.is_dir():
        try:
            variables = read_variables(source)
        except (OSError, ValueError) as error:
            raise UserError(f"{source} is not a model saved by Keras: {one_line(error)}") from error
        yield variables
        return
    if not source.is_file():
        raise UserError(f"{source}: no such file or folder")
    if importlib.util.find_spec("h5py") is None:
        raise UserError(f"HDF5 files need the package h5py; {install('keras')}")
    import h5py

    try:
        with h5py.File(source, "r") as file:
            yield _datasets(file, source)
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:  # all of these come from damaged files
        raise UserError(f"{source} is not an HDF5 file that can be read: {one_line(error)}") from error


def _datasets(file: Any, source: Path) -> dict[str, Any]:
    """Return the datasets of an HDF5 file by path, except for the optimiser's. Links are not followed."""
    import h5py

    datasets = {}

    def collect(path: str | bytes, item: Any) -> None:
        if isinstance(path, bytes) or path.startswith("optimizer_weights/"):  # bytes: a name that is not UTF-8
            return
        if not isinstance(item, h5py.Dataset):
            return
        if item.external or item.is_virtual:  # else a file from elsewhere could read other files of this machine
            raise UserError(f"{source}: the numbers of {path} are in another file")
        datasets[path.removesuffix(":0")] = item

    file.visititems(collect)
    return datasets
