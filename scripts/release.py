#!/usr/bin/env python3
"""Export trained agents of finished runs as release files: an archive each, with a model card, and one list of digests.

    python scripts/release.py OUT --licence apache-2.0 runs/taxi-maps:reflect-rl:0 runs/alfworld:sft:0

Each agent is named by its run's folder, arm and seed. It is exported as by `reflectrl export-agent`, into
OUT/RUN-ARM-seedN.tar.gz. The same runs give the same bytes (with the same version of zlib). OUT/SHA256SUMS has the
digests of the archives, for `sha256sum -c`. Exits with 2 and one line if a run is not finished, before any file is
written.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import transformers

from reflectrl.core.config import read_recipe
from reflectrl.core.config.folders import require_writable, writing
from reflectrl.core.digests import digest_of
from reflectrl.core.terminal import printable_line
from reflectrl.core.types import UserError
from reflectrl.learn.checkpoint import write_text
from reflectrl.tools.exporting.agents import export_agent
from reflectrl.tools.exporting.archive import ENDING, SUMS, sums_of, write_archive


class Trained(NamedTuple):
    """Trained agent of a run."""

    run: Path
    arm: str
    seed: int

    @property
    def name(self) -> str:
        """Name of its release file, without the ending."""
        return f"{self.run.resolve().name}-{self.arm}-seed{self.seed}"


def read_agent(word: str) -> Trained:
    """Parse RUN:ARM:SEED; raise UserError if a word is nothing of the kind."""
    run, arm, seed = ["", "", *word.rsplit(":", 2)][-3:]
    if not (run and arm and seed.isdecimal()):
        raise UserError(f"{word!r} is not an agent: expected RUN:ARM:SEED, such as runs/taxi:reflect-rl:0")
    return Trained(Path(run), arm, int(seed))


def require_finished(agent: Trained) -> None:
    """Raise UserError unless the run has results of all its arms and seeds, the agent's among them."""
    recipe_path = agent.run / "recipe.toml"
    if not recipe_path.is_file():
        raise UserError(f"{agent.run} is not a run folder (it has no recipe.toml)")
    recipe = read_recipe(recipe_path)
    try:
        rows = json.loads((agent.run / "results.json").read_text(encoding="utf-8"))["rows"]
        evaluated = {(row["arm"], row["seed"]) for row in rows}
    except (OSError, ValueError, TypeError, KeyError):
        evaluated = set()
    wanted = [(arm, seed) for arm in recipe.arms for seed in recipe.seeds]
    if (agent.arm, agent.seed) not in wanted:
        raise UserError(f"{agent.run} has no arm {agent.arm!r} with seed {agent.seed}")
    for arm, seed in wanted:
        if (arm, seed) not in evaluated:
            raise UserError(f"{agent.run} is not finished: it has no results of {arm!r}, seed {seed}; continue the run")


def release(agents: Sequence[Trained], out: Path, licence: str, half: bool = False, merge: bool = False) -> list[Path]:
    """Write the release files of agents into a folder, and the list of their digests.

    Args:
        licence: licence under which the agents are released, for the model cards.
        half: store weights in 16 bits.
        merge: add adapters to their backbone's weights.

    Returns:
        The archives.

    Raises:
        UserError: a run is not finished, an agent cannot be exported, or a file cannot be written.
    """
    names = [agent.name for agent in agents]
    for agent in agents:
        require_finished(agent)
        if names.count(agent.name) > 1:
            raise UserError(f"two agents would be called {agent.name}; name their run folders differently")
    require_writable(out, f"release files cannot be written to {out}")
    archives = []
    for agent in agents:
        archives.append(out / f"{agent.name}{ENDING}")
        with tempfile.TemporaryDirectory(prefix=".release-", dir=out) as beside:
            folder = Path(beside) / agent.name
            export_agent(agent.run, agent.arm, agent.seed, folder, half=half, merge=merge, licence=licence)
            write_archive(archives[-1], agent.name, contents(folder))
    with writing(out / SUMS):
        write_text(out / SUMS, sums_of({path.name: digest_of(path) for path in archives}))
    return archives


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of each file of a folder, sorted by path."""
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    for name in sorted(paths):
        yield name, paths[name].read_bytes()


def main(words: Sequence[str]) -> int:
    """Run the script; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the release files")
    parser.add_argument("agents", nargs="+", metavar="RUN:ARM:SEED", help="agents to release")
    parser.add_argument("--licence", required=True, metavar="ID", help="licence of the agents, such as apache-2.0")
    parser.add_argument("--half", action="store_true", help="store the weights in 16 bits")
    parser.add_argument("--merge", action="store_true", help="add adapters to their backbone's weights")
    options = parser.parse_args(words)
    transformers.utils.logging.disable_progress_bar()
    try:
        agents = [read_agent(word) for word in options.agents]
        archives = release(agents, options.out, options.licence, options.half, options.merge)
    except UserError as error:
        print(f"release: {printable_line(str(error))}", file=sys.stderr)
        return 2
    for path in archives:
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB, {digest_of(path)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
