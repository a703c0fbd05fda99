"""Certify environments with a planted fault, and sound ones, and count wrong verdicts.

    python -m benchmarks.certified
    python -m benchmarks.certified --only planted
    python -m benchmarks.certified --names benchmarks.planted:NoKey taxi --minutes 2

The verdict on an environment with a planted fault is right if it names this fault; on a sound one, if it names none. A
line of JSON per environment goes to `--out`; environments that have a line there already are skipped. The exit code is
1 if more than two verdicts are wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.planted import FAULTS, SOUND
from benchmarks.strangers import STRANGERS
from reflectrl.runs.results import commit

MOST_WRONG = 2
PACKAGED = (
    "taxi", "frozenlake", "babyai", "planning", "planning-walk", "portals",
    "reflectrl.examples.add_up:AddUp", "reflectrl.examples.blackjack:BlackjackEnv",
    "reflectrl.examples.frozen_maps:FrozenMaps", "reflectrl.examples.guess_number:GuessEnv",
    "reflectrl.examples.key_door:KeyDoorEnv", "reflectrl.examples.say_back:SayBack",
)  # fmt: skip
"""Environments of the package without data of their own."""


FORGETFUL = {"reflectrl.examples.lights:LightsEnv": "text"}
"""Example that hides by intention what was shown before, for a reflector that keeps notes."""


def expected() -> dict[str, str]:
    """Return the environments: import path or name → the fault that has to be named, "" for none."""
    planted = {f"{kind.__module__}:{kind.__name__}": fault for kind, fault in FAULTS.items()}
    strangers = {f"benchmarks.strangers.{name}:{stranger.class_name}": "" for name, stranger in STRANGERS.items()}
    own = {f"{kind.__module__}:{kind.__name__}": "" for kind in SOUND}
    return planted | FORGETFUL | dict.fromkeys(PACKAGED, "") | strangers | own


def certify(name: str, minutes: float) -> dict[str, Any]:
    """Certify an environment by the command line. Return the certificate with the processor seconds it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.json"
        command = [sys.executable, "-m", "reflectrl", "certify", name, "-o", str(path), "--minutes", f"{minutes:g}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        report = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"said": done.stderr[-300:]}
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return report | {"rc": done.returncode, "cpu_seconds": round(spent, 1)}


def is_right(line: dict[str, Any]) -> bool:
    """Return whether a verdict is right: a planted fault is named, a sound environment has none."""
    if line["expected"]:
        return bool(line["rc"] == 1 and line["expected"] in line["faults"])
    return bool(line["rc"] == 0)


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Return the table of verdicts."""
    rows = ["| environment | planted | named | reason | processor seconds |", "|---|---|---|---|---|"]
    for line in lines:
        reason = next(
            (check["words"] for check in line.get("checks", ()) if check["state"] == "fault"), line.get("said", "")
        )
        named = ", ".join(line.get("faults", ())) or "–"
        mark = "" if is_right(line) else " **wrong**"
        name = line["env"].rpartition(":")[2]
        rows.append(f"| {name} | {line['expected'] or '–'} | {named}{mark} | {reason} | {line['cpu_seconds']:.0f} |")
    return "\n".join(rows)


def main() -> int:
    """Certify what was asked for, and print the table. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", default=None)
    parser.add_argument("--only", choices=("planted", "sound"), default=None)
    parser.add_argument("--minutes", type=float, default=0.0, help="time of the training; 0 leaves it out")
    parser.add_argument("--out", type=Path, default=Path("runs/certified.jsonl"))
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    wanted = expected()
    if args.only:
        wanted = {name: fault for name, fault in wanted.items() if bool(fault) == (args.only == "planted")}
    names = args.names or list(wanted)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    lines = (
        [json.loads(text) for text in args.out.read_text(encoding="utf-8").splitlines()] if args.out.is_file() else []
    )
    verdicts = {line["env"]: line for line in lines}
    for name in names:
        if name not in verdicts:
            verdicts[name] = {"env": name, "expected": expected().get(name, ""), **certify(name, args.minutes)}
            verdicts[name]["commit"] = commit()
            with args.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(verdicts[name]) + "\n")
        line = verdicts[name]
        print(f"{'right' if is_right(line) else 'WRONG'}  {name}: {line.get('faults', line.get('said'))}", flush=True)
    wrong = [name for name in names if not is_right(verdicts[name])]
    print(table([verdicts[name] for name in names]))
    print(f"\n{len(names) - len(wrong)} of {len(names)} verdicts are right; wrong: {', '.join(wrong) or 'none'}")
    return int(len(wrong) > MOST_WRONG)


if __name__ == "__main__":
    raise SystemExit(main())
