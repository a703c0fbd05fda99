"""Test reflection where theory says that it must pay: players of portals, alone and in pairs, in equal time.

    python -m benchmarks.portals --portals 4 --layers 2 --seeds 0 1 2 --out runs/portals.jsonl

A parcel goes through k portals, and a policy of few layers has to say where it comes out. The arms differ in what is
written before the choice, and in what training shows of the stops on the way:

- alone: the policy chooses at once.
- supervised: it chooses at once too, but an auxiliary loss taught its hidden state all stops.
- answer: a reflector writes the answer, and a policy reads it.
- filler: the reflector writes words without content first, as many as there are stops before the answer.
- steps: the reflector writes every stop.
- one: one model writes every stop and then chooses, trained on both at the same time.

All arms of a cell train for the same processor seconds on the same 3,000 tasks. A pair splits them (`REFLECTOR_SHARE`).
The learning rate falls with the seconds spent, so a busy machine changes nothing but rounding noise of the clock. Every
finished cell is a line of `--out`, and the same command continues an interrupted series. A table is printed last.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
import tyro
from torch import Tensor, nn
from torch.nn import functional

from reflectrl.api import make_env
from reflectrl.core.config import ModelConfig, SFTConfig, TeachConfig
from reflectrl.core.episodes import sft, sft_policy, sft_reflection
from reflectrl.core.prompts import policy_prompt
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.statistics import mean_interval, wilson
from reflectrl.core.teach import demonstrations, teach
from reflectrl.core.types import Episode, Sampling, named_seed
from reflectrl.learn.examples import (
    Example,
    choice_examples,
    completion_logits,
    reflection_examples,
    row_groups,
    shuffled_batches,
)
from reflectrl.learn.losses import completion_nll
from reflectrl.learn.optim import make_optimizers
from reflectrl.learn.trainer import Trainer, cosine
from reflectrl.models.lm import LanguageModel
from reflectrl.models.load import load_model
from reflectrl.models.players import Policy, Reflector
from reflectrl.models.scratch import save_scratch
from reflectrl.models.sharing import no_sharing

Arm = Literal["alone", "supervised", "answer", "filler", "steps", "one"]
ARMS: tuple[Arm, ...] = ("alone", "steps", "answer", "filler", "supervised", "one")
ANALYSES: Mapping[Arm, str] = {"answer": "answer", "filler": "filler"}
"""Analysis that an arm's teacher writes, if it is not "steps"."""
REFLECTOR_SHARE = 0.85
"""Share of a pair's seconds that the reflector gets. The policy only learns to copy a word."""
BATCH = 32
LABELS = tuple(str(i) for i in range(1, 9))


@dataclass(frozen=True)
class Settings:
    """Settings of the comparison."""

    portals: tuple[int, ...] = (4,)
    """Numbers of portals that a parcel goes through."""
    layers: tuple[int, ...] = (2,)
    """Numbers of layers of every model."""
    arms: tuple[Arm, ...] = ARMS
    """Arms to run."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds of weights and batches."""
    seconds: float = 24.0
    """Processor seconds of training in each cell."""
    shown: int = 3000
    """Number of tasks that are shown in training."""
    split: str = "test"
    """Split of the tasks that are played in the end."""
    out: Path = Path("runs/portals.jsonl")
    """File of results, a line per cell."""


@dataclass(frozen=True)
class Cell:
    """One training and its evaluation."""

    portals: int
    layers: int
    arm: Arm
    seed: int
    seconds: float
    shown: int
    split: str


def main(settings: Settings) -> None:
    """Run the missing cells seed by seed, and print the table after each seed."""
    print("\n".join(table(run_missing(cells(settings), run_cell, settings.out))))


def run_missing(cells: Iterable[Any], run: Callable[[Any], dict[str, Any]], out: Path) -> list[Mapping[str, Any]]:
    """Run the cells that a file of results lacks, on one thread, and append a line to it after each.

    Args:
        cells: dataclasses whose attributes identify a line.
        run: returns the results of a cell.

    Returns:
        All lines of the file.
    """
    torch.set_num_threads(1)
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    for cell in cells:
        if not any(done_by(cell, line) for line in lines):
            lines.append({**vars(cell), **run(cell), "commit": commit()})
            with out.open("a", encoding="utf-8") as file:
                print(json.dumps(lines[-1]), file=file, flush=True)
            print(json.dumps(lines[-1]), flush=True)
    return lines


def cells(settings: Settings) -> Iterator[Cell]:
    """Yield all cells, so that an interrupted series has all arms of its first seeds."""
    for seed in settings.seeds:
        for portals in settings.portals:
            for layers in settings.layers:
                for arm in settings.arms:
                    yield Cell(portals, layers, arm, seed, settings.seconds, settings.shown, settings.split)


def done_by(cell: Any, line: Mapping[str, Any]) -> bool:
    """Return whether a line of results belongs to a cell."""
    return all(line[key] == value for key, value in vars(cell).items())


