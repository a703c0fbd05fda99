"""`reflectrl offline`: a file of samples becomes a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from reflectrl.cli import main
from tests.machines import AMD, INTEL, Machine

ROWS = [
    {"prompt": f"A {colour} room,", "completion": f" go {word}", "reward": reward}
    for colour in ("red", "blue", "green", "black")
    for word, reward in (("left", 1.0), ("right", 0.0))
]


class TestCommand:
    @pytest.fixture
    def words(self, tmp_path: Path, small_model: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        monkeypatch.chdir(tmp_path)
        Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
        small = ["--offline.steps", "4", "--offline.batch-size", "2", "--offline.eval-every", "2"]
        return ["offline", "--data", "rows.jsonl", "--model", str(small_model), *small]

    @pytest.mark.parametrize("algorithm", ["a_lol", "dpo"])
    def test_a_file_becomes_a_model(self, words: list[str], algorithm: str, capsys: Any) -> None:
        assert main([*words, "--algo", algorithm]) == 0
        out = Path(f"runs/offline-rows-{algorithm}")
        assert load_file(out / "model/model.safetensors") and not (out / "learner").exists()
        steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
        assert steps[0] == 0 and len(steps) > 1
        said = capsys.readouterr().out
        assert "8 samples of 4 prompts" in said and ("warning: the value is fitted" in said) == (algorithm == "a_lol")
        assert main([*words, "--algo", algorithm]) == 0
        assert "is complete" in capsys.readouterr().out

    def test_a_killed_training_goes_on_to_the_same_bits_on_another_machine(
        self, words: list[str], machine: Machine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from reflectrl.runs import metrics

        write = metrics.MetricsFile.write

        def until(file: Any, values: dict[str, Any]) -> None:
            if values["step"] == 4:
                raise KeyboardInterrupt
            write(file, values)

        words = [*words, "--algo", "nll"]
        machine(AMD)
        assert main([*words, "--out", "whole"]) == 0
        monkeypatch.setattr(metrics.MetricsFile, "write", until)
        assert main([*words, "--out", "killed"]) == 130
        monkeypatch.setattr(metrics.MetricsFile, "write", write)
        machine(INTEL)  # which would decide for another precision
        assert main([*words, "--out", "killed"]) == 0
        assert Path("whole/metrics.jsonl").read_bytes() == Path("killed/metrics.jsonl").read_bytes()
        one, other = (load_file(Path(name) / "model/model.safetensors") for name in ("whole", "killed"))
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())

    @pytest.mark.parametrize(
        ("more", "about"),
        [
            (["--algo", "archer"], "archer"),
            (["--algo", "ppo"], "ppo"),
            (["--offline.stepz", "3"], "did you mean 'steps'"),
            (["--rl.lr", "3"], "--rl.lr"),
            (["--offline.algorithm", "nll"], "--algo"),
            (["--data", "absent.jsonl"], "absent.jsonl"),
            (["--model", "absent"], "absent"),
            (["--offline.clip", "2"], "at most 1"),
        ],
    )
    def test_mistakes_are_one_line(self, words: list[str], more: list[str], about: str, capsys: Any) -> None:
        assert main([*words, *more]) == 2
        err = capsys.readouterr().err
        assert err.startswith("reflectrl: ") and err.count("\n") == 1 and about in err

    def test_bad_rows_are_named_or_counted(self, words: list[str], capsys: Any) -> None:
        with Path("rows.jsonl").open("a", encoding="utf-8") as file:
            file.write('{"prompt": "x", "completion": " y", "reward": NaN}\n')
        assert main(words) == 2
        assert "rows.jsonl:9" in capsys.readouterr().err
        assert main([*words, "--skip-bad"]) == 0
        assert "left out: 1 rows" in capsys.readouterr().out

    def test_another_training_in_the_folder_is_refused(self, words: list[str], capsys: Any) -> None:
        assert main([*words, "--out", "here"]) == 0
        assert main([*words, "--out", "here", "--seed", "1"]) == 2
        assert "seed = 0, not 1" in capsys.readouterr().err
