"""Run the newcomer's drill: from the wheel to an agent that wins unseen tasks, by reward alone, on two cores.

    python -m benchmarks.newcomer --seeds 0 1 2
    python -m benchmarks.newcomer --who pantry detective ferry

In an empty folder, with a virtual environment that holds the wheel: `init`, an edit by a program, `check-env`, `run`
with the arms `random` and `rl-only`, and `play` with the trained agent. There are no demonstrations. These are
the newcomers:

- `template`: edits twenty lines of what `init` wrote, for another world;
- `smallest`: replaces it by the smallest hand-written environment, `src/reflectrl/examples/add_up.py`;
- `frozenlake`: replaces it by `FrozenLake-v1` through the adapter, `src/reflectrl/examples/frozen_maps.py`;
- `market`, `bakery`, `castle`: replace it by one of `benchmarks/strangers`, and train with `run --minutes 10`. They run
  only if they are named;
- `ferry`, `detective`, `pantry`, `mailroom`: the same, written by an author who had not seen the learner.

The virtual environment borrows the packages that are installed here, so that nothing is downloaded. With `--fresh` it
is empty at first, and pip installs everything by `constraints.txt`. Wall-clock and CPU seconds are shown separately,
since a machine may do other things too. Further arguments, such as `--threads 1`, go to `reflectrl run`.

The exit code is 1 if a newcomer needs more than 10 commands or more minutes than its limit (10; of strangers 20), or
wins too few tasks.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from reflectrl.core.types import UserError

ROOT = Path(__file__).parents[1]
MOST_COMMANDS = 10
EDITS = {
    "Errands: fetch a parcel from one room": "Post: fetch a letter from one place",
    '("hall", "kitchen", "office", "garden", "cellar", "attic")': '("school", "bank", "shop", "farm", "mill", "port")',
    "ROOMS": "PLACES",
    "errand": "trip",
    "parcel": "letter",
    "rooms": "places",
    "You are in the": "You stand at the",
    'f"in the {room}"': 'f"at the {room}"',
    "self.room": "self.place",
    "def place": "def words",
    "self.place(": "self.words(",
    '"taken"': '"collected"',
    "Outcome(0.3": "Outcome(0.4",
}
"""Replacements that the newcomer `template` makes in the template, in this order."""


def edit_template(text: str) -> str:
    """Write another world into the template, by editing about twenty lines."""
    for old, new in EDITS.items():
        if old not in text:
            raise UserError(f"the template no longer has {old!r}")
        text = text.replace(old, new)
    return text


def replaced_by(path: str) -> Callable[[str], str]:
    """Return an edit that replaces the template by a file of this checkout."""
    return lambda text: (ROOT / path).read_text(encoding="utf-8")


class Newcomer(NamedTuple):
    """A newcomer.

    Attributes:
        project: the project's name.
        edit: makes its environment of the template's text.
        words: further words of `run`.
        least: least success rate to pass.
        minutes: most minutes to pass, from the first command to the last.
    """

    project: str
    edit: Callable[[str], str]
    words: Sequence[str]
    least: float
    minutes: float = 10


LONGER = ("--rl.updates", "400", "--rl.schedule", "linear")
"""Words that the recipe's comments advise if success is still rising (more updates), or falls again (schedule)."""
EXAMPLES = "src/reflectrl/examples"
OWN = {
    "template": Newcomer("letters", edit_template, (), 0.9),
    "smallest": Newcomer("add_up", replaced_by(f"{EXAMPLES}/add_up.py"), (), 0.9),
    "frozenlake": Newcomer("frozen_maps", replaced_by(f"{EXAMPLES}/frozen_maps.py"), LONGER, 0.95),
}
"""Newcomers with an environment that was written for this project."""
STRANGERS = {
    # The best known player wins every test task of these, so nine tenths of what it wins are 0.9.
    name: Newcomer(name, replaced_by(f"benchmarks/strangers/{name}.py"), ("--minutes", "10"), 0.9, minutes=20)
    for name in ("market", "bakery", "castle", "ferry", "detective", "pantry", "mailroom")
}
NEWCOMERS = OWN | STRANGERS


class Drilled(NamedTuple):
    """Result of a drill. `seconds` has wall-clock and CPU seconds by command."""

    who: str
    seed: int
    edited: int
    seconds: dict[str, tuple[float, float]]
    won: float
    low: float
    episodes: int
    chance: float

    @property
    def minutes(self) -> float:
        """Minutes from the first command to the last."""
        return sum(wall for wall, _ in self.seconds.values()) / 60

    @property
    def passed(self) -> bool:
        """Return whether the newcomer needed few enough commands and minutes, and won enough."""
        newcomer = NEWCOMERS[self.who]
        modest = len(self.seconds) <= MOST_COMMANDS and self.minutes <= newcomer.minutes
        return modest and self.won >= newcomer.least


