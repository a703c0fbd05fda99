"""The program for the day with a GPU: all its parts run on a CPU with tiny models; one that fails costs only itself."""

import json
import sys
from pathlib import Path

from benchmarks.forks import Forks
from benchmarks.gpu import Part, Results, Settings, measure, parts, tables


def test_every_part_of_the_gpu_program_runs_on_a_cpu(tmp_path: Path, forks: Forks) -> None:
    """Otherwise a typing error would cost minutes of a card that is at hand for a quarter of an hour."""
    rows = measure(Settings(tmp_path / "results", rehearse=True), forks)
    ended = {row["part"]: row["ended"] for row in rows if "ended" in row}
    assert ended == {part.name: "done" for part in parts(Settings(tmp_path, rehearse=True), tmp_path)}
    measured = {row.get("program", row["part"].partition(" ")[0]) for row in rows if "ended" not in row}
    assert measured == {"machine", "tests", "models", "play", "update", "sft", "profile", "memory"}
    assert not [row for row in rows if "failed" in row or "error" in row]
    lines = (tmp_path / "results" / "gpu.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == rows
    assert "## update" in tables(rows)


def test_a_part_that_fails_or_takes_too_long_is_named_and_its_rows_stay(tmp_path: Path) -> None:
    results = Results(tmp_path)
    fails = "import sys; print('{\"a\": 1}'); print('it broke'); sys.exit(3)"
    results.run(Part("fails", ("-c", fails), 60))
    results.run(Part("hangs", ("-c", "import time; print('{\"b\": 2}', flush=True); time.sleep(600)"), 5))
    first, failed, second, late = results.rows
    assert first == {"part": "fails", "a": 1} and second == {"part": "hangs", "b": 2}
    assert failed["ended"] == "exit code 3: it broke" and late["ended"] == "time limit"


def test_parts_for_which_no_time_is_left_are_skipped_and_named(tmp_path: Path) -> None:
    rows = measure(Settings(tmp_path, rehearse=True, minutes=0.0))
    assert len(rows) > 5 and all(row["ended"].startswith("skipped") for row in rows[1:])


def test_parts_are_run_by_the_same_interpreter(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.run(Part("python", ("-c", "import json, sys; print(json.dumps({'at': sys.executable}))"), 60))
    assert results.rows[0]["at"] == sys.executable
