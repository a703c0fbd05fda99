"""The benchmarks live beside the package, at the root of a checkout, where `pythonpath` finds them."""

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.workloads import make_bench_model, workload
from reflectrl.core.config import ModelConfig
from reflectrl.models.lm import LanguageModel
from tests.runs.conftest import finished, like, recipe_file

__all__ = ["finished", "like", "recipe_file", "tiny"]


@pytest.fixture
def tiny() -> Callable[..., LanguageModel]:
    """`tiny("taxi")`: a very small model with the tokenizer of a workload."""

    def make(name: str = "taxi", vocab: int = 512, **settings: Any) -> LanguageModel:
        shape = {"layers": 1, "width": 32, "heads": 2, "context": workload(name).context, "device": "cpu"}
        return make_bench_model(ModelConfig(**(shape | settings)), workload(name), vocab)

    return make
