"""Check that a run continues to the same end after it is killed, its disk is full, or its files are damaged.

    python -m benchmarks.drills --kills 100 --terms 30 --newest 20 --corruptions 20
    mount -t tmpfs -o size=16m tmpfs /mnt/small
    python -m benchmarks.drills --kills 0 --terms 0 --newest 0 --corruptions 0 --full 20 --small /mnt/small

A small run (taxi: teaching, SFT, online RL with most of its options, an offline arm, evaluation) is made once
undisturbed. Then it is started in fresh folders, ended by SIGKILL or SIGTERM at a random moment, and continued by the
same command. For other runs, a small disk is filled at a random moment until the run has ended. Finally, copies of the
unfinished folders are damaged and continued: either the newest state of a learner (`--newest`: truncated, or one bit
flipped) or any file (`--corruptions`). The end of each run is compared byte by byte with the undisturbed run: results,
episodes, metrics and checkpoints.

These ends are allowed:

- the same end;
- the same end with the damaged file still in it, if the run did not need the file and loading it is refused;
- the same end, or one without some metrics, after a line that says what was damaged;
- one line that says what to do, and exit code 2.

A traceback is a failure, and so is another end without a message. After a kill, after damage to the newest state, and
after a full disk, only the same end is allowed. The exit code is 1 if there was any failure. Times do not matter,
except for the moments of the kills. Needs fork.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.forks import Forks
from reflectrl.core.digests import DIGESTS, damage
from reflectrl.core.episodes import read_episodes
from reflectrl.core.types import UserError
from reflectrl.runs.metrics import NOTED

RECIPE = """
name = "drill"
arms = ["random", "sft", "reflect-rl", "offline-a_lol"]
env = {name = "taxi", train = 6, validation = 3, test = 5}
model = {layers = 1, width = 16, heads = 2, mixed_precision = "off"}
play.reflection_tokens = 8
teach = {negatives = 1, tasks = 5}
sft = {steps = 6, batch_size = 8, eval_every = 1, eval_rows = 8}
rl = {algorithm = "ppo", baseline = "critic", critic_warmup = 1, updates = 6, episodes = 4, update_epochs = 2, \
steps_per_epoch = 2, curriculum = "equal", rehearsal = 0.4, deal = "prompts", draw = "by-success", \
self_imitation = true, count_coef = 0.1, entropy_coef = 0.01, target_kl = 0.02, schedule = "cosine", eval_every = 1, \
eval_episodes = 2, replay_episodes = 2}
offline = {steps = 4, reference_steps = 3, batch_size = 8, eval_every = 1, eval_episodes = 2, log_episodes = 1, \
value_episodes = 1, value_epochs = 1}
eval = {sampling = ["greedy", "sampled"], batch = 3}
"""

SAME, SAID, REFUSED = "the same end", "a line, then an end", "one line, exit 2"
UNREAD = "the same, and never read"
"""Outcome if only the damaged file differs: the run did not need the file, and loading it reports the damage."""
OTHER, TRACEBACK = "ANOTHER END WITHOUT A WORD", "TRACEBACK"
OUTCOMES, BAD = (SAME, SAID, REFUSED, UNREAD, OTHER, TRACEBACK), (OTHER, TRACEBACK)

KINDS: dict[str, tuple[str, ...]] = {
    "learner": ("checkpoints/*/*.learner*/*",),
    "checkpoint": ("checkpoints/*/*/*",),
    "metrics": ("metrics/*", "metrics.jsonl"),
    "episodes": ("episodes/*",),
    "state.json": ("state.json",),
    "recipe.toml": ("recipe.toml",),
}
"""Kinds of files that are damaged. Each kind is drawn equally often, however many files it has."""

DAMAGES: dict[str, Callable[[random.Random, bytes], bytes | None]] = {
    "truncated": lambda rng, data: data[: rng.randrange(len(data) or 1)],
    "a bit flipped": lambda rng, data: flipped(rng, data),
    "garbage": lambda rng, data: rng.randbytes(max(8, len(data))),
    "empty": lambda rng, data: b"",
    "{}": lambda rng, data: b"{}",
    "[]": lambda rng, data: b"[]\n",
    "deleted": lambda rng, data: None,
}


def flipped(rng: random.Random, data: bytes) -> bytes:
    """Return the data with one bit flipped."""
    if not data:
        return data
    offset = rng.randrange(len(data))
    return data[:offset] + bytes([data[offset] ^ 1 << rng.randrange(8)]) + data[offset + 1 :]


FILLER = "filler"
"""Name of the file that fills the disk."""


class Asked(NamedTuple):
    """Numbers of runs, by the way they are disturbed.

    Attributes:
        kills: runs ended by SIGKILL.
        terms: runs ended by SIGTERM.
        full: runs whose disk, `small`, is filled.
        newest: runs in which the newest state of a learner is damaged.
        corruptions: runs in which any file is damaged.
        seed: seed of moments, files and damages.
        small: a folder on a small disk of its own; None if no disk is to be filled.
    """

    kills: int = 40
    terms: int = 10
    full: int = 0
    newest: int = 10
    corruptions: int = 20
    seed: int = 0
    small: Path | None = None


class Drill(NamedTuple):
    """Result of a drill: what was done to the run, the outcome, and what it printed."""

    what: str
    outcome: str
    said: str


Wait = Callable[[Callable[[], bool]], None]
"""Function that returns at the moment to disturb a run, or once the run has ended."""


class Server:
    """Server that runs the recipe in forks of a process with all modules imported.

    Attributes:
        said: the file to which runs print. It must not be on the disk that is filled.
    """

    def __init__(self, said: Path, forks: Forks) -> None:
        self.said = said
        self._forks = forks

    def run(self, folder: Path, wait: Wait | None = None, disturb: Callable[[int], None] | None = None) -> int:
        """Run the recipe in `folder/run`.

        Args:
            wait: returns at the moment to disturb the run. Its argument tells whether the run is still going on.
            disturb: called then with the process id.

        Returns:
            The exit code; -9 if the process was killed.
        """
        words = ["-m", "reflectrl", "eval", "../drill.toml", "--folder", "run"]
        with self.said.open("wb") as output:
            child = self._forks.start(words, folder, stdout=output.fileno(), stderr=output.fileno())
        if wait is not None and disturb is not None:
            wait(lambda: child.poll() is None)
            if child.poll() is None:
                disturb(child.pid)
        return child.wait()


@contextmanager
def serving(said: Path) -> Iterator[Server]:
    """Start a server that ends with the block."""
    with Forks() as forks:
        yield Server(said, forks)


def ending(run: Path) -> dict[str, bytes]:
    """Return the contents of all files of a finished run by name. The commit is removed from the results."""
    contents = {}
    for pattern in ("episodes/*", "metrics/*", "metrics.jsonl", "state.json", "recipe.toml", "checkpoints/**/*"):
        files = [path for path in run.glob(pattern) if path.is_file() and path.name != DIGESTS and path.suffix != NOTED]
        contents |= {str(path.relative_to(run)): path.read_bytes() for path in files}
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    contents["results.json"] = json.dumps({**results, "commit": ""}).encode()
    return contents


def judged(server: Server, folder: Path, what: str, wanted: dict[str, bytes]) -> Drill:
    """Continue a run that was interrupted or damaged, and compare its end with the undisturbed run's."""
    code = server.run(folder)
    output = server.said.read_text(encoding="utf-8", errors="replace")
    lines = [line for line in output.splitlines() if line.startswith("reflectrl: ")]
    about = " | ".join(lines)
    if "Traceback" in output or code not in (0, 2):
        return Drill(what, TRACEBACK, output[-2000:])
    if code == 2:
        return Drill(what, REFUSED if len(lines) == 1 else TRACEBACK, about or output[-2000:])
    contents = ending(folder / "run")
    differing = [name for name in {**wanted, **contents} if wanted.get(name) != contents.get(name)]
    if lines:
        return Drill(what, SAID, about + (f" [differs: {', '.join(differing)}]" if differing else " [the same end]"))
    if len(differing) == 1 and differing[0] == what.partition(" ")[0] and noticed(folder / "run" / differing[0]):
        return Drill(what, UNREAD, "")
    return Drill(what, OTHER if differing else SAME, ", ".join(differing))


