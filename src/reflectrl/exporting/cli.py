"""`export-agent`: a trained arm of a run as a folder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from reflectrl.plugins import suggestion
from reflectrl.types import UserError

OPTIONS = ("--out", "--arm", "--seed", "--half", "--merge", "--push", "--licence", "--public", "--trust")


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
    merge: bool = False
    """Add LoRA adapters to their backbone's weights: each player becomes an ordinary Hugging Face model, which needs no
    other one."""
    push: Annotated[str, tyro.conf.arg(metavar="OWNER/NAME")] = ""
    """Put the agent on a model hub as well, with a model card; nothing else ever contacts one."""
    licence: Annotated[str, tyro.conf.arg(metavar="ID")] = ""
    """Under which licence it is pushed (`apache-2.0`, `mit` ...)."""
    public: bool = False
    """Let everybody see what is pushed; otherwise it is private."""
    trust: bool = False
    """Let the run's recipe use the code, addresses and keys that it names, now and from now on."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Write the folder, and say what it holds."""
        if settings:
            option = settings[0].partition("=")[0]
            raise UserError(f"unknown option {option!r}{suggestion(option, OPTIONS)}")
        import transformers

        from reflectrl.exporting.agents import export_agent
        from reflectrl.exporting.publishing import Publication

        transformers.utils.logging.disable_progress_bar()
        wanted = Publication(self.push, self.licence, self.public) if self.push else None
        card = export_agent(self.run, self.arm, self.seed, self.out, self.half, self.trust, self.merge, wanted)
        size = sum(path.stat().st_size for path in self.out.rglob("*.safetensors"))
        print(f"{self.out}: {card.name}, {size / 2**20:.1f} MiB of weights")
        if self.push:
            print(f"pushed to {self.push} ({'public' if self.public else 'private'})")
