"""Tables of the ALFWorld panel from its run folder: success by set and dialect, over all games, and processor hours.

    python -m benchmarks.alfworld_panel runs/alfworld-panel

The last column of the first table is the micro-average: wins over episodes, of all sets and dialects. Its interval
counts a game once, since its two dialects are not independent. The second table adds up the processor seconds that the
run noted for everything it made. What was killed and continued is noted for its last sitting only.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reflectrl.core.evaluation import summarise
from reflectrl.core.types import UserError

Row = Mapping[str, Any]


def merged(rows: Sequence[Row]) -> dict[str, Any]:
    """Pool the rows of an arm and seed over all splits. A game counts once, whatever dialects it was played in."""
    episodes = sum(row["episodes"] for row in rows)
    games: dict[str, int] = {}
    for row in rows:
        official = row["split"].partition("-")[0]  # without the dialect
        games[official] = max(games.get(official, 0), row.get("tasks") or row["episodes"])
    wins = sum(row["success"] * row["episodes"] for row in rows)
    return {**rows[0], "split": "all", "episodes": episodes, "tasks": sum(games.values()), "success": wins / episodes}


def success_table(results: Mapping[str, Any]) -> str:
    """Format success by arm and split, with the micro-average over all splits, as a Markdown table."""
    last_stage = results["rows"][-1]["stage"]
    rows = [row for row in results["rows"] if row["stage"] == last_stage]
    by_player: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        by_player.setdefault((row["arm"], row["sampling"], row["seed"]), []).append(row)
    pooled = summarise([*rows, *map(merged, by_player.values())], results["confidence"])
    cells = {(row["arm"], row["sampling"], row["split"]): row for row in pooled}
    splits = list(dict.fromkeys(row["split"] for row in pooled))
    lines = [["arm", "play", "seeds", *splits]]
    for arm, sampling in dict.fromkeys((row["arm"], row["sampling"]) for row in pooled):
        seeds = str(cells[arm, sampling, "all"]["seeds"])
        lines.append([arm, sampling, seeds, *(_cell(cells.get((arm, sampling, split))) for split in splits)])
    return _markdown(lines)


def hours_table(timings: Sequence[Row]) -> str:
    """Format processor hours by part of the run, over all seeds and per seed, as a Markdown table."""
    parts: dict[str, float] = {}
    seeds: dict[str, set[int]] = {}
    for line in timings:
        if not {"stage", "artifact", "cpu_seconds"} <= line.keys():  # lines of single updates and evaluations
            continue
        evaluated = line["stage"] == "eval"
        part = f"play of {line['artifact']}" if evaluated else str(line["stage"])
        parts[part] = parts.get(part, 0.0) + line["cpu_seconds"] / 3600
        seeds.setdefault(part, set()).add(line["seed"])
    lines = [["part", "seeds", "processor hours", "per seed"]]
    for part, hours in parts.items():
        count = len(seeds[part])
        lines.append([part, str(count), f"{hours:.3f}", f"{hours / count:.3f}"])
    most = max(map(len, seeds.values()), default=1)
    total = sum(parts.values())
    lines.append(["all", str(most), f"{total:.3f}", f"{total / most:.3f}"])
    return _markdown(lines)


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{100 * row['success']:.1f} [{100 * row['low']:.0f}, {100 * row['high']:.0f}]"


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    head, *body = (f"| {' | '.join(line)} |\n" for line in lines)
    return f"{head}|{'---|' * len(lines[0])}\n{''.join(body)}"


def main(words: Sequence[str] | None = None) -> int:
    """Print the tables of a run folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run of the recipe alfworld-panel")
    run = parser.parse_args(words).run
    try:
        results = json.loads((run / "results.json").read_text(encoding="utf-8"))
        timings = list(map(json.loads, (run / "timings.jsonl").read_text(encoding="utf-8").splitlines()))
    except (OSError, ValueError) as error:
        raise UserError(f"{run} is not the folder of a finished run: {error}") from error
    print(success_table(results))
    print(hours_table(timings), end="")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"alfworld_panel: {error}")
