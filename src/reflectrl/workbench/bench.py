"""`bench`: the programs under `benchmarks/`, a table per part, each against a plain implementation in the same run."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

import reflectrl
from reflectrl.plugins import suggestion
from reflectrl.types import UserError

PARTS = {
    "play": "two-player play: steps/s of the engine against Hugging Face's generate and one forward pass per choice",
    "update": "the RL update: packed episodes against step-by-step encoding",
    "sft": "supervised fine-tuning: useful tokens/s against transformers.Trainer",
    "offline": "offline learning: A-LoL's speed and memory beside those of plain likelihood",
    "choices": "choice scoring: enumeration and action texts against one forward pass per action",
    "identical": "identical prompts: memories of both players on and off",
    "memory": "two players on one backbone; the update's peak with a small and a large vocabulary (MiB)",
    "environments": "slow and fast environments in worker processes",
    "alfworld": "ALFWorld's native engine on generated games, against the reference engine where it is installed",
}
"""What is measured, and what it says."""

PRETRAINED = ("play", "update", "sft", "choices")
"""Parts that can be measured with a pretrained model."""


@dataclass(frozen=True)
class Bench:
    """Measure speed and memory on this machine, side by side with a plain implementation. Quiet machines tell more."""

    parts: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PART")] = ()
    """play, update, sft, offline, choices, identical, memory, environments, alfworld; all of them if none is named."""
    workloads: tuple[str, ...] = ("taxi", "taxi-history", "alfworld")
    """What is played: taxi, taxi-history, alfworld (its shape, not the game)."""
    sizes: tuple[str, ...] = ("4x256",)
    """Models, with random weights: tiny, 4x256, gpt2-small, gpt2-xl."""
    model: str = ""
    """Folder or short name of a pretrained model, in the place of these; for play, update, sft and choices."""
    batches: tuple[int, ...] = (1, 16)
    """Episodes at a time in play; steps per pass in an update; rows per step in SFT."""
    repetitions: int = 3
    """Interleaved repetitions; medians are shown."""
    heavy: float = 2e12
    """Operations of the plain side beyond which play and update are measured once, whatever the repetitions."""
    threads: int = 0
    """Threads; 0 leaves it to torch."""
    device: str = "cpu"
    """Where the models are: cpu, cuda ..."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Their weights."""
    lora_rank: int = 0
    """Rank of a LoRA adapter, which then learns in the place of the weights; 0 for none."""
    mixed_play: Literal["on", "off"] = "off"
    """Whether the engine plays with matrix products in bfloat16 (the plain side does not)."""
    speculative: Literal["on", "off"] = "on"
    """Whether the engine's reflector guesses at what it writes."""
    shares: tuple[float, ...] = (0.2, 0.5, 0.8)
    """Where in the episodes the timed steps of play lie; later ones have longer histories."""
    json: bool = False
    """Print one JSON object instead of tables."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Measure each part and print its table when it is done."""
        if settings:
            raise UserError(f"bench knows no {settings[0]!r}")
        self._check()
        package = _programs()
        asked = importlib.import_module(f"{package}.settings")
        wanted = asked.Settings(**{field.name: getattr(self, field.name) for field in fields(asked.Settings)})
        asked.begin(wanted)
        measure = importlib.import_module(f"{package}.measure")
        found: dict[str, Any] = {}
        for part in self.parts or (PRETRAINED if self.model else PARTS):
            program = importlib.import_module(f"{package}.{part}")
            if not self.json:
                print(f"{part}: {PARTS[part]}", flush=True)
            found[part] = program.rows(wanted)
            if not self.json:
                print(measure.report(found[part], False), flush=True)
        if self.json:
            print(json.dumps(found, indent=1))

    def _check(self) -> None:
        for part in self.parts:
            if part not in PARTS:
                raise UserError(f"unknown part {part!r}{suggestion(part, PARTS)}; there are {', '.join(PARTS)}")
            if self.model and part not in PRETRAINED:
                raise UserError(f"bench: {part} takes no --model; {', '.join(PRETRAINED)} do")
        for name, least in (("repetitions", self.repetitions), ("batches", min(self.batches, default=0))):
            if least < 1:
                raise UserError(f"bench: {name} must be at least 1")
        if not self.shares or not all(0 <= share < 1 for share in self.shares):
            raise UserError("bench: shares must lie between 0 and 1")


def _programs() -> str:
    """Name of the package that holds the programs: that of a checkout, or the one that was installed."""
    root = Path(reflectrl.__file__).resolve().parents[2]
    if not (root / "benchmarks" / "__init__.py").is_file():
        return "reflectrl.benchmarks"
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return "benchmarks"
