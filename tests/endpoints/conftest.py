"""A scripted server, and the tiny recipe of the pipeline's tests."""

from collections.abc import Iterator

import pytest

from tests.endpoints.scripted import ChatServer, serving
from tests.pipeline.conftest import like, recipe_file

__all__ = ["like", "recipe_file", "server"]


@pytest.fixture
def server() -> Iterator[ChatServer]:
    pytest.importorskip("openai")
    with serving() as server:
        yield server
