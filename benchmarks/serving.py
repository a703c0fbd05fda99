"""Latency and throughput of a served agent, by the number of concurrent requests.

    python -m benchmarks.serving runs/taxi --arm reflect-rl --concurrent 1 8 50

This starts `reflectrl serve` for the run, as a process of its own on loopback, and asks it about states of the run's
evaluation episodes with OpenAI's asynchronous client. Each number of concurrent requests gets its own states. No state
is asked twice, so no answer comes from a cache. The program prints median and 95th percentile of the seconds per
request, and requests per second.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import tyro

from reflectrl.core.config import read_recipe
from reflectrl.core.episodes import read_episodes
from reflectrl.core.types import Observation, UserError

Asked, Answer = TypeVar("Asked"), TypeVar("Answer")
Timed = tuple[float, Answer]
"""Seconds that a request took, and its answer."""


@dataclass(frozen=True)
class Settings:
    """Settings of the measurement."""

    run: tyro.conf.Positional[Path]
    """A finished run."""
    arm: str = ""
    """Arm of the run; if empty, the last trained arm."""
    concurrent: tuple[int, ...] = (1, 8, 50)
    """Numbers of requests at the same time."""
    requests: int = 200
    """Number of requests for each."""
    streaming: bool = False
    """Stream the answers, and measure the time to the first token as well."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """JSON file for the figures."""


def states(run: Path, count: int) -> list[Observation]:
    """Return distinct observations of a run's evaluation episodes, in random order.

    Raises:
        UserError: if the episodes have too few.
    """
    logs = sorted((run / "episodes").glob("eval-*.jsonl"))
    seen = dict.fromkeys(step.observation for log in logs for episode in read_episodes(log) for step in episode.steps)
    if len(seen) < count:
        raise UserError(f"{run} has {len(seen)} distinct states in its evaluation episodes; {count} are needed")
    return [list(seen)[i] for i in np.random.default_rng(0).permutation(len(seen))[:count]]


async def timed(ask: Callable[[Asked], Awaitable[Answer]], requests: Sequence[Asked], most: int) -> list[Timed[Answer]]:
    """Send all requests, `most` at a time. Return the seconds that each took, and its answer, in their order."""
    free = asyncio.Semaphore(most)

    async def timed_request(request: Asked) -> Timed[Answer]:
        async with free:
            start = time.perf_counter()
            answer = await ask(request)
            return time.perf_counter() - start, answer

    return await asyncio.gather(*map(timed_request, requests))


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return median and 95th percentile."""
    return {name: round(float(np.quantile(seconds, share)), 4) for name, share in (("p50", 0.5), ("p95", 0.95))}


async def ask_all(
    url: str, model: str, seen: Sequence[Observation], most: int, streaming: bool
) -> list[Timed[float | None]]:
    """Ask about every state, `most` at a time. Return the seconds that each took in all, and to the first token."""
    import openai

    async def ask(observation: Observation) -> float | None:
        state = {"history": observation.history, "state": observation.state, "actions": list(observation.actions)}
        body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": ""}]}
        start = time.perf_counter()
        answer = await client.chat.completions.create(**body, stream=streaming, extra_body={"reflectrl": state})
        if not streaming:
            return None
        first = time.perf_counter() - start
        async for _ in answer:
            pass
        return first

    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600) as client:
        return await timed(ask, seen, most)


@contextmanager
def served(run: Path, arm: str, concurrent: Sequence[int]) -> Iterator[tuple[str, str, int]]:
    """Serve a run's agent in a process of its own. Yield the model's name, the address of its API, and its process id.

    Raises:
        UserError: the server does not start; it has said why.
    """
    words = ["serve", str(run), "--arm", arm, "--port", "0", "--timeout", "600"]
    words += ["--concurrent", str(max(64, *concurrent))]
    with subprocess.Popen([sys.executable, "-m", "reflectrl", *words], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline().split()
        if not line:
            raise UserError("the server did not start")
        try:
            yield line[1], line[3], server.pid
        finally:
            server.send_signal(signal.SIGINT)


def measured(settings: Settings) -> list[dict[str, float]]:
    """Return a row for each number of concurrent requests."""
    warm = 20
    seen = states(settings.run, warm + settings.requests * len(settings.concurrent))
    rows: list[dict[str, float]] = []
    with served(settings.run, settings.arm, settings.concurrent) as (model, url, _):
        asyncio.run(ask_all(url, model, seen[:warm], 4, settings.streaming))
        for i, most in enumerate(settings.concurrent):
            part = seen[warm + i * settings.requests :][: settings.requests]
            start = time.perf_counter()
            taken = asyncio.run(ask_all(url, model, part, most, settings.streaming))
            seconds = time.perf_counter() - start
            row = {"concurrent": float(most), **quantiles([total for total, _ in taken])}
            if settings.streaming:
                row["first_p50"] = quantiles([first for _, first in taken if first is not None])["p50"]
            rows.append({**row, "per_second": round(len(part) / seconds, 1)})
    return rows


def main(settings: Settings) -> None:
    """Measure, and print a table."""
    rows = measured(settings)
    recipe = read_recipe(settings.run / "recipe.toml")
    print(f"{recipe.name}, {settings.requests} requests each; milliseconds per request")
    for row in rows:
        about = f"{row['concurrent']:3.0f} at once: p50 {1000 * row['p50']:7.1f}  p95 {1000 * row['p95']:7.1f}"
        print(f"{about}  {row['per_second']:7.1f} requests/s")
    if settings.out is not None:
        settings.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        main(tyro.cli(Settings, description=__doc__))
    except UserError as error:
        sys.exit(f"benchmarks.serving: {error}")
