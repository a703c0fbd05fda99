"""`data sft`: the five files of training rows, written from teaching episodes and read again."""

import json
from pathlib import Path

import pytest

from reflectrl.cli import main
from reflectrl.core.config import TeachConfig
from reflectrl.core.envs import make
from reflectrl.core.episodes import to_line
from reflectrl.core.teach import demonstrations, teach
from reflectrl.tools.downloads.sft import FILES, read_rows


@pytest.fixture
def log(tmp_path: Path) -> Path:
    env = make({"name": "taxi"})
    plans = demonstrations(env.tasks("train")[:2], TeachConfig(noise=(0.0,), negatives=1), 0)
    path = tmp_path / "run" / "episodes" / "teach-seed0-train.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(to_line(teach(env, plan)) + "\n" for plan in plans))
    return path


def rows_of(folder: Path) -> dict[str, list[tuple[str, str]]]:
    return {name: read_rows(folder / f"{name}.jsonl") for name in FILES}


def test_five_files_hold_the_rows_that_players_learn_from(log: Path, tmp_path: Path, capsys) -> None:
    assert main(["data", "sft", "--from", str(log.parents[1]), "--to", str(tmp_path / "rows")]) == 0
    rows = rows_of(tmp_path / "rows")
    assert len(rows["sft"]) == len(rows["sft_policy"]) == len(rows["sft_reflection"])
    assert len(rows["sft_policy"]) - len(rows["sft_policy_positive"]) == 2  # one negative for each task
    assert len(rows["sft_reflection"]) - len(rows["sft_reflection_positive"]) == 2
    (_, said), (read, label) = rows["sft_reflection"][0], rows["sft_policy"][0]
    assert said.strip() in read and label.strip().isdigit()
    assert said.strip() not in rows["sft"][0][0] and rows["sft"][0][1] == label
    assert set(json.loads((tmp_path / "rows" / "sft.jsonl").read_text().splitlines()[0])) == {"prompt", "completion"}
    out = capsys.readouterr().out
    assert main(["data", "sft", "--to", str(tmp_path / "rows")]) == 0  # reading alone shows the same
    assert capsys.readouterr().out == out


def test_actions_may_be_written_out(log: Path, tmp_path: Path) -> None:
    assert main(["data", "sft", "--from", str(log), "--words", "--to", str(tmp_path / "rows")]) == 0
    assert {text.strip() for _, text in rows_of(tmp_path / "rows")["sft"]} <= {
        "south", "north", "east", "west", "pickup", "dropoff",
    }  # fmt: skip


def test_what_is_no_row_is_named(tmp_path: Path, capsys) -> None:
    (tmp_path / "sft.jsonl").write_text('{"prompt": "a", "completion": "b"}\n{"prompt": "a"}\n')
    assert main(["data", "sft", "--to", str(tmp_path)]) == 2
    assert "sft.jsonl:2: not a row of prompt and completion" in capsys.readouterr().err
    assert main(["data", "sft", "--from", str(tmp_path), "--to", str(tmp_path)]) == 2
    assert "no teaching episodes there" in capsys.readouterr().err
