"""`export-agent`: export a trained arm of a run as a separate folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from reflectrl.core.plugins import suggestion
from reflectrl.core.types import UserError

OPTIONS = ("--out", "--arm", "--seed", "--half", "--merge", "--push", "--licence", "--public", "--trust")


@dataclass(frozen=True)
class ExportAgent:
    """Write a run's trained players into a separate folder, for `play --player DIR` and `locate --model DIR`."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder to export from."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Folder to write. An agent that exists there is replaced."""
    arm: Annotated[str, tyro.conf.arg(metavar="ARM")] = "reflect-rl"
    """Arm whose players are exported (`reflectrl list arms`)."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of the training to export."""
    half: bool = False
    """Store the weights in 16 bits, which halves their size. Computations stay in 32 bits."""
    merge: bool = False
    """Merge LoRA adapters into their backbone's weights. Each player becomes an ordinary Hugging Face model, which
    needs no other one."""
    push: Annotated[str, tyro.conf.arg(metavar="OWNER/NAME")] = ""
    """Upload the agent to this repository of a model hub. This needs --licence. No hub is contacted otherwise."""
    licence: Annotated[str, tyro.conf.arg(metavar="ID")] = ""
    """Licence under which it is published (`apache-2.0`, `mit` ...). With it, a model card is written: `README.md`."""
    public: bool = False
    """Make the pushed repository public; otherwise it is private."""
    trust: bool = False
    """Trust the run's recipe to use the code, addresses and keys that it names, now and from now on."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Write the folder, and print what it holds."""
        if settings:
            option = settings[0].partition("=")[0]
            raise UserError(f"unknown option {option!r}{suggestion(option, OPTIONS)}")
        import transformers

        from reflectrl.tools.exporting.agents import export_agent
        from reflectrl.tools.exporting.publishing import Publication

        transformers.utils.logging.disable_progress_bar()
        publication = Publication(self.push, self.public) if self.push else None
        card = export_agent(
            self.run, self.arm, self.seed, self.out, self.half, self.trust, self.merge, self.licence, publication
        )
        size = sum(path.stat().st_size for path in self.out.rglob("*.safetensors"))
        print(f"{self.out}: {card.name}, {size / 2**20:.1f} MiB of weights")
        if self.push:
            print(f"pushed to {self.push} ({'public' if self.public else 'private'})")
