"""Online RL of taxi players with reflections: environment steps per second of play, of learning, and of both.

    git worktree add ../before HEAD~10
    python -m benchmarks.rl_throughput --before ../before [--recipe taxi-demo] [--ranks 2]

A pair is taught briefly by the recipe `taxi`, or by `taxi-demo`, whose model is much smaller (in `--run`, once). Each
setting of `SETTINGS` then trains it for some updates of 256 episodes. The first update is not counted, since the frozen
reflector caches what it writes there. Every version of the code trains in a process of its own, and the versions take
turns update by update. Play is everything up to the finished episodes. Learning is the rest of the update: advantages,
all optimiser steps, and replay.

`distinct` is the number of distinct prompts per step. The columns at the end are the shares of the time that each part
took, without the parts that it called.

The model's arithmetic is the bottleneck: distinct prompts times passes over them. A prompt of 158 tokens, 138 of them
not shared, costs 3.6 ms of a core forwards and 7 ms backwards in the model of `taxi`. Three fifths of this are matrix
products, at the rate of large ones; a fifth is attention. (With `taxi-demo` it costs 0.8 and 1.3 ms, and attention
takes more than matrix products.) Play reads a prompt once per update, and so do the critic's values and the reference,
without a gradient. REINFORCE reads it once more with its gradient. PPO reads it once per epoch and minibatch that the
prompt is in, so once per epoch if prompts are dealt out instead of steps. Environment, rendering, losses and AdamW take
a twentieth together. The rest is the reflector, for states that it has not seen.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

SFT = {"taxi": ["sft.steps=300", "sft.policy_steps=100"], "taxi-demo": ["sft.policy_steps=64"]}
"""Overrides for teaching each recipe's pair: the reflector learns whole reflections, the policy has more to learn."""
TEMPERATURE = {"taxi": 1.0, "taxi-demo": 2.5}
"""Temperature at which the policy plays, which suits pairs that were taught for so long."""
PPO = {"algorithm": "ppo", "baseline": "critic", "update_epochs": 2, "steps_per_epoch": 4, "clip_coef": 0.2}
ALONE = {"kl_coef": 0.0, "replay": 0}
SETTINGS: dict[str, dict[str, Any]] = {
    "reinforce": ALONE,
    "reinforce, bfloat16": ALONE | {"mixed_play": "on"},
    "reinforce, KL, replay": {},
    "ppo": PPO | ALONE,
    "ppo, replay": PPO | {"kl_coef": 0.0},
    "ppo, KL, replay": PPO,
    "ppo, prompts dealt": PPO | ALONE | {"deal": "prompts"},
    "ppo, prompts dealt, bfloat16": PPO | ALONE | {"deal": "prompts", "mixed_play": "on"},
    "grpo, groups of 8": PPO | ALONE | {"baseline": "grpo", "group": 8},
}
"""Settings by name: keys of [rl] and [model]. A version of the code ignores keys that it does not know. PPO takes 2
epochs of 4 optimiser steps, with a critic unless another baseline is named.
"""
PARTS = (
    "environment", "rendering", "reflector", "policy", "players' loop",
    "flatten", "prepare", "forward", "backward", "optimiser", "losses",
)  # fmt: skip


@dataclass(frozen=True)
class Throughput:
    """Settings of the measurement."""

    before: Path | None = None
    """Folder of another version's tree, to compare with this one."""
    settings: tuple[str, ...] = tuple(SETTINGS)
    """Settings to measure, a row each."""
    recipe: Literal["taxi", "taxi-demo"] = "taxi"
    """Recipe of the pair: "taxi" has four layers of width 128, "taxi-demo" two of width 64."""
    episodes: int = 256
    """Episodes per update."""
    updates: int = 5
    """Number of updates of each version that count."""
    threads: int = 2
    """Threads per process."""
    ranks: int = 1
    """Processes of each version that train together (docs/scale.md); with several, give each one thread."""
    clock: Literal["wall", "cpu"] = "wall"
    """Clock: "wall", or "cpu" for the processor time of all threads together. Compare by "cpu" while the machine does
    other things, with one thread: two threads may wait for each other busily.
    """
    run: Path = Path("runs/rl-throughput")
    """Folder of the pairs' trainings."""

    def __post_init__(self) -> None:
        if self.ranks > 1 and self.clock == "cpu":
            raise SystemExit("several processes wait for each other: measure wall-clock time instead")


# ---- one version: a process that is asked for one update at a time ---------------------------------------------------


class Stopwatch:
    """Stopwatch for functions by part. Time in other watched functions that they call is not included.

    Args:
        now: the clock, in seconds.

    Attributes:
        seconds: part → its own seconds.
        whole: part → its seconds with the parts that it called.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self.seconds: Counter[str] = Counter()
        self.whole: Counter[str] = Counter()
        self._inner: list[float] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time in this block to a part."""
        self._inner.append(0.0)
        start = self.now()
        try:
            yield
        finally:
            taken = self.now() - start
            self.whole[name] += taken
            self.seconds[name] += taken - self._inner.pop()
            if self._inner:
                # The part around this one must not count the same time.
                self._inner[-1] += taken

    def watch(self, owner: Any, name: str, part: str, finish: Callable[[Any], Any] = lambda result: result) -> None:
        """Count a function of a module or class to a part, wherever it is called by that name."""
        original = getattr(owner, name)

        def watched(*args: Any, **named: Any) -> Any:
            with self.part(part):
                return finish(original(*args, **named))

        setattr(owner, name, watched)


