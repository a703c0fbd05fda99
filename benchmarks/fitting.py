"""Estimate of a model's memory beside the measured peak: play, SFT and RL, LoRA and full, in 32 and 16 bits.

    python -m benchmarks.fitting --model ~/.cache/reflectrl/models/smollm2-135m

Each figure comes from a separate process with one thread. It is forked from a process that has loaded torch,
transformers, peft and this package but no model, and the memory of that process is not counted. Prompts are random
words that fill the context and share nothing, as the estimate assumes. The second model has the shape of GPT-2 small
and random weights.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import Pipe, get_context
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
import tyro
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

from reflectrl.core.config import Recipe, from_dict
from reflectrl.core.envs.base import Outcome, TextEnv
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Task
from reflectrl.learn.examples import Example
from reflectrl.learn.online import train_online
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.learn.sft import train_sft
from reflectrl.models.load import load_model, second_player
from reflectrl.models.machine import pass_bytes
from reflectrl.models.scratch import train_tokenizer
from reflectrl.models.weights import GIB
from reflectrl.runs.players import make_policy, make_reflector
from reflectrl.tools.fitting.estimate import estimate

from .measure import CLEAR, MODULES, clean_processes, growth, report
from .settings import note

Stage = Literal["play", "sft", "rl"]
Training = Literal["LoRA", "full"]
Precision = Literal["float32", "bfloat16"]
WORDS = [f"w{i}" for i in range(100)]
STEPS = 3


@dataclass(frozen=True)
class Settings:
    """Settings of the measurement."""

    model: str = ""
    """Folder of a model to measure beside GPT-2 small's shape, SmolLM2-135M for example."""
    gpt2: bool = True
    """Measure a model of GPT-2 small's shape."""
    trainings: tuple[Training, ...] = ("LoRA", "full")
    """Kinds of training: adapters only, or every weight."""
    dtypes: tuple[Precision, ...] = ("float32", "bfloat16")
    """Precisions of weights and activations."""
    stages: tuple[Stage, ...] = ("play", "sft", "rl")
    """Stages to measure: play, SFT of a player, RL of the policy beside the reflector."""
    context: int = 160
    """Tokens per prompt."""
    batch: int = 4
    """Number of episodes at a time, and of rows per update."""
    checkpointing: bool = False
    """Train with gradient checkpointing."""
    frozen: int = 0
    """Number of lowest layers that are frozen in full training."""
    device: str = "cpu"
    """Device of the models. On a GPU, its memory is measured."""
    json: bool = False
    """Print JSON instead of a table."""


class Filling(TextEnv):
    """Environment whose random text is longer than the context. It has two actions and random rewards."""

    def tasks(self, split: str, stage: str | None = None) -> list[Task]:
        return [Task(f"t{i}", "filling", {"seed": i}, split) for i in range(8)]

    def begin(self, task: Task) -> None:
        self.words = np.random.default_rng(int(task.payload["seed"]))
        self.length = int(task.payload.get("length", 2000))
        self.told = self.some()

    def some(self) -> str:
        return " ".join(WORDS[i] for i in self.words.integers(len(WORDS), size=1000)) + "\n"

    def apply(self, action: str) -> Outcome:
        self.told += self.some()
        return Outcome(float(self.words.random()))

    def history(self) -> str:
        return self.told

    def state(self) -> str:
        return "Now.\n"

    def legal_actions(self) -> list[str]:
        return ["a", "b"]


def filling() -> Filling:
    """Make an environment of a few steps."""
    return Filling(horizon=STEPS)


def recipe_of(source: str, settings: Settings, dtype: str, rank: int) -> Recipe:
    """Return the recipe whose memory is estimated and measured."""
    model = {
        "source": source,
        "context": settings.context,
        "dtype": dtype,
        "lora_rank": rank,
        "device": settings.device,
    }
    model |= {"mixed_precision": "off", "chat": "off", "gradient_checkpointing": settings.checkpointing}
    model |= {"frozen_layers": 0 if rank else settings.frozen}
    rows = settings.batch
    rl = {"episodes": rows, "minibatch": rows, "updates": 2, "eval_episodes": 1, "replay": 0, "curriculum": "none"}
    return from_dict(
        Recipe,
        {
            "env": {"name": "taxi"},
            "model": model,
            "play": {"reflection_tokens": 16},
            "sft": {"steps": 2, "batch_size": rows, "eval_every": 2, "eval_rows": rows, "accumulate": 1},
            "rl": rl,
            "eval": {"batch": rows},
        },
        "the benchmark",
    )


def players(recipe: Recipe) -> tuple[Any, Any]:
    """Load both players as a run does."""
    policy = load_model(recipe.model.source, recipe.model, "policy")
    second = second_player(policy, "reflector") if policy.adapter else load_model(recipe.model.source, recipe.model)
    return policy, second


