"""Run all GPU checks with one command: tests, speed and memory beside Hugging Face, and whole recipes.

    python -m benchmarks.gpu results/ --minutes 8           # on a machine with a GPU; no network is needed
    python -m benchmarks.gpu results/ --rehearse            # the same parts, tiny, on a CPU: run by the tests

Every part is a command in a process of its own with a time limit, so a failure ends only that part. Tests, recipes and
measurements of memory run side by side; timed parts have the machine to themselves. Rows are appended to
`results/gpu.jsonl` as they come, and a part's whole output is in `results/NAME.log`. A part that would begin after the
time is over is skipped and reported. `scripts/gpu_day.sh` prepares what such a machine may lack.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from reflectrl.runs.results import commit

from .forks import Fork, Forks
from .measure import gemm_rate, report

ROOT = Path(__file__).parents[1]

TESTS = (
    "tests/models/test_families.py", "tests/models/test_batched.py", "tests/models/test_backends.py",
    "tests/models/test_reading.py", "tests/models/test_speculative.py", "tests/models/test_text_scoring.py",
    "tests/models/test_plain.py", "tests/models/test_load.py", "tests/models/test_checkpointing.py",
    "tests/models/test_freezing.py", "tests/models/test_graphs.py", "tests/learn/test_packed_update.py",
    "tests/runs/test_kills.py",
)  # fmt: skip
"""Tests of families, packed gradients, generation, SFT and RL steps, 16 bits, and killed and continued runs."""

REHEARSED_TESTS = ("tests/test_json_lines.py::test_a_damaged_line_is_refused_by_its_number_or_skipped",)
"""A test that imports little: a rehearsal shows that tests are started and counted, and the suite runs the others."""

TESTED, MADE = "tests", "models"
"""The chain of tests, which need none of the models that another chain makes, and that chain."""

PATIENCE = 10
"""Factor by which parts of a rehearsal may take longer than on a GPU, since other tests run beside it."""


@dataclass(frozen=True)
class Settings:
    """Settings of the measurements."""

    out: Annotated[Path, tyro.conf.Positional]
    """Folder for results. Rows are appended to its `gpu.jsonl`."""
    minutes: float = 8.0
    """Time for everything, in minutes. Parts that would begin later are skipped."""
    device: str = "cuda"
    """Device of the models."""
    rehearse: bool = False
    """Run every part with tiny models on the CPU: a check of this program, not a measurement."""
    only: tuple[str, ...] = ()
    """Beginnings of the names of parts to run; all parts if none is given."""
    models: str = ""
    """Folder with the models of `benchmarks.shapes`; they are made if it is not given."""
    workers: int = 12
    """Number of processes that share the tests."""
    batches: tuple[int, ...] = (16, 64, 256)
    """Numbers of episodes at a time in play, of steps per pass in an update, and of rows per step in SFT."""
    repetitions: int = 2
    """Interleaved repetitions of each measurement; medians are shown."""


@dataclass(frozen=True)
class Part:
    """A command whose rows are collected.

    Attributes:
        words: arguments of the interpreter.
        seconds: time limit.
        variables: changes to the process's environment variables.
        chain: parts of a chain run one after another, and beside the parts of other chains. The parts without one run
            after all chains, alone.
    """

    name: str
    words: Sequence[str]
    seconds: float
    variables: Mapping[str, str] = field(default_factory=dict)
    chain: str = ""


@dataclass(frozen=True)
class Shape:
    """Model to measure, with the precision and training that are usual at its size."""

    name: str
    options: tuple[str, ...]


SHAPES = (
    Shape("smollm2-135m", ("--dtype", "bfloat16")),
    Shape("llama-1.5b", ("--dtype", "bfloat16", "--lora-rank", "64")),
    Shape("4x256", ("--dtype", "bfloat16")),
)
"""Models to measure. Weights are in bfloat16 on both sides, so that both are compared with the same GEMM rate."""


TINY = Shape("tiny", ("--dtype", "bfloat16", "--lora-rank", "2"))
"""Model of a rehearsal. With weights in bfloat16, SFT has one row and not one for each precision."""


def parts(settings: Settings, models: Path) -> Iterator[Part]:
    """Yield all parts in order. Tests come first, since they show whether anything works."""
    tiny, device = settings.rehearse, "cpu" if settings.rehearse else settings.device
    shapes = (TINY,) if tiny else SHAPES
    batches = (3,) if tiny else settings.batches
    tests = REHEARSED_TESTS if tiny else TESTS
    junit = settings.out / "tests.xml"
    workers = () if tiny else ("-n", str(settings.workers), "--dist", "worksteal")
    pytest = (
        "-m",
        "pytest",
        *tests,
        "-v",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:benchmark",
        *workers,
        f"--junitxml={junit}",
    )
    variables = {"REFLECTRL_DEVICE": device, "CUDA_VISIBLE_DEVICES": "" if tiny else "0"}
    yield Part("tests", pytest, 200, variables, TESTED)

    arguments = ("--names", *(shape.name for shape in shapes), "--device", device)
    if not settings.models:
        yield Part("models", ("-m", "benchmarks.shapes", str(models), *arguments), 90, chain=MADE)

    common = ("--device", device, "--workloads", "taxi", "--shares", "0.5", "--heavy", "1e18", "--operations", "off")
    repetitions = ("--repetitions", "1" if tiny else str(settings.repetitions))
    for program, seconds in (("play", 45), ("update", 30), ("sft", 30)):
        for shape in shapes:
            cells = ("--batches", *map(str, batches), "--model", str(models / shape.name), *shape.options)
            words = ("-m", "benchmarks.side_by_side", "--programs", program, *common, *repetitions, *cells)
            yield Part(f"{program} {shape.name}", words, seconds)
    # What recorded passes and compiled layers are worth, and what costs most.
    small, few = shapes[0], ("--batches", *map(str, batches[:2]))
    again = ("--model", str(models / small.name), *small.options, *common, *repetitions, *few)
    start = ("-m", "benchmarks.side_by_side", "--programs")
    learning = ("update",) if tiny else ("update", "sft")  # a rehearsal would mostly compile
    yield Part(f"update {small.name} compiled", (*start, *learning, *again, "--compile"), 60)
    yield Part(f"play {small.name} unrecorded", (*start, "play", *again, "--graphs", "off"), 40)
    yield Part(f"profile {small.name}", (*start, "profile", *again), 40)
    yield from _memory(tiny, device, models)
    yield from _recipes(tiny, device, models)


def _memory(tiny: bool, device: str, models: Path) -> Iterator[Part]:
    """Yield the parts that measure peak memory beside the estimate, for the pretrained shapes."""
    shape = ("--context", "128", "--batch", "2") if tiny else ("--context", "512", "--batch", "16")
    for name in ("tiny",) if tiny else ("smollm2-135m", "llama-1.5b"):
        words = ("-m", "benchmarks.fitting", "--model", str(models / name), "--no-gpt2", "--device", device, *shape)
        extra = ("--trainings", "LoRA", "--dtypes", "bfloat16") if name != "smollm2-135m" else ()
        yield Part(f"memory {name}", (*words, *extra), 60, chain="memory")


def _recipes(tiny: bool, device: str, models: Path) -> Iterator[Part]:
    """Yield two shortened recipes as commands: `taxi-smollm`, and `alfworld-hub` with generated games."""
    run = ("-m", "reflectrl", "run")
    home = models.parent / "runs"
    cache = {"REFLECTRL_DATA": str(home / "data")}
    on = ("--model.device", device, "--processes", "1", "--seeds", "0")
    few = "2" if tiny else "60"
    source = ("--model.source", str(models / ("tiny" if tiny else "smollm2-135m")))
    short = (
        "--arms", "sft,reflect-rl", "--sft.steps", few, "--sft.eval-every", few, "--sft.eval-rows", "8",
        "--rl.updates", "2", "--rl.eval-every", "2", "--rl.eval-episodes", "4", "--eval.episodes", "4",
        *(("--rl.episodes", "2", "--model.frozen-layers", "1", "--env.horizon", "4", "--teach.tasks", "2") if tiny
          else ()),
    )  # fmt: skip
    taxi = (*run, "taxi-smollm", "--folder", str(home / "taxi"), *source, *on, *short)
    yield Part("run taxi-smollm", taxi, 120, cache, "taxi")

    games = ("-m", "reflectrl", "data", "alfworld", "--generate", "10" if tiny else "40")
    yield Part("games", games, 60, cache, "alfworld")
    source = ("--model.source", str(models / ("tiny" if tiny else "llama-1.5b")))
    few = "2"
    short = (
        "--arms", "reflect-rl", "--sft.steps", few, "--sft.policy-steps", few, "--sft.eval-every", few,
        "--sft.eval-rows", "8", "--sft.batch-size", "4" if tiny else "16", "--rl.updates", "1", "--rl.eval-every", "1",
        "--rl.eval-episodes", "2", "--rl.episodes", "2" if tiny else "8", "--rl.group", "2" if tiny else "4",
        "--rl.curriculum", "none", "--env.horizon", "3" if tiny else "5", "--teach.tasks", "4" if tiny else "16",
        "--eval.episodes", "2", "--play.reflection-tokens", "8" if tiny else "64",
        *(("--model.lora-rank", "2") if tiny else ()),
    )  # fmt: skip
    alfworld = (*run, "alfworld-hub", "--folder", str(home / "alf"), *source, *on, *short)
    yield Part("run alfworld-hub", alfworld, 130, cache, "alfworld")


class Results:
    """File of rows, one JSON object per line, written as they come.

    Args:
        forks: server that starts the parts; each is a new process if not given.
    """

    def __init__(self, out: Path, forks: Forks | None = None) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.path = out, out / "gpu.jsonl"
        self.forks = forks
        self.rows: list[dict[str, Any]] = []
        self._writing = threading.Lock()

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row and write it through to the disk."""
        with self._writing, self.path.open("a", encoding="utf-8") as file:
            self.rows.append(dict(row))
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def run(self, part: Part) -> None:
        """Run a part within its time limit. Each line of its output that is a JSON object is a row."""
        log, start = self.out / f"{part.name.replace(' ', '-')}.log", time.perf_counter()
        last, stopped = "", threading.Event()
        variables = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            "HF_HUB_OFFLINE": "1",
            **part.variables,
        }
        output, written = os.pipe()
        # In a session of its own, so that what a part has started ends with it.
        process: Fork | subprocess.Popen[bytes]
        fresh = tuple(part.words[:2]) == ("-m", "pytest")  # which has to import plug-ins of its own accord
        if self.forks and not fresh:
            process = self.forks.start(part.words, ROOT, variables, None, written, written, start_new_session=True)
        else:
            command = [sys.executable, *part.words]
            streams = {"stdout": written, "stderr": written}
            process = subprocess.Popen(command, cwd=ROOT, env=variables, start_new_session=True, **streams)
        os.close(written)
        with open(output, errors="replace") as lines, log.open("w", encoding="utf-8") as file:  # noqa: PTH123
            alarm = threading.Timer(part.seconds, _kill, (process.pid, stopped))
            alarm.start()
            for line in lines:
                file.write(f"{time.perf_counter() - start:6.1f}  {line}")
                last = line.strip() or last
                if line.startswith("{") and (row := _row(line)) is not None:
                    self.add({"part": part.name, **row})
        code = process.wait()
        alarm.cancel()
        seconds = round(time.perf_counter() - start, 1)
        ended = "time limit" if stopped.is_set() else "done" if code == 0 else f"exit code {code}: {last[:300]}"
        self.add({"part": part.name, "ended": ended, "seconds": seconds})
        print(f"{part.name:24} {seconds:6.1f} s  {ended}", flush=True)


