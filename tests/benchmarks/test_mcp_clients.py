"""The clients of the MCP server's first minute, on a small repository: nothing is lost, and no process is left."""

import sys
from importlib.util import find_spec
from typing import Any

import pytest

from benchmarks import mcp_clients


@pytest.mark.skipif(find_spec("mcp") is None, reason="the extra mcp is not installed")
@pytest.mark.skipif(sys.platform != "linux", reason="processes are listed in /proc")
def test_clients_are_greeted_and_kills_lose_nothing(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(mcp_clients, "MOST_GREETING", 100)  # other tests run beside this one
    monkeypatch.setattr(mcp_clients, "MOST_FIRST", 200)
    assert mcp_clients.main(["--files", "450", "--kills", "1"]) == 0
    out = capsys.readouterr().out
    assert out.count("greeting") == 2 and "SIGKILL" in out and "all limits are kept" in out