def noticed(path: Path) -> bool:
    """Return whether reading this file of a run reports that it is damaged."""
    if path.parent.name != "episodes":
        return damage(path.parent) is not None
    try:
        return not list(read_episodes(path))
    except UserError:
        return True


def kill(child: int) -> None:
    """Kill a process, as the system does when memory is short."""
    os.kill(child, signal.SIGKILL)


def terminate(child: int) -> None:
    """Terminate a process, as clusters do when they preempt a job."""
    os.kill(child, signal.SIGTERM)


def fill(disk: Path, size: int = 1 << 16) -> None:
    """Write a file until its disk is full."""
    with (disk / FILLER).open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(size))


def ended(
    server: Server, folder: Path, rng: random.Random, seconds: float, disturb: Callable[[int], None]
) -> tuple[float, int]:
    """Begin a run in a fresh folder and disturb it at a random moment.

    Returns:
        Seconds until the disturbance, and the exit code.
    """
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        after = rng.uniform(0.02, 1.0) * seconds
        code = server.run(folder, lambda _, after=after: time.sleep(after), disturb)
        (folder.parent / FILLER).unlink(missing_ok=True)
        if code == 0:  # the run was over before: aim earlier the next time
            seconds = after
        elif (folder / "run" / "recipe.toml").is_file():
            return after, code


