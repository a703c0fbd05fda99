"""`scripts/release.py`: release files of a finished run, the same bytes each time, which play like the run."""

import hashlib
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import reflectrl
from reflectrl import runs as pipeline
from reflectrl.core.config import Recipe
from scripts.release import main
from tests.tools.exporting.test_agents import told


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line on stderr with which the script refuses words."""
    capsys.readouterr()
    assert main([*map(str, words), "--licence", "mit"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("release: ") and err.count("\n") == 1, err
    return err


def test_release_files_play_like_the_run_and_say_what_they_are(finished: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    agents = [f"{finished}:reflect-rl:0", f"{finished}:sft:0"]
    assert main([str(out), *agents, "--licence", "apache-2.0"]) == 0, capsys.readouterr().err
    names = ["run-reflect-rl-seed0.tar.gz", "run-sft-seed0.tar.gz"]
    assert sorted(path.name for path in out.iterdir()) == ["SHA256SUMS", *names]
    lines = [f"{hashlib.sha256((out / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    assert (out / "SHA256SUMS").read_text(encoding="utf-8") == "".join(lines)

    with tarfile.open(out / names[0]) as tar:
        tar.extractall(tmp_path, filter="data")
    agent = tmp_path / "run-reflect-rl-seed0"
    assert told(reflectrl.load_agent(agent)) == told(reflectrl.load_agent(finished, "reflect-rl"))
    for line in (agent / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        assert hashlib.sha256((agent / name).read_bytes()).hexdigest() == digest, name

    card = (agent / "README.md").read_text(encoding="utf-8")
    headings = ["Intended use", "Results", "Limits", "Data", "Recipe", "Weights", "Licence"]
    assert [line[3:] for line in card.splitlines() if line.startswith("## ")] == headings
    results = json.loads((finished / "results.json").read_text(encoding="utf-8"))
    rows = [row for row in results["rows"] if row["arm"] == "reflect-rl"]
    assert {row["split"] for row in rows} == {"train", "test"}
    for row in rows:
        assert f"| {row['episodes']} | {row['success']:.3f} | {row['low']:.3f} | {row['high']:.3f} |" in card
    assert "5 teaching episodes" in card and 'license: "apache-2.0"' in card and "Over the seeds" not in card
    weights = agent / "policy" / "model.safetensors"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert f"| policy/model.safetensors | {weights.stat().st_size} | {digest} |" in card


def test_the_same_runs_give_the_same_bytes(finished: Path, copy: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "run"
    shutil.copytree(copy, elsewhere)
    for name, run in (("a", finished), ("b", elsewhere), ("b", elsewhere)):  # the last time, over existing files
        assert main([str(tmp_path / name), f"{run}:sft:0", "--licence", "mit"]) == 0
    for name in ("run-sft-seed0.tar.gz", "SHA256SUMS"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_an_unfinished_run_is_refused_before_anything_is_written(
    like: Callable[..., Recipe], finished: Path, tmp_path: Path, capsys: Any
) -> None:
    run, out = tmp_path / "begun", tmp_path / "out"
    pipeline.run(like("arms=sft", "seeds=0,1"), run, "sft")  # taught, and not evaluated
    err = refused(capsys, out, f"{finished}:sft:0", f"{run}:sft:0")
    assert f"{run} is not finished: it has no results of 'sft', seed 0; continue the run" in err
    results = {"rows": [{"arm": "sft", "seed": 0}]}  # of an earlier recipe with one seed
    (run / "results.json").write_text(json.dumps(results), encoding="utf-8")
    assert "no results of 'sft', seed 1" in refused(capsys, out, f"{run}:sft:0")
    assert not out.exists()


@pytest.mark.parametrize(
    ("agents", "fragment"),
    [
        (["RUN"], "is not an agent: expected RUN:ARM:SEED"),
        (["RUN:sft:x"], "is not an agent: expected RUN:ARM:SEED"),
        (["nowhere:sft:0"], "nowhere is not a run folder"),
        (["RUN:sft:7"], "has no arm 'sft' with seed 7"),
        (["RUN:ppo:0"], "has no arm 'ppo' with seed 0"),
        (["RUN:sft:0", "RUN:sft:0"], "two agents would be called run-sft-seed0"),
    ],
)
def test_a_mistake_is_one_line(finished: Path, tmp_path: Path, capsys: Any, agents: list[str], fragment: str) -> None:
    words = [agent.replace("RUN", str(finished)) for agent in agents]
    assert fragment in refused(capsys, tmp_path / "out", *words)
    assert not (tmp_path / "out").exists()


def test_an_arm_without_a_model_leaves_nothing(finished: Path, tmp_path: Path, capsys: Any) -> None:
    assert "plays without a model" in refused(capsys, tmp_path / "out", f"{finished}:random:0")
    assert list((tmp_path / "out").iterdir()) == []
