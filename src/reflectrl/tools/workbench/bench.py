"""`bench`: run the programs under `benchmarks/`. Prints a table per part, compared with a plain implementation."""

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
from reflectrl.core.plugins import suggestion
from reflectrl.core.types import UserError

PARTS = {
    "play": "two-player play: steps/s of the engine against Hugging Face's generate and one forward pass per choice",
    "update": "the RL update: packed episodes against step-by-step encoding",
    "sft": "supervised fine-tuning: useful tokens/s against transformers.Trainer",
    "offline": "offline learning: speed and memory of A-LoL against plain likelihood",
    "choices": "choice scoring: enumeration and action texts against one forward pass per action",
    "identical": "identical prompts: memories of both players on and off",
    "memory": "two players on one backbone; the update's peak with a small and a large vocabulary (MiB)",
    "environments": "slow and fast environments in worker processes",
    "alfworld": "ALFWorld's native engine on generated games, against the reference engine where it is installed",
}
"""Part → what it measures, and against what."""

PRETRAINED = ("play", "update", "sft", "choices")
"""Parts that can be measured with a pretrained model."""


@dataclass(frozen=True)
class Bench:
    """Measure speed and memory on this machine against a plain implementation. Use a machine without other load."""

    parts: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PART")] = ()
    """Parts to measure: play, update, sft, offline, choices, identical, memory, environments, alfworld; all if none is
    named."""
    workloads: tuple[str, ...] = ("taxi", "taxi-history", "alfworld")
    """Workloads to play: taxi, taxi-history, alfworld (episodes of its shape, not the game)."""
    sizes: tuple[str, ...] = ("4x256",)
    """Sizes of models with random weights: tiny, 4x256, gpt2-small, gpt2-xl."""
    model: str = ""
    """Folder or short name of a pretrained model to use instead of random weights; for play, update, sft and
    choices."""
    batches: tuple[int, ...] = (1, 16)
    """Batch sizes: episodes played in parallel, steps per pass in an update, rows per step in SFT."""
    repetitions: int = 3
    """Number of interleaved repetitions; medians are shown."""
    heavy: float = 2e12
    """Number of operations of the plain side above which play and update are measured only once."""
    threads: int = 0
    """Number of threads; 0 leaves the number to torch."""
    device: str = "cpu"
    """Torch device of the models: cpu, cuda ..."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the models' weights."""
    lora_rank: int = 0
    """Rank of a LoRA adapter that is trained instead of the weights; 0 for none."""
    mixed_play: Literal["on", "off"] = "off"
    """Compute the engine's matrix products of play in bfloat16. The plain side never does."""
    speculative: Literal["on", "off"] = "on"
    """Use speculative decoding in the engine's reflector."""
    shares: tuple[float, ...] = (0.2, 0.5, 0.8)
    """Points of the episodes at which steps of play are timed, as shares of their length. Later steps have longer
    histories."""
    json: bool = False
    """Print one JSON object instead of tables."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Measure each part and print its table when it is done."""
        if settings:
            raise UserError(f"unknown option {settings[0]!r} (reflectrl bench --help lists all)")
        self._check()
        package = _programs()
        settings_module = importlib.import_module(f"{package}.settings")
        # Settings that only the programs themselves offer keep their defaults.
        offered = [field.name for field in fields(settings_module.Settings) if hasattr(self, field.name)]
        wanted = settings_module.Settings(**{name: getattr(self, name) for name in offered})
        settings_module.begin(wanted)
        measure = importlib.import_module(f"{package}.measure")
        rows_by_part: dict[str, Any] = {}
        for part in self.parts or (PRETRAINED if self.model else PARTS):
            program = importlib.import_module(f"{package}.{part}")
            if not self.json:
                print(f"{part}: {PARTS[part]}", flush=True)
            rows_by_part[part] = program.rows(wanted)
            if not self.json:
                print(measure.report(rows_by_part[part], False), flush=True)
        if self.json:
            print(json.dumps(rows_by_part, indent=1))

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
    """Return the package that holds the programs: the checkout's if there is one, otherwise the installed one."""
    root = Path(reflectrl.__file__).resolve().parents[2]
    if not (root / "benchmarks" / "__init__.py").is_file():
        return "reflectrl.benchmarks"
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return "benchmarks"
