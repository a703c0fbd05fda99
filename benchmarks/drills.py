"""Runs that are killed at random moments, and runs whose files are damaged: do they go on to the same end?

    python -m benchmarks.drills --kills 40 --corruptions 20

A small run (taxi: teaching, SFT, online RL, an offline arm, evaluation) is made once without trouble. Then it is begun
in fresh folders, killed at a random moment, and continued by the same command. Then a random file of a copy of such an
unfinished folder is damaged in a random way, and the run is continued. Every end is compared with that of the
undisturbed run byte by byte: results, episodes, metrics and checkpoints.

What may happen: the same end, perhaps with the damaged file in it, which nothing had to read, and which is refused by
whoever does; the same end, or one that lacks metrics, after a line that says what was damaged; or one line that says
what to do, and exit code 2. What may not: a traceback, and another end without a word. Exit code 1 if either did.
Seconds matter to nothing but the moments of the kills. Needs fork.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from reflectrl.digests import DIGESTS, damage
from reflectrl.episodes import read_episodes
from reflectrl.pipeline.metrics import NOTED
from reflectrl.types import UserError

RECIPE = """
name = "drill"
arms = ["random", "sft", "reflect-rl", "offline-a_lol"]
env = {name = "taxi", train = 6, validation = 3, test = 5}
model = {layers = 1, width = 16, heads = 2, mixed_precision = "off"}
play.reflection_tokens = 8
teach = {negatives = 1, tasks = 5}
sft = {steps = 6, batch_size = 8, eval_every = 1, eval_rows = 8}
rl = {updates = 4, episodes = 4, eval_every = 1, eval_episodes = 2, replay_episodes = 2}
offline = {steps = 4, reference_steps = 3, batch_size = 8, eval_every = 1, eval_episodes = 2, log_episodes = 1, \
value_episodes = 1, value_epochs = 1}
eval = {sampling = ["greedy", "sampled"], batch = 3}
"""

SERVER = """
import json, os, sys
import reflectrl.pipeline.runner  # what is slow to import is imported once
from reflectrl.cli import main

for line in sys.stdin:
    folder, words = json.loads(line)
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        log = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1), os.dup2(log, 2)
        try:
            code = main(words)
        except BaseException:
            import traceback
            traceback.print_exc()
            code = 1
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

SAME, SAID, REFUSED = "the same end", "a line, then an end", "one line, exit 2"
UNREAD = "the same, and never read"
"""All but the damaged file is the same: nothing needed it any more, and whoever reads it is told."""
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
"""What is damaged: every kind as often as the others, whatever the number of its files."""

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
    """The data with one bit turned over."""
    if not data:
        return data
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


class Drill(NamedTuple):
    """What was done to a run, and how it ended."""

    what: str
    outcome: str
    said: str


