"""Results of RL from one weak pair: the same policy and reflector each time, with another seed of RL.

    python -m benchmarks.fixed_pair --seeds 0 1 2 --out runs/fixed-pair

This teaches a pair from a few demonstrated starts by the recipe (`taxi-demo`), then trains its policy by RL once for
each seed. An interrupted comparison is continued by the same command. It prints success on held-out tasks before and
after, with the seconds that RL took. Teaching a pair is random as well. Here the pair is the same in all rows, so that
only RL differs.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import tyro

from reflectrl import evaluate
from reflectrl.api import Agent, train
from reflectrl.cli.run import find_recipe
from reflectrl.core.config import Recipe, load_recipe
from reflectrl.core.envs import make
from reflectrl.core.envs.pool import EnvPool
from reflectrl.core.statistics import mean_interval
from reflectrl.core.types import Sampling, named_seed
from reflectrl.learn.checkpoint import write_folder, write_text
from reflectrl.learn.online import train_online
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.models.load import load_model
from reflectrl.models.players import Policy, Reflector
from reflectrl.runs.folder import RunFolder
from reflectrl.runs.players import load_models, make_policy, make_reflector

PAIR = ("sft.policy_steps=64", "rl.temperature=2.5", "model.mixed_precision=auto")
"""Overrides for teaching and playing the pair, replaced by `change`. The policy of `taxi-demo` has hardly begun to
win. This one is surer of itself, so it plays at a higher temperature; how often it wins depends on the processor's
rounding."""


@dataclass(frozen=True)
class Settings:
    """Settings of the comparison."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of RL."""
    pair: int = 0
    """Seed of the pair."""
    demonstrations: int = 72
    """Number of starts that are demonstrated to the pair."""
    recipe: str = "taxi-demo"
    """Name or file of the recipe."""
    arm: str = "sft"
    """Arm whose players RL starts from."""
    split: str = "test"
    """Split that is played at the end."""
    out: Path = Path("runs/fixed-pair")
    """Folder for the pair, the policies and the rows."""
    change: tuple[str, ...] = ()
    """Further keys of the recipe, such as `rl.updates=10`."""


def main(settings: Settings) -> None:
    """Teach once, train once per seed, and print."""
    words = [f"arms={json.dumps([settings.arm])}", f"seeds=[{settings.pair}]"]
    words += [
        f"teach.tasks={settings.demonstrations}",
        f"teach.validation_tasks={max(2, settings.demonstrations // 4)}",
    ]
    recipe = load_recipe(find_recipe(settings.recipe), [*words, *PAIR, *settings.change])
    torch.set_num_threads(max(1, recipe.threads))
    run = RunFolder(train(recipe, settings.out / "pair", until="sft").folder)
    policy, reflector = players(recipe, run, settings)
    rows = [{"row": "the pair", "seconds": 0.0, **played(policy, reflector, recipe, settings.split)}]
    print(line(rows[0]), flush=True)
    for seed in settings.seeds:
        rows.append(learned(recipe, run, seed, settings))
        print(line(rows[-1]), flush=True)
    for sampling in ("greedy", "sampled") if settings.seeds else ():
        rates = [row[sampling] for row in rows[1:]]
        low, high = mean_interval(rates, 0.95) or (rates[0], rates[0])
        print(f"{sampling}: {100 * sum(rates) / len(rates):.1f} % [{100 * max(0, low):.0f}, {100 * min(1, high):.0f}]")


def players(recipe: Recipe, run: RunFolder, settings: Settings) -> tuple[Policy, Reflector | None]:
    """Load the pair as it was taught."""
    policy, reflector = load_models(recipe, run.path, settings.pair, settings.arm, before_rl=True)
    assert policy is not None
    return make_policy(recipe, policy), make_reflector(recipe, reflector) if reflector else None


def learned(recipe: Recipe, run: RunFolder, seed: int, settings: Settings) -> dict[str, Any]:
    """Train the pair's policy by RL with a seed, and play. A finished training is read from its file."""
    folder, path = settings.out / f"rl-{seed}", settings.out / f"rl-{seed}.json"
    if path.is_file():
        return dict(json.loads(path.read_text()))
    policy, reflector = players(recipe, run, settings)
    curve = (settings.out / f"rl-{seed}.jsonl").open("a")
    began = time.perf_counter()

    def note(metrics: dict[str, Any]) -> None:
        print(json.dumps({**metrics, "seconds": time.perf_counter() - began}), file=curve, flush=True)

    with EnvPool(partial(make, recipe.env), recipe.env_workers) as envs, curve:
        rollouts = EpisodeRollouts(policy, reflector, envs, recipe.rl, named_seed(seed, "fixed-pair"))
        train_online(rollouts, recipe.rl, named_seed(seed, "fixed-pair"), note, folder / "state")
    seconds = time.perf_counter() - began
    write_folder(folder / "policy", policy.lm.save)
    trained = make_policy(recipe, load_model(folder / "policy", recipe.model))
    row = {"row": f"RL, seed {seed}", "seconds": seconds, **played(trained, reflector, recipe, settings.split)}
    write_text(path, json.dumps(row))
    return row


def played(policy: Policy, reflector: Reflector | None, recipe: Recipe, split: str) -> dict[str, float]:
    """Return the success on the whole task, greedy and sampled."""
    found = {}
    for sampling, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        agent = Agent(policy.with_sampling(Sampling(temperature)), reflector)
        found[sampling] = evaluate(agent, recipe.env, split)[-1]["success"]
    return found


def line(row: dict[str, Any]) -> str:
    """Format a row of the table."""
    return f"| {row['row']} | {100 * row['greedy']:.1f} | {100 * row['sampled']:.1f} | {row['seconds']:.0f} s |"


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
