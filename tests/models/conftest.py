"""What tests of models learn from."""

import pytest

from reflectrl.config import TeachConfig
from reflectrl.envs import make
from reflectrl.teach import demonstrations, teach
from reflectrl.types import Episode


@pytest.fixture(scope="session")
def taught() -> list[Episode]:
    """Six frozen lakes, taught."""
    env = make({"name": "frozenlake"})
    return [teach(env, demonstration) for demonstration in demonstrations(env.tasks("train")[:6], TeachConfig(), 0)]
