"""Settings of benchmarks, and the command line that all of them share."""

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
    """Settings of a benchmark: the cells of the table, and the number of repetitions."""

    workloads: tuple[str, ...] = ("taxi", "taxi-history", "alfworld")
    """Workloads: "taxi", "taxi-history", "alfworld"."""
    sizes: tuple[str, ...] = ("4x256", "gpt2-small")
    """Models: "tiny", "4x256", "gpt2-small", "gpt2-xl"."""
    model: str = ""
    """Folder or short name of a pretrained model, measured instead of these sizes."""
    batches: tuple[int, ...] = (1, 16, 64)
    """Numbers of episodes at a time in play, and of steps per pass in an update."""
    repetitions: int = 3
    """Interleaved repetitions; the median is shown."""
    heavy: float = 2e12
    """Operations of the plain side beyond which a cell is measured once, whatever the repetitions."""
    threads: int = 0
    """Number of threads; 0 leaves it to torch."""
    device: str = "cpu"
    """Device of the models."""
    dtype: str = "float32"
    """Data type of the weights."""
    lora_rank: int = 0
    """Rank of a LoRA adapter, which is trained instead of the weights; 0 for none."""
    mixed_play: Literal["on", "off"] = "off"
    """Play with matrix products in bfloat16 in the engine."""
    speculative: Literal["on", "off"] = "on"
    """Let the engine's reflector use speculative decoding."""
    operations: Literal["on", "off"] = "on"
    """Count the operations of play. On a GPU that takes longer than play, and it misses recorded passes."""
    compile: bool = False
    """Compile the engine's layers (`model.compile`)."""
    graphs: Literal["on", "off"] = "on"
    """Let the engine record its decoding passes, on a GPU."""
    shares: tuple[float, ...] = (0.2, 0.5, 0.8)
    """Positions of the timed steps of play in the episodes, as shares of the shortest episode."""

    @property
    def models(self) -> tuple[str, ...]:
        """Models that `bench_model` loads or makes: the pretrained model if given, else the sizes."""
        return (self.model,) if self.model else self.sizes

    @property
    def player(self) -> dict[str, Any]:
        """Arguments of `bench_model` for a player's model."""
        arguments: dict[str, Any] = {"device": self.device, "dtype": self.dtype, "lora_rank": self.lora_rank}
        arguments["compile"] = self.compile
        return arguments | ({"adapter": "policy", "lora_alpha": 32} if self.lora_rank else {})

    def cells(self) -> list[tuple[str, str, int]]:
        """Return (size, workload, batch) of every row."""
        return [(size, name, batch) for size in self.models for name in self.workloads for batch in self.batches]


@dataclass(frozen=True)
class Shown(Settings):
    """Settings of a benchmark with its output format."""

    json: bool = False
    """Print JSON instead of a table."""


def note(row: dict[str, Any]) -> dict[str, Any]:
    """Print a row to stderr at once, so that it is not lost if the rest is interrupted."""
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def begin(settings: Settings) -> None:
    """Set up torch, and turn off progress bars."""
    logging.disable_progress_bar()
    if settings.threads:
        torch.set_num_threads(settings.threads)


def main(rows: Callable[[Any], list[dict[str, Any]]], about: str | None) -> None:
    """Run a benchmark from the command line."""
    settings = tyro.cli(Shown, description=(about or "").split("\n\n")[0])
    begin(settings)
    print(report(rows(settings), settings.json), end="")
