"""Runs that are taught by a log of demonstrations, with reflections that it has or that outcomes give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectrl import runs as pipeline
from reflectrl.core.config import Recipe
from reflectrl.core.envs import make
from reflectrl.core.episodes import EpisodeLog, read_episodes, task_key
from reflectrl.core.players import RandomPlayer
from reflectrl.core.players.simple import AnalystPlayer, ExpertPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import UserError

LIKE = Callable[..., Recipe]
ENV = {"name": "corridor", "train": 6, "validation": 3, "test": 5}


def write(path: Path, reflector: Any = None, player: Any = None, tasks: int = 6, **section: Any) -> Path:
    env = make(ENV | section)
    with EpisodeLog(path) as log:
        jobs = [Job(task, n) for n, task in enumerate(env.tasks("train")[:tasks])]
        for episode in rollout(jobs, lambda: env, player or ExpertPlayer(), reflector, batch=1):
            log.append(episode)
    return path


@pytest.fixture
def demos(tmp_path: Path) -> Path:
    """Won demonstrations without reflections, then lost ones of the same tasks."""
    write(tmp_path / "d.jsonl")
    return write(tmp_path / "d.jsonl", player=RandomPlayer())


def by_log(like: LIKE, demos: Path, *overrides: str) -> Recipe:
    return like("teach.by=log", f"teach.log={demos}", "rl.updates=2", "eval.sampling=greedy", *overrides)


def test_a_policy_is_taught_by_demonstrations_alone(like: LIKE, demos: Path, tmp_path: Path) -> None:
    recipe = by_log(like, demos, "arms=sft-no-reflection,no-reflection", "teach.tasks=0")
    pipeline.run(recipe, tmp_path / "run")
    parts = {
        split: list(read_episodes(tmp_path / "run" / "episodes" / f"teach-seed0-{split}.jsonl"))
        for split in ("train", "validation")
    }
    assert {len(episodes) for episodes in parts.values()} == {10, 2}
    keys = [{task_key(one.task) for one in episodes} for episodes in parts.values()]
    assert not keys[0] & keys[1]
    labels = {(one.success, step.label) for episodes in parts.values() for one in episodes for step in one.steps}
    assert labels == {(True, "positive"), (False, None)}


def test_the_number_of_tasks_limits_what_is_learned_from(like: LIKE, demos: Path, tmp_path: Path) -> None:
    recipe = by_log(like, demos, "arms=sft-no-reflection", "teach.tasks=2")
    pipeline.run(recipe, tmp_path / "run", until="teach")
    episodes = list(read_episodes(tmp_path / "run" / "episodes" / "teach-seed0-train.jsonl"))
    assert len(episodes) == 4 and len({task_key(one.task) for one in episodes}) == 2


def test_with_reflections_the_whole_method_runs(like: LIKE, tmp_path: Path) -> None:
    demos = write(tmp_path / "d.jsonl", AnalystPlayer())
    pipeline.run(by_log(like, demos, "arms=reflect-rl"), tmp_path / "run")
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.usefixtures("typed")
def test_without_them_arms_that_read_some_are_refused(like: LIKE, demos: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        pipeline.run(by_log(like, demos, "arms=random,sft,reflect-rl,no-reflection"), tmp_path / "run")
    said = str(error.value)
    assert "arms 'sft', 'reflect-rl' would need reflections" in said and "d.jsonl lacks some" in said
    assert "/reflect" in said and "--teach.reflections outcomes" in said and "--arms no-reflection" in said


def test_outcomes_stand_in_for_them(like: LIKE, demos: Path, tmp_path: Path) -> None:
    recipe = by_log(like, demos, "arms=sft", "teach.reflections=outcomes", "teach.outcome_episodes=2")
    pipeline.run(recipe, tmp_path / "run")
    taught = list(read_episodes(tmp_path / "run" / "episodes" / "teach-seed0-train.jsonl"))
    told = list(read_episodes(tmp_path / "run" / "episodes" / "outcomes-seed0-train.jsonl"))
    assert [episode.task for episode in told] == [episode.task for episode in taught]
    for episode in told:
        for step in episode.steps:
            assert (step.reflection is None) == (step.label is None)
            if step.target is not None and step.reflection:
                assert step.reflection.endswith(f"; best: {step.observation.actions[step.target]}")
                assert "won" in step.reflection and "of 2" in step.reflection


def test_outcomes_do_without_an_analyst_where_an_expert_teaches(like: LIKE, tmp_path: Path) -> None:
    recipe = like("arms=sft", "teach.reflections=outcomes", "teach.outcome_episodes=1", "teach.tasks=2")
    pipeline.run(recipe, tmp_path / "run", until="sft")
    [first, *_] = read_episodes(tmp_path / "run" / "episodes" / "outcomes-seed0-train.jsonl")
    assert all("; best: " in (step.reflection or "") for step in first.steps)


def test_a_continued_log_of_outcomes_holds_the_same_bytes(like: LIKE, demos: Path, tmp_path: Path) -> None:
    recipe, folder = by_log(like, demos, "arms=sft", "teach.reflections=outcomes"), tmp_path / "run"
    pipeline.run(recipe, folder, until="sft")
    path = folder / "episodes" / "outcomes-seed0-train.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    pipeline.run(recipe, folder, until="sft")
    assert path.read_bytes() == whole


@pytest.mark.usefixtures("typed")
def test_another_log_is_another_run(like: LIKE, demos: Path, tmp_path: Path) -> None:
    recipe, folder = by_log(like, demos, "arms=sft-no-reflection"), tmp_path / "run"
    pipeline.run(recipe, folder, until="teach")
    pipeline.run(recipe, folder, until="teach")
    write(demos, tasks=1)
    with pytest.raises(UserError, match=r"holds a run with another content of .*d\.jsonl; use another --folder"):
        pipeline.run(recipe, folder, until="teach")


@pytest.mark.parametrize(
    ("section", "overrides", "problem"),
    [
        ({}, ["teach.log=absent.jsonl"], "absent.jsonl: No such file"),
        ({"length": 7}, [], "d.jsonl:1: step 1: the environment shows"),
        ({"train": 6}, ["env.train=2"], "d.jsonl:3: the environment CorridorEnv has no task 'corridor-full-2'"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_made(
    like: LIKE, tmp_path: Path, section: dict[str, Any], overrides: list[str], problem: str
) -> None:
    demos = write(tmp_path / "d.jsonl", **section)
    with pytest.raises(UserError, match=problem):
        pipeline.run(by_log(like, demos, "arms=sft-no-reflection", *overrides), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [(["teach.by=log"], "'by' is 'log', and 'log' names no file"), (["teach.log=d.jsonl"], 'set by = "log"')],
)
def test_keys_that_do_not_go_together_are_refused(like: LIKE, overrides: list[str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        like(*overrides)


def weights(run: Path, name: str) -> bytes:
    return (run / "checkpoints" / "seed0" / name / "model.safetensors").read_bytes()


def test_recorded_episodes_are_imitated_together_with_wins_of_a_search(like: LIKE, demos: Path, tmp_path: Path) -> None:
    """Few episodes are recorded, so that RL alone would learn their tasks by heart."""
    search = ("rl.own_wins=4", "rl.own_wins_updates=3", "sft.eval_every=1")
    recipe, run = by_log(like, demos, "arms=sft-no-reflection,no-reflection", *search), tmp_path / "run"
    planned = " | ".join(pipeline.graph_lines(recipe, run))
    assert (
        "imitate own-wins-shown (seed 0): missing; from base model, wins own, wins own, sft plain, teach train"
        in planned
    )
    assert "rl no-reflection (seed 0): missing; from imitate own-wins-shown, wins own" in planned
    pipeline.run(recipe, run)
    assert all(episode.success for episode in read_episodes(run / "episodes" / "wins-seed0-train.jsonl"))
    assert weights(run, "own-wins-shown") != weights(run, "plain")


def test_without_a_win_of_the_search_rl_begins_with_what_the_recorded_episodes_taught(
    like: LIKE, demos: Path, tmp_path: Path
) -> None:
    search = ("rl.own_wins=4", "rl.own_wins_steps=1")
    recipe, run = by_log(like, demos, "arms=sft-no-reflection,no-reflection", *search), tmp_path / "run"
    pipeline.run(recipe, run)
    assert not (run / "episodes" / "wins-seed0-train.jsonl").read_text()
    assert weights(run, "own-wins-shown") == weights(run, "plain")


def test_a_teacher_shows_enough_and_nothing_is_searched(like: LIKE, tmp_path: Path) -> None:
    assert "wins own" not in " | ".join(pipeline.graph_lines(like("arms=no-reflection", "rl.own_wins=4"), tmp_path))
