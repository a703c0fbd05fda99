"""The rooms and tiny models of the learners' tests, the tiny recipe of the pipeline's, and runs that are killed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from reflectrl import runs as pipeline
from reflectrl.core.config import Recipe
from tests.learn.conftest import make_rooms, model_folder, tiny
from tests.runs.conftest import finished, like, recipe_file, said

__all__ = ["finished", "like", "make_rooms", "model_folder", "recipe_file", "said", "tiny"]

Resumed = Callable[..., Path]


@pytest.fixture
def resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resumed:
    """`resumed(run, recipe, arm, step)`: a copy of the run whose arm is trained anew, killed at a step, and goes on.

    Its metrics are those of the run. `gone` names further artifacts that are made anew; without a step, the training is
    killed at its end.
    """
    from reflectrl.runs.metrics import MetricsFile

    write = MetricsFile.write

    def again(run: Path, recipe: Recipe, arm: str, step: int | None = None, gone: tuple[str, ...] = ()) -> Path:
        copy = Path(shutil.copytree(run, tmp_path / "copy"))
        for name in (arm, *gone):
            (copy / f"metrics/seed0-{name}.jsonl").unlink()
            shutil.rmtree(copy / "checkpoints/seed0" / name)
            shutil.rmtree(copy / "checkpoints/seed0" / f"{name}-reflector", ignore_errors=True)  # the pair's other half

        def write_until(file: MetricsFile, values: dict[str, Any]) -> Any:
            if file.shared["arm"] == arm and values["step"] == (values["steps"] if step is None else step):
                raise KeyboardInterrupt
            return write(file, values)

        with monkeypatch.context() as patched:
            patched.setattr(MetricsFile, "write", write_until)
            with pytest.raises(KeyboardInterrupt):
                pipeline.run(recipe, copy, "eval")
        pipeline.run(recipe, copy, "eval")
        assert (copy / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
        return copy

    return again


def same_weights(one: Path, other: Path) -> bool:
    """Tell whether two files hold the same tensors."""
    before, after = load_file(one), load_file(other)
    return all(torch.equal(tensor, after[name]) for name, tensor in before.items())
