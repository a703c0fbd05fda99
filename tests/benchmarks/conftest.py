"""The benchmarks live beside the package, at the root of a checkout; tests import them from there."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.workloads import make_bench_model, workload  # noqa: E402
from reflectrl.config import ModelConfig  # noqa: E402
from reflectrl.models.lm import LanguageModel  # noqa: E402
from tests.pipeline.conftest import finished, like, recipe_file  # noqa: E402

__all__ = ["finished", "like", "recipe_file", "tiny"]


@pytest.fixture
def tiny() -> Callable[..., LanguageModel]:
    """`tiny("taxi")`: a very small model with the tokenizer of a workload."""

    def make(name: str = "taxi", vocab: int = 512, **settings: Any) -> LanguageModel:
        shape = {"layers": 1, "width": 32, "heads": 2, "context": workload(name).context, "device": "cpu"}
        return make_bench_model(ModelConfig(**(shape | settings)), workload(name), vocab)

    return make
