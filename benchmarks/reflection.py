"""Measure when a reflection pays: a policy alone and with a reflector, in several worlds, in equal processor time.

    python -m benchmarks.reflection --worlds lake --seeds 0 1 2 --out runs/reflection.jsonl

All evaluation tasks are new to the players. The arms differ in what is written before the choice:

- alone: nothing.
- deeper: nothing, by a model with twice the layers.
- unrolled: the teacher's analysis, which works the choice out step by step.
- answer: only the last sentence of the analysis, which names the choice.
- filler: words without content, as many as the analysis has, and then that sentence.
- one: the analysis, by a single model that writes and then chooses.

All arms of a cell train for the same processor seconds on the same episodes. A pair splits them (`REFLECTOR_SHARE`),
and the learning rate falls with the seconds spent. Every finished cell is a line of `--out`, and the same command
continues an interrupted series. The program prints a table at the end.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import tyro

from reflectrl.api import make_env
from reflectrl.core.config import ModelConfig, TeachConfig
from reflectrl.core.episodes import sft, sft_policy, sft_reflection
from reflectrl.core.prompts import policy_prompt
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.teach import demonstrations, teach
from reflectrl.core.types import Choice, Episode, Sampling, Step, named_seed
from reflectrl.learn.examples import Example, choice_examples, reflection_examples
from reflectrl.models.lm import LanguageModel
from reflectrl.models.load import load_model
from reflectrl.models.players import Policy, Reflector
from reflectrl.models.scratch import save_scratch

from .portals import imitation, interval, mean_of, run_missing, train

Arm = Literal["alone", "deeper", "unrolled", "answer", "filler", "one"]
ARMS: tuple[Arm, ...] = ("alone", "unrolled", "answer", "filler", "one", "deeper")
ALONE: tuple[Arm, ...] = ("alone", "deeper")
REFLECTOR_SHARE = 0.85
"""Share of a pair's seconds that the reflector gets. The policy only learns to follow the last sentence."""
FILLER = "so"
BATCH = 32


@dataclass(frozen=True)
class World:
    """Environment in which the arms are compared.

    Attributes:
        name: name of the environment.
        settings: its settings, but for the number of tasks.
        shown: default number of training tasks.
        seconds: default processor seconds of training.
        written: largest number of tokens of a reflection.
        layers, width: shape of the models.
        noise: shares of random actions in the teacher's episodes.
    """

    name: str
    settings: Mapping[str, Any]
    shown: int
    seconds: float
    written: int
    layers: int = 3
    width: int = 128
    noise: tuple[float, ...] = (0.0, 0.5)


WORLDS: Mapping[str, World] = {
    "lake": World("frozenlake", {"maps": "random", "analysis": "waves"}, 6000, 240.0, 80),
    "taxi": World("taxi", {"maps": "random"}, 8000, 1700.0, 96),
    "keys": World("planning-walk", {"domains": ("keys_doors",)}, 3000, 240.0, 48),
    "countdown": World("planning-walk", {"domains": ("countdown",)}, 3000, 240.0, 48),
}


@dataclass(frozen=True)
class Settings:
    """Settings of the comparison."""

    worlds: tuple[Literal["lake", "taxi", "keys", "countdown"], ...] = ("lake",)
    """Worlds to compare the arms in."""
    arms: tuple[Arm, ...] = ARMS
    """Arms to run."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of weights and batches."""
    seconds: float = 0.0
    """Processor seconds of training in each cell; 0 takes the world's own."""
    shown: int = 0
    """Number of tasks that are shown in training; 0 takes the world's own."""
    tasks: int = 500
    """Number of new tasks that are played in the end."""
    split: str = "test"
    """Split of the tasks that are played in the end."""
    out: Path = Path("runs/reflection.jsonl")
    """File of results, a line per cell."""


@dataclass(frozen=True)
class Cell:
    """One training and its evaluation."""

    world: str
    arm: Arm
    seed: int
    seconds: float
    shown: int
    played: int
    split: str


