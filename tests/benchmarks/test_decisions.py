"""Programs about the time of single decisions."""

import pytest

from benchmarks import decision_peers


def test_each_decider_that_is_installed_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    decision_peers.main(repetitions=1)
    shown = capsys.readouterr().out
    for name in ("ours, 2 layers of 96", "sparrow-decider", "simthinkd"):
        assert name in shown, "measured, or left out with the reason"
    assert "303,840" in shown
