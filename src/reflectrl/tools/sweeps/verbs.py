"""The verbs `sweep` and `compare`. Slow imports happen inside the calls, so that help stays quick."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from reflectrl.cli.run import RecipeName, Run, find_recipe, refuse_unknown_keys
from reflectrl.core.config import read_recipe
from reflectrl.core.config.folders import refuse_links, require_writable
from reflectrl.core.json_lines import read_json
from reflectrl.core.terminal import console
from reflectrl.core.types import UserError
from reflectrl.runs.graph import ENVIRONMENT, RunKind, run_kinds
from reflectrl.tools.sweeps.sweep import combinations, name_of, run_all, varied, words_of


@dataclass(frozen=True)
class Compare:
    """Compare runs: one table on the terminal and one page, with the settings that differ and the learning curves."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folders to compare. They must be of the same kind."""
    out: Annotated[Path, tyro.conf.arg(metavar="FILE", aliases=["-o"])] = Path("compare.html")
    """Page to write. For text tasks, a table in the columns of Leftover Lunch, if the name ends in .csv or .tex."""
    against: Annotated[str, tyro.conf.arg(metavar="results/NAME")] = ""
    """Compare with the published rows of a recipe as well: results/taxi. One run is enough then."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Read the runs, print the table, and write the page."""
        if settings:
            raise UserError(f"unknown option {settings[0].partition('=')[0]!r}; compare has --out and --against")
        if not self.runs:
            raise UserError("compare needs two runs or more, or a run and published rows (--against results/NAME)")
        kinds = {kind_of(folder) for folder in self.runs}
        if len(kinds) > 1:
            raise UserError("compare: these runs are of different kinds, so there is nothing to compare")
        kind = kinds.pop()
        compare_runs = kind.compare
        if self.out.suffix in (".csv", ".tex"):
            if kind.write_table is None:
                raise UserError(f"compare: {self.out.suffix} is for runs of text tasks; give --out a name in .html")
            require_writable(self.out.parent, f"folder {self.out.parent}")
            kind.write_table(self.runs, self.out)
        if compare_runs is not None:
            compare_runs(self.runs)
            return
        if len(self.runs) < 2 and not self.against:
            raise UserError("compare needs two runs or more, or published rows (--against results/NAME)")
        from reflectrl.tools.sweeps.compare import compare, labels
        from reflectrl.tools.sweeps.published import published_rows

        rows = published_rows(self.against) if self.against else ()

        require_writable(self.out.parent, f"folder {self.out.parent}")
        compare(self.runs, labels(self.runs), self.out, rows)


def kind_of(folder: Path) -> RunKind:
    """Return the kind of a run, by its results.

    Raises:
        UserError: the folder is not a run folder.
    """
    with suppress(OSError, ValueError, AttributeError):
        name = read_json(folder / "results.json").get("kind", "")
        for kind in run_kinds():
            if kind.name and kind.name == name:
                return kind
    if not (folder / "recipe.toml").is_file():
        raise UserError(f"{folder} is not a run folder (it has no recipe.toml)")
    return ENVIRONMENT


@dataclass(frozen=True)
class Sweep:
    """Run a recipe once for every combination of settings: --rl.lr 1e-4,3e-4 --rl.entropy-coef 0,0.03"""

    recipe: RecipeName
    """Name of a recipe, path of a TOML file, or a folder made by `init`."""
    folder: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder for the runs, with a subfolder for each; runs/NAME-sweep if not given."""
    dry_run: bool = False
    """Print the runs, and run nothing."""
    trust: bool = False
    """Trust the recipe's file to use the code, addresses and keys that it names, now and from now on."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Make the missing artifacts of every run. A run that fails is skipped, and named at the end."""
        refuse_unknown_keys(settings, Run)
        path = find_recipe(self.recipe)
        points = combinations(settings)
        folder = self.folder or Path("runs") / f"{read_recipe(path).name}-sweep"
        points_by_folder = {folder / name_of(point, varied(points)): point for point in points}
        for point in points:
            read_recipe(path, words_of(point))  # so that a mistake in the last one shows before the first one runs
        if self.dry_run:
            console(160).print("\n".join(map(str, points_by_folder)), soft_wrap=True)
            return
        refuse_links(folder)
        require_writable(folder, f"folder {folder}")
        failed = run_all(path, points_by_folder, self.trust)
        finished = [run_folder for run_folder in points_by_folder if (run_folder / "results.json").is_file()]
        if finished:
            from reflectrl.tools.sweeps.compare import compare

            compare(finished, [run_folder.name for run_folder in finished], folder / "sweep.html")
        if failed:
            raise UserError(f"{len(failed)} of {len(points_by_folder)} runs failed: {'; '.join(failed)}")
