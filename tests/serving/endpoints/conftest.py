"""A scripted server."""

from collections.abc import Iterator

import pytest

from tests.serving.endpoints.scripted import ChatServer, serving


@pytest.fixture
def server() -> Iterator[ChatServer]:
    pytest.importorskip("openai")
    with serving() as server:
        yield server