def main(settings: Settings) -> None:
    """Run the missing cells seed by seed, and print the table."""
    print("\n".join(table(run_missing(cells(settings), run_cell, settings.out))))


def cells(settings: Settings) -> Iterator[Cell]:
    """Yield all cells, so that an interrupted series has all arms of its first seeds."""
    for seed in settings.seeds:
        for name in settings.worlds:
            seconds, demonstration_count = (
                settings.seconds or WORLDS[name].seconds,
                settings.shown or WORLDS[name].shown,
            )
            for arm in settings.arms:
                yield Cell(name, arm, seed, seconds, demonstration_count, settings.tasks, settings.split)


# ---- what the arms are shown -----------------------------------------------------------------------------------------


@cache
def demonstrated(name: str, shown: int) -> tuple[Episode, ...]:
    """Return the teacher's episodes on the training tasks. They contain mistakes that are mended, and no negatives."""
    world = WORLDS[name]
    env = make_env(world.name, **world.settings, train=shown)
    plans = demonstrations(env.tasks("train"), TeachConfig(noise=world.noise, negatives=0), seed=0)
    return tuple(teach(env, plan) for plan in plans)


def answer_of(analysis: str) -> str:
    """Return the last sentence of an analysis, which names the choice."""
    return analysis.rstrip(".").rpartition(". ")[2] + "."


def filler_of(analysis: str) -> str:
    """Return as many words without content as an analysis has before its last sentence, and that sentence."""
    answer = answer_of(analysis)
    return " ".join([FILLER] * (len(analysis.split()) - len(answer.split())) + [answer])


REWRITES: Mapping[Arm, Callable[[str], str]] = {"answer": answer_of, "filler": filler_of}
"""Changes of the teacher's analysis, for the arms that do not write all of it."""


def rewritten(episode: Episode, change: Callable[[str], str]) -> Episode:
    """Return an episode with its reflections changed."""

    def changed(step: Step) -> Step:
        turns = (turn if isinstance(turn, Choice) else replace(turn, text=change(turn.text)) for turn in step.turns)
        return replace(step, turns=tuple(turns))

    return replace(episode, steps=tuple(map(changed, episode.steps)))


@cache
def episodes_of(name: str, shown: int, arm: Arm) -> tuple[Episode, ...]:
    """Return the training episodes of an arm."""
    episodes = demonstrated(name, shown)
    change = REWRITES.get(arm)
    return episodes if change is None else tuple(rewritten(episode, change) for episode in episodes)


# ---- models and training ---------------------------------------------------------------------------------------------


def base_model(cell: Cell) -> LanguageModel:
    """Make an untrained model whose weights depend on the cell's seed. Its tokenizer is the same in all arms."""
    world, episodes = WORLDS[cell.world], demonstrated(cell.world, cell.shown)
    steps = [step for episode in episodes[::10] for step in episode.steps]
    texts = [f"{''.join(policy_prompt(step.observation, step.reflection, ()))} {FILLER}" for step in steps]
    layers = world.layers * (2 if cell.arm == "deeper" else 1)
    config = ModelConfig(layers=layers, width=world.width, context=512)
    with tempfile.TemporaryDirectory() as folder:
        save_scratch(Path(folder), config, texts, 8, named_seed(cell.seed, "init"))
        return load_model(folder, config)


ROWS: dict[tuple[str, int, str, str], list[Example]] = {}
"""Tokenised training rows. Cells share them, since tokenizers do not depend on the seed."""


def rows_of(cell: Cell, kind: str, encode: Callable[[], Sequence[Example]]) -> list[Example]:
    """Return tokenised rows, which are made when they are first asked for."""
    written = "" if cell.arm in ALONE else cell.arm if cell.arm in REWRITES else "unrolled"
    key = (cell.world, cell.shown, written, kind)
    if key not in ROWS:
        ROWS[key] = list(encode())
    return ROWS[key]


