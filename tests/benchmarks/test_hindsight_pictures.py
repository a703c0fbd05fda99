"""The teacher of texts in hindsight beside the expert, and success over minutes as a picture."""

from __future__ import annotations

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from benchmarks import hindsight_teacher, minutes_picture
from reflectrl.cli.run import find_recipe
from reflectrl.core.config import load_recipe
from reflectrl.runs import run

QUICK = (
    "arms=sft,hindsight", "seeds=0", "threads=1", "processes=1", "model.layers=1", "model.width=16", "model.heads=2",
    "model.mixed_precision=off", "teach.tasks=4", "teach.validation_tasks=2", "sft.steps=2", "sft.policy_steps=1",
    "sft.batch_size=4", "rl.updates=2", "rl.episodes=2", "rl.eval_every=1", "rl.eval_episodes=2",
    "rl.critic_warmup=0", "eval.splits=validation", "eval.episodes=2", "eval.sampling=greedy",
)  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run with a hindsight arm."""
    folder = tmp_path_factory.mktemp("hindsight") / "run"
    run(load_recipe(find_recipe("taxi-few"), list(QUICK)), folder)
    return folder


def test_the_teacher_is_compared_with_the_expert_in_every_state(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = hindsight_teacher.Settings(finished, ("analyst", "outcome", "reflector"), tasks=3, by_kind=True)
    hindsight_teacher.main(settings)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()]
    assert rows[0][2:] == list(hindsight_teacher.COLUMNS)
    whole = [row for row in rows[2:] if row[0] == "0"]
    assert [row[1] for row in whole] == ["analyst", "outcome", "reflector"]
    kinds = [row for row in rows[2:] if row[0] == ""]
    assert sum(int(row[2]) for row in kinds) == sum(int(row[2]) for row in whole)
    assert all(row[3] == "100 %" and 0 <= float(row[4]) <= 100 for row in whole)
    assert whole[0][4] == whole[1][4] == whole[2][4]  # without a text, the form of text does not matter


def test_kept_and_mended_are_counted_from_the_most_probable_actions() -> None:
    logs = {"a": [0.8, 0.2], "b": [0.3, 0.7]}
    choices = hindsight_teacher.Choices(
        kinds=["go", "go", "take"],
        expert_NA=torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]),
        without_NA=torch.tensor([logs["a"], logs["b"], logs["a"]]).log(),
        with_NA=torch.tensor([logs["b"], logs["a"], logs["b"]]).log(),
        written_N=torch.tensor([True, True, False]),
    )
    assert choices.row()[:6] == ["3", "67 %", "50.0", "50.0", "0.0", "100.0"]
    assert choices.row()[6:8] == ["0.55", "0.55"]
    divergences = 0.8 * math.log(0.8 / 0.3) + 0.2 * math.log(0.2 / 0.7), 0.3 * math.log(0.3 / 0.8) + 0.7 * math.log(3.5)
    assert choices.row()[8] == f"{sum(divergences) / 2:.2f}"
    assert choices.row("take")[:2] == ["1", "0 %"]


def test_a_run_becomes_lines_over_the_time_of_its_training(finished: Path, tmp_path: Path) -> None:
    lines = minutes_picture.of_run(finished)
    assert list(lines) == ["hindsight"]
    timings = [json.loads(line) for line in (finished / "timings.jsonl").read_text().splitlines()]
    sft = sum(t["cpu_seconds"] for t in timings if t.get("stage") == "sft" and t["artifact"] in ("reflector", "policy"))
    learned = [t["cpu_seconds"] for t in timings if t.get("kind") == "rl"]
    points = lines["hindsight"]
    assert points[0].minutes == pytest.approx((sft + learned[0]) / 60)
    assert points[-1].minutes == pytest.approx((sft + sum(learned)) / 60)
    out = tmp_path / "run.svg"
    minutes_picture.main(minutes_picture.Run(finished, out, "Taxi"))
    assert {"Taxi", "hindsight", "tasks won, %"} <= {element.text for element in ElementTree.parse(out).iter()}


def test_cells_of_equal_seconds_are_averaged(tmp_path: Path) -> None:
    cells = [
        {"world": "lake", "arm": "alone", "seconds": 60.0, "success": 0.4},
        {"world": "lake", "arm": "alone", "seconds": 60.0, "success": 0.6},
        {"world": "lake", "arm": "alone", "seconds": 120.0, "success": 0.9},
        {"world": "taxi", "arm": "alone", "seconds": 900.0, "success": 0.9},
    ]
    file = tmp_path / "cells.jsonl"
    file.write_text("".join(json.dumps(cell) + "\n" for cell in cells))
    lines = minutes_picture.of_cells(minutes_picture.Cells(file, tmp_path / "cells.svg"))
    assert minutes_picture.means(lines["alone"]) == [(60.0, 1.0, pytest.approx(50.0)), (120.0, 2.0, 90.0)]