def play(recipe: Recipe) -> None:
    """Play a few steps of all episodes side by side."""
    policy, second = players(recipe)
    jobs = [Job(task, i) for i, task in enumerate(filling().tasks("train")[: recipe.eval.batch])]
    episodes = rollout(jobs, filling, make_policy(recipe, policy), make_reflector(recipe, second), recipe.eval.batch)
    assert len(list(episodes)) == len(jobs)


def sft(recipe: Recipe) -> None:
    """Take two optimiser steps with the policy. The completion is a tenth of each row."""
    lm = load_model(recipe.model.source, recipe.model, "policy")
    words, length = np.random.default_rng(0), recipe.model.context
    rows = [
        Example(tuple(words.integers(5, 250, size=length).tolist()), length - length // 10)
        for _ in range(2 * recipe.sft.batch_size)
    ]
    with tempfile.TemporaryDirectory() as folder:
        train_sft(lm, rows, rows[: recipe.sft.eval_rows], recipe.sft, 0, lambda metrics: None, Path(folder) / "learner")


def rl(recipe: Recipe) -> None:
    """Update the policy twice beside the reflector. Only in the second update do the optimiser's moments exist."""
    policy, second = (make(recipe, lm) for make, lm in zip((make_policy, make_reflector), players(recipe), strict=True))
    rollouts = EpisodeRollouts(cast(Any, policy), cast(Any, second), filling, recipe.rl, 0)
    with tempfile.TemporaryDirectory() as folder:
        train_online(rollouts, recipe.rl, 0, lambda metrics: None, Path(folder) / "learner")


RUNS = {"play": play, "sft": sft, "rl": rl}


def peak_of(run: Callable[[Recipe], None], recipe: Recipe) -> int | None:
    """Return the bytes by which a forked process grows at its peak while a stage runs; None if not reported."""
    if recipe.model.device == "cpu" and not CLEAR.exists():
        return None
    here, there = Pipe(duplex=False)
    child = clean_processes().Process(target=_send_growth, args=(there, run, recipe))
    child.start()
    there.close()
    try:
        peak: int = here.recv()
    except EOFError:
        raise RuntimeError(f"the process that measured {run.__name__} has ended") from None
    child.join()
    return peak


def _send_growth(there: Any, run: Callable[[Recipe], None], recipe: Recipe) -> None:
    ready()
    if recipe.model.device == "cuda":
        torch.zeros(1, device="cuda")  # it is in use from now on, so its memory is what grows
    there.send(growth(lambda: run(recipe)))


def ready() -> None:
    """Load all modules, and compute something with torch."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    for module in MODULES:
        importlib.import_module(module)
    torch.set_num_threads(1)
    (torch.randn(64, 64, requires_grad=True) @ torch.randn(64, 64)).sum().backward()


def make_gpt2(folder: Path) -> None:
    """Make a model of GPT-2 small's shape with random weights, and a tokenizer of a few words."""
    shape = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    GPT2LMHeadModel(GPT2Config(**shape)).save_pretrained(folder)
    labels = "Reflection: Actions: 1: a; 2: b\nChoice: 1\n"
    train_tokenizer([" ".join(WORDS) + labels], 400).save_pretrained(folder)


def rows(settings: Settings) -> list[dict[str, Any]]:
    """Return a row per model, kind of training, precision and stage."""
    table_rows = []
    with tempfile.TemporaryDirectory() as folder:
        models = {"SmolLM2-135M" if "smollm2" in settings.model else settings.model: settings.model}
        models = {} if not settings.model else models
        if settings.gpt2:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                process.submit(make_gpt2, Path(folder)).result()
            models["GPT-2 small"] = folder
        for name, source in models.items():
            for dtype in settings.dtypes:
                for training in settings.trainings:
                    recipe = recipe_of(source, settings, dtype, 16 if training == "LoRA" else 0)
                    need = estimate(recipe, pass_bytes(torch.device(settings.device)))
                    assert need is not None
                    for stage in settings.stages:
                        peak = peak_of(RUNS[stage], recipe)
                        estimated = getattr(need, stage)
                        row = {"model": name, "training": training, "dtype": dtype, "stage": stage}
                        measured = {"measured GiB": peak / GIB, "ratio": estimated / peak} if peak else {}
                        table_rows.append(note({**row, "estimate GiB": estimated / GIB, **measured}))
    return table_rows


if __name__ == "__main__":
    chosen = tyro.cli(Settings, description=(__doc__ or "").split("\n\n")[0])
    torch.set_num_threads(1)
    print(report(rows(chosen), chosen.json), end="")
