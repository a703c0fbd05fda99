"""What `model.source` may name beside a folder and a hub's name: a model that a package brings, or a GGUF file."""

from __future__ import annotations

from pathlib import Path

from reflectrl.plugins import names, resolve


def find_model(source: str) -> str:
    """The folder of a model that goes by a short name, or of what was made of a GGUF file; other sources as they are.

    Packages announce short names as entry points of the group "reflectrl.models": functions that return a folder.

    Raises:
        UserError: the model is not on this machine (says how to get it), or the file cannot be used.
    """
    if source.endswith(".gguf"):
        from reflectrl.models.gguf import converted  # slow to import

        return str(converted(Path(source)))
    if Path(source).is_dir() or source not in names("models"):
        return source
    return str(resolve("models", source)())
