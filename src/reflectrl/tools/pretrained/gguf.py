"""Models in GGUF files, as llama.cpp reads them. Each is converted once to a Hugging Face folder in the cache.

The weights are dequantised by `transformers` with the package `gguf` (the extra `gguf`). They keep the error of their
quantisation.
"""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
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
from reflectrl.tools.pretrained.gguf_header import read_header

MAGIC = b"GGUF"


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
    folder = data_folder("models") / f"gguf-{digest_of(file)[:16]}{'-half' if half else ''}"
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
        model, tokenizer = read_gguf(file, torch.bfloat16 if half else torch.float32)
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


def read_gguf(file: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """Read model and tokenizer of a GGUF file.

    Raises:
        UserError: it is not a GGUF file, `transformers` cannot read its architecture or quantisation, or it is damaged.
    """
    with file.open("rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            raise UserError(f"model {str(file)!r} is not a GGUF file (it does not begin with {MAGIC.decode()})")
    require_gguf()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    location: dict[str, Any] = {
        "pretrained_model_name_or_path": str(file.parent),
        "gguf_file": file.name,
        "local_files_only": True,
    }
    try:
        with hushed(), _within_file(file):
            loaded: Any = AutoModelForCausalLM.from_pretrained(**location, dtype=dtype, output_loading_info=True)
        quantised_model, info = loaded
        require_all_loaded(f"model {str(file)!r}", info["missing_keys"], info["unexpected_keys"])
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
            return model, AutoTokenizer.from_pretrained(**location)
    except UserError:
        raise
    except Exception as error:  # the loader raises many kinds; all mean "this is not a file that I can read"
        raise UserError(f"model {str(file)!r}: this GGUF file cannot be read: {one_line(error)[:200]}") from error


@contextmanager
def _within_file(file: Path) -> Iterator[None]:
    """Stop the library from building a model that is far larger than the tensors of a GGUF file.

    Sizes that the file leaves out have defaults. With them, a file of a few bytes would become a model of 7B.

    Raises:
        ValueError: the file claims far too many layers for its model, or, within the block, the model is too large.
    """
    header = read_header(file)
    for name, value in header.settings.items():
        require_possible(name, value)
    with bounded(len(header.shapes), sum(map(prod, header.shapes.values()))):
        yield
