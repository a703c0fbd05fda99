"""Precision and threads are decided once per run, and whoever goes on with the run keeps to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectrl import runs as pipeline
from reflectrl.cli import main
from reflectrl.models.machine import has_fast_bfloat16
from reflectrl.runs.state import State, _hash
from tests.machines import AMD, INTEL, INTEL_AMX, Machine
from tests.runs.launcher import Launcher

Like = Callable[..., Any]
AUTO = ("model.mixed_precision=auto", "sft.optimizer=muon", "arms=sft,sft-no-reflection")
"""Two players learn side by side; what Muon multiplies is in this precision as well."""


def weights(folder: Path) -> dict[str, bytes]:
    """The weights that SFT has left, by player."""
    found = sorted(folder.glob("checkpoints/seed0/*/model.safetensors"))
    return {path.parent.name: path.read_bytes() for path in found if path.parent.name != "base"}


def decision(folder: Path) -> str:
    return str(json.loads((folder / "state.json").read_text())["auto_precision"])


def other_than_here() -> str:
    """What this machine would not decide."""
    return "off" if has_fast_bfloat16(torch.device("cpu")) else "on"


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory, like: Like) -> dict[str, dict[str, bytes]]:
    """The weights of both precisions, asked for by name."""
    folder = tmp_path_factory.mktemp("known")
    for precision in ("on", "off"):
        pipeline.run(like(*AUTO, f"model.mixed_precision={precision}"), folder / precision, until="sft")
    found = {precision: weights(folder / precision) for precision in ("on", "off")}
    assert found["on"].keys() == found["off"].keys() and len(found["on"]) == 3
    assert all(found["on"][name] != found["off"][name] for name in found["on"])
    return found


@pytest.fixture
def begun(tmp_path: Path, like: Like) -> Path:
    """A run on another machine, which decided otherwise and has taught so far."""
    folder = tmp_path / "run"
    pipeline.run(like(*AUTO), folder, until="teach")
    state = State.read(folder)
    state.auto_precision = other_than_here()
    state.write()
    return folder


@pytest.mark.parametrize(("first", "then", "precision"), [(AMD, INTEL, "on"), (INTEL, INTEL_AMX, "off")])
def test_it_is_decided_when_a_run_begins_and_kept_on_another_machine(
    first: str, then: str, precision: str, machine: Machine, tmp_path: Path, like: Like, known: Any
) -> None:
    machine(first)
    pipeline.run(like(*AUTO), tmp_path / "run", until="teach")
    assert decision(tmp_path / "run") == precision
    machine(then)
    pipeline.run(like(*AUTO), tmp_path / "run", until="sft")
    assert decision(tmp_path / "run") == precision
    assert weights(tmp_path / "run") == known[precision]
    assert 'mixed_precision = "auto"' in (tmp_path / "run" / "recipe.toml").read_text()  # other runs decide anew


def test_every_process_of_a_run_keeps_to_it(begun: Path, like: Like, known: Any) -> None:
    pipeline.run(like(*AUTO, "processes=2"), begun, until="sft")
    assert weights(begun) == known[other_than_here()]


def test_every_rank_of_a_run_keeps_to_it(begun: Path, tmp_path: Path, launcher: Launcher, recipe_file: Path) -> None:
    words = [f"--{setting}" for setting in AUTO]
    launcher.begin(2, "sft", str(recipe_file), "--folder", str(begun), *words)
    assert launcher.end() == ([0, 0], [[], []])
    asked = [*words, "--model.mixed_precision", other_than_here()]
    launcher.begin(2, "sft", str(recipe_file), "--folder", str(tmp_path / "asked"), *asked)
    assert launcher.end() == ([0, 0], [[], []])
    assert weights(begun) == weights(tmp_path / "asked")


def test_players_of_a_run_keep_to_it(begun: Path, like: Like) -> None:
    pipeline.run(like(*AUTO), begun, until="sft")
    player, _ = pipeline.load_players(begun, "sft", 0)
    assert player.lm.mixed == other_than_here()  # type: ignore[attr-defined]


def test_a_fork_keeps_to_it(begun: Path, tmp_path: Path, recipe_file: Path) -> None:
    words = [f"--{setting}" for setting in AUTO]
    forked = tmp_path / "forked"
    assert (
        main(["teach", str(recipe_file), *words, "--sft.steps", "2", "--fork", str(begun), "--folder", str(forked)])
        == 0
    )
    assert decision(forked) == other_than_here()


def test_a_folder_of_an_earlier_version_goes_on_and_decides_now(
    begun: Path, machine: Machine, like: Like, known: Any
) -> None:
    noted = json.loads((begun / "state.json").read_text())
    del noted["auto_precision"], noted["digest"]
    (begun / "state.json").write_text(json.dumps({**noted, "digest": _hash(noted)}))
    before = (begun / "episodes" / "teach-seed0-train.jsonl").stat().st_mtime_ns
    machine(INTEL)
    pipeline.run(like(*AUTO), begun, until="sft")
    assert decision(begun) == "off" and weights(begun) == known["off"]
    assert (begun / "episodes" / "teach-seed0-train.jsonl").stat().st_mtime_ns == before  # nothing was made anew


def test_a_run_without_models_decides_nothing(tmp_path: Path, like: Like) -> None:
    pipeline.run(like("arms=random", "model.mixed_precision=auto", "model.device=cuda:7"), tmp_path / "run")
    assert decision(tmp_path / "run") == ""


@pytest.mark.parametrize(
    ("cpuinfo", "words", "said"),
    [
        (AMD, [], 'model.mixed_precision: "auto" will mean "on", since this processor has avx512_bf16 (a GPU, '),
        (INTEL, ["--model.device", "cpu"], '"auto" will mean "off": this processor has no fast bfloat16\n'),
        (INTEL, ["--model.mixed_play", "auto"], 'model.mixed_precision and model.mixed_play: "auto" will mean'),
        (AMD, ["--model.device", "mps"], '"auto" will mean "off" on mps\n'),
        (INTEL, ["--model.device", "cuda"], '"auto" will mean "on" if the GPU has bfloat16\n'),
    ],
)
def test_a_dry_run_says_what_would_be_decided(
    cpuinfo: str, words: list[str], said: str, machine: Machine, recipe_file: Path, capsys: Any
) -> None:
    machine(cpuinfo)
    assert main(["run", str(recipe_file), "--dry-run", "--model.mixed_precision", "auto", *words]) == 0
    assert said in capsys.readouterr().out


def test_a_dry_run_says_what_was_decided(begun: Path, recipe_file: Path, capsys: Any) -> None:
    words = [f"--{setting}" for setting in AUTO]
    assert main(["run", str(recipe_file), "--folder", str(begun), "--dry-run", *words]) == 0
    said = f'model.mixed_precision: "auto" means "{other_than_here()}" in this run, as {begun / "state.json"} says\n'
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--model.mixed_precision", "on"], ["--arms", "random"]])
def test_a_dry_run_says_nothing_where_nothing_is_decided(words: list[str], recipe_file: Path, capsys: Any) -> None:
    assert main(["run", str(recipe_file), "--dry-run", *words]) == 0
    assert '"auto"' not in capsys.readouterr().out.split("# What the run makes")[1]


# ---- threads ---------------------------------------------------------------------------------------------------------


def recorded_threads(folder: Path) -> int:
    return int(json.loads((folder / "state.json").read_text())["threads"])


@pytest.fixture(scope="module")
def threaded(tmp_path_factory: pytest.TempPathFactory, like: Like) -> dict[int, dict[str, bytes]]:
    """The weights that one, two and three threads leave."""
    folder, left = tmp_path_factory.mktemp("threaded"), {}
    for count in (1, 2, 3):
        pipeline.run(like("arms=sft", f"threads={count}"), folder / str(count), until="sft")
        left[count] = weights(folder / str(count))
        assert recorded_threads(folder / str(count)) == count
    if left[1] == left[3]:
        pytest.skip("on this machine, the number of threads does not change the rounding")
    return left


@pytest.mark.parametrize(("first", "then"), [(1, 3), (3, 1), (3, 0)])
def test_a_run_goes_on_with_the_threads_it_began_with(
    first: int, then: int, tmp_path: Path, like: Like, threaded: Any, capfd: Any
) -> None:
    before = torch.get_num_threads()
    pipeline.run(like("arms=sft", f"threads={first}"), tmp_path, until="teach")
    pipeline.run(like("arms=sft", f"threads={then}"), tmp_path, until="sft")
    assert weights(tmp_path) == threaded[first] and recorded_threads(tmp_path) == first
    assert f"threads = {first}\n" in (tmp_path / "recipe.toml").read_text()
    said = f"threads={then} changes nothing: this run computes with {first}, as {tmp_path / 'state.json'} says"
    assert (said in capfd.readouterr().err) is (then > 0)
    assert torch.get_num_threads() == before  # the caller's own program goes on as it was


def test_the_number_that_torch_gave_is_kept_where_torch_gives_another(
    tmp_path: Path, like: Like, threaded: Any
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        pipeline.run(like("arms=sft"), tmp_path / "run", until="teach")
        torch.set_num_threads(1)
        pipeline.run(like("arms=sft", "processes=2"), tmp_path / "run", until="sft")
    finally:
        torch.set_num_threads(before)
    assert recorded_threads(tmp_path / "run") == 3 and weights(tmp_path / "run") == threaded[3]
    assert "threads = 0\n" in (tmp_path / "run" / "recipe.toml").read_text()


def test_the_ranks_of_a_run_take_the_first_ones_number(tmp_path: Path, launcher: Launcher, recipe_file: Path) -> None:
    words = ["--arms", "sft"]
    assert main(["teach", str(recipe_file), *words, "--threads", "3", "--folder", str(tmp_path / "kept")]) == 0
    for name, threads in (("kept", "1"), ("asked", "3")):
        launcher.begin(2, "sft", str(recipe_file), *words, "--threads", threads, "--folder", str(tmp_path / name))
        codes, said = launcher.end()
        assert codes == [0, 0] and len(said[0]) == (name == "kept") and said[1] == []
    assert weights(tmp_path / "kept") == weights(tmp_path / "asked")


def test_a_fork_keeps_the_threads_of_what_it_takes_over(tmp_path: Path, recipe_file: Path, capsys: Any) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert main(["teach", str(recipe_file), "--threads", "3", "--folder", str(first)]) == 0
    words = ["--sft.steps", "2", "--fork", str(first), "--folder", str(second), "--threads", "1"]
    assert main(["teach", str(recipe_file), *words]) == 0
    assert recorded_threads(second) == 3
    assert "--threads 1 changes nothing: this run computes with 3" in capsys.readouterr().err


def test_a_folder_in_which_nothing_was_made_takes_another_number(tmp_path: Path, like: Like) -> None:
    pipeline.run(like("arms=sft", "threads=3"), tmp_path, until="teach")
    for path in (tmp_path / "episodes").iterdir():
        path.unlink()
    pipeline.run(like("arms=sft", "threads=1"), tmp_path, until="teach")
    assert recorded_threads(tmp_path) == 1 and "threads = 1\n" in (tmp_path / "recipe.toml").read_text()


def test_a_folder_of_an_earlier_version_keeps_the_number_of_its_recipe(
    tmp_path: Path, like: Like, threaded: Any
) -> None:
    pipeline.run(like("arms=sft", "threads=3"), tmp_path, until="teach")
    noted = json.loads((tmp_path / "state.json").read_text())
    del noted["threads"], noted["digest"]
    (tmp_path / "state.json").write_text(json.dumps({**noted, "digest": _hash(noted)}))
    pipeline.run(like("arms=sft", "threads=1"), tmp_path, until="sft")
    assert recorded_threads(tmp_path) == 3 and weights(tmp_path) == threaded[3]


def test_a_dry_run_says_that_other_threads_change_nothing(begun: Path, recipe_file: Path, capsys: Any) -> None:
    other = str(recorded_threads(begun) + 1)
    words = [*(f"--{setting}" for setting in AUTO), "--folder", str(begun), "--threads", other]
    assert main(["run", str(recipe_file), "--dry-run", *words]) == 0
    assert f"# --threads {other} changes nothing" in capsys.readouterr().out