def commit() -> str:
    """Return the commit of the working tree."""
    command, here = ["git", "rev-parse", "--short", "HEAD"], Path(__file__).parent
    return subprocess.run(command, capture_output=True, text=True, cwd=here, check=False).stdout.strip()


# ---- data and models -------------------------------------------------------------------------------------------------


@cache
def demonstrated(portals: int, analysis: str, shown: int) -> tuple[Episode, ...]:
    """Return the teacher's episodes on the training tasks. They contain neither noise nor mistakes."""
    env = make_env("portals", portals=portals, analysis=analysis, train=shown)
    plans = demonstrations(env.tasks("train"), TeachConfig(noise=(0.0,), negatives=0), seed=0)
    return tuple(teach(env, plan) for plan in plans)


def base_model(cell: Cell, episodes: Sequence[Episode]) -> LanguageModel:
    """Make an untrained model whose weights depend on the cell's seed."""
    steps = [step for episode in episodes[::10] for step in episode.steps]
    prompts = [policy_prompt(step.observation, step.reflection, LABELS) for step in steps]
    config = ModelConfig(layers=cell.layers, width=64, context=128)
    with tempfile.TemporaryDirectory() as folder:
        save_scratch(Path(folder), config, ["".join(prompt) for prompt in prompts], 8, named_seed(cell.seed, "init"))
        return load_model(folder, config)


Key = tuple[int, str, int, str]
"""Number of portals, kind of analysis, number of tasks, and kind of rows."""
ROWS: dict[Key, list[Example]] = {}
"""Tokenised training rows. All cells share them, since tokenizers do not depend on the seed."""


def rows_of(key: Key, encode: Callable[[], Sequence[Example]]) -> list[Example]:
    """Return tokenised rows, which are made when they are first asked for."""
    if key not in ROWS:
        ROWS[key] = list(encode())
    return ROWS[key]


def make_policy(lm: LanguageModel) -> Policy:
    """Make a greedy policy that scores the actions' texts. Its prompts are half as long as with numbered actions."""
    return Policy(lm, Sampling(temperature=0.0), scoring="sum")


# ---- training --------------------------------------------------------------------------------------------------------

Loss = Callable[[Sequence[int]], Tensor]
"""Function that maps indices of rows to their mean loss."""


def train(lm: LanguageModel, count: int, loss: Loss, seconds: float, seed: int, heads: Sequence[nn.Module] = ()) -> int:
    """Train for a number of processor seconds. Return the number of optimiser steps.

    Args:
        count: number of rows.
        heads: further modules to train, with the learning rate of AdamW.
    """
    config = SFTConfig(optimizer="muon")
    optimizers = make_optimizers(lm, config)
    extra = [weight for head in heads for weight in head.parameters()]
    if extra:
        optimizers.append(torch.optim.AdamW(extra, lr=config.lr))
    trainer = Trainer(lm, optimizers, config.max_grad_norm, keep_best=False)
    batches = shuffled_batches(row_groups([Example((), 0)] * count, by_episode=False), BATCH, seed, skip=0)
    start = time.process_time()
    while (spent := (time.process_time() - start) / seconds) < 1:
        trainer.set_rate(cosine(int(1000 * spent), 1000, config.warmup))
        with lm.training():
            loss(next(batches).tolist()).backward()
        trainer.update({})
        trainer.step += 1
    return trainer.step


def imitation(lm: LanguageModel, rows: Sequence[Example]) -> Loss:
    """Return the mean loss per completion token."""

    def loss(index: Sequence[int]) -> Tensor:
        logits_MV, _, targets_M = completion_logits(lm, [rows[i] for i in index], no_sharing)
        return completion_nll(logits_MV, targets_M)

    return loss


def supervised(lm: LanguageModel, rows: Sequence[Example], stops: Tensor, heads: nn.ModuleList) -> Loss:
    """Return the loss of imitation plus the mean loss of heads that name the stops.

    Args:
        stops: [rows, k] indices of the rooms that each row's parcel comes through.
        heads: for each stop, a map from the hidden state of the choice to the eight rooms.
    """

    def loss(index: Sequence[int]) -> Tensor:
        batch = [rows[i] for i in index]
        logits_MV, hidden_MD, targets_M = completion_logits(lm, batch, no_sharing)
        lengths = torch.tensor([len(row.ids) - row.start for row in batch])
        hidden_BD = hidden_MD[lengths.cumsum(0) - lengths]  # the state from which the first token is chosen
        named = [functional.cross_entropy(head(hidden_BD), stops[index, i]) for i, head in enumerate(heads)]
        return completion_nll(logits_MV, targets_M) + torch.stack(named).mean()

    return loss