def complaint(server: Server, code: int, wanted: int) -> str:
    """Describe the end of a disturbed run; "" if it is as wanted: this exit code, and one line unless the code is 0."""
    output = server.said.read_text(encoding="utf-8", errors="replace")
    lines = [line for line in output.splitlines() if line.startswith("reflectrl: ")]
    if code == wanted and len(lines) == (wanted > 0) and "Traceback" not in output:
        return ""
    return f"exit code {code}, said {output[-1000:]!r}"


def newest_state(run: Path) -> Path | None:
    """Return the state that a learner saved last, or None."""
    states = [path for path in run.glob("checkpoints/*/*.learner/*") if path.name == "state.safetensors"]
    return max(states, key=lambda path: path.stat().st_mtime_ns, default=None)


def newest_damaged(run: Path, rng: random.Random) -> str:
    """Truncate the newest state of a learner or flip one bit of it. Return what was done."""
    path = newest_state(run)
    assert path is not None
    how = rng.choice(("truncated", "a bit flipped"))
    data = DAMAGES[how](rng, path.read_bytes())
    path.unlink()
    path.write_bytes(data or b"")
    return f"newest state {path.relative_to(run)} {how}"


def damaged(run: Path, rng: random.Random) -> str:
    """Damage a random file of a run. Return which file, and what was done to it."""
    kinds = {kind: [path for pattern in patterns for path in sorted(run.glob(pattern)) if path.is_file()]
             for kind, patterns in KINDS.items()}  # fmt: skip
    path = rng.choice(kinds[rng.choice([kind for kind, paths in kinds.items() if paths])])
    how = rng.choice(sorted(DAMAGES))
    data = DAMAGES[how](rng, path.read_bytes())
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    return f"{path.relative_to(run)} {how}"


def drills(server: Server, asked: Asked, workspace: Path) -> Iterator[Drill]:
    """Yield each drill as soon as it is done. Folders of failed drills are kept."""
    (workspace / "drill.toml").write_text(RECIPE, encoding="utf-8")
    undisturbed = workspace / "whole"
    undisturbed.mkdir()
    start = time.perf_counter()
    if server.run(undisturbed) != 0:
        raise SystemExit(server.said.read_text(encoding="utf-8"))
    seconds, wanted = time.perf_counter() - start, ending(undisturbed / "run")
    yield from interrupted(server, asked, workspace, seconds, wanted)
    if asked.small is not None:
        yield from crowded(server, asked, seconds, wanted)
    unfinished = sorted(workspace.glob("unfinished-*"))
    learning = [folder for folder in unfinished if newest_state(folder / "run")]
    if asked.newest and not learning:
        learning = [killed_while_learning(server, workspace / "learning", asked.seed)]
    for index in range(asked.newest + asked.corruptions):
        rng = random.Random(f"{asked.seed} corruption {index}")
        folder = workspace / f"corruption-{index}"
        among, harm = (learning, newest_damaged) if index < asked.newest else (unfinished, damaged)
        shutil.copytree(rng.choice(among), folder)
        yield tidied(judged(server, folder, harm(folder / "run", rng), wanted), folder)


def killed_while_learning(server: Server, folder: Path, seed: int) -> Path:
    """Make a run that is killed just after a learner has saved a state. Return its folder.

    Raises:
        SystemExit: if fifty runs were killed without such a state.
    """
    rng = random.Random(f"{seed} while learning")

    def wait(going_on: Callable[[], bool]) -> None:
        learners: set[Path] = set()
        count = rng.randint(1, 4)  # so that not only the first training is disturbed
        while going_on() and len(learners) < count:
            learners.update(path.parent for path in folder.glob("run/checkpoints/*/*.learner/state.safetensors"))
            time.sleep(0.002)

    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        server.run(folder, wait, kill)
        if newest_state(folder / "run"):  # there is none if the training ended meanwhile
            return folder
    raise SystemExit("no run was killed after its first state was saved; raise --kills")


