"""`export-browser`: a trained arm of a run as a page that plays in a browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from reflectrl.core.plugins import suggestion
from reflectrl.core.types import UserError


@dataclass(frozen=True)
class ExportBrowser:
    """Write a run's trained players and tasks as a web page that plays them without a server. The first time, npm
    fetches the two packages that the page computes with.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run folder."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder for the page, replacing a page that is there. Default: RUN/browser, to which the run's report links."""
    arm: Annotated[str, tyro.conf.arg(metavar="ARM")] = ""
    """Arm to export (see `reflectrl list arms`). Default: the last trained arm of the recipe."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of the training."""
    split: Annotated[str, tyro.conf.arg(metavar="SPLIT")] = "test"
    """Split of the tasks."""
    stage: Annotated[str | None, tyro.conf.arg(metavar="STAGE")] = None
    """Curriculum stage. Default: the last one."""
    tasks: Annotated[int, tyro.conf.arg(metavar="N")] = 50
    """Number of tasks, counted from the first."""
    states: Annotated[int, tyro.conf.arg(metavar="N")] = 100_000
    """Largest number of states to visit. An environment with more states is refused."""
    runtime: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder node_modules with the packages, for machines without npm or network."""
    trust: bool = False
    """Let the run's recipe use the code, addresses and keys that it names, now and from now on."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Write the page, then print its size and how to open it."""
        from reflectrl.cli.run import flags

        if settings:
            option = settings[0].partition("=")[0]
            raise UserError(
                f"unknown option {option!r}{suggestion(option, [f'--{flag}' for flag in flags(type(self))])}"
            )
        if min(self.tasks, self.states) < 1:
            raise UserError("--tasks and --states must be at least 1")
        import transformers

        from reflectrl.tools.browser.export import export_run

        transformers.utils.logging.disable_progress_bar()
        out = self.out or self.run / "browser"
        options = {name: getattr(self, name) for name in ("arm", "seed", "split", "stage", "tasks", "states")}
        exported = export_run(self.run, out, **options, runtime=self.runtime, trust=self.trust)
        for note in exported.notes:
            print(f"note: {note}")
        world = exported.world
        print(f"{out}: {len(world.tasks)} tasks, {len(world.states)} states, {exported.bytes / 2**20:.1f} MiB")
        print(f"open {out / 'index.html'}, or put the folder on any web server")
