"""A run folder as a real run leaves it (short of the learning), and a browser to look at its page."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corridor import CorridorEnv

from reflectrl.core.config import Recipe, to_toml
from reflectrl.core.episodes import EpisodeLog
from reflectrl.core.types import Choice, Episode, Reflection, Sampling, Step, Task

SKILL = {  # the chance that a fake arm takes the best action
    "random": 0.0,
    "expert": 1.0,
    "sft": 0.93,
    "sft-no-reflection": 0.88,
    "rl-only": 0.45,
    "no-reflection": 0.95,
    "no-negatives": 0.975,
    "reflect-rl": 0.998,
}
REFLECTS = {"sft", "no-negatives", "reflect-rl"}
SEEDS = (0, 1, 2)


def play(env: CorridorEnv, task: Task, arm: str, seed: int, rng: np.random.Generator) -> Episode:
    """An episode of a made-up policy that errs now and then, on the real environment."""
    env.reset(seed=seed, options={"task": task})
    steps, truncated = [], False
    while not env.done:
        observation, target = env.observe(), env.teacher.expert_action(env)
        text = env.teacher.analyse(env) if arm in REFLECTS else None
        count = len(observation.actions)
        probs = rng.dirichlet(np.full(count, 0.6)) * (1 - SKILL[arm])
        probs[target] += SKILL[arm]
        action = target if rng.random() < SKILL[arm] else int(rng.choice(count, p=probs / probs.sum()))
        order = tuple(int(i) for i in rng.permutation(count)) if arm == "reflect-rl" else tuple(range(count))
        player = arm if arm in ("random", "expert") else "policy"
        choice = Choice(
            player,
            observation.actions[action],
            action,
            order,
            tuple(map(float, probs)),
            sampling=Sampling(temperature=0),
        )
        turns = (Reflection("reflector", text), choice) if text else (choice,)
        _, reward, _, truncated, info = env.step(action)
        steps.append(Step(observation, turns, action, reward, tuple(info["events"]), target=target))
    told = {"arm": arm, "seed": seed, "split": task.split, "sampling": "greedy", "model": "scratch"}
    return Episode(task, tuple(steps), env.success, truncated, seed, told)


def score(arm: str, split: str, stage: str, episodes: list[Episode], won: int, **more: Any) -> dict[str, Any]:
    """A results row with a plain normal interval; the real one comes from the evaluation room."""
    n = len(episodes)
    share = won / n
    half = 1.96 * math.sqrt(max(share * (1 - share), 0.01) / n)
    return {
        "arm": arm,
        "env": "corridor",
        "split": split,
        "stage": stage,
        "sampling": "greedy",
        "episodes": n,
        "success": share,
        "low": max(0.0, share - half),
        "high": min(1.0, share + half),
        "return": float(np.mean([episode.total_reward for episode in episodes])),
        "steps": float(np.mean([len(episode.steps) for episode in episodes])),
        "seconds": 0.02 * n,
        **more,
    }


def stage_rows(arm: str, split: str, episodes: list[Episode], **more: Any) -> list[dict[str, Any]]:
    fetched = sum("key" in episode.events for episode in episodes)
    full = sum(episode.success for episode in episodes)
    return [
        score(arm, split, "key", episodes, fetched, **more),
        score(arm, split, "full", episodes, full, **more),
    ]


def curve_lines(arm: str | None, kind: str, seed: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    if kind != "rl":
        for step in range(0, 1001, 20):
            loss = 0.04 + 1.8 * math.exp(-step / 180) + 0.03 * rng.random()
            line = {"arm": arm, "kind": kind, "seed": seed, "step": step, "loss": loss, "lr": 1e-3}
            yield line | ({"eval_loss": loss + 0.05 + 0.02 * rng.random()} if step % 200 == 0 else {})
        return
    for step in range(150):
        stage = ("key", "back", "full")[step // 50]
        level = SKILL[arm or "sft"] * (
            1 - 0.5 * math.exp(-(step % 50) / 12) - 0.1 * (step // 50) * math.exp(-step / 90)
        )
        success = float(rng.binomial(16, min(level, 1.0)) / 16)
        line = {"arm": arm, "kind": "rl", "seed": seed, "step": step, "stage": stage, "success": success}
        line |= {"return": 2 * success - 0.6, "entropy": 0.5 * math.exp(-step / 60), "kl": 0.002 * step, "loss": 0.1}
        yield line | ({"eval_success": float(rng.binomial(30, min(level, 1.0)) / 30)} if step % 10 == 9 else {})


def fill(folder: Path, tasks_per_split: int = 20) -> None:
    """Recipe, results, metrics and episodes of every arm."""
    rng = np.random.default_rng(7)
    (folder / "episodes").mkdir(parents=True)
    recipe = Recipe(
        name="corridor", seeds=SEEDS, arms=tuple(SKILL), env={"name": "corridor", "horizon": 20, "rules": True}
    )
    (folder / "recipe.toml").write_text(to_toml(recipe), encoding="utf-8")
    env = CorridorEnv(length=9, horizon=20)
    rows, summary = [], []
    for split in ("train", "test"):
        for arm in SKILL:
            with EpisodeLog(folder / "episodes" / f"eval-{arm}-{split}.jsonl") as log:
                everything = []
                for seed in SEEDS:
                    episodes = [play(env, task, arm, seed, rng) for task in env.tasks(split)[:tasks_per_split]]
                    rows += stage_rows(arm, split, episodes, seed=seed)
                    everything += episodes
                    for episode in episodes:
                        log.append(episode)
            summary += stage_rows(arm, split, everything, seeds=len(SEEDS))
    write_results(folder, rows=rows, summary=summary)
    write_metrics(folder, rng)


def write_results(folder: Path, **tables: Any) -> None:
    results = {
        "recipe": "corridor",
        "commit": "1124ebe3",
        "hardware": "2 cores, 8 GB memory, no accelerator",
        "created": "2026-03-14 15:09",
        "env": {"name": "corridor", "horizon": 20, "length": 9, "rules": True},
        "confidence": 0.95,
        **tables,
    }
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")


def write_metrics(folder: Path, rng: np.random.Generator) -> None:
    lines: list[dict[str, Any]] = []
    for seed in SEEDS:
        lines += curve_lines(None, "sft_reflection", seed, rng)
        for arm in ("sft", "no-negatives"):
            lines += curve_lines(arm, "sft_policy", seed, rng)
        lines += curve_lines("sft-no-reflection", "sft", seed, rng)
        for arm in ("rl-only", "no-reflection", "no-negatives", "reflect-rl"):
            lines += curve_lines(arm, "rl", seed, rng)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run; tests that change something copy it."""
    folder = tmp_path_factory.mktemp("runs") / "corridor"
    fill(folder)
    return folder


@pytest.fixture
def small_run(tmp_path: Path) -> Callable[[list[Episode]], Path]:
    """Makes a run folder that holds nothing but evaluation episodes."""

    def make(episodes: list[Episode]) -> Path:
        folder = tmp_path / "small"
        (folder / "episodes").mkdir(parents=True)
        with EpisodeLog(folder / "episodes" / "eval-some.jsonl") as log:
            for episode in episodes:
                log.append(episode)
        return folder

    return make
