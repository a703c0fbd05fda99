"""Play the bench of strangers: each by the default recipe of `reflectrl init`, by reward alone or from demonstrations.

    python -m benchmarks.strangers.bench --minutes 10 --seeds 0 1 2
    python -m benchmarks.strangers.bench --shown 20 --names fusebox doorkey
    python -m benchmarks.strangers.bench --names fusebox --model.mixed-precision off
    python -m benchmarks.strangers.bench --names long_corridor --rl.updates 30 --rl.eval-every 5 --alarms.never-won 1000

Each stranger becomes a project, as a user would have it, and the command line trains in it. A line of JSON per stranger
and seed goes to `--out`, with the success on test tasks, processor seconds, the words that the run said at its end, and
the commit. Lines that are there already are not made again, so an interrupted bench goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.strangers import STRANGERS, make, module_of
from reflectrl import RecordEpisodes
from reflectrl.learn.validation import evenly
from reflectrl.runs.results import commit
from reflectrl.tools.workbench.init import template_files


def write_project(name: str, folder: Path) -> Path:
    """Write a stranger as a project below `folder`, with the recipe of `init`. Return the project's folder."""
    project = folder / name
    project.mkdir(parents=True, exist_ok=True)
    source = Path(module_of(name).__file__).read_text(encoding="utf-8")
    (project / "__init__.py").write_text(source, encoding="utf-8")
    (project / "recipe.toml").write_text(template_files(name)["recipe.toml"], encoding="utf-8")
    return project


def record(name: str, path: Path, count: int) -> None:
    """Record `count` won training episodes of the best known player, unless the file is there."""
    if path.is_file():
        return
    env, best = make(name), module_of(name).best
    unfinished = path.with_suffix(".part")
    unfinished.unlink(missing_ok=True)
    played = RecordEpisodes(make(name), unfinished, player="expert")
    won = 0
    for seed, task in enumerate(evenly(env.tasks("train"), 4 * count)):
        _, info = env.reset(seed=seed, options={"task": task})
        actions = []
        while not env.done:
            actions.append(best(env))
            _, _, _, _, info = env.step(info["actions"].index(actions[-1]))
        if env.success:
            _, seen = played.reset(seed=seed, options={"task": task})
            for action in actions:
                _, _, _, _, seen = played.step(seen["actions"].index(action))
            won += 1
        if won == count:
            break
    played.close()
    unfinished.rename(path)


def play_best(name: str, split: str = "test") -> float:
    """Return the success of the best known player on the tasks of a split."""
    env, best, won = make(name), module_of(name).best, 0
    tasks = env.tasks(split)
    for seed, task in enumerate(tasks):
        _, info = env.reset(seed=seed, options={"task": task})
        while not env.done:
            _, _, _, _, info = env.step(info["actions"].index(best(env)))
        won += env.success
    return won / len(tasks)


def train(name: str, seed: int, folder: Path, shown: int, words: Sequence[str]) -> dict[str, Any]:
    """Train in a stranger by the command line. Return a line of the table."""
    write_project(name, folder)
    command = [sys.executable, "-m", "reflectrl", "run", name, "--seeds", str(seed), "--threads", "1"]
    command += ["--folder", f"runs/{name}-{'shown' if shown else 'alone'}-{seed}", *words]
    if shown:
        record(name, folder / f"{name}.jsonl", shown)
        command += ["--teach.by", "log", "--teach.log", f"{name}.jsonl"]
        command += ["--arms", "random,sft-no-reflection,no-reflection"]
    else:
        command += ["--arms", "random,rl-only"]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    line: dict[str, Any] = {"name": name, "seed": seed, "shown": shown, "words": list(words), "commit": commit()}
    line |= {"cpu_seconds": round(spent, 1), "seconds": round(time.perf_counter() - began, 1), "rc": done.returncode}
    line["said"] = [
        text for text in (done.stderr + done.stdout).splitlines() if "coach" in text or "reflectrl:" in text
    ]
    results = folder / command[command.index("--folder") + 1] / "results.json"
    if results.is_file():
        rows = json.loads(results.read_text(encoding="utf-8"))["summary"]
        rows = [
            row for row in rows if row["split"] == "test" and row["sampling"] == "greedy" and row["stage"] == "full"
        ]
        line["success"] = {row["arm"]: round(row["success"], 4) for row in rows}
    return line


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Return the table of the bench: a row per stranger, with means over seeds."""
    rows = ["| stranger | kind | best known | arm | success by seed | processor seconds |", "|---|---|---|---|---|---|"]
    for name in dict.fromkeys(line["name"] for line in lines):
        own = [line for line in lines if line["name"] == name]
        for arm in dict.fromkeys(arm for line in own for arm in line.get("success", {})):
            values = ", ".join(f"{100 * line['success'][arm]:.1f}" for line in own if arm in line.get("success", {}))
            seconds = ", ".join(f"{line['cpu_seconds']:.0f}" for line in own)
            best = f"{100 * own[0]['best']:.0f} %"
            rows.append(f"| {name} | {STRANGERS[name].kind} | {best} | {arm} | {values} | {seconds} |")
    return "\n".join(rows)


def main() -> None:
    """Train in the strangers that were asked for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    developed = [name for name, stranger in STRANGERS.items() if not (stranger.held_out or stranger.looks_up)]
    parser.add_argument("--names", nargs="+", default=developed, choices=STRANGERS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--minutes", type=float, default=0.0, help="budget of `run`; 0 takes the recipe's updates")
    parser.add_argument("--shown", type=int, default=0, help="number of recorded demonstrations")
    parser.add_argument("--folder", type=Path, default=Path("runs/strangers"))
    parser.add_argument("--out", type=Path, default=None)
    args, words = parser.parse_known_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if args.minutes:
        words += ["--minutes", f"{args.minutes:g}"]
    args.folder.mkdir(parents=True, exist_ok=True)
    out = args.out or args.folder / "lines.jsonl"
    lines = [json.loads(text) for text in out.read_text(encoding="utf-8").splitlines()] if out.is_file() else []
    for seed in args.seeds:
        for name in args.names:
            key = name, seed, args.shown, words
            if any((line["name"], line["seed"], line["shown"], line["words"]) == key for line in lines):
                continue
            lines.append({**train(name, seed, args.folder, args.shown, words), "best": round(play_best(name), 4)})
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(lines[-1]) + "\n")
            print(json.dumps(lines[-1]), flush=True)
    print(table(lines))


if __name__ == "__main__":
    main()