OLD_NAMES = {
    "core.config": "config", "core.distributed": "distributed", "core.rollout": "rollout",
    "models.players": "players.policy", "runs.ranks": "pipeline.ranks",
}  # fmt: skip
"""Names of modules before the package was divided into rooms."""


def module(name: str) -> Any:
    """Import a module of this version of the package by its present name."""
    try:
        return importlib.import_module(f"reflectrl.{name}")
    except ModuleNotFoundError:
        return importlib.import_module(f"reflectrl.{OLD_NAMES[name]}")


def watch_all(clock: Stopwatch) -> None:
    """Watch the parts of an update."""
    import torch

    from reflectrl.learn import rollouts
    from reflectrl.learn.trainer import Trainer

    play, players = module("core.rollout"), module("models.players")
    clock.watch(play, "advance", "environment")
    clock.watch(players.Policy, "prompt", "rendering")
    for name in ("reflector_prompt", "tokenize"):
        clock.watch(players, name, "rendering")
    clock.watch(players.Reflector, "turns", "reflector")
    clock.watch(players.Policy, "turns", "policy")
    clock.watch(rollouts, "rollout", "players' loop", list)
    clock.watch(rollouts, "flatten", "flatten")
    clock.watch(rollouts, "make_batch" if hasattr(rollouts, "make_batch") else "prepare", "prepare")
    clock.watch(rollouts if hasattr(rollouts, "policy_pass") else module("learn.minibatches"), "policy_pass", "forward")
    clock.watch(torch.Tensor, "backward", "backward")
    clock.watch(Trainer, "update", "optimiser")


def training(
    folder: Path, setting: str, episodes: int, temperature: float, clock: Stopwatch
) -> Iterator[dict[str, float]]:
    """Train the pair by a setting. Yield, per update, its steps, its seconds of play, and the seconds of each part."""
    import torch

    from reflectrl.learn.online import update
    from reflectrl.learn.rollouts import EpisodeRollouts
    from reflectrl.learn.trainer import Trainer
    from reflectrl.learn.value import make_critic
    from reflectrl.models.load import load_model
    from reflectrl.wings.taxi.env import TaxiEnv

    ModelConfig, RLConfig = module("core.config").ModelConfig, module("core.config").RLConfig
    Policy, Reflector = module("models.players").Policy, module("models.players").Reflector
    # Trained pairs have 256 positions, which is the limit then. An untrained pair of the tests has more, since what it
    # writes is no text, and takes more tokens when it is read again.
    model = ModelConfig(context=512, mixed_play=SETTINGS[setting].get("mixed_play", "off"))
    policy = Policy(load_model(folder / "policy", model, "policy"))
    reflector = Reflector(load_model(folder / "reflector", ModelConfig(context=512), "reflector"))
    keys = {"curriculum": "none", "episodes": episodes, "updates": 1000, "temperature": temperature} | SETTINGS[setting]
    config = RLConfig(**{key: value for key, value in keys.items() if key in RLConfig.__dataclass_fields__})
    rollouts = EpisodeRollouts(policy, reflector, TaxiEnv, config, 0)
    critic = make_critic(rollouts.lm.hidden_size, config.critic, 0) if config.baseline == "critic" else None
    groups = [{"params": rollouts.lm.parameters(), "lr": config.lr}]
    groups += [{"params": list(critic.parameters()), "lr": config.critic_lr}] if critic is not None else []
    trainer = Trainer(rollouts.lm, [torch.optim.AdamW(groups, weight_decay=0.0, fused=True)], config.max_grad_norm)
    epochs = config.update_epochs if config.algorithm == "ppo" else 1
    while True:
        clock.seconds.clear(), clock.whole.clear()
        start = clock.now()
        with clock.part("losses"):
            batch = rollouts.collect(trainer.step, critic)
            metrics = update(trainer, critic, batch, config, epochs)
            if (past := rollouts.replay(critic)) is not None:
                update(trainer, critic, past, config, 1)
        taken = {"seconds": clock.now() - start, "playing": clock.whole["players' loop"], **clock.seconds}
        played = rollouts.latest.played if hasattr(rollouts, "latest") else rollouts.fresh
        steps = [step for episode in played for step in episode.steps]
        distinct = len({(step.observation, step.reflection) for step in steps})
        ended = rollouts.end_update()
        yield taken | {"steps": len(steps), "distinct": distinct, "loss": metrics["loss"], "success": ended["success"]}
        trainer.step += 1


