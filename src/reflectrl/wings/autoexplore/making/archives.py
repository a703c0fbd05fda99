"""Unpacking source distributions and wheels. Nothing that is in them is ever run."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from reflectrl.types import UserError

ARCHIVES = (".tar.gz", ".tgz", ".tar.bz2", ".zip", ".whl")
MOST_BYTES = 1 << 30
"""An archive that claims to hold more is no package's."""
_COMPILED = (".so", ".pyd", ".dll", ".dylib", ".a", ".o", ".pyc")
_METADATA = ("PKG-INFO", "METADATA")
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError)


def unpack(archive: Path, folder: Path) -> str:
    """Unpack a package into a folder that is not there yet.

    The folder that encloses everything in a source distribution is stripped. Compiled code is left out, and so is what
    packaging tools write about the package (`PKG-INFO`, `*.egg-info`, `*.dist-info`), which repeats the README.

    Returns:
        The package's metadata (the text of its PKG-INFO or METADATA), "" if it has none.

    Raises:
        UserError: the archive is damaged, too large, or holds anything that would lie outside of the folder.
    """
    with _aside(folder) as fresh:
        try:
            (_unpack_zip if archive.name.endswith((".zip", ".whl")) else _unpack_tar)(archive, fresh)
        except _DAMAGED as error:
            raise UserError(f"{archive} cannot be unpacked: {' '.join(str(error).split())}") from error
        root = _root(fresh)
        metadata = _take_metadata(root)
        root.rename(folder)
    return metadata


@contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """A temporary folder beside one that is to be made."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=folder.parent))
    try:
        yield fresh
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _unpack_tar(archive: Path, folder: Path) -> None:
    with tarfile.open(archive, "r:*") as tar:
        members = [member for member in tar if member.isdir() or (member.isreg() and _is_wanted(member.name))]
        _require_size(sum(member.size for member in members))
        tar.extractall(folder, members=members, filter="data")  # refuses absolute names, `..` and devices


def _unpack_zip(archive: Path, folder: Path) -> None:
    """As the data filter does for tars; zipfile itself would silently put `../x` inside."""
    with zipfile.ZipFile(archive) as file:
        members = [member for member in file.infolist() if not member.is_dir() and _is_wanted(member.filename)]
        _require_size(sum(member.file_size for member in members))
        for member in members:
            path = PurePosixPath(member.filename)
            if path.is_absolute() or ".." in path.parts or "\\" in member.filename:
                raise ValueError(f"{member.filename!r} would be outside the destination")
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with file.open(member) as source, (folder / path).open("wb") as target:
                shutil.copyfileobj(source, target)


def _is_wanted(name: str) -> bool:
    return not name.endswith(_COMPILED)


def _require_size(size: int) -> None:
    if size > MOST_BYTES:
        raise ValueError(f"it holds {size:,} bytes")


def _root(folder: Path) -> Path:
    """The folder that encloses everything, if there is one."""
    inside = list(folder.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


def _take_metadata(root: Path) -> str:
    """The text of the metadata; it, and copies of it, are removed."""
    places = [root, *sorted(root.glob("*.dist-info")), *sorted(root.rglob("*.egg-info"))]
    found = [place / name for place in places for name in _METADATA if (place / name).is_file()]
    text = found[0].read_text(encoding="utf-8", errors="replace") if found else ""
    for place in places[1:]:
        shutil.rmtree(place, ignore_errors=True)
    for name in _METADATA:
        (root / name).unlink(missing_ok=True)
    return text
