"""A smaller version of the drill of `benchmarks/endpoint_drill.py`."""

from pathlib import Path

import pytest

pytest.importorskip("openai")


def test_faults_and_kills_lose_and_repeat_nothing(tmp_path: Path) -> None:
    from benchmarks.endpoint_drill import drill

    counted = drill(tmp_path, questions=60, kills=1)
    assert counted["received"] <= counted["budget"]
    assert sum(count for fault, count in counted["faults"].items() if fault) > 0
