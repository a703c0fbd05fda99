"""Models divided among two ranks: they play, learn and end as whole ones do, and go on after a kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.ranks import difference, same_episodes, same_jobs
from reflectrl import runs as pipeline
from reflectrl.core.config import load_recipe
from reflectrl.core.types import UserError
from tests.runs.launcher import LIMIT, Launcher
from tests.runs.test_ranks import wait_for

RECIPE = """
name = "tiny"
threads = 1
arms = ["sft", "reflect-rl"]
env = {name = "corridor", train = 6, validation = 3, test = 5}
model = {layers = 2, width = 16, heads = 2, family = "llama", mixed_precision = "off", backend = "plain"}
play.reflection_tokens = 4
teach = {negatives = 1, tasks = 5}
sft = {steps = 3, batch_size = 7, eval_every = 2, eval_rows = 8}
eval = {splits = ["test"], episodes = 3, batch = 3}

[rl]
algorithm = "ppo"
baseline = "critic"
critic_warmup = 1
updates = 2
episodes = 5
eval_every = 1
eval_episodes = 2
replay_episodes = 2
minibatch = 5
"""
SHARDED = ("--model.shard", "true")
LORA = ("--model.lora-rank", "2", "--arms", "rl-only", "--rl.critic-warmup", "0")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    (folder / "tiny.toml").write_text(RECIPE, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def ranks(place: Path) -> Iterator[Launcher]:
    one = Launcher(place)
    yield one
    one.server.communicate(timeout=LIMIT)


Made = Callable[..., tuple[Path, Path]]


@pytest.fixture(scope="module")
def made(ranks: Launcher, place: Path) -> Made:
    """`made("run", *settings)`: the folders of a command on one process, and on two that divide the models."""

    def both(verb: str, *settings: str) -> tuple[Path, Path]:
        folders = place / f"{verb}1", place / f"{verb}2"
        for number, folder in enumerate(folders, 1):
            words = [verb, "tiny.toml", "--folder", str(folder), *settings, *(SHARDED if number == 2 else ())]
            ranks.begin(number, *words, notes=noted(folder))
            codes, errors = ranks.end()
            assert codes == [0] * number, errors
        return folders

    return both


@pytest.fixture(scope="module")
def run(made: Made) -> tuple[Path, Path]:
    return made("run")


def noted(folder: Path) -> Path:
    """Where a run's first gradients and episodes are noted."""
    notes = folder.with_name(f"{folder.name}-notes")
    notes.mkdir(exist_ok=True)
    return notes


def same_weights(one: Path, two: Path, pattern: str) -> int:
    """How many files of weights two folders hold, which must be the same but for rounding."""
    found = sorted(path.relative_to(one) for path in one.glob(pattern))
    for name in found:
        first, second = load_file(one / name), load_file(two / name)
        assert first.keys() == second.keys()
        for weight in first:
            torch.testing.assert_close(first[weight], second[weight], rtol=0, atol=1e-5)
    return len(found)


def test_sft_and_rl_have_the_gradients_episodes_and_weights_of_one_process(run: tuple[Path, Path]) -> None:
    notes = noted(run[0]), noted(run[1])
    apart, count = difference(*notes)
    assert 0 < apart < 1e-5 and count == 2  # of reflector and policy, which begin with the same bits
    assert same_jobs(*notes) and same_episodes(*notes) == 1.0
    assert same_weights(*run, "checkpoints/seed0/*/model.safetensors") == 4
    one, two = (sorted(path.name for path in (folder / "checkpoints/seed0/policy").iterdir()) for folder in run)
    assert one == two
    rows, others = (json.loads((folder / "results.json").read_text(encoding="utf-8"))["rows"] for folder in run)
    for line, other in zip(rows, others, strict=True):
        assert other == pytest.approx(line)


def test_adapters_learn_on_a_divided_backbone(made: Made) -> None:
    one, two = made("rl", *LORA)
    assert same_jobs(noted(one), noted(two)) and same_episodes(noted(one), noted(two)) == 1.0
    apart, count = difference(noted(one), noted(two))
    assert apart < 1e-5 and count == 1
    adapter = "checkpoints/seed0/rl-rl-only/adapter_model.safetensors"
    assert same_weights(one, two, adapter) == 1
    assert any(weight.abs().max() > 0 for name, weight in load_file(two / adapter).items() if "lora_B" in name)


def test_a_killed_training_goes_on_with_the_same_bits_and_on_one_process_too(
    ranks: Launcher, place: Path, run: tuple[Path, Path]
) -> None:
    folder = Path(shutil.copytree(run[1], place / "killed"))  # after SFT
    shutil.rmtree(folder / "checkpoints" / "seed0" / "rl-reflect-rl")
    for path in (*folder.glob("metrics/*-rl-*"), *folder.glob("episodes/eval-reflect-rl-*")):
        path.unlink()
    words = ["run", "tiny.toml", "--folder", str(folder), *SHARDED]
    processes = ranks.begin(2, *words)
    wait_for(folder / "checkpoints" / "seed0" / "rl-reflect-rl.learner")
    os.kill(processes[1], signal.SIGKILL)
    codes, errors = ranks.end()
    assert codes == [2, -9] and "another process of this run ended" in "".join(errors[0])
    alone = Path(shutil.copytree(folder, place / "alone"))
    ranks.begin(2, *words)
    assert ranks.end()[0] == [0, 0]
    trained = "checkpoints/seed0/rl-reflect-rl/model.safetensors"
    assert (folder / trained).read_bytes() == (run[1] / trained).read_bytes()
    pipeline.run(load_recipe(place / "tiny.toml", ()), alone)  # the whole model, from a state that two have saved
    assert same_weights(alone, folder, trained) == 1


def test_what_cannot_be_divided_is_refused_in_one_line(ranks: Launcher, place: Path) -> None:
    with pytest.raises(UserError, match=r"model\.shard divides a model among processes; .* torchrun"):
        pipeline.run(load_recipe(place / "tiny.toml", ("model.shard=true",)), place / "refused")
    for setting, line in {
        "model.quantisation=nf4": "with it 'quantisation' must be none",
        "model.backend=packed": "with it 'backend' must be auto or plain",
        "model.mixed_precision=on": "no mixed precision",
    }.items():
        with pytest.raises(UserError, match=line):
            load_recipe(place / "tiny.toml", ("model.shard=true", "model.lora_rank=2", setting))
    ranks.begin(2, "run", "tiny.toml", "--folder", "refused", "--sft.optimizer", "muon", *SHARDED)
    codes, (said, others) = ranks.end()
    told = [*said, *others]
    assert codes == [2, 2] and len(told) == 1 and "the optimizer 'muon' needs whole weights" in told[0], told
