"""Unpack source distributions and wheels. No code in them is ever run."""

from __future__ import annotations

import lzma
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from reflectrl.core.archives import opened_tar
from reflectrl.core.types import UserError

ARCHIVES = (".tar.gz", ".tgz", ".tar.bz2", ".zip", ".whl")
MOST_BYTES = 1 << 30
"""Largest unpacked size, in bytes. No package should need more."""
_COMPILED = (".so", ".pyd", ".dll", ".dylib", ".a", ".o", ".pyc")
_METADATA = ("PKG-INFO", "METADATA")
_DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
)


def unpack(archive: Path, folder: Path) -> str:
    """Unpack a package into a new folder.

    The top-level folder of a source distribution is stripped. Compiled code is left out. So is the metadata of
    packaging tools (`PKG-INFO`, `*.egg-info`, `*.dist-info`), which repeats the README.

    Returns:
        The package's metadata (the text of its PKG-INFO or METADATA); "" if there is none.

    Raises:
        UserError: the archive is damaged or too large, or an entry would be outside of the folder.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder.parent, ignore_cleanup_errors=True) as beside:
        fresh = Path(beside) / "fresh"
        fresh.mkdir()
        try:
            (_unpack_zip if archive.name.endswith((".zip", ".whl")) else _unpack_tar)(archive, fresh)
        except _DAMAGED as error:
            raise UserError(f"{archive} cannot be unpacked: {' '.join(str(error).split())}") from error
        inside = list(fresh.iterdir())
        root = inside[0] if len(inside) == 1 and inside[0].is_dir() else fresh
        metadata = _take_metadata(root)
        root.rename(folder)
    return metadata


def _unpack_tar(archive: Path, folder: Path) -> None:
    with opened_tar(archive, MOST_BYTES) as tar:  # a first time, since headers may claim any size
        for _ in tar:
            pass
    with tarfile.open(archive, "r:*") as tar:
        members = [entry for entry in tar if entry.isdir() or (entry.isreg() and not entry.name.endswith(_COMPILED))]
        _require_size(sum(member.size for member in members))
        tar.extractall(folder, members=members, filter="data")  # refuses absolute names, `..` and devices


def _unpack_zip(archive: Path, folder: Path) -> None:
    """Unpack a zip file as safely as tarfile's data filter. zipfile itself would silently put `../x` inside."""
    with zipfile.ZipFile(archive) as file:
        members = [entry for entry in file.infolist() if not entry.is_dir() and not entry.filename.endswith(_COMPILED)]
        _require_size(sum(member.file_size for member in members))
        for member in members:
            path = PurePosixPath(member.filename)
            if path.is_absolute() or ".." in path.parts or "\\" in member.filename:
                raise ValueError(f"{member.filename!r} would be outside the destination")
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with file.open(member) as source, (folder / path).open("wb") as target:
                shutil.copyfileobj(source, target)


def _require_size(size: int) -> None:
    if size > MOST_BYTES:
        raise ValueError(f"it would unpack to {size:,} bytes; at most {MOST_BYTES:,} are allowed")


def _take_metadata(root: Path) -> str:
    """Return the text of the metadata, and remove all its copies."""
    folders = [root, *sorted(root.glob("*.dist-info")), *sorted(root.rglob("*.egg-info"))]
    metadata_files = [folder / name for folder in folders for name in _METADATA if (folder / name).is_file()]
    text = metadata_files[0].read_text(encoding="utf-8", errors="replace") if metadata_files else ""
    for folder in folders[1:]:
        shutil.rmtree(folder, ignore_errors=True)
    for name in _METADATA:
        (root / name).unlink(missing_ok=True)
    return text
