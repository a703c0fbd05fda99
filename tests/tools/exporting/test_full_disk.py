"""A disk that is full while a tokenizer is saved: one line, exit code 2, and with room again the same command goes on;
and modes of files, which are those of new files.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from reflectrl.cli import main
from reflectrl.learn.checkpoint import write_folder
from tests.command_line import refused

RECIPE = """
name = "small"
arms = ["sft"]
env = {name = "corridor", train = 6, validation = 3, test = 5}
model = {family = "gpt2", layers = 1, width = 4, heads = 1, context = 96, mixed_precision = "off"}
play.reflection_tokens = 8
teach = {negatives = 1, tasks = 5}
sft = {steps = 2, batch_size = 8, eval_every = 2, eval_rows = 8}
"""
"""Its tokenizer is larger than its weights, so a limit to the size of files stops the tokenizer first."""


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Within the block no file grows beyond a size, as on a full disk; the system's error has another number only."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


@pytest.mark.skipif(os.name != "posix", reason="limits of POSIX")
def test_a_tokenizer_that_the_disk_does_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(RECIPE, encoding="utf-8")
    assert main(["sft", "small.toml", "--folder", "whole"]) == 0
    base = Path("whole/checkpoints/seed0/base")
    weights, tokenizer = ((base / name).stat().st_size for name in ("model.safetensors", "tokenizer.json"))
    assert weights < tokenizer
    size = (weights + tokenizer) // 2

    assert main(["teach", "small.toml", "--folder", "run"]) == 0
    capfd.readouterr()
    with files_up_to(size):
        line = refused(capfd, "sft", "small.toml", "--folder", "run")
    assert re.search(r"run folder run: run/checkpoints/seed0/base: File too large", line)
    assert not list(Path("run").rglob("*.writing"))
    assert main(["sft", "small.toml", "--folder", "run"]) == 0

    capfd.readouterr()
    export = ("export-agent", "run", "--arm", "sft", "--out", "agent")
    with files_up_to(size):
        line = refused(capfd, *export)
    assert re.search(r"agent cannot be written: File too large", line)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "small.toml", "whole"]
    assert main(export) == 0
    modes = {path.stat().st_mode & 0o777 for path in Path("agent").rglob("*") if path.is_file()}
    assert modes == {Path("small.toml").stat().st_mode & 0o777}


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_weights_may_be_read_by_whom_other_files_may_be(tmp_path: Path, mask: int, mode: int) -> None:
    def fill(folder: Path) -> None:
        (folder / "below").mkdir()
        save_file({"x": torch.zeros(1)}, folder / "below" / "model.safetensors")
        (folder / "card.json").write_text("{}", encoding="utf-8")

    before = os.umask(mask)
    try:
        write_folder(tmp_path / "agent", fill)
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "agent").rglob("*") if path.is_file()]
    assert len(files) == 4 and {path.stat().st_mode & 0o777 for path in files} == {mode}