def run_cell(cell: Cell) -> dict[str, Any]:
    """Train the players of a cell and play the held-out tasks."""
    analysis = ANALYSES.get(cell.arm, "steps")
    data = (cell.portals, analysis, cell.shown)
    episodes = demonstrated(*data)
    lm, seed = base_model(cell, episodes), named_seed(cell.seed, "batches")
    alone = cell.arm in ("alone", "supervised")
    policy = make_policy(lm)
    view, kind = (sft, "alone") if alone else (sft_policy, "policy")
    choices = rows_of((*data, kind), lambda: choice_examples(policy, view(episodes), 0))
    reflector: Reflector | None = None
    if cell.arm == "alone":
        steps = [train(lm, len(choices), imitation(lm, choices), cell.seconds, seed)]
    elif cell.arm == "supervised":
        stops = torch.tensor([written_rooms(step.reflection or "") for episode in episodes for step in episode.steps])
        heads = nn.ModuleList(nn.Linear(lm.hidden_size, 8) for _ in range(cell.portals))
        steps = [train(lm, len(choices), supervised(lm, choices, stops, heads), cell.seconds, seed, [heads])]
    else:
        written = rows_of((*data, "reflector"), lambda: reflection_examples(lm, sft_reflection(episodes)))
        if cell.arm == "one":
            both = [*written, *choices]
            steps = [train(lm, len(both), imitation(lm, both), cell.seconds, seed)]
            reflector = Reflector(lm, 12)
        else:
            share = REFLECTOR_SHARE * cell.seconds
            steps = [train(lm, len(written), imitation(lm, written), share, seed)]
            reflector = Reflector(replace(lm, model=lm.frozen_copy().model), 12)
            steps.append(train(lm, len(choices), imitation(lm, choices), cell.seconds - share, seed))
    return {"steps": steps, **evaluated(cell, policy, reflector)}


def written_rooms(reflection: str) -> list[int]:
    """Return the rooms of a reflection that consists of stops, as indices."""
    return ["abcdefgh".index(room) for room in reflection.split()]


# ---- evaluation ------------------------------------------------------------------------------------------------------


def evaluated(cell: Cell, policy: Policy, reflector: Reflector | None) -> dict[str, Any]:
    """Play the held-out tasks greedily.

    Returns:
        "success": share of tasks won. "first": share of first parcels answered correctly. "written": share of steps
        whose reflection ends with the right room. "followed": share of steps whose choice is the reflection's last
        word. "play_seconds": processor seconds of play.
    """
    make = partial(make_env, "portals", portals=cell.portals)
    env, start = make(), time.process_time()
    jobs = [Job(task, named_seed(cell.seed, task.id)) for task in env.tasks(cell.split)]
    written, followed = [], []
    played = list(rollout(jobs, make, policy, reflector, batch=100))
    seconds = time.process_time() - start
    for episode in played:
        env.reset(options={"task": episode.task})
        for step in episode.steps:
            if step.reflection is not None:
                last = (step.reflection.split() or [""])[-1]
                written.append(last == env.stops()[-1])
                followed.append(last == step.observation.actions[step.action])
            env.step(step.action)
    scores = {
        "success": [attempt.success for attempt in played],
        "first": [attempt.steps[0].reward > 0 for attempt in played],
    }
    scores |= {"written": written, "followed": followed} if written else {}
    rates = {name: round(fmean(values), 4) for name, values in scores.items()}
    return {**rates, "tasks": len(played), "play_seconds": round(seconds, 2)}


def table(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table with a row per number of portals, layers and arm."""
    names = ("portals", "layers", "seconds", "arm", "seeds", "tasks won, %", "first parcel, %", "reflection right, %")
    table_lines = [f"| {' | '.join((*names, 'followed, %'))} |", "|---" * 9 + "|"]
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["portals"], line["layers"], line["seconds"], line["arm"]), []).append(line)
    order = sorted(groups, key=lambda group: (*group[:3], ARMS.index(group[3])))
    for portals, layers, seconds, arm in order:
        members = groups[portals, layers, seconds, arm]
        shares = [mean_of(members, name) for name in ("first", "written", "followed")]
        won = f"{mean_of(members, 'success')} {interval(members)}"
        cells = (portals, layers, f"{seconds:g}", arm, len(members), won, *shares)
        table_lines.append(f"| {' | '.join(map(str, cells))} |")
    return table_lines


def mean_of(lines: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return the mean of a share over seeds in per cent; "" if the arm has none."""
    values = [line[name] for line in lines if name in line]
    return f"{100 * fmean(values):.1f}" if values else ""


def interval(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the wider of Student's t interval over seeds and Wilson's over all episodes, in per cent."""
    tasks = sum(line["tasks"] for line in lines)
    won = round(sum(line["success"] * line["tasks"] for line in lines))
    bounds = [wilson(won, tasks, 0.95), mean_interval([line["success"] for line in lines], 0.95) or (1.0, 0.0)]
    low, high = max(bounds, key=lambda pair: pair[1] - pair[0])
    return f"[{100 * max(0.0, low):.0f}, {100 * min(1.0, high):.0f}]"


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
