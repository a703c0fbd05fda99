"""Making an artifact again in a folder that holds its inputs and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from reflectrl.core.config import Recipe
from reflectrl.runs.artifact import Artifact, Build
from reflectrl.runs.folder import RunFolder
from reflectrl.runs.graph import kind_of, planned
from reflectrl.runs.progress import silently

MARKS = ("reflectrl.json", "config.json", "reference_cache.json")
"""Files that stand for the folder around them."""


def products(artifact: Artifact, run: Path) -> Iterator[Path]:
    """Yield the files of an artifact."""
    for pattern in artifact.outputs:
        for path in run.glob(pattern):
            yield from (one for one in path.parent.rglob("*") if one.is_file()) if path.name in MARKS else (path,)


def made_alone(recipe: Recipe, run: Path, artifact: Artifact, folder: Path) -> dict[str, bool]:
    """Make an artifact of a finished run in another folder, from copies of its inputs.

    Returns:
        Name of each of its files with episodes, samples or weights → whether its content is the same as in the run.
    """
    for needed in artifact.needs:
        for path in products(needed, run):
            copy = folder / path.relative_to(run)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
    context = kind_of(recipe).begin(recipe, RunFolder(folder)).with_decisions("off", 0)
    Build(context, artifact, silently)()
    names = [path.relative_to(run) for path in products(artifact, run) if path.suffix in (".jsonl", ".safetensors")]
    return {str(name): (folder / name).read_bytes() == (run / name).read_bytes() for name in names}


def one_of_each_kind(recipe: Recipe) -> dict[str, Artifact]:
    """Return the first artifact of each kind in the plan of a recipe, by key, without results and report."""
    kinds: dict[int, Artifact] = {}
    for artifact in planned(recipe).values():
        if not artifact.always:
            kinds.setdefault(id(artifact.maker), artifact)
    return {artifact.key: artifact for artifact in kinds.values()}


def of_methods(recipe: Recipe) -> dict[str, Artifact]:
    """Return the artifacts in the plan of a recipe that learning methods bring, by key."""
    made = planned(recipe).items()
    return {key: artifact for key, artifact in made if artifact.maker.build.__module__.startswith("reflectrl.methods.")}


def require_made_alone(recipe: Recipe, run: Path, artifacts: Mapping[str, Artifact], folder: Path) -> None:
    """Fail if an artifact of a finished run has other bytes where it is made from copies of its inputs alone."""
    for i, (key, artifact) in enumerate(artifacts.items()):
        same = made_alone(recipe, run, artifact, folder / str(i))
        assert same and all(same.values()), (key, same)
