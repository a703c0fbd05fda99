"""Models in GGUF files, as llama.cpp reads them. Each is converted once to a Hugging Face folder in the cache.

The weights are dequantised by `transformers` with the package `gguf` (the extra `gguf`). They keep the error of their
quantisation.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from math import prod
from pathlib import Path
from typing import Any

import torch

from reflectrl.core.advice import install
from reflectrl.core.config.folders import apply_umask, data_folder, require_writable
from reflectrl.core.digests import digest_of, require_undamaged, write_digests
from reflectrl.core.plugins import one_line, reason
from reflectrl.core.types import UserError
from reflectrl.learn.checkpoint import system_errors
from reflectrl.models.soundness import require_possible
from reflectrl.models.strangers import bounded, hushed, require_all_loaded
from reflectrl.tools.pretrained.catalogue import clear_parts
from reflectrl.tools.pretrained.gguf_header import Header, read_header
from reflectrl.tools.pretrained.gguf_settings import completed
from reflectrl.tools.pretrained.gguf_tokenizer import read_tokenizer, require_known_split

MAGIC = b"GGUF"
FORM = 2
"""Version of the conversion. Folders of an earlier one, which left settings out, are not used."""
SCALES = ("rope_freqs", "rope_factors_short", "rope_factors_long")
"""Tensors that scale rotary positions. They become settings of the model."""
NAMED = 5
"""Largest number of settings or tensors that a message names."""

logger = logging.getLogger("reflectrl")


def converted(file: Path, half: bool = False) -> Path:
    """Return the folder converted from a GGUF file, and convert it first if it does not exist.

    The folder is named by the file's content and lies in the cache. So a file may move, and is converted only once.

    Args:
        half: keep the weights in bfloat16, which halves the folder's size.

    Raises:
        UserError: there is no such file, it is not of a kind that can be read, or the folder cannot be written.
    """
    if not file.is_file():
        raise UserError(f"model {str(file)!r}: there is no such GGUF file")
    folder = data_folder("models") / f"gguf-{digest_of(file)[:16]}-{FORM}{'-half' if half else ''}"
    if not (folder / "config.json").is_file():
        clear_parts(folder.parent, "gguf-")
        convert(file, folder, half)
    require_undamaged(folder)
    return folder


def convert(file: Path, folder: Path, half: bool = False) -> None:
    """Write the model of a GGUF file as a Hugging Face folder with tokenizer and digests, atomically.

    Raises:
        UserError: as `converted`.
    """
    quiet = redirect_stderr(io.StringIO())  # hides the library's progress bars
    with quiet:
        model, tokenizer, unknown = read_gguf(file, torch.bfloat16 if half else torch.float32)
    if unknown:
        logger.warning("reflectrl: model %s: nothing here knows its setting%s", file, _named(unknown))
    require_writable(folder.parent, f"folder of models {folder.parent}")
    part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".part", dir=folder.parent))
    try:
        with quiet, system_errors(folder):
            model.save_pretrained(part)
            tokenizer.save_pretrained(part)
        write_digests(part)
        apply_umask(part)
        for path in part.rglob("*"):
            with path.open("rb") as written:
                os.fsync(written.fileno())
        part.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)  # without a config.json, it is not a model
        part.rename(folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {reason(error)}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def require_gguf() -> None:
    """Raise UserError if the package that reads GGUF files is not installed."""
    if importlib.util.find_spec("gguf") is None:
        raise UserError(f"GGUF files need the package gguf; {install('gguf')}")


def read_gguf(file: Path, dtype: torch.dtype) -> tuple[Any, Any, list[str]]:
    """Read model and tokenizer of a GGUF file, and the names of its unknown settings.

    Raises:
        UserError: it is not a GGUF file, `transformers` cannot read its architecture or quantisation, it has tensors or
            settings that change numbers and that cannot be honoured, or it is damaged.
    """
    with file.open("rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            raise UserError(f"model {str(file)!r} is not a GGUF file (it does not begin with {MAGIC.decode()})")
    require_gguf()
    from transformers import AutoConfig, AutoModelForCausalLM

    location: dict[str, Any] = {
        "pretrained_model_name_or_path": str(file.parent),
        "gguf_file": file.name,
        "local_files_only": True,
    }
    try:
        header = read_header(file)
        _require_model(header)
        require_known_split(header)
        with hushed(), _within(header):
            config, unknown = completed(header, AutoConfig.from_pretrained(**location), _scales(file, header))
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                **location, config=config, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
            )
        quantised_model, info = loaded
        require_all_loaded(f"model {str(file)!r}", info["missing_keys"], info["unexpected_keys"])
        if misfits := [f"{name} of {list(shape)}" for name, shape, _ in sorted(info["mismatched_keys"])]:
            raise ValueError(f"its header describes other sizes than its tensor{_named(misfits)}")
        if left := _left_out(header, quantised_model):
            raise ValueError(f"the model has no place for its tensor{_named(left)}")
        settings = {
            key: value
            for key, value in quantised_model.config.to_dict().items()
            if key not in ("quantization_config", "_name_or_path", "_model_name_or_path")
        }
        model = type(quantised_model)(type(quantised_model.config).from_dict(settings)).to(dtype)
        model.load_state_dict(quantised_model.state_dict())  # the library does not save a model that it calls quantised
        if not all(weight.isfinite().all() for weight in model.parameters()):
            raise ValueError("some of its weights are not finite numbers")
        with hushed():
            return model, read_tokenizer(header, location), unknown
    except UserError:
        raise
    except Exception as error:  # the loader raises many kinds; all mean "this is not a file that I can read"
        raise UserError(f"model {str(file)!r}: this GGUF file cannot be read: {one_line(error)[:200]}") from error


def _require_model(header: Header) -> None:
    """Raise ValueError if a file holds an adapter, a part of a model, or anything else that is no whole model."""
    if (kind := header.settings.get("general.type", "model")) != "model":
        raise ValueError(f"it holds no model, but {str(kind)[:100]!r}")
    if (pieces := header.settings.get("split.count", 0)) > 1:
        raise ValueError(f"it is one of {pieces} files of a model; join them with llama-gguf-split --merge")
    if header.of(header.architecture).get("attention.causal", True) is False:
        raise ValueError("its attention is not causal, so it writes no text")


def _scales(file: Path, header: Header) -> Mapping[str, Sequence[float]]:
    """Return the values of the tensors that scale rotary positions, by name."""
    names = {f"{name}.weight": name for name in SCALES}
    if not names.keys() & header.shapes.keys():
        return {}
    from gguf import GGUFReader, dequantize

    tensors = [tensor for tensor in GGUFReader(file).tensors if tensor.name in names]
    return {names[tensor.name]: dequantize(tensor.data, tensor.tensor_type).tolist() for tensor in tensors}


def _left_out(header: Header, model: Any) -> list[str]:
    """Return the tensors that the library has not put into the model, which it does not report."""
    from transformers import modeling_gguf_pytorch_utils as library

    if header.architecture in getattr(library, "GGUF_ARCHS", ()):
        return []
    make = library.TENSOR_PROCESSORS.get(header.architecture, library.TensorProcessor)
    processor = make(config=model.config.to_dict())
    used = library.get_gguf_hf_weights_map(model, processor).keys() | {f"{name}.weight" for name in SCALES}
    used |= {f"{name}.weight" for name in used}  # experts are named without an ending
    # Angles of old files: each model computes its own.
    return sorted(name for name in header.shapes.keys() - used if "rot_embd" not in name and "inv_freq" not in name)


def _named(names: Sequence[str]) -> str:
    """Return the end of a message that names settings or tensors, beginning with the ending of their kind."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{'s' if len(names) > 1 else ''} {', '.join(name[:100] for name in names[:NAMED])}{more}"


@contextmanager
def _within(header: Header) -> Iterator[None]:
    """Stop the library from building a model that is far larger than the tensors of a GGUF file.

    Sizes that the file leaves out have defaults. With them, a file of a few bytes would become a model of 7B.

    Raises:
        ValueError: the file claims far too many layers for its model, or, within the block, the model is too large.
    """
    for name, value in header.settings.items():
        require_possible(name, value)
    with bounded(len(header.shapes), sum(map(prod, header.shapes.values()))):
        yield
