"""Resolving `model.source`: a folder, a name on the hub, a short name, or a file that is converted to a folder."""

from __future__ import annotations

from pathlib import Path

from reflectrl.core.plugins import names, resolve


def find_model(source: str) -> str:
    """Return the folder of the model that a source refers to. A folder or a name on the hub is returned unchanged.

    Packages add short names by entry points "reflectrl.models" (functions that return a folder). They add file formats
    by entry points "reflectrl.model_files" (file ending -> function that converts such a file to a folder).

    Raises:
        UserError: the model is not on this machine (the message says how to get it), or the file cannot be used.
    """
    ending = Path(source).suffix.removeprefix(".").lower()
    if ending in names("model_files"):
        return str(resolve("model_files", ending)(Path(source)))
    if Path(source).is_dir() or source not in names("models"):
        return source
    return str(resolve("models", source)())


def files_of(model: str) -> Path:
    """Return the folder with a model's files: the folder itself, or the model's folder in the hub's local cache.

    Args:
        model: result of `find_model`. A name that is not in the cache is returned as a path that does not exist.
    """
    folder = Path(model)
    if folder.is_dir():
        return folder
    from huggingface_hub import try_to_load_from_cache  # slow to import, and needed for names only

    try:
        config_path = try_to_load_from_cache(model, "config.json")
    except ValueError:  # not a valid name on the hub either
        return folder
    return Path(config_path).parent if isinstance(config_path, str) else folder
