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
from reflectrl import pipeline
from reflectrl.config import load_recipe
from reflectrl.types import UserError
from tests.pipeline.launcher import LIMIT, Launcher
from tests.pipeline.test_ranks import wait_for

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
    """`made("run", "name", *settings)`: the folders of a command on one process, and on two that divide the models."""

    def both(verb: str, name: str, *settings: str, begun: Path | None = None) -> tuple[Path, Path]:
        folders = place / f"{name}1", place / f"{name}2"
        for number, folder in enumerate(folders, 1):
            if begun is not None:
                shutil.copytree(begun, folder)
            words = [verb, "tiny.toml", "--folder", str(folder), *settings, *(SHARDED if number == 2 else ())]
            ranks.begin(number, *words, notes=noted(folder))
            codes, errors = ranks.end()
            assert codes == [0] * number, errors
        return folders

    return both


def noted(folder: Path) -> Path:
    """Where a run's first gradients and episodes are noted."""
    notes = folder.with_name(f"{folder.name}-notes")
    notes.mkdir(exist_ok=True)
    return notes


@pytest.fixture(scope="module")
def sft(made: Made) -> tuple[Path, Path]:
    return made("sft", "sft")


@pytest.fixture(scope="module")
def rl(made: Made, sft: tuple[Path, Path]) -> tuple[Path, Path]:
    return made("run", "run", begun=sft[0])


def same_weights(one: Path, two: Path, pattern: str) -> int:
    """How many files of weights two folders hold, which must be the same but for rounding."""
    found = sorted(path.relative_to(one) for path in one.glob(pattern))
    for name in found:
        first, second = load_file(one / name), load_file(two / name)
        assert first.keys() == second.keys()
        for weight in first:
            torch.testing.assert_close(first[weight], second[weight], rtol=0, atol=2e-4)
    return len(found)


def test_sft_has_the_gradients_and_the_weights_of_one_process(sft: tuple[Path, Path]) -> None:
    apart, count = difference(*map(noted, sft))
    assert 0 < apart < 1e-5 and count == 2  # of the reflector and the policy
    assert same_weights(*sft, "checkpoints/seed0/*/model.safetensors") == 3  # and the model that they began as
    assert {path.name for path in (sft[1] / "checkpoints/seed0/policy").iterdir()} == {
        path.name for path in (sft[0] / "checkpoints/seed0/policy").iterdir()
    }


def test_rl_plays_the_episodes_and_has_the_gradients_and_the_weights_of_one_process(rl: tuple[Path, Path]) -> None:
    notes = noted(rl[0]), noted(rl[1])
    assert same_jobs(*notes) and same_episodes(*notes) == 1.0
    apart, count = difference(*notes)
    assert apart < 1e-5 and count == 1  # of the critic, which learns alone at first
    assert same_weights(*rl, "checkpoints/seed0/rl-reflect-rl/model.safetensors") == 1
    one, two = (json.loads((folder / "results.json").read_text(encoding="utf-8"))["rows"] for folder in rl)
    for line, other in zip(one, two, strict=True):
        assert other == pytest.approx(line)


def test_adapters_learn_on_a_divided_backbone(made: Made) -> None:
    one, two = made("rl", "lora", *LORA)
    assert same_jobs(noted(one), noted(two)) and same_episodes(noted(one), noted(two)) == 1.0
    apart, count = difference(noted(one), noted(two))
    assert 0 < apart < 1e-5 and count == 1
    assert same_weights(one, two, "checkpoints/seed0/rl-rl-only/adapter_model.safetensors") == 1


def test_a_killed_training_goes_on_with_the_same_bits_and_on_one_process_too(
    ranks: Launcher, place: Path, sft: tuple[Path, Path], rl: tuple[Path, Path]
) -> None:
    folder = Path(shutil.copytree(sft[0], place / "killed"))
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
    assert (folder / trained).read_bytes() == (rl[1] / trained).read_bytes()
    pipeline.run(load_recipe(place / "tiny.toml", ()), alone)  # the whole model, from a state that two have saved
    assert same_weights(alone, folder, trained) == 1


def test_what_cannot_be_divided_is_refused_in_one_line(ranks: Launcher, place: Path, sft: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match=r"model\.shard divides a model among processes; .* torchrun"):
        pipeline.run(load_recipe(place / "tiny.toml", ("model.shard=true",)), place / "refused")
    for setting, line in {
        "model.quantisation=nf4": "with it 'quantisation' must be none",
        "model.backend=packed": "with it 'backend' must be auto or plain",
        "model.mixed_precision=on": "no mixed precision",
    }.items():
        with pytest.raises(UserError, match=line):
            load_recipe(place / "tiny.toml", ("model.shard=true", "model.lora_rank=2", setting))
    for number, (settings, line) in enumerate(
        {
            ("--sft.optimizer", "muon"): "the optimizer 'muon' needs whole weights",
            ("--arms", "archer"): "values archer (seed 0) is learned by the first process alone",
        }.items()
    ):
        ranks.begin(2, "run", "tiny.toml", "--folder", f"refused{number}", *settings, *SHARDED)
        codes, (said, others) = ranks.end()
        assert codes == [2, 2] and line in "".join([*said, *others]), (said, others)
