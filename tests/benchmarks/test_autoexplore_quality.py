"""The program that says how good AutoExplore's players are, on a small library."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.autoexplore_answers import CHANCE, SEARCHES, by_chance, judged
from benchmarks.autoexplore_quality import answers_of, bootstrap, differences, main, rows
from reflectrl.core.episodes import EpisodeLog
from reflectrl.core.players.simple import BaselinePlayer, RandomPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.wings.autoexplore.env import AutoExploreEnv
from tests.wings.autoexplore.shelf import make_library

RECIPE = """
name = "tiny"
arms = ["random", "baseline"]
env = {{name = "autoexplore", library = "{library}", actions = "{actions}", hits = 2}}
"""


def played(folder: Path, library: Path, actions: Any = "extended", seeds: tuple[int, ...] = (0,)) -> Path:
    """A run folder with the episodes of players that need no model."""
    (folder / "episodes").mkdir(parents=True)
    (folder / "recipe.toml").write_text(RECIPE.format(library=library, actions=actions), encoding="utf-8")
    env = AutoExploreEnv(str(library), actions=actions, hits=2)
    players = {"random": RandomPlayer(), **({"baseline": BaselinePlayer()} if actions == "extended" else {})}
    for arm, player in players.items():
        for seed in seeds:
            about = {"arm": arm, "seed": seed, "split": "test", "sampling": "greedy"}
            jobs = [Job(task, 7 + seed, about) for task in env.tasks("test")]
            with EpisodeLog(folder / "episodes" / f"eval-{arm}-seed{seed}-test-all-greedy.jsonl") as log:
                for episode in rollout(jobs, lambda: env, player, batch=1):
                    log.append(episode)
    timing = {"arm": "random", "seed": 0, "split": "test", "sampling": "greedy", "episodes": 2, "seconds": 0.5}
    (folder / "timings.jsonl").write_text(json.dumps(timing) + "\n" + '{"finished": "now"}\n', encoding="utf-8")
    return folder


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return make_library(tmp_path / "library")


def test_arms_stand_beside_search_expert_and_chance(library: Path, tmp_path: Path) -> None:
    answers, timings = answers_of([played(tmp_path / "run", library)])
    found = rows(answers, timings)
    whole = {row["arm"]: row for row in found if row["questions"] == "all"}
    assert set(whole) == {"random", "baseline", "expert", CHANCE, *SEARCHES}
    assert whole["expert"]["success"] == whole["expert"]["acc@1"] == whole["expert"]["MRR"] == 1
    assert whole["expert"]["tokens"] > 0 and whole["expert"]["steps"] >= 2
    assert whole["BM25, both"]["acc@1"] == 0.5  # one question has no word to search for; folders show its answer first
    assert whole["baseline"]["acc@1"] == 1
    assert whole["random"]["seconds"] == 0.5 and whole["expert"]["seconds"] is None
    assert whole[CHANCE]["acc@1"] == pytest.approx(1 / 3, abs=1e-4) and whole[CHANCE]["acc@1 95 %"] == ""
    assert whole["BM25, names"]["success"] is None
    assert {row["questions"] for row in found} == {"docstring", "depth-1", "all"}


def test_differences_are_taken_question_by_question(library: Path, tmp_path: Path) -> None:
    answers, _ = answers_of([played(tmp_path / "run", library, seeds=(0, 1))])
    found = {(row["arm"], row["questions"], row["minus"]): row for row in differences(answers)}
    ahead = found["expert", "all", "BM25, both"]
    assert (ahead["n"], ahead["acc@1"]) == (2, 0.5)
    assert found["random", "all", "BM25, both"]["acc@1"] < 0.5
    assert all(row["seeds"] == 2 for row in rows(answers, []) if row["arm"] == "random")


def test_dominant_questions_are_counted_apart(library: Path, tmp_path: Path) -> None:
    path = library / "questions" / "test.jsonl"
    first, second = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    path.write_text(json.dumps({**first, "dominant": True}) + "\n" + json.dumps(second) + "\n", encoding="utf-8")
    answers, _ = answers_of([played(tmp_path / "run", library)])
    counts = {row["questions"]: row["n"] for row in rows(answers, []) if row["arm"] == "expert"}
    assert counts == {"docstring": 2, "docstring, dominant": 1, "depth-1": 2, "all": 2}


def test_the_papers_actions_and_several_runs(library: Path, tmp_path: Path, capsys: Any) -> None:
    runs = [played(tmp_path / "one", library), played(tmp_path / "two", library, "paper")]
    moved = tmp_path / "moved"
    shutil.move(library, moved)
    main([*map(str, runs), "--library", str(moved), "--json"])
    found = json.loads(capsys.readouterr().out)
    arms = {row["arm"] for row in found["rows"]}
    assert arms == {"one: random", "one: baseline", "one: expert", "two: random", "two: expert", CHANCE, *SEARCHES}
    main([str(runs[0]), "--library", str(moved)])
    assert "Arm minus search" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["nothing there", "another environment", "no episodes", "a changed repository"])
def test_refusals_are_one_line(what: str, library: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    if what != "nothing there":
        played(run, library)
    if what == "another environment":
        (run / "recipe.toml").write_text('env.name = "taxi"\n', encoding="utf-8")
    if what == "no episodes":
        shutil.rmtree(run / "episodes")
    if what == "a changed repository":
        shutil.copytree(library, tmp_path / "other")
        (tmp_path / "other" / "repos" / "zoo" / "aa.py").write_text("'''A cage, its key.'''\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="autoexplore_quality: .*"):
        main([str(run), *(["--library", str(tmp_path / "other")] if "changed" in what else [])])


def test_ranks_and_chance() -> None:
    assert judged(["a", "b", "c"], ["c", "b"]) == ((0.0, 1.0), 0.5)
    assert judged(["a"], ["z"]) == ((0.0, 0.0), 0.0)
    (first, fifth), reciprocal = by_chance(10, 2)
    assert (first, fifth) == (pytest.approx(0.2), pytest.approx(1 - 5 * 4 / (10 * 9)))
    assert reciprocal == pytest.approx(sum(2 * (10 - r) / 90 / r for r in range(1, 10)))
    assert by_chance(10, 0) == ((0, 0), 0)


def test_the_bootstrap_is_that_of_statistics() -> None:
    from reflectrl.wings.text.generation.bootstrap import mean_bootstrap

    seeds = [[0.0, 1.0, 1.0, 0.5] * 10, [0.0, 0.0, 1.0] * 5]
    rng = np.random.default_rng(0)
    ours, theirs = bootstrap(seeds, rng), mean_bootstrap(seeds, 0.95, rng, 4000)
    assert ours == pytest.approx(theirs, abs=0.03)
