"""Symbolic links in a folder to be written in: refused by name, and what they lead to stays as it is."""

from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.core.config import ModelConfig
from reflectrl.core.types import UserError
from reflectrl.methods.shared.offline.config import OfflineConfig
from reflectrl.wings.text.pipeline.from_samples import train_on_samples
from reflectrl.wings.text.samples.writing import LineFile
from tests.runs.test_links import link


def test_a_judge_writes_through_no_link(target: Path, capsys: Any) -> None:
    link(Path("run/judge/a_lol-nll-seed0-test-greedy.jsonl"), target)
    assert main(["judge", "run", "--url", "http://127.0.0.1:9/v1", "--model", "x"]) == 2
    assert "run holds a link: judge/a_lol" in capsys.readouterr().err


def test_offline_training_writes_through_no_link(target: Path) -> None:
    link(Path("out/metrics.jsonl"), target)
    with pytest.raises(UserError, match=r"out holds a link: metrics.jsonl"):
        train_on_samples([], "absent", ModelConfig(), OfflineConfig(), 0, Path("out"), print)


def test_temporary_files_beside_what_is_written_may_be_no_links(target: Path) -> None:
    link(Path("lines.jsonl.part"), target)
    with pytest.raises(UserError, match="symbolic links"):
        LineFile(Path("lines.jsonl"))
    assert target.read_text() == "of value\n"
