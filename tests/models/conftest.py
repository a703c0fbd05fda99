"""What tests of models learn from."""

import pytest

from reflectrl.core.config import TeachConfig
from reflectrl.core.envs import make
from reflectrl.core.teach import demonstrations, teach
from reflectrl.core.types import Episode
from tests.foreign_models import load

__all__ = ["load", "taught"]


@pytest.fixture(scope="session")
def taught() -> list[Episode]:
    """Six corridors, taught."""
    env = make({"name": "corridor"})
    return [teach(env, demonstration) for demonstration in demonstrations(env.tasks("train")[:6], TeachConfig(), 0)]
