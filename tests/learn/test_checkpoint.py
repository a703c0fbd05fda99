"""Checkpoints are written whole or not at all, whenever the writer is killed."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from reflectrl.learn.checkpoint import (
    drop_state,
    keeping,
    load_meta,
    load_state,
    optimizer_tensors,
    recover,
    restore_optimizer,
    save_state,
    write_folder,
    write_text,
)


class Killed(Exception):
    """Stands for a kill between two steps."""


def holding(text: str) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        (folder / "a.txt").write_text(text, encoding="utf-8")

    return fill


def content(folder: Path) -> str:
    recover(folder)
    assert sorted(path.name for path in folder.parent.iterdir() if not path.name.endswith(".writing")) == [folder.name]
    return (folder / "a.txt").read_text(encoding="utf-8")


def test_a_folder_replaces_the_one_before_it(tmp_path: Path) -> None:
    for text in ("one", "two", "three"):
        write_folder(tmp_path / "part", holding(text))
        assert content(tmp_path / "part") == text
    assert [path.name for path in tmp_path.iterdir()] == ["part"]


def test_a_kill_while_it_is_filled_keeps_the_old_one(tmp_path: Path) -> None:
    write_folder(tmp_path / "part", holding("old"))

    def half(folder: Path) -> None:
        holding("ne")(folder)
        raise Killed

    with pytest.raises(Killed):
        write_folder(tmp_path / "part", half)
    assert content(tmp_path / "part") == "old"
    write_folder(tmp_path / "part", holding("new"))
    assert content(tmp_path / "part") == "new"


def test_a_kill_while_the_first_one_is_filled_leaves_none(tmp_path: Path) -> None:
    def half(folder: Path) -> None:
        raise Killed

    with pytest.raises(Killed):
        write_folder(tmp_path / "part", half)
    recover(tmp_path / "part")
    assert not (tmp_path / "part").exists()


@pytest.mark.parametrize(("renames", "kept"), [(0, "old"), (1, "new")])
def test_a_kill_at_either_rename_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int, kept: str
) -> None:
    write_folder(tmp_path / "part", holding("old"))
    rename, done = Path.rename, []

    def counted(self: Path, target: Path) -> Path:
        if len(done) == renames:
            raise Killed
        done.append(target)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", counted)
    with pytest.raises(Killed):
        write_folder(tmp_path / "part", holding("new"))
    monkeypatch.undo()
    assert content(tmp_path / "part") == kept


def test_a_kill_before_the_old_one_is_removed_keeps_the_new_one(tmp_path: Path) -> None:
    write_folder(tmp_path / "part", holding("new"))
    (tmp_path / "part.old").mkdir()
    holding("old")(tmp_path / "part.old")
    assert content(tmp_path / "part") == "new"


def test_an_old_folder_alone_is_taken_back(tmp_path: Path) -> None:
    (tmp_path / "part.old").mkdir()
    holding("old")(tmp_path / "part.old")
    assert content(tmp_path / "part") == "old"


def test_text_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "half \ud800")
    assert path.read_text(encoding="utf-8") == "old"


def test_a_state_comes_back_with_exact_numbers(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4), "b": torch.arange(5), "c": torch.tensor(2.5, dtype=torch.bfloat16)}
    tensors["shared"] = tensors["a"]  # tied weights
    optimizer = {"0.step": torch.tensor(1.0)}
    save_state(tmp_path / "state", {"weights": tensors, "optimizer": optimizer}, {"step": 3, "best": [0.1, 0.2]})
    assert load_meta(tmp_path / "state") == {"step": 3, "best": [0.1, 0.2]}
    loaded = load_state(tmp_path / "state")
    assert loaded is not None and loaded[0].keys() == {"weights", "optimizer"} and loaded[0]["optimizer"] == optimizer
    assert loaded[0]["weights"].keys() == tensors.keys()
    assert all(torch.equal(loaded[0]["weights"][name], tensor) for name, tensor in tensors.items())
    assert {path.suffix for path in (tmp_path / "state").iterdir()} == {".json", ".safetensors"}


def test_weights_that_share_memory_come_back_apart(tmp_path: Path) -> None:
    table = torch.arange(12.0).reshape(4, 3)
    shared = {"embeddings": table, "head": table, "row": table[1], "turned": table.T, "nothing": torch.zeros(0)}
    save_state(tmp_path / "learner", {"weights": shared, "best": {"embeddings": table}}, {"step": 1})
    found = load_state(tmp_path / "learner")
    assert found is not None
    assert all(torch.equal(found[0]["weights"][name], tensor) for name, tensor in shared.items())
    assert torch.equal(found[0]["best"]["embeddings"], table)


def test_a_state_killed_between_the_renames_is_the_new_one(tmp_path: Path) -> None:
    for step in (1, 2):
        save_state(tmp_path / "state", {"weights": {"a": torch.tensor(float(step))}}, {"step": step})
    (tmp_path / "state").rename(tmp_path / "state.writing")
    assert (tmp_path / "state.old").is_dir()
    loaded = load_state(tmp_path / "state")
    assert loaded is not None and loaded[1] == {"step": 2}


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on the size of files")
def test_a_state_that_the_disk_does_not_take_leaves_the_one_before(tmp_path: Path) -> None:
    import resource

    small, large = {"weights": {"w": torch.ones(2)}}, {"weights": {"w": torch.ones(100_000)}}
    save_state(tmp_path / "state", small, {"step": 1})
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large: .*state"):
            save_state(tmp_path / "state", large, {"step": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert {path.name for path in tmp_path.iterdir()} == {"state"}
    found = load_state(tmp_path / "state")
    assert found is not None and found[1]["step"] == 1


def test_no_state_is_none(tmp_path: Path) -> None:
    assert load_state(tmp_path / "absent") is None
    assert load_meta(tmp_path / "absent") is None


def test_an_optimiser_goes_on_where_it_was() -> None:
    def trained(steps: int, after: dict[str, torch.Tensor] | None, start: torch.Tensor) -> tuple[torch.Tensor, dict]:
        weight = torch.nn.Parameter(start.clone())
        optimizer = torch.optim.AdamW([weight], lr=0.1)
        if after is not None:
            restore_optimizer(optimizer, after)
        for _ in range(steps):
            (weight**2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return weight.detach(), optimizer_tensors(optimizer)

    start = torch.tensor([1.0, -2.0])
    whole, _ = trained(6, None, start)
    half, state = trained(3, None, start)
    assert set(state) == {"0.step", "0.exp_avg", "0.exp_avg_sq"}
    resumed, _ = trained(3, state, half)
    assert torch.equal(whole, resumed)


# ---- damaged states --------------------------------------------------------------------------------------------------


def states(folder: Path, steps: int) -> None:
    for step in range(1, steps + 1):
        save_state(folder, {"weights": {"a": torch.full((100,), float(step))}}, {"step": step})


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "tensors cut": lambda folder: os.truncate(folder / "state.safetensors", 300),
    "a byte of the tensors flipped": lambda folder: flip(folder / "state.safetensors"),
    "tensors missing": lambda folder: (folder / "state.safetensors").unlink(),
    "half the numbers": lambda folder: (folder / "state.json").write_text('{"st', encoding="utf-8"),
    "other numbers": lambda folder: (folder / "state.json").write_text('{"step": 7}', encoding="utf-8"),
    "no object": lambda folder: (folder / "state.json").write_text("[]", encoding="utf-8"),
    "no numbers": lambda folder: (folder / "state.json").unlink(),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_state_gives_way_to_the_one_before_it_in_one_line(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "learner"
    states(folder, 3)
    DAMAGES[name](folder)
    assert load_meta(folder) == {"step": 2}
    assert (loaded := load_state(folder)) is not None and float(loaded[0]["weights"]["a"][0]) == 2.0
    [line] = caplog.messages
    assert line.startswith(f"reflectrl: {folder}") and line.endswith("; training continues from the previous state")
    states(folder, 3)
    assert load_meta(folder) == {"step": 3}


@pytest.mark.parametrize("name", sorted({*DAMAGES} - {"a byte of the tensors flipped", "other numbers"}))
def test_a_damaged_state_without_digests_is_not_taken_either(tmp_path: Path, name: str) -> None:
    """As it was written before there were any."""
    folder = tmp_path / "learner"
    states(folder, 2)
    (folder / "digests.json").unlink()
    assert load_meta(folder) == {"step": 2}
    DAMAGES[name](folder)
    assert load_meta(folder) == {"step": 1}


def test_where_both_states_are_damaged_there_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "learner"
    states(folder, 3)
    for damaged in (folder, folder.with_name("learner.old")):
        flip(damaged / "state.safetensors")
    assert load_state(folder) is None
    assert [line.rpartition("; ")[2] for line in caplog.messages] == [
        "training continues from the previous state",
        "this training starts over",
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_half_written_state_is_not_taken_for_the_one_before(tmp_path: Path) -> None:
    folder = tmp_path / "learner"
    states(folder, 2)
    shutil.copytree(folder, folder.with_name("learner.writing"))
    (folder.with_name("learner.writing") / "digests.json").unlink()
    flip(folder / "state.safetensors")
    assert load_meta(folder) == {"step": 1}


def test_a_state_that_is_dropped_leaves_nothing(tmp_path: Path) -> None:
    states(tmp_path / "learner", 2)
    drop_state(tmp_path / "learner")
    assert list(tmp_path.iterdir()) == []


# ---- how many are kept -----------------------------------------------------------------------------------------------


def steps_of(folder: Path) -> dict[str, int]:
    return {path.name: json.loads((path / "state.json").read_text())["step"] for path in folder.parent.iterdir()}


@pytest.mark.parametrize(
    ("count", "kept"),
    [
        (1, {"learner": 5}),
        (2, {"learner": 5, "learner.old": 4}),
        (4, {"learner": 5, "learner.old": 4, "learner.old2": 3, "learner.old3": 2}),
    ],
)
def test_as_many_states_are_kept_as_are_asked_for(tmp_path: Path, count: int, kept: dict[str, int]) -> None:
    folder = tmp_path / "learner"
    with keeping(count):
        states(folder, 5)
    assert steps_of(folder) == kept


def test_states_beyond_the_number_go_when_it_is_lowered(tmp_path: Path) -> None:
    folder = tmp_path / "learner"
    with keeping(4):
        states(folder, 4)
    assert load_meta(folder) == {"step": 4} and len(steps_of(folder)) == 4  # reading throws nothing away
    states(folder, 1)
    assert steps_of(folder) == {"learner": 1, "learner.old": 4}


def test_where_the_last_two_are_damaged_the_third_takes_over(tmp_path: Path) -> None:
    folder = tmp_path / "learner"
    with keeping(3):
        states(folder, 5)
        for damaged in (folder, folder.with_name("learner.old")):
            flip(damaged / "state.safetensors")
        assert load_meta(folder) == {"step": 3}
        states(folder, 1)
        assert steps_of(folder) == {"learner": 1, "learner.old": 3}


@pytest.mark.parametrize("renames", range(4))
def test_a_kill_at_any_rename_loses_no_state_but_the_oldest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    folder, rename, done = tmp_path / "learner", Path.rename, []

    def counted(self: Path, target: Path) -> Path:
        if len(done) == renames:
            raise Killed
        done.append(target)
        return rename(self, target)

    with keeping(4):
        states(folder, 4)
        monkeypatch.setattr(Path, "rename", counted)
        with pytest.raises(Killed):
            save_state(folder, {"weights": {"a": torch.zeros(1)}}, {"step": 5})
        monkeypatch.undo()
        latest = 5 if renames == 3 else 4
        assert load_meta(folder) == {"step": latest}
        assert sorted(steps_of(folder).values())[-3:] == [latest - 2, latest - 1, latest] or renames < 3
        save_state(folder, {"weights": {"a": torch.zeros(1)}}, {"step": 6})
        assert steps_of(folder) == dict(
            zip(
                ("learner", "learner.old", "learner.old2", "learner.old3"),
                (6, latest, latest - 1, latest - 2),
                strict=True,
            )
        )
