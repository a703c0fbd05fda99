"""Two processes against one: the same episodes, gradients equal but for the order of sums, the same results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmarks.forks import Forks
from benchmarks.ranks import compared_run, difference, played, row, same_episodes, same_jobs

RECIPE = """
name = "tiny"
threads = 1
arms = ["sft", "reflect-rl", "offline-a_lol", "offline-dpo"]
env = {name = "corridor", train = 6, validation = 3, test = 5}
model = {layers = 1, width = 16, heads = 2, mixed_precision = "off"}
play.reflection_tokens = 8
teach = {negatives = 1, tasks = 5}
sft = {steps = 5, batch_size = 8, eval_every = 2, eval_rows = 8, by_episode = true, optimizer = "muon"}
eval = {sampling = ["greedy", "sampled"], batch = 3}

[rl]
algorithm = "ppo"
baseline = "critic"
updates = 3
episodes = 5
eval_every = 1
eval_episodes = 2
replay_episodes = 2
steps_per_epoch = 2
target_kl = 0.02

[offline]
steps = 4
reference_steps = 3
eval_every = 2
log_episodes = 1
value_epochs = 1
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> tuple[Path, Path]:
    """The folders of the same run on one process and on two; beside each, what its processes noted."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "tiny.toml").write_text(RECIPE, encoding="utf-8")
    for ranks in (1, 2):
        assert compared_run(forks, [str(folder / "tiny.toml")], ranks, folder, 1) == ""
    return folder / "run1", folder / "run2"


def notes(folder: Path) -> Path:
    return folder.with_name(folder.name.replace("run", "notes"))


def test_the_same_episodes_are_played_and_every_rank_knows_them_all(runs: tuple[Path, Path]) -> None:
    one, two = map(notes, runs)
    assert same_jobs(one, two) and same_episodes(one, two) == 1.0
    assert len(played(one)) == 3 and all(len(update) == 5 for update in played(one))
    assert (two / "played-0.json").read_bytes() == (two / "played-1.json").read_bytes()


def test_the_first_gradient_of_every_training_is_the_same_but_for_rounding(runs: tuple[Path, Path]) -> None:
    one, two = map(notes, runs)
    of_sft = difference(one.with_name("notes-sft1"), two.with_name("notes-sft2"))
    of_rl = difference(one, two)
    assert 0 < of_sft[0] < 1e-5 and of_sft[1] >= 4  # two optimisers each of reflector and policy, at least
    assert 0 < of_rl[0] < 1e-5 and of_rl[1] >= 2  # online RL, and the reference of offline learning
    first, second = (load_file(two / f"gradients-{rank}.safetensors") for rank in (0, 1))
    known = [(name.split()[1], gradient) for name, gradient in first.items()]  # a number, and a digest of the weights
    for name, gradient in second.items():  # the first rank also makes what is made once for all
        assert any(start == name.split()[1] and torch.equal(gradient, other) for start, other in known), name
    assert len(second) >= 5


def test_the_curves_are_the_same_but_for_rounding(runs: tuple[Path, Path]) -> None:
    one, two = ((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines() for folder in runs)
    assert len(one) == len(two) > 10
    for line, other in zip(map(json.loads, one), map(json.loads, two), strict=True):
        numbers = {name: value for name, value in line.items() if isinstance(value, float)}
        assert {name: other[name] for name in numbers} == pytest.approx(numbers, rel=1e-2, abs=2e-3)


def test_the_results_are_the_same(runs: tuple[Path, Path]) -> None:
    one, two = (json.loads((folder / "results.json").read_text(encoding="utf-8")) for folder in runs)
    for line, other in zip(one["rows"], two["rows"], strict=True):
        bins, others = (np.array(row.pop("reliability", [])) for row in (line, other))
        assert other == pytest.approx(line, abs=2e-6)  # probabilities differ in their last digits
        assert others == pytest.approx(bins, abs=2e-6)
    assert row(runs[0].parent, 2, 1, "reflect-rl").startswith("| 2 | True | 100.0% | ")
