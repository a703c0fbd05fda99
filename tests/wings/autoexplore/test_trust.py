"""An agent is exported without running what a run folder names."""

from typing import Any

from tests.test_trust import ENV, Write, refused


def test_export_runs_nothing_either(write: Write, capsys: Any) -> None:
    assert "stranger:Mine" in refused(capsys, "export-agent", str(write(ENV).parent), "--out", "agent")