def serve(threads: int, clock_name: str) -> None:
    """Answer each line (JSON: folder, setting, episodes, temperature) with the figures of its next update."""
    import torch
    from transformers.utils import logging

    config, distributed = module("core.config"), module("core.distributed")
    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    clock = Stopwatch(time.process_time if clock_name == "cpu" else time.perf_counter)
    watch_all(clock)
    request, updates = "", iter(())
    recipe = config.from_dict(config.Recipe, {"name": "ranks", "processes": 1, "env": {"name": "taxi"}}, "ranks")
    with module("runs.ranks").joined(recipe) as ranks, distributed.together(ranks.team) if ranks else nullcontext():
        for line in sys.stdin:
            if line != request:
                folder, setting, episodes, temperature = json.loads(line)
                request, updates = line, training(Path(folder), setting, episodes, temperature, clock)
            print(json.dumps(next(updates)), flush=True)


# ---- the versions in turns -------------------------------------------------------------------------------------------


class Version:
    """Processes that run the code of a tree: a single process, or several that train together."""

    def __init__(self, tree: Path, threads: int, clock: str, ranks: int = 1) -> None:
        paths = os.pathsep.join([str(tree / "src"), str(tree)])
        environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": str(threads)}
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
        self.processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--serve", str(threads), clock],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tree,
                env=environment | address | {"RANK": str(rank), "WORLD_SIZE": str(ranks)},
            )
            for rank in range(ranks)
        ]  # fmt: skip

    def update(self, cell: str) -> dict[str, float]:
        """Return the first process's figures for the next update of a setting. It waits for the other processes."""
        for process in self.processes:
            assert process.stdin is not None
            print(cell, file=process.stdin, flush=True)
        answers = [process.stdout.readline() for process in self.processes if process.stdout is not None]
        if not all(answers):
            raise SystemExit(f"{cell}: the process ended")
        figures: dict[str, float] = json.loads(answers[0])
        return figures

    def close(self) -> list[int]:
        """End the processes. Return their exit codes."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()  # close all before waiting: each process waits for the others at its end
        for process in self.processes:
            with process:
                process.wait()
        return [process.returncode for process in self.processes]


def row(setting: str, name: str, updates: list[dict[str, float]]) -> dict[str, Any]:
    """Return a version's medians over its updates. The parts are shares of the time of all updates."""

    def median(rate: Callable[[dict[str, float]], float]) -> float:
        return statistics.median(map(rate, updates))

    total = sum(row["seconds"] for row in updates)
    shares = {part: sum(update.get(part, 0.0) for update in updates) / total for part in PARTS}
    return {
        "setting": setting,
        "version": name,
        "steps": median(lambda row: row["steps"]),
        "distinct": median(lambda row: row["distinct"] / row["steps"]),
        "play steps/s": median(lambda row: row["steps"] / row["playing"]),
        "learning steps/s": median(lambda row: row["steps"] / (row["seconds"] - row["playing"])),
        "steps/s": median(lambda row: row["steps"] / row["seconds"]),
        **{part: f"{share:.0%}" for part, share in shares.items()},
    }


def main() -> None:
    """Print the table: a row per setting and version. `times` compares the versions' rates update by update."""
    from .measure import report

    options = tyro.cli(Throughput, description=(__doc__ or "").split("\n\n")[0])
    folder = (options.run / options.recipe).resolve()
    teach(folder, options.recipe)
    trees = {"now": Path(__file__).resolve().parents[1], "before": options.before and options.before.resolve()}
    started = (options.threads, options.clock, options.ranks)
    versions = {name: Version(tree, *started) for name, tree in trees.items() if tree is not None}
    rows = []
    for setting in options.settings:
        cell = json.dumps([str(folder / "checkpoints/seed0"), setting, options.episodes, TEMPERATURE[options.recipe]])
        measured: dict[str, list[dict[str, float]]] = {name: [] for name in versions}
        for turn in range(1 + options.updates):
            for name in versions if turn % 2 else reversed(versions):
                measured[name].append(versions[name].update(cell))
        counted = {name: updates[1:] for name, updates in measured.items()}
        print(json.dumps({"setting": setting, **measured}), file=sys.stderr, flush=True)
        rows += [row(setting, name, updates) for name, updates in counted.items()]
        if options.before:
            pairs = zip(counted["now"], counted["before"], strict=True)
            ratio = [a["steps"] / a["seconds"] * b["seconds"] / b["steps"] for a, b in pairs]
            rows[-2]["times"] = statistics.median(ratio)
    for version in versions.values():
        version.close()
    print(report(rows, as_json=False), end="")


def teach(folder: Path, recipe: str) -> None:
    """Teach a recipe's pair, unless it exists."""
    from reflectrl.api import train
    from reflectrl.cli.run import find_recipe
    from reflectrl.core.config import load_recipe

    train(load_recipe(find_recipe(recipe), ["arms=['sft']", *SFT[recipe]]), folder, until="sft")


if __name__ == "__main__":
    serve(int(sys.argv[2]), sys.argv[3]) if "--serve" in sys.argv else main()
