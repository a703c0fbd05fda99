"""Cache of the results of `proof.py`, so that a large model is checked once and not at every load.

The results are kept in the user's cache under a digest of model, engine and libraries. They are not kept beside the
model, because a folder from elsewhere could then declare itself trustworthy.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import asdict, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from reflectrl.core.config.folders import data_folder
from reflectrl.core.digests import digest_of
from reflectrl.models.lm import LanguageModel, Shortcuts
from reflectrl.models.proof import find_shortcuts, tell
from reflectrl.models.sources import files_of

LEAST = 50_000_000
"""Smallest number of weights for caching. Checking a smaller model again is as quick as computing its digest."""


def prove_once(lm: LanguageModel, source: str) -> LanguageModel:
    """Check a model like `prove`, but reuse an earlier result for the same files.

    Raises:
        UserError: as `prove`.
    """
    folder, core = files_of(source), lm.core
    large = sum(p.numel() for p in core.parameters()) >= LEAST
    place = data_folder("proofs") / f"{_key(lm, folder)}.json" if large and folder.is_dir() else None
    found = None if place is None else _read(place)
    if found is None:
        shortcuts, said = find_shortcuts(lm, source)
        attention = str(core.config._attn_implementation)  # type: ignore[union-attr]
        if place is not None:
            _write(place, {"shortcuts": asdict(shortcuts), "said": said, "attention": attention})
    else:
        shortcuts, said = Shortcuts(**found["shortcuts"]), list(found["said"])
        if not shortcuts.packed:
            core.set_attn_implementation(found["attention"])  # type: ignore[operator]
    tell(lm, source, said)
    return replace(lm, shortcuts=shortcuts)


def _key(lm: LanguageModel, folder: Path) -> str:
    """Return a digest of everything that a proof depends on."""
    core: Any = lm.core
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".json", ".py"))
    about = {
        "files": {path.name: digest_of(path) for path in files},
        "engine": _engine(),
        "versions": [version(package) for package in ("torch", "transformers")],
        "loaded": [str(lm.device.type), str(lm.dtype), str(getattr(core.config, "quantization_config", None))],
        "ways": [asdict(lm.shortcuts), str(core.config._attn_implementation), getattr(core, "recomputes", False)],
        "context": lm.context,
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]


@lru_cache
def _engine() -> str:
    """Return a digest of the code that the proof checks."""
    code = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return hashlib.sha256(code).hexdigest()


def _read(place: Path) -> dict[str, Any] | None:
    """Read a cached result; None if there is none, or the file is damaged."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        found = dict(json.loads(place.read_text(encoding="utf-8")))
        Shortcuts(**found["shortcuts"])
        return found if isinstance(found["attention"], str) and isinstance(found["said"], list) else None
    return None


def _write(place: Path, found: dict[str, Any]) -> None:
    """Write a result atomically. Errors are ignored, since this is only a cache."""
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=place.parent, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(found, file)
            Path(name).replace(place)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
