"""Tables of text tasks on the terminal."""

import json
from pathlib import Path
from typing import Any

from reflectrl.core.terminal import console
from reflectrl.wings.text.pipeline.results import show
from tests.hostile import NASTY, SHOWN, commands


def test_tables_of_text_tasks_cannot_steer_the_terminal(tmp_path: Path, capsys: Any) -> None:
    line = {
        "task": f"t {NASTY}", "split": "test", "sampling": "greedy", "arm": f"a {NASTY}", "checkpoint": "best",
        "seeds": 1, "reward": 0.5, "low": 0.4, "high": 0.6, "metrics": {f"m {NASTY}": 1.0}, "meteor_by": "[/y]",
    }  # fmt: skip
    results = {"kind": "text", "confidence": 0.95, "summary": [line]}
    (tmp_path / "results.json").write_text(json.dumps(results), encoding="utf-8")
    show(console(500), tmp_path)
    out = capsys.readouterr().out
    assert not commands(out.encode())
    assert f"t {SHOWN}, test prompts" in out and f"a {SHOWN}" in out and f"m {SHOWN}" in out