def _kill(group: int, stopped: threading.Event) -> None:
    """End all processes of a part. Those in Python first say where they are."""
    stopped.set()
    with contextlib.suppress(ProcessLookupError):  # they have ended by themselves
        for signal_number in (signal.SIGABRT, signal.SIGKILL):
            os.killpg(group, signal_number)
            time.sleep(1)


def _row(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def machine(device: str) -> dict[str, Any]:
    """Describe the machine: card, torch version, commit, and the rates that limit all other figures."""
    about = {"commit": commit(), "torch": torch.__version__, "python": platform.python_version()}
    if torch.device(device).type != "cuda":
        return {"part": "machine", "card": platform.processor() or "CPU", **about}
    free, total = torch.cuda.mem_get_info()
    rates = {
        f"TFLOP/s {name}": gemm_rate(dtype, device) / 1e12
        for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32))
    }
    source = torch.empty(2**30, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    copy.copy_(source)
    start.record()
    for _ in range(20):
        copy.copy_(source)
    end.record()
    torch.cuda.synchronize()
    about |= {"card": torch.cuda.get_device_name(), "GiB": total / 2**30, "free GiB": free / 2**30, **rates}
    return {"part": "machine", **about, "copied TB/s": 20 * 2 * 2**30 / start.elapsed_time(end) / 1e9}


def test_results(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a row with the counts of a JUnit file, and a row for each failed test."""
    if not path.is_file():
        return
    [suite] = ElementTree.parse(path).getroot().iter("testsuite")  # noqa: S314  (our own pytest wrote it)
    counts = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
    yield {"part": "tests", **counts, "seconds": float(suite.get("time", 0))}
    for case in suite.iter("testcase"):
        for problem in (*case.iter("failure"), *case.iter("error")):
            about = (problem.get("message") or problem.text or "")[:300]
            yield {"part": "tests", "failed": f"{case.get('classname')}::{case.get('name')}", "about": about}


def measure(settings: Settings, forks: Forks | None = None) -> list[dict[str, Any]]:
    """Run all parts. Return their rows in the order in which they came.

    Args:
        forks: server that starts the parts, for a rehearsal in which imports would take most of the time.
    """
    minutes = settings.minutes * (PATIENCE if settings.rehearse else 1)
    end, results = time.perf_counter() + 60 * minutes, Results(settings.out, forks)
    results.add(machine("cpu" if settings.rehearse else settings.device))
    with tempfile.TemporaryDirectory() as temporary:
        models = Path(settings.models) if settings.models else Path(temporary) / "models"
        chains: dict[str, list[Part]] = {TESTED: [], MADE: [], "": []}
        for part in parts(settings, models):
            if not settings.only or part.name.startswith((*settings.only, "models")):
                chains.setdefault(part.chain, []).append(part)

        def run(chain: str) -> None:
            for part in chains[chain]:
                left = end - time.perf_counter()
                if left < 5:
                    results.add({"part": part.name, "ended": "skipped: no time was left"})
                    continue
                seconds = part.seconds * (PATIENCE if settings.rehearse else 1)
                results.run(replace(part, seconds=min(seconds, left)))

        with ThreadPoolExecutor() as side_by_side:
            tested = side_by_side.submit(run, TESTED)
            run(MADE)
            others = [side_by_side.submit(run, chain) for chain in chains if chain not in (TESTED, MADE, "")]
            for chain in (tested, *others):
                chain.result()
        for row in test_results(settings.out / "tests.xml"):
            results.add(row)
        run("")
    return results.rows


def tables(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the rows as a table per kind of part; the parts' exit messages are a table of their own."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        kind = "ended" if "ended" in row else str(row.get("program") or row["part"]).partition(" ")[0]
        kinds.setdefault(kind, []).append(row)
    return "\n".join(f"## {kind}\n\n{report(of_kind, False)}" for kind, of_kind in kinds.items())


if __name__ == "__main__":
    chosen = tyro.cli(Settings, description=(__doc__ or "").split("\n\n")[0])
    written = tables(measure(chosen))
    (chosen.out / "tables.txt").write_text(written, encoding="utf-8")
    print(written)
