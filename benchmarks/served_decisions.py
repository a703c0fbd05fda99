"""Latency of a served agent as a decision model, and the effect of the order of options.

    python -m benchmarks.served_decisions runs/taxi --arm reflect-rl --concurrent 1 50

This starts `reflectrl serve` for the run, as a process of its own on loopback, and asks it with TypeSafe's asynchronous
client (extra `decisions`). There are three kinds of questions: the agent's own, about states of the run's evaluation
episodes, and questions that it was never trained for, with 20 and with 255 options. No question is asked twice, so no
answer comes from a cache. The program prints median and 95th percentile of the seconds per request, requests per
second, the server's processor time per request (on Linux), and the largest change of a probability when options are
shuffled.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from benchmarks.serving import Timed, quantiles, served, states, timed
from reflectrl.core.config import read_recipe
from reflectrl.core.types import UserError

COUNTS = (20, 255)
"""Numbers of options of the questions that no agent was trained for."""


@dataclass(frozen=True)
class Settings:
    """Settings of the measurement."""

    run: tyro.conf.Positional[Path]
    """A finished run."""
    arm: str = ""
    """Arm of the run; if empty, the last trained arm."""
    concurrent: tuple[int, ...] = (1, 50)
    """Numbers of requests at the same time."""
    requests: int = 200
    """Number of requests for each."""
    shuffles: int = 1000
    """Number of shuffles of the same options, for each kind of question."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """JSON file for the figures."""


Request = tuple[Any, dict[str, None]]
"""A state, and the options of a choice."""


def questions(settings: Settings) -> dict[str, list[Request]]:
    """Return enough different requests of each kind, by name."""
    count = settings.requests * len(settings.concurrent) + 1
    own = [
        ({"history": seen.history, "state": seen.state, "actions": list(seen.actions)}, dict.fromkeys(seen.actions))
        for seen in states(settings.run, count)
    ]
    requests_by_kind: dict[str, list[Request]] = {"its own": own}
    for size in COUNTS:
        options = dict.fromkeys(f"queue {number}" for number in range(size))
        requests_by_kind[f"a stranger's, {size} options"] = [
            (f"Ticket {i}: I was charged twice.", options) for i in range(count)
        ]
    return requests_by_kind


async def ask_all(url: str, asked: Sequence[Request], most: int) -> list[Timed[Mapping[str, float]]]:
    """Ask all questions, `most` at a time. Return the seconds and the probabilities of each."""
    from typesafe_sdk import AsyncTypeSafeClient, Choice

    async def ask(request: Request) -> Mapping[str, float]:
        state, options = request
        answer = await client.system_one(state=state, questions={"q": Choice(criteria=options)})
        return answer.choices["q"].probabilities

    base = url.removesuffix("/v1")
    async with AsyncTypeSafeClient(api_key="none", base_url=base, timeout=600.0) as client:
        return await timed(ask, asked, most)


def largest_change(url: str, request: Request, shuffles: int) -> float:
    """Return the largest difference that shuffling the options makes to a probability."""
    state, options = request
    rng, names = np.random.default_rng(0), list(options)
    orders = [dict.fromkeys(names[i] for i in rng.permutation(len(names))) for _ in range(shuffles)]
    (_, listed), *shuffled = asyncio.run(ask_all(url, [(state, order) for order in (options, *orders)], 8))
    return max(abs(probabilities[name] - listed[name]) for _, probabilities in shuffled for name in names)


def processor_seconds(process: int) -> float:
    """Return the processor time of a process and its threads; nan where the system does not tell."""
    path = Path(f"/proc/{process}/stat")
    if not path.exists():
        return math.nan
    fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(settings: Settings) -> list[dict[str, Any]]:
    """Return a row for each kind of question and number of concurrent requests."""
    rows: list[dict[str, Any]] = []
    requests_by_kind = questions(settings)
    with served(settings.run, settings.arm, settings.concurrent) as (_, url, process):
        for kind, requests in requests_by_kind.items():
            change = largest_change(url, requests[-1], settings.shuffles)
            for i, most in enumerate(settings.concurrent):
                part = requests[i * settings.requests :][: settings.requests]
                start, used = time.perf_counter(), processor_seconds(process)
                taken = asyncio.run(ask_all(url, part, most))
                seconds, used = time.perf_counter() - start, processor_seconds(process) - used
                rows.append({
                    "question": kind, "concurrent": most, **quantiles([seconds for seconds, _ in taken]),
                    "per_second": round(len(part) / seconds, 1), "processor": round(used / len(part), 4),
                    "change": change,
                })  # fmt: skip
    return rows


def main(settings: Settings) -> None:
    """Measure, and print a table."""
    rows = measured(settings)
    recipe = read_recipe(settings.run / "recipe.toml")
    print(f"{recipe.name}, {settings.requests} requests each; milliseconds per request")
    for row in rows:
        about = f"{row['question']:28} {row['concurrent']:3.0f} at once: p50 {1000 * row['p50']:7.1f}"
        about += f"  p95 {1000 * row['p95']:7.1f}  processor {1000 * row['processor']:6.1f}"
        about += f"  {row['per_second']:7.1f} requests/s"
        print(f"{about}  {settings.shuffles} shuffles change {row['change']:.0e}")
    if settings.out is not None:
        settings.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main(tyro.cli(Settings, description=__doc__))
    except UserError as error:
        sys.exit(f"benchmarks.served_decisions: {error}")