def drill(who: str, seed: int, wheel: Path, folder: Path, fresh: bool = False, words: Sequence[str] = ()) -> Drilled:
    """Do what a newcomer does, in an empty folder.

    Args:
        words: further words of `run`, after the newcomer's own.

    Raises:
        UserError: if a command failed; the message has the end of its output.
    """
    newcomer = NEWCOMERS[who]
    project = newcomer.project
    seconds: dict[str, tuple[float, float]] = {}

    def do(name: str, *command: str) -> None:
        seconds[name] = timed(command, folder)

    do("venv", sys.executable, "-m", "venv", "venv")
    if not fresh:
        borrow(folder / "venv")
    means = ("--constraint", str(ROOT / "constraints.txt")) if fresh else ("--no-deps", "--no-index")
    do("pip install", "venv/bin/python", "-m", "pip", "install", "--quiet", *means, str(wheel))
    reflectrl = str(folder / "venv/bin/reflectrl")
    do("init", reflectrl, "init", project)
    edited = rewrite(folder / project / "__init__.py", newcomer.edit)
    do("check-env", reflectrl, "check-env", project)
    do("run", reflectrl, "run", project, "--arms", "random,rl-only", "--seeds", str(seed), *newcomer.words, *words)
    agent = ("--player", f"runs/{project}:rl-only", "--split", "test", "--seed", str(seed))
    do("play", reflectrl, "play", project, *agent)
    rows = json.loads((folder / "runs" / project / "results.json").read_text(encoding="utf-8"))["rows"]
    by_arm = {row["arm"]: row for row in rows if row["split"] == "test"}
    agent_row, chance = by_arm["rl-only"], by_arm["random"]["success"]
    return Drilled(who, seed, edited, seconds, agent_row["success"], agent_row["low"], agent_row["episodes"], chance)


def timed(command: Sequence[str], folder: Path) -> tuple[float, float]:
    """Run a command in a folder. Return its wall-clock and CPU seconds.

    Raises:
        UserError: if it failed.
    """
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "OMP_NUM_THREADS")
    env = {key: value for key, value in os.environ.items() if key not in hidden}
    env |= {"HF_HUB_OFFLINE": "1", "XDG_CONFIG_HOME": str(folder / "settings")}
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise UserError(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    return time.monotonic() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def borrow(venv: Path) -> None:
    """Let a virtual environment see the packages of this program's environment, after its own."""
    [site] = venv.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n", encoding="utf-8")


def rewrite(path: Path, edit: Callable[[str], str]) -> int:
    """Edit a file. Return the number of new lines."""
    before = path.read_text(encoding="utf-8")
    after = edit(before)
    path.write_text(after, encoding="utf-8")
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return sum(line.startswith("+ ") for line in lines)


def build(folder: Path) -> Path:
    """Build the wheel of this checkout.

    Raises:
        UserError: if it cannot be built.
    """
    words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    done = subprocess.run(words, text=True, capture_output=True, check=False)
    if done.returncode:
        raise UserError(f"the wheel cannot be built: {done.stderr.strip()[-500:]}")
    return next(folder.glob("reflectrl-*.whl"))


def line(drill: Drilled) -> str:
    """Format a row of the table."""
    wall, cpu = (sum(pair[i] for pair in drill.seconds.values()) for i in (0, 1))
    run = drill.seconds["run"]
    return (
        f"{drill.who:11} {drill.seed:4} {len(drill.seconds):9} {drill.edited:6} {wall:7.0f} {cpu:7.0f} {run[0]:7.0f}"
        f" {run[1]:7.0f} {drill.chance:7.1%} {drill.won:7.1%} {drill.low:7.1%} {drill.episodes:9}"
        f"  {'yes' if drill.passed else 'NO'}"
    )


HEAD = "newcomer    seed  commands  lines  wall_s   cpu_s   run_s run_cpu  chance     won    from  episodes  passed"


def main(words: Sequence[str]) -> int:
    """Drill the newcomers given on the command line, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--who", nargs="+", choices=NEWCOMERS, default=list(OWN))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--wheel", type=Path, help="built from this checkout if not given")
    parser.add_argument("--fresh", action="store_true", help="install everything anew (downloads)")
    args, run_words = parser.parse_known_args(words)
    print(HEAD)
    drilled = []
    with tempfile.TemporaryDirectory() as name:
        workspace = Path(name).resolve()
        wheel = args.wheel.resolve() if args.wheel else build(workspace)
        for who in args.who:
            for seed in args.seeds:
                folder = workspace / f"{who}-{seed}"
                folder.mkdir()
                try:
                    drilled.append(drill(who, seed, wheel, folder, args.fresh, run_words))
                except UserError as error:
                    print(f"{who} {seed}: {error}", file=sys.stderr)
                    return 2
                print(line(drilled[-1]), flush=True)
                shutil.rmtree(folder)
    return int(not all(outcome.passed for outcome in drilled))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