def run_cell(cell: Cell) -> dict[str, Any]:
    """Train the players of a cell and play the new tasks."""
    episodes, written_tokens = episodes_of(cell.world, cell.shown, cell.arm), WORLDS[cell.world].written
    lm, seed = base_model(cell), named_seed(cell.seed, "batches")
    policy = Policy(lm, Sampling(temperature=0.0), scoring="sum")
    view, kind = (sft, "alone") if cell.arm in ALONE else (sft_policy, "policy")
    choices = rows_of(cell, kind, lambda: choice_examples(policy, view(episodes), 0))
    reflector: Reflector | None = None
    if cell.arm in ALONE:
        steps = [train(lm, len(choices), imitation(lm, choices), cell.seconds, seed)]
    else:
        written = rows_of(cell, "reflector", lambda: reflection_examples(lm, sft_reflection(episodes)))
        if cell.arm == "one":
            both = [*written, *choices]
            steps = [train(lm, len(both), imitation(lm, both), cell.seconds, seed)]
            reflector = Reflector(lm, written_tokens)
        else:
            share = REFLECTOR_SHARE * cell.seconds
            steps = [train(lm, len(written), imitation(lm, written), share, seed)]
            reflector = Reflector(replace(lm, model=lm.frozen_copy().model), written_tokens)
            steps.append(train(lm, len(choices), imitation(lm, choices), cell.seconds - share, seed))
    return {"steps": steps, **evaluated(cell, policy, reflector)}


# ---- evaluation ------------------------------------------------------------------------------------------------------


def evaluated(cell: Cell, policy: Policy, reflector: Reflector | None) -> dict[str, Any]:
    """Play the new tasks greedily.

    Returns:
        "success": share of tasks won. "right": share of steps with the teacher's best action. "written": share of steps
        whose reflection is the teacher's, word for word. "followed": share of steps in which the choice is the one
        that the reflection ends with. "play_seconds": processor seconds of play.
    """
    world = WORLDS[cell.world]
    make = partial(make_env, world.name, **world.settings, **{cell.split: cell.played})
    env, start, change = make(), time.process_time(), REWRITES.get(cell.arm, str)
    jobs = [Job(task, named_seed(cell.seed, task.id)) for task in env.tasks(cell.split)]
    played = list(rollout(jobs, make, policy, reflector, batch=100))
    seconds = time.process_time() - start
    right, written, followed = [], [], []
    for episode in played:
        env.reset(options={"task": episode.task})
        for step in episode.steps:
            action = step.observation.actions[step.action]
            right.append(step.action == env.teacher.expert_action(env))
            if step.reflection is not None:
                written.append(step.reflection == change(env.teacher.analyse(env)))
                followed.append(answer_of(step.reflection).endswith(f" {action}."))
            env.step(step.action)
    shares = {"success": [episode.success for episode in played], "right": right}
    shares |= {"written": written, "followed": followed} if written else {}
    rates = {name: round(fmean(values), 4) for name, values in shares.items()}
    return {**rates, "tasks": len(played), "play_seconds": round(seconds, 2)}


def table(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table with a row per world, training and arm."""
    names = ("world", "shown", "seconds", "arm", "seeds", "tasks won, %", "best choices, %", "reflection right, %")
    table_lines = [f"| {' | '.join((*names, 'followed, %', 'seconds of play'))} |", "|---" * 10 + "|"]
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["world"], line["shown"], line["seconds"], line["arm"]), []).append(line)
    for group in sorted(groups, key=lambda group: (*group[:3], ARMS.index(group[3]))):
        members = groups[group]
        won = f"{mean_of(members, 'success')} {interval(members)}"
        shares = [mean_of(members, name) for name in ("right", "written", "followed")]
        play = f"{fmean(line['play_seconds'] for line in members):.1f}"
        row = (*group[:2], f"{group[2]:g}", group[3], len(members), won, *shares, play)
        table_lines.append(f"| {' | '.join(map(str, row))} |")
    return table_lines


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
