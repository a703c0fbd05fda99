"""Files of a run that were damaged: it goes on to the same end, or one line says what is wrong and what to do."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectrl import runs as pipeline
from reflectrl.cli import main
from reflectrl.core.types import UserError
from reflectrl.runs import load_players
from reflectrl.runs.folder import unusable
from reflectrl.runs.metrics import MetricsFile

Said = Callable[[Path], dict[str, str]]
Damage = Callable[[Path], object]
GOES_ON, ANEW = "; training continues from the previous state", "; this training starts over"


def flip(path: Path, place: int = -9) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def stopped(like: Any, folder: Path, part: str, step: int) -> Path:
    """A run that was interrupted when it was about to log a step of a part."""
    write = MetricsFile.write

    def until(file: MetricsFile, metrics: dict[str, Any]) -> None:
        if part in (file.shared.get("artifact"), file.shared["arm"]) and metrics["step"] == step:
            raise KeyboardInterrupt
        write(file, metrics)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(MetricsFile, "write", until)
        pipeline.run(like(), folder, "eval")
    return folder


@pytest.fixture(scope="session")
def in_sft(tmp_path_factory: pytest.TempPathFactory, like: Any) -> Path:
    return stopped(like, tmp_path_factory.mktemp("sft") / "run", "policy", 5)


@pytest.fixture(scope="session")
def in_rl(tmp_path_factory: pytest.TempPathFactory, like: Any) -> Path:
    return stopped(like, tmp_path_factory.mktemp("rl") / "run", "reflect-rl", 2)


@pytest.fixture(params=["policy", "rl-reflect-rl"])
def part(request: Any) -> str:
    return str(request.param)


@pytest.fixture
def unfinished(part: str, request: Any, tmp_path: Path) -> Path:
    """A copy of a run that was interrupted while that part was trained; two states of its learner are there."""
    run = request.getfixturevalue("in_sft" if part == "policy" else "in_rl")
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    assert all((copy / f"checkpoints/seed0/{part}.{name}/state.json").is_file() for name in ("learner", "learner.old"))
    return copy


def weights(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.glob("checkpoints/*/*/*.safetensors")}


def ends_as(run: Path, whole: Path, said: Said) -> bool:
    return said(run) == said(whole) and weights(run) == weights(whole)


# ---- trainings under way ---------------------------------------------------------------------------------------------

STATES: dict[str, Damage] = {
    "tensors cut": lambda learner: os.truncate(learner / "state.safetensors", 1000),
    "half a state.json": lambda learner: os.truncate(learner / "state.json", 9),
    "a flipped byte of the tensors": lambda learner: flip(learner / "state.safetensors"),
}


@pytest.mark.parametrize("damage", STATES)
def test_a_damaged_learner_goes_on_from_the_state_before_to_the_same_end(
    unfinished: Path, part: str, damage: str, finished: Path, like: Any, said: Said, caplog: pytest.LogCaptureFixture
) -> None:
    learner = unfinished / f"checkpoints/seed0/{part}.learner"
    STATES[damage](learner)
    pipeline.run(like(), unfinished, "eval")
    assert [line for line in caplog.messages if line.startswith("reflectrl: ")] == [
        f"reflectrl: {learner / ('state.json' if 'json' in damage else 'state.safetensors')}"
        f" has changed since it was written{GOES_ON}"
    ]
    assert ends_as(unfinished, finished, said)
    left = {path.name for path in (unfinished / "checkpoints/seed0").iterdir()}
    assert left == {"base", "reflector", "policy", "rl-reflect-rl"}


def test_where_both_states_are_damaged_the_training_begins_anew_to_the_same_end(
    unfinished: Path, part: str, finished: Path, like: Any, said: Said, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("learner", "learner.old"):
        flip(unfinished / f"checkpoints/seed0/{part}.{name}/state.safetensors")
    pipeline.run(like(), unfinished, "eval")
    assert [line.endswith(ending) for line, ending in zip(caplog.messages, (GOES_ON, ANEW), strict=True)] == [
        True,
        True,
    ]
    assert ends_as(unfinished, finished, said)


def test_with_three_states_the_last_two_may_be_damaged(
    tmp_path: Path, like: Any, said: Said, caplog: pytest.LogCaptureFixture
) -> None:
    recipe = like("keep_states=3", "sft.eval_every=1")
    run = stopped(lambda: recipe, tmp_path / "run", "policy", 5)
    learners = [run / f"checkpoints/seed0/policy.{name}" for name in ("learner", "learner.old", "learner.old2")]
    assert sorted((run / "checkpoints/seed0").glob("*.learner*")) == learners
    for damaged in learners[:2]:
        flip(damaged / "state.safetensors")
    pipeline.run(recipe, run, "sft")
    assert [line.endswith(GOES_ON) for line in caplog.messages] == [True, True]
    whole = tmp_path / "whole"
    pipeline.run(recipe, whole, "sft")
    assert ends_as(run, whole, said)
    assert not list(run.rglob("*.learner*"))


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_a_number_of_states_that_is_none_is_refused_in_a_line(recipe_file: Path, count: str, capfd: Any) -> None:
    assert main(["run", str(recipe_file), "--keep-states", count, "--dry-run"]) == 2
    err = capfd.readouterr().err
    assert "keep_states" in err and err.count("\n") == 1


METRICS: dict[str, Damage] = {
    "garbage": lambda path: path.write_bytes(b"\xff\x00not a line\n" * 3),
    "a flipped byte": lambda path: flip(path, 40),
    "no object": lambda path: path.write_text("[]\n[]\n", encoding="utf-8"),
    "emptied": lambda path: path.write_text("", encoding="utf-8"),
    "deleted": lambda path: path.unlink(),
}


@pytest.mark.parametrize("damage", METRICS)
def test_damaged_metrics_of_a_training_make_it_begin_anew_to_the_same_end(
    in_rl: Path, tmp_path: Path, finished: Path, like: Any, said: Said, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = Path(shutil.copytree(in_rl, tmp_path / "run"))
    path = run / "metrics/seed0-rl-reflect-rl.jsonl"
    METRICS[damage](path)
    pipeline.run(like(), run, "eval")
    assert f"reflectrl: {path} is damaged{ANEW}" in caplog.messages
    assert ends_as(run, finished, said)


# ---- what is finished ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", METRICS)
def test_damaged_metrics_of_a_finished_part_are_told_and_nothing_else_suffers(
    copy: Path, recipe_file: Path, finished: Path, said: Said, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = copy / "metrics/seed0-policy.jsonl"
    METRICS[damage](path)
    next(copy.glob("episodes/eval-sft-*")).unlink()
    words = ["eval", str(recipe_file), "--folder", str(copy)]
    assert main(words) == 0
    remedy = f"remove it and {copy / 'checkpoints/seed0/policy'} to make them anew"
    removed = copy / "episodes/eval-sft-seed0-*.jsonl"
    assert caplog.messages == [
        f"reflectrl: {removed} is not as it was written; it is made again",
        f"reflectrl: {path} is damaged, and curves lack lines; {remedy}",
    ]
    assert {**said(copy), "metrics.jsonl": ""} == {**said(finished), "metrics.jsonl": ""}
    path.unlink(missing_ok=True)
    shutil.rmtree(copy / "checkpoints/seed0/policy")
    assert main(words) == 0 and ends_as(copy, finished, said)


@pytest.mark.parametrize(
    "text", ["not JSON", "\x00\x01", "{}", "[]", '"complete"', '{"complete": 1}', '{"complete": ["tea']
)
def test_a_damaged_state_of_the_run_is_written_anew_from_what_is_there(
    copy: Path, finished: Path, recipe_file: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = copy / "state.json"
    path.write_text(text, encoding="utf-8")
    assert main(["teach", str(recipe_file), "--folder", str(copy)]) == 0
    assert caplog.messages == [f"reflectrl: {path} is damaged; it is written anew from what the folder holds"]
    stages = json.loads((finished / "state.json").read_text())["complete"]
    assert set(json.loads(path.read_text())["complete"]) == {*stages} - {"report"}


def test_a_turned_bit_in_the_state_of_the_run_is_damage_and_no_other_setting(
    copy: Path, finished: Path, recipe_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, before = copy / "state.json", (finished / "state.json").read_text()
    noted = next(iter(json.loads(before)["artifacts"].values()))["fingerprint"]
    path.write_text(before.replace(noted, noted[:-1] + chr(ord(noted[-1]) ^ 1)), encoding="utf-8")
    assert main(["report", str(recipe_file), "--folder", str(copy)]) == 0
    assert caplog.messages == [f"reflectrl: {path} is damaged; it is written anew from what the folder holds"]
    assert path.read_text() == before


def test_a_state_without_a_digest_as_earlier_versions_wrote_it_is_read(
    copy: Path, recipe_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = copy / "state.json"
    noted = json.loads(path.read_text())
    del noted["digest"]
    path.write_text(json.dumps(noted), encoding="utf-8")
    assert main(["report", str(recipe_file), "--folder", str(copy)]) == 0 and not caplog.messages


FINISHED = {
    "reflector/model.safetensors": flip,
    "policy/model.safetensors": flip,
    "rl-reflect-rl/model.safetensors": lambda path: os.truncate(path, 900),
    "policy/tokenizer.json": lambda path: flip(path, 500),
    "reflector/config.json": lambda path: path.write_text("[]", encoding="utf-8"),
    "policy/digests.json": lambda path: path.write_text("{", encoding="utf-8"),
}
"""A file of a player, and what happens to it."""


@pytest.mark.parametrize("name", FINISHED)
def test_a_damaged_player_is_refused_and_made_again_once_it_is_removed(
    copy: Path, finished: Path, recipe_file: Path, said: Said, name: str, capfd: Any
) -> None:
    path = copy / "checkpoints/seed0" / name
    FINISHED[name](path)
    for log in copy.glob("episodes/eval-*"):
        log.unlink()
    words = ["eval", str(recipe_file), "--folder", str(copy)]
    assert main(words) == 2
    what = "is damaged" if path.name == "digests.json" else "has changed since it was written"
    err = capfd.readouterr().err
    assert err.startswith(f"reflectrl: {path} {what}; remove {path.parent}, then repeat the command that made it")
    assert err.count("\n") == 1
    with pytest.raises(UserError, match=what):
        load_players(copy, "reflect-rl" if "policy" not in name else "sft", 0)
    shutil.rmtree(path.parent)
    assert main(words) == 0 and ends_as(copy, finished, said)


def test_a_damaged_base_is_refused_when_something_starts_from_it(copy: Path, recipe_file: Path, capfd: Any) -> None:
    (copy / "checkpoints/seed0/base/tokenizer.json").unlink()
    shutil.rmtree(copy / "checkpoints/seed0/policy")
    assert main(["sft", str(recipe_file), "--folder", str(copy)]) == 2
    assert "base/tokenizer.json is missing; remove " in capfd.readouterr().err


def test_a_player_without_digests_is_loaded_as_before(copy: Path) -> None:
    for path in copy.glob("checkpoints/*/*/digests.json"):
        path.unlink()
    load_players(copy, "reflect-rl", 0)


def test_a_flipped_digit_of_an_episode_is_told_with_its_line(copy: Path, recipe_file: Path, capfd: Any) -> None:
    log = copy / "episodes/eval-sft-seed0-test-full-greedy.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    place = lines[2].index('"reward":') + len('"reward":')
    lines[2] = lines[2][:place] + lines[2][place:].replace("0", "1", 1)
    log.write_text("".join(lines), encoding="utf-8")
    assert main(["eval", str(recipe_file), "--folder", str(copy)]) == 2
    err = capfd.readouterr().err
    assert f"{log}:3: corrupt episode: the line has changed since it was written" in err
    assert "repair or remove this line" in err


@pytest.fixture(scope="module")
def without_a_teacher(tmp_path_factory: pytest.TempPathFactory, like: Any) -> Path:
    """A run whose tokenizer is trained on random play."""
    folder = tmp_path_factory.mktemp("untaught") / "run"
    pipeline.run(like('arms=["rl-only"]'), folder, "sft")
    return folder


@pytest.mark.parametrize("damage", ["emptied", "cut", "repeated", "another", "missing"])
def test_changed_random_play_of_a_finished_stage_is_made_again_to_the_same_end(
    without_a_teacher: Path, like: Any, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    copy = Path(shutil.copytree(without_a_teacher, tmp_path / "run"))
    log = copy / "episodes/random-seed0.jsonl"
    before = log.read_bytes()
    lines = before.splitlines(keepends=True)
    contents = {"emptied": b"", "cut": b"".join(lines[:2]), "repeated": before + lines[0], "another": lines[0] * 9}
    log.unlink() if damage == "missing" else log.write_bytes(contents[damage])
    shutil.rmtree(copy / "checkpoints")  # so that the log is read again
    pipeline.run(like('arms=["rl-only"]'), copy, "sft")
    assert caplog.messages == [f"reflectrl: {log} is not as it was written; it is made again"]
    assert log.read_bytes() == before and weights(copy) == weights(without_a_teacher)


@pytest.mark.parametrize(
    "name", ["teach-seed0-train", "eval-sft-seed0-test-full-greedy", "eval-random-seed0-test-full-greedy"]
)
@pytest.mark.parametrize("kept", [0, 1, None])
def test_a_shortened_log_of_a_finished_run_is_completed_to_the_same_end(
    copy: Path, finished: Path, like: Any, said: Said, name: str, kept: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    log = copy / f"episodes/{name}.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.unlink() if kept is None else log.write_bytes(b"".join(lines[:kept]))
    pipeline.run(like(), copy, "eval")
    assert said(copy) == said(finished) and log.read_bytes() == b"".join(lines)
    assert len(caplog.messages) == 1 and "is not as it was written; it is made again" in caplog.messages[0]


def test_a_player_that_was_being_written_has_no_metrics_to_be_missed(
    copy: Path, like: Any, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(copy / "checkpoints/seed0/policy", copy / "checkpoints/seed0/policy.writing")
    pipeline.run(like(), copy, "eval")
    assert caplog.messages == []


def test_damaged_metrics_are_told_where_nothing_is_missing_too_and_the_whole_file_is_written_anew(
    copy: Path, finished: Path, like: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (copy / "metrics.jsonl").write_text("{}", encoding="utf-8")
    pipeline.run(like(), copy, "eval")
    assert (copy / "metrics.jsonl").read_bytes() == (finished / "metrics.jsonl").read_bytes() and not caplog.messages
    flip(copy / "metrics/seed0-policy.jsonl", 40)
    pipeline.run(like(), copy, "eval")
    assert "metrics/seed0-policy.jsonl is damaged, and curves lack lines" in "".join(caplog.messages)


@pytest.mark.parametrize("text", ["[1]", "3", "null", "{", '{"rows": 1}'])
def test_damaged_results_are_written_anew(copy: Path, finished: Path, like: Any, said: Said, text: str) -> None:
    (copy / "results.json").write_text(text, encoding="utf-8")
    pipeline.run(like(), copy, "eval")
    assert said(copy) == said(finished)


# ---- what the system says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "run/x"), "run/x: No space left on device"),
        (OSError(errno.ENOSPC, "No space left on device"), "OSError: [Errno 28] No space left on device"),
        (FileNotFoundError("No such file: run/y"), "FileNotFoundError: No such file: run/y"),
    ],
)
def test_an_error_of_the_system_never_says_nothing(error: OSError, told: str) -> None:
    assert str(unusable(Path("run"), error)) == f"run folder run: {told}"
