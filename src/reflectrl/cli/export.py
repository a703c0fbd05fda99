"""`export-agent`: a trained arm of a run as a folder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from reflectrl.plugins import suggestion
from reflectrl.types import UserError


@dataclass(frozen=True)
class ExportAgent:
    """Write a run's trained players into a folder of their own, for `play --player DIR` and `locate --model DIR`."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run folder."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Where to write; an agent that is there is replaced."""
    arm: Annotated[str, tyro.conf.arg(metavar="ARM")] = "reflect-rl"
    """Which players (`reflectrl list arms`)."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Which training."""
    half: bool = False
    """Store the weights in 16 bits: half as large; they are computed with in 32."""
    trust: bool = False
    """Let the run's recipe use code that it names, now and from now on."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Write the folder, and say what it holds."""
        if settings:
            option = settings[0].partition("=")[0]
            raise UserError(
                f"unknown option {option!r}{suggestion(option, ('--out', '--arm', '--seed', '--half', '--trust'))}"
            )
        import transformers

        from reflectrl.pipeline.agents import export_agent

        transformers.utils.logging.disable_progress_bar()
        card = export_agent(self.run, self.arm, self.seed, self.out, self.half, self.trust)
        size = sum(path.stat().st_size for path in self.out.rglob("*.safetensors"))
        print(f"{self.out}: {card.name}, {size / 2**20:.1f} MiB of weights")