def interrupted(
    server: Server, asked: Asked, workspace: Path, seconds: float, wanted: dict[str, bytes]
) -> Iterator[Drill]:
    """Yield drills with runs ended by a signal at a random moment. Copies of their folders are kept for later."""
    least = 1 if asked.newest or asked.corruptions else 0
    for index in range(max(asked.kills + asked.terms, least)):
        by_term = index >= max(asked.kills, least if not asked.terms else 0)
        rng = random.Random(f"{asked.seed} kill {index}")
        folder = workspace / f"kill-{index}"
        after, code = ended(server, folder, rng, seconds, terminate if by_term else kill)
        what = f"{'terminated' if by_term else 'killed'} after {after:.2f} s"
        why = complaint(server, code, 143) if by_term and code != -signal.SIGTERM else ""  # else: before it was ready
        shutil.copytree(folder, workspace / f"unfinished-{index}")
        yield tidied(Drill(what, TRACEBACK, why) if why else judged(server, folder, what, wanted), folder)


def crowded(server: Server, asked: Asked, seconds: float, wanted: dict[str, bytes]) -> Iterator[Drill]:
    """Yield drills with runs whose disk is filled at a random moment. They continue when there is space again."""
    assert asked.small is not None
    (asked.small / "drill.toml").write_text(RECIPE, encoding="utf-8")
    for index in range(asked.full):
        rng = random.Random(f"{asked.seed} full {index}")
        folder = asked.small / f"full-{index}"
        after, code = ended(server, folder, rng, seconds, lambda child: fill(asked.small))
        what = f"disk full after {after:.2f} s"
        why = complaint(server, code, 2)
        yield tidied(Drill(what, TRACEBACK, why) if why else judged(server, folder, what, wanted), folder)


def tidied(drill: Drill, folder: Path) -> Drill:
    """Remove the folder of a drill that went well, and return the drill."""
    if not is_bad(drill):
        shutil.rmtree(folder)
    return drill


def table(drilled: Sequence[Drill]) -> str:
    """Return a table of outcomes, with a column for each way to disturb runs."""
    kinds = {"killed": "SIGKILL", "terminated": "SIGTERM", "disk": "disk full", "newest": "newest state"}
    groups: dict[str, Counter[str]] = {name: Counter() for name in (*kinds.values(), "damaged files")}
    for drill in drilled:
        groups[kinds.get(drill.what.partition(" ")[0], "damaged files")][drill.outcome] += 1
    text = f"{'':28}" + "".join(f"{name:>16}" for name in groups) + "\n"
    for outcome in OUTCOMES:
        text += f"{outcome:28}" + "".join(f"{counts[outcome]:16}" for counts in groups.values()) + "\n"
    return text


def is_bad(drill: Drill) -> bool:
    """Return whether a drill failed. Except after damage to an arbitrary file, only the same end is allowed."""
    strict = drill.what.startswith(("killed", "terminated", "disk", "newest"))
    return drill.outcome in BAD or (strict and drill.outcome != SAME and "[the same end]" not in drill.said)


def main(words: Sequence[str] | None = None) -> int:
    """Run the drills. Return 1 if any of them failed."""
    parser: Any = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    defaults = Asked()
    parser.add_argument("--kills", type=int, default=defaults.kills, metavar="N", help="runs that are ended by SIGKILL")
    parser.add_argument("--terms", type=int, default=defaults.terms, metavar="N", help="runs that are ended by SIGTERM")
    parser.add_argument("--full", type=int, default=defaults.full, metavar="N", help="runs whose disk is filled")
    parser.add_argument(
        "--newest", type=int, default=defaults.newest, metavar="N", help="newest states that are damaged"
    )
    parser.add_argument(
        "--corruptions", type=int, default=defaults.corruptions, metavar="N", help="files that are damaged"
    )
    parser.add_argument("--seed", type=int, default=0, help="of moments, files and damages")
    parser.add_argument("--small", type=Path, help="a folder on a small disk of its own, needed for --full")
    options = Asked(**vars(parser.parse_args(words)))
    if options.full and options.small is None:
        parser.error("--full needs --small")
    workspace = Path(tempfile.mkdtemp(prefix="drills-"))
    outcomes = []
    with serving(workspace / "said") as server:
        for drill in drills(server, options, workspace):
            outcomes.append(drill)
            print(": ".join(filter(None, drill)), flush=True)
    print(f"\n{table(outcomes)}", end="")
    bad = any(map(is_bad, outcomes))
    if bad:
        print(f"the folders of failed runs are in {workspace}")
    else:
        shutil.rmtree(workspace)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
