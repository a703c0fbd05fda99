"""The benchmarks of ALFWorld: speeds, memory, and the sweep that compares the native engine with the reference."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks import alfworld_recheck, alfworld_sweep
from benchmarks.alfworld import Asked, measured
from reflectrl.wings.alfworld.game import to_json
from reflectrl.wings.alfworld.generate import generate_game
from reflectrl.wings.alfworld.library import fill
from reflectrl.wings.alfworld.reading import compile_game

has_reference = bool(find_spec("textworld") and find_spec("alfworld"))
needs_reference = pytest.mark.skipif(not has_reference, reason="needs the extra alfworld")
NATIVE = ["3 environments, MiB", "steps/s, engine", "steps/s, environment", "reset from a store, ms"]


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """Two generated games in the official layout."""
    for seed in range(2):
        game_id, problem, trajectory = generate_game(seed)
        folder = tmp_path / "official" / "train" / game_id
        folder.mkdir(parents=True)
        (folder / "initial_state.pddl").write_text(problem, encoding="utf-8")
        (folder / "traj_data.json").write_text(json.dumps(trajectory), encoding="utf-8")
    return tmp_path / "official"


def test_generated_games_are_measured() -> None:
    found = measured(Asked(limit=2, environments=3, reference=0, repetitions=1))
    assert [row["what"] for row in found] == [*NATIVE, "reset from PDDL, ms"]
    assert [row["games"] for row in found] == [3, 2, 2, 2, 2]
    assert all(row["median"] > 0 for row in found[1:])


def test_a_store_has_no_files_to_compile(tmp_path: Path) -> None:
    game_id, *texts = generate_game(0)
    fill(tmp_path, {"valid_seen": {game_id: to_json(compile_game(game_id, *texts))}})
    found = measured(Asked(games=tmp_path, environments=3, repetitions=1))
    assert [row["what"] for row in found] == NATIVE
    assert [row["games"] for row in found] == [1, 1, 1, 1]


@needs_reference
def test_the_native_engine_is_much_faster_than_the_reference(official: Path) -> None:
    found = measured(Asked(games=official, limit=2, environments=1, reference=1, walk=3, repetitions=1))
    assert {row["what"]: row for row in found}["engine / reference"]["median"] > 100


@needs_reference
def test_a_sweep_finds_no_differences_and_goes_on_where_it_was(official: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep.jsonl"
    assert alfworld_sweep.main([str(official), "--out", str(out), "--every", "2"]) == 0
    with out.open("a") as file:
        file.write('{"game": "cut o')
    assert alfworld_sweep.main([str(official), "--out", str(out)]) == 0
    found = alfworld_sweep.results(out)
    assert len({line["game"] for line in found}) == len(found) == 2
    assert all(line["steps"] > 20 and line["wins"] >= 1 for line in found)


@pytest.mark.skipif(has_reference, reason="the extra is there")
def test_a_sweep_without_the_reference_says_what_to_install(official: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        alfworld_sweep.main([str(official)])
    assert "make setup EXTRA=alfworld" in capsys.readouterr().err


def test_a_summary_counts_by_type() -> None:
    line = {"game": "train/a/b", "type": "look_at_obj_in_light", "walks": 2, "wins": 2, "steps": 30, "commands": 900}
    rest = {"verbs": {"go": 20, "take": 10}, "seconds": 1.5, "digest": "", "differences": []}
    table = alfworld_sweep.summary([line | rest, line | rest]).splitlines()
    assert table[1].split()[:6] == ["look_at_obj_in_light", "2", "4", "4", "60", "1,800"]
    assert table[-1] == "go 40, take 20"


def test_what_the_reference_said_is_compared_without_it(official: Path, tmp_path: Path) -> None:
    sweep, lines = tmp_path / "sweep.jsonl", []
    for files in alfworld_sweep.games(official):
        game = alfworld_sweep.compiled(files)
        pair = alfworld_sweep.Pair(game, alfworld_recheck.NativeReference(game))
        lines.append(alfworld_sweep.walked(files.place, pair))
    sweep.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert alfworld_recheck.main([str(official), str(sweep)]) == 0
    altered = {**lines[0], "digest": "something else"}
    sweep.write_text("".join(json.dumps(line) + "\n" for line in (altered, lines[1])))
    assert alfworld_recheck.main([str(official), str(sweep)]) == 1
    assert [line["game"] for line in alfworld_sweep.results(sweep)] == [lines[1]["game"]]
    assert len(alfworld_sweep.results(tmp_path / "sweep.jsonl.before")) == 2
    for missing in ("nowhere.jsonl", "others.jsonl"):  # nothing was compared, so nothing is said to be equal
        (tmp_path / "others.jsonl").write_text(json.dumps({**lines[0], "game": "train/another/one"}) + "\n")
        with pytest.raises(SystemExit):
            alfworld_recheck.main([str(official), str(tmp_path / missing)])
