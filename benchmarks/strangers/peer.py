"""Train MaskablePPO of sb3-contrib in the strangers, on one-hot features of the text that our model reads.

    pip install stable-baselines3 sb3-contrib                  # further packages, which nothing else here needs
    python -m benchmarks.strangers.peer --seeds 0 --out runs/strangers/peer.jsonl
    python -m benchmarks.strangers.beside runs/strangers runs/strangers/peer.jsonl          # the table beside ours

Training tasks are drawn at random, rewards are the environment's own, and illegal actions are masked. Hyperparameters
are MaskablePPO's own, apart from eight environments of 256 steps each, so that an update still has 2,048 steps. After
each update, the policy plays the validation tasks greedily. The best weights play the test tasks in the end. Training
ends with the budget (`--steps`, `--cpu-seconds`), or once the threshold is reached and fifteen evaluations brought no
improvement. A line of JSON per stranger and seed goes to `--out`; lines that are there already are not made again.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np

from benchmarks.strangers import STRANGERS, make
from benchmarks.strangers.bench import play_best
from benchmarks.strangers.features import OneHot
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.types import Observation, Task
from reflectrl.runs.results import commit

if TYPE_CHECKING:
    from sb3_contrib import MaskablePPO

SAMPLE_STEPS = 4000
"""Steps of random play in which words are collected, as many as train a tokenizer of ours."""
ENVIRONMENTS, STEPS_EACH = 8, 256
PATIENCE = 15
"""Evaluations without improvement after which a training that has reached the threshold ends."""
SHARE = 0.8
"""Threshold: this share of what the best known player wins."""


class Featured(gym.Env[np.ndarray, int]):
    """A stranger as stable-baselines3 sees it: vectors instead of texts, and a mask of the listed actions.

    Args:
        env: the stranger.
        features: the features of its observations.
        tasks: tasks from which each episode draws one.
        seed: seed of these draws.

    Attributes:
        episodes: number of episodes that have ended.
    """

    def __init__(self, env: TextEnv, features: OneHot, tasks: Sequence[Task], seed: int) -> None:
        self.env, self.features, self.tasks = env, features, tasks
        self.observation_space = gym.spaces.Box(0.0, 1.0, (features.size,), np.float32)
        self.action_space = gym.spaces.Discrete(features.most_actions)
        self.rng = np.random.default_rng(seed)
        self.episodes, self.listed = 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode of the task in `options`, or of a task drawn at random."""
        task = (options or {}).get("task") or self.tasks[int(self.rng.integers(len(self.tasks)))]
        if seed is None:
            seed = int(self.rng.integers(2**31))
        _, info = self.env.reset(seed=seed, options={"task": task})
        return self._seen(info), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take the listed action with this index."""
        _, reward, terminated, truncated, info = self.env.step(int(action))
        self.episodes += terminated or truncated
        return self._seen(info), reward, terminated, truncated, {}

    def action_masks(self) -> np.ndarray:
        """Return which indices stand for a listed action."""
        return np.arange(self.features.most_actions) < self.listed

    def _seen(self, info: dict[str, Any]) -> np.ndarray:
        # A later episode may list more actions than random play has shown. They cannot be chosen.
        self.listed = min(len(info["actions"]), self.features.most_actions)
        return self.features(info["observation"])


class Sample(NamedTuple):
    """Random play in training tasks: its observations, and what it took."""

    observations: list[Observation]
    episodes: int
    steps: int


def random_sample(env: TextEnv, seed: int, most_steps: int = SAMPLE_STEPS) -> Sample:
    """Play training tasks at random for a number of steps."""
    rng, tasks = np.random.default_rng(seed), env.tasks("train")
    observations: list[Observation] = []
    steps = episodes = 0
    while steps < most_steps:
        task = tasks[int(rng.integers(len(tasks)))]
        _, info = env.reset(seed=int(rng.integers(2**31)), options={"task": task})
        observations.append(info["observation"])
        while not env.done:
            _, _, _, _, info = env.step(int(rng.integers(len(info["actions"]))))
            observations.append(info["observation"])
            steps += 1
        episodes += 1
    return Sample(observations, episodes, steps)


def greedy_success(model: MaskablePPO, envs: Sequence[Featured], tasks: Sequence[Task]) -> float:
    """Play each task once, always by the most likely action. Return the share that is won.

    Args:
        envs: environments for these episodes, at least as many as there are tasks. All are played at the same time.
    """
    playing = list(range(len(tasks)))
    seen = [envs[i].reset(seed=i, options={"task": task})[0] for i, task in enumerate(tasks)]
    while playing:
        masks = np.stack([envs[i].action_masks() for i in playing])
        actions, _ = model.predict(np.stack([seen[i] for i in playing]), deterministic=True, action_masks=masks)
        for i, action in zip(playing, actions, strict=True):
            seen[i] = envs[i].step(action)[0]
        playing = [i for i in playing if not envs[i].env.done]
    return sum(envs[i].env.success for i in range(len(tasks))) / len(tasks)


class Budget(NamedTuple):
    """Limits of a training, in steps of the environment and in processor seconds."""

    steps: int
    cpu_seconds: float


def train(name: str, seed: int, budget: Budget) -> dict[str, Any]:
    """Train in a stranger. Return its line."""
    import torch
    from sb3_contrib import MaskablePPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv

    torch.set_num_threads(1)
    threshold = SHARE * play_best(name, "validation")
    began = time.process_time()
    tasks = {split: make(name).tasks(split) for split in ("train", "validation", "test")}
    sample = random_sample(make(name), seed)
    features = OneHot(sample.observations)
    learning = [Featured(make(name), features, tasks["train"], 1000 * seed + i) for i in range(ENVIRONMENTS)]
    playing = [Featured(make(name), features, tasks["train"], 0) for _ in range(len(tasks["validation"]))]
    vectorised = DummyVecEnv([lambda env=env: env for env in learning])
    model = MaskablePPO("MlpPolicy", vectorised, n_steps=STEPS_EACH, seed=seed, device="cpu")
    evaluations: list[dict[str, float]] = []
    best: dict[str, Any] = {"success": -1.0, "at": 0, "weights": None}

    def evaluate() -> bool:
        """Note the success on validation tasks, and keep the best weights. Return True if training should go on."""
        success = greedy_success(model, playing, tasks["validation"])
        spent = time.process_time() - began
        episodes, steps = sum(env.episodes for env in learning), model.num_timesteps
        evaluations.append(
            {"steps": steps, "episodes": episodes, "cpu_seconds": round(spent, 2), "success": round(success, 4)}
        )
        if success > best["success"]:
            best.update(success=success, at=len(evaluations), weights=copy.deepcopy(model.policy.state_dict()))
        settled = best["success"] >= threshold and len(evaluations) - best["at"] >= PATIENCE
        return not settled and spent < budget.cpu_seconds

    class Evaluate(BaseCallback):
        """Evaluation after each update, which is before the next rollout."""

        going_on = True

        def _on_rollout_start(self) -> None:
            self.going_on = evaluate()

        def _on_step(self) -> bool:
            return self.going_on

    model.learn(budget.steps, callback=Evaluate())
    evaluate()
    spent = time.process_time() - began
    model.policy.load_state_dict(best["weights"])
    testing = [Featured(make(name), features, tasks["test"], 0) for _ in range(len(tasks["test"]))]
    line: dict[str, Any] = {"name": name, "seed": seed, "budget": budget._asdict(), "threshold": round(threshold, 4)}
    line |= {"features": features.size, "sample": {"episodes": sample.episodes, "steps": sample.steps}}
    line |= {"reached": first_reached(evaluations, threshold), "validation": round(best["success"], 4)}
    line |= {"test": round(greedy_success(model, testing, tasks["test"]), 4), "cpu_seconds": round(spent, 1)}
    line |= {"steps": model.num_timesteps, "episodes": evaluations[-1]["episodes"]}
    return line | {"commit": commit(), "evaluations": evaluations}


def first_reached(evaluations: Sequence[dict[str, float]], threshold: float) -> dict[str, float] | None:
    """Return the first evaluation whose success reaches the threshold."""
    return next((line for line in evaluations if line["success"] >= threshold), None)


def main() -> None:
    """Train in the strangers that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    developed = [name for name, stranger in STRANGERS.items() if not stranger.held_out]
    parser.add_argument("--names", nargs="+", default=developed, choices=STRANGERS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=300_000, help="steps of the environment")
    parser.add_argument("--cpu-seconds", type=float, default=600.0, help="processor seconds of a training")
    parser.add_argument("--out", type=Path, default=Path("runs/strangers/peer.jsonl"))
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, Any]] = []
    if args.out.is_file():
        lines = [json.loads(text) for text in args.out.read_text(encoding="utf-8").splitlines()]
    budget = Budget(args.steps, args.cpu_seconds)
    for seed in args.seeds:
        for name in args.names:
            key = name, seed, budget._asdict()
            if any((line["name"], line["seed"], line["budget"]) == key for line in lines):
                continue
            lines.append(train(name, seed, budget))
            with args.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(lines[-1]) + "\n")
            print(json.dumps({key: value for key, value in lines[-1].items() if key != "evaluations"}), flush=True)


if __name__ == "__main__":
    main()
