"""The prediction of a next run reads finished runs of one recipe."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.demo_prediction import Options, main
from reflectrl.core.statistics import prediction_interval


def run(folder: Path, seeds: dict[int, float], precision: str = "off", steps: int = 40) -> Path:
    """Write what the benchmark reads of a run."""
    folder.mkdir()
    model = f'[model]\nmixed_precision = "{precision}"\n[sft]\nsteps = {steps}\n'
    (folder / "recipe.toml").write_text(f'name = "{folder.name}"\nseeds = {list(seeds)}\n{model}')
    about = {"arm": "reflect-rl", "split": "test", "sampling": "greedy", "stage": "full", "episodes": 90}
    rows = [{**about, "seed": seed, "success": success} for seed, success in seeds.items()]
    (folder / "results.json").write_text(json.dumps({"rows": rows}))
    return folder


def test_seeds_of_all_runs_count_whatever_their_rounding(tmp_path: Path, capsys: Any) -> None:
    folders = run(tmp_path / "a", {0: 87 / 90, 1: 85 / 90}), run(tmp_path / "b", {0: 1.0}, precision="on")
    main(Options(folders))
    low, high = prediction_interval([87, 85, 90], 90, 0.95) or (0, 0)
    row = capsys.readouterr().out.splitlines()[1].split()
    assert row[:5] == ["reflect-rl", "test", "greedy", "full", "3"]
    assert row[5:] == ["94.4", "to", "100.0", f"{100 * low:.1f}", "to", f"{100 * high:.1f}"]


def test_runs_with_other_settings_are_not_mixed(tmp_path: Path) -> None:
    folders = run(tmp_path / "a", {0: 1.0}), run(tmp_path / "b", {0: 1.0}, steps=50)
    with pytest.raises(SystemExit, match="b is a run with other settings than .*a"):
        main(Options(folders))
    with pytest.raises(SystemExit, match="results.json: there is no such file"):
        main(Options((tmp_path,)))


def test_a_single_run_predicts_nothing(tmp_path: Path, capsys: Any) -> None:
    main(Options((run(tmp_path / "a", {0: 1.0}),)))
    assert "needs two runs" in capsys.readouterr().out
