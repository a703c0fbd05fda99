"""What `model.source` may name beside a folder and a hub's name: a short name, or a file that becomes a folder."""

from __future__ import annotations

from pathlib import Path

from reflectrl.plugins import names, resolve


def find_model(source: str) -> str:
    """The folder of the model that a source means; a folder, or a name of the hub, is returned as it is.

    Packages bring short names as entry points "reflectrl.models" (functions that return a folder), and formats of files
    as entry points "reflectrl.model_files": ending -> a function that turns such a file into a folder.

    Raises:
        UserError: the model is not on this machine (says how to get it), or the file cannot be used.
    """
    ending = Path(source).suffix.removeprefix(".").lower()
    if ending in names("model_files"):
        return str(resolve("model_files", ending)(Path(source)))
    if Path(source).is_dir() or source not in names("models"):
        return source
    return str(resolve("models", source)())


def files_of(model: str) -> Path:
    """The folder that holds a model's files: itself, or what the hub's cache on this machine has under the name.

    Args:
        model: what `find_model` returned. A name that is not there becomes a path at which nothing is.
    """
    folder = Path(model)
    if folder.is_dir():
        return folder
    from huggingface_hub import try_to_load_from_cache  # slow to import, and needed for names only

    try:
        found = try_to_load_from_cache(model, "config.json")
    except ValueError:  # it cannot be a name either
        return folder
    return Path(found).parent if isinstance(found, str) else folder
