"""What a benchmark is asked for, and the command line that all of them share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import tyro
from transformers.utils import logging

from .measure import report


@dataclass(frozen=True)
class Settings:
    """Which cells of a table are measured, and how often."""

    workloads: tuple[str, ...] = ("taxi", "taxi-history", "alfworld")
    """What is played: "taxi", "taxi-history", "alfworld"."""
    sizes: tuple[str, ...] = ("4x256", "gpt2-small")
    """Models: "tiny", "4x256", "gpt2-small", "gpt2-xl"."""
    model: str = ""
    """Folder or short name of a pretrained model, measured in the place of these."""
    batches: tuple[int, ...] = (1, 16, 64)
    """Episodes at a time in play; steps per pass in an update."""
    repetitions: int = 3
    """Interleaved repetitions; the median is shown."""
    heavy: float = 2e12
    """Operations of the plain side beyond which a cell is measured once, however many repetitions are asked for."""
    threads: int = 0
    """Threads; 0 leaves it to torch."""
    device: str = "cpu"
    """Where the models are."""
    dtype: str = "float32"
    """Their weights."""
    lora_rank: int = 0
    """Rank of a LoRA adapter, which then learns in the place of the weights; 0 for none."""
    mixed_play: Literal["on", "off"] = "off"
    """Whether the engine plays with matrix products in bfloat16."""
    speculative: Literal["on", "off"] = "on"
    """Whether the engine's reflector guesses at what it writes."""
    shares: tuple[float, ...] = (0.2, 0.5, 0.8)
    """Where in the episodes the timed steps of play lie, as shares of the shortest."""

    @property
    def models(self) -> tuple[str, ...]:
        """What `bench_model` is to load or make: the pretrained model, else the sizes."""
        return (self.model,) if self.model else self.sizes

    @property
    def player(self) -> dict[str, Any]:
        """The arguments of `bench_model` that make the model of one player."""
        made = {"device": self.device, "dtype": self.dtype, "lora_rank": self.lora_rank}
        return made | ({"adapter": "policy", "lora_alpha": 32} if self.lora_rank else {})

    def cells(self) -> list[tuple[str, str, int]]:
        """(size, workload, batch) of every row."""
        return [(size, name, batch) for size in self.models for name in self.workloads for batch in self.batches]


@dataclass(frozen=True)
class Shown(Settings):
    """The settings of a program."""

    json: bool = False
    """Print JSON instead of a table."""


def note(row: dict[str, Any]) -> dict[str, Any]:
    """Say on stderr what has been measured, lest it be lost when the rest is interrupted."""
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def begin(settings: Settings) -> None:
    """Set torch up as asked, and keep loading bars out of the table."""
    logging.disable_progress_bar()
    if settings.threads:
        torch.set_num_threads(settings.threads)


def main(rows: Callable[[Any], list[dict[str, Any]]], about: str | None) -> None:
    """Run one benchmark from the command line."""
    settings = tyro.cli(Shown, description=(about or "").split("\n\n")[0])
    begin(settings)
    print(report(rows(settings), settings.json), end="")