class Server:
    """Carries out commands in forks of a process that has everything imported."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, "-c", SERVER], stdin=pipe, stdout=pipe, text=True)

    def run(self, folder: Path, after: float | None = None) -> int:
        """Run the recipe in `folder/run`, killed `after` so many seconds; returns the exit code (-9: it was killed)."""
        words = ["eval", "../drill.toml", "--folder", "run"]
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(folder), words]) + "\n")
        self._process.stdin.flush()
        child = int(self._process.stdout.readline())
        if after is not None:
            time.sleep(after)
            if Path(f"/proc/{child}").exists():  # the server waits for it before it answers
                os.kill(child, signal.SIGKILL)
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@contextmanager
def serving() -> Iterator[Server]:
    """A server that ends with the block."""
    server = Server()
    try:
        yield server
    finally:
        server.close()


def ending(run: Path) -> dict[str, bytes]:
    """All that a run ends with, by name; results without what says where they were made."""
    found = {}
    for pattern in ("episodes/*", "metrics/*", "metrics.jsonl", "state.json", "recipe.toml", "checkpoints/**/*"):
        files = [path for path in run.glob(pattern) if path.is_file() and path.name != DIGESTS and path.suffix != NOTED]
        found |= {str(path.relative_to(run)): path.read_bytes() for path in files}
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    found["results.json"] = json.dumps({**results, "commit": ""}).encode()
    return found


def judged(server: Server, folder: Path, what: str, wanted: dict[str, bytes]) -> Drill:
    """Continue a run whose process was killed, or whose files were damaged."""
    (folder / "said").unlink(missing_ok=True)
    code = server.run(folder)
    said = (folder / "said").read_text(encoding="utf-8", errors="replace")
    lines = [line for line in said.splitlines() if line.startswith("reflectrl: ")]
    about = " | ".join(lines)
    if "Traceback" in said or code not in (0, 2):
        return Drill(what, TRACEBACK, said[-2000:])
    if code == 2:
        return Drill(what, REFUSED if len(lines) == 1 else TRACEBACK, about or said[-2000:])
    found = ending(folder / "run")
    differing = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    if lines:
        return Drill(what, SAID, about + (f" [differs: {', '.join(differing)}]" if differing else " [the same end]"))
    if len(differing) == 1 and differing[0] == what.partition(" ")[0] and noticed(folder / "run" / differing[0]):
        return Drill(what, UNREAD, "")
    return Drill(what, OTHER if differing else SAME, ", ".join(differing))


def noticed(path: Path) -> bool:
    """Whether whoever reads this file of a run is told that it is damaged."""
    if path.parent.name != "episodes":
        return damage(path.parent) is not None
    try:
        return not list(read_episodes(path))
    except UserError:
        return True


def killed(server: Server, place: Path, rng: random.Random, seconds: float, name: str) -> tuple[Path, float]:
    """A fresh folder in which a run was killed, and after how many seconds."""
    folder = place / name
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        after = rng.uniform(0.02, 1.0) * seconds
        code = server.run(folder, after)
        if code == 0:  # it had ended: the machine is not as busy as it was
            seconds = after
        elif (folder / "run" / "recipe.toml").is_file():
            return folder, after


def damaged(run: Path, rng: random.Random) -> str:
    """Damage a random file of a run; returns what was done to which."""
    kinds = {kind: [path for pattern in patterns for path in sorted(run.glob(pattern)) if path.is_file()]
             for kind, patterns in KINDS.items()}  # fmt: skip
    path = rng.choice(kinds[rng.choice([kind for kind, paths in kinds.items() if paths])])
    how = rng.choice(sorted(DAMAGES))
    data = DAMAGES[how](rng, path.read_bytes())
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    return f"{path.relative_to(run)} {how}"


def drills(kills: int, corruptions: int, seed: int, place: Path) -> Iterator[Drill]:
    """Each drill as soon as it is done; the folders of those that went wrong are kept."""
    (place / "drill.toml").write_text(RECIPE, encoding="utf-8")
    with serving() as server:
        whole = place / "whole"
        whole.mkdir()
        start = time.perf_counter()
        if server.run(whole) != 0:
            raise SystemExit((whole / "said").read_text(encoding="utf-8"))
        seconds, wanted = time.perf_counter() - start, ending(whole / "run")
        for number in range(max(kills, min(corruptions, 1))):
            rng = random.Random(f"{seed} kill {number}")
            folder, after = killed(server, place, rng, seconds, f"kill-{number}")
            shutil.copytree(folder, place / f"unfinished-{number}")
            yield tidied(judged(server, folder, f"killed after {after:.2f} s", wanted), folder)
        unfinished = sorted(place.glob("unfinished-*"))
        for number in range(corruptions):
            rng = random.Random(f"{seed} corruption {number}")
            folder = Path(shutil.copytree(rng.choice(unfinished), place / f"corruption-{number}"))
            yield tidied(judged(server, folder, damaged(folder / "run", rng), wanted), folder)


def tidied(drill: Drill, folder: Path) -> Drill:
    """Remove the folder of a drill that went well."""
    if drill.outcome not in BAD:
        shutil.rmtree(folder)
    return drill


def table(found: Sequence[Drill]) -> str:
    """How often what happened, for kills and for damaged files."""
    groups = {"kills": [one for one in found if one.what.startswith("killed")]}
    groups["damaged files"] = [one for one in found if one not in groups["kills"]]
    text = f"{'':28}" + "".join(f"{name:>16}" for name in groups) + "\n"
    counts = {name: Counter(one.outcome for one in group) for name, group in groups.items()}
    for outcome in OUTCOMES:
        text += f"{outcome:28}" + "".join(f"{counts[name][outcome]:16}" for name in groups) + "\n"
    return text


def main(words: Sequence[str] | None = None) -> int:
    """Run the drills; 1 if there was a traceback, or another end without a word."""
    parser: Any = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=40, metavar="N", help="how many runs are killed")
    parser.add_argument("--corruptions", type=int, default=20, metavar="N", help="how many runs have a file damaged")
    parser.add_argument("--seed", type=int, default=0, help="of moments, files and damages")
    asked = parser.parse_args(words)
    place = Path(tempfile.mkdtemp(prefix="drills-"))
    found = []
    for drill in drills(asked.kills, asked.corruptions, asked.seed, place):
        found.append(drill)
        print(": ".join(filter(None, drill)), flush=True)
    print(f"\n{table(found)}", end="")
    bad = any(drill.outcome in BAD for drill in found)
    if bad:
        print(f"the folders of those that went wrong are in {place}")
    else:
        shutil.rmtree(place)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
