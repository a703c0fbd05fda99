"""Cache of the results of `verification.py`, so that a model is checked once and not at every load.

Results are kept under a digest of model, engine and libraries: those of large models in the user's cache, and those of
small ones in this process, since a run loads the same small model for each of its stages. They are not kept beside the
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
from reflectrl.core.types import UserError
from reflectrl.models.lm import EngineOptions, LanguageModel
from reflectrl.models.sources import files_of
from reflectrl.models.verification import find_exact_options, warn_once

LEAST = 50_000_000
"""Smallest number of weights whose result is kept on disk."""

_RESULTS = dict[str, dict[str, Any]]()
"""Results for small models, in this process."""


def verify_once(lm: LanguageModel, source: str) -> LanguageModel:
    """Check a model like `verify`, but reuse an earlier result for the same files.

    Raises:
        UserError: as `verify`.
    """
    folder, core = files_of(source), lm.core
    large = sum(p.numel() for p in core.parameters()) >= LEAST
    # A name or a single file is checked at every load, and so is a small compiled model: there may be no compiler now.
    cached = folder.is_dir() and (large or not lm.engine_options.compiled)
    key = _key(lm, folder) if cached else ""
    path = None
    with suppress(UserError):  # without a home folder, results are kept in this process only
        path = data_folder("verified") / f"{key}.json" if key and large else None
    result = _RESULTS.get(key) if path is None else _read(path)
    if result is None:
        options, warnings = find_exact_options(lm, source)
        attention = str(core.config._attn_implementation)  # type: ignore[union-attr]
        result = {"options": asdict(options), "warnings": warnings, "attention": attention}
        if path is not None:
            _write(path, result)
        elif key:
            _RESULTS[key] = result
    else:
        options, warnings = EngineOptions(**result["options"]), list(result["warnings"])
        if not options.packed:
            core.set_attn_implementation(result["attention"])  # type: ignore[operator]
    warn_once(lm, source, warnings)
    return replace(lm, engine_options=options)


def _key(lm: LanguageModel, folder: Path) -> str:
    """Return a digest of everything that the verification depends on."""
    core: Any = lm.core
    files = sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".json", ".py"))
    about = {
        "files": {path.name: digest_of(path) for path in files},
        "engine": _engine(),
        "versions": [version(package) for package in ("torch", "transformers")],
        "loaded": [str(lm.device.type), str(lm.dtype), str(getattr(core.config, "quantization_config", None))],
        "options": [
            asdict(lm.engine_options),
            str(core.config._attn_implementation),
            getattr(core, "recomputes", False),
        ],
        "context": lm.context,
    }
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]


@lru_cache
def _engine() -> str:
    """Return a digest of the code that is verified."""
    code = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return hashlib.sha256(code).hexdigest()


def _read(path: Path) -> dict[str, Any] | None:
    """Read a cached result; None if there is none, or the file is damaged."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        result = dict(json.loads(path.read_text(encoding="utf-8")))
        EngineOptions(**result["options"])
        return result if isinstance(result["attention"], str) and isinstance(result["warnings"], list) else None
    return None


def _write(path: Path, result: dict[str, Any]) -> None:
    """Write a result atomically. Errors are ignored, since this is only a cache."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(result, file)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
