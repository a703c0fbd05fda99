"""Compare a run on 1, 2 and 4 processes: are episodes and gradients the same, and how much faster is it?

    python -m benchmarks.ranks [--recipe taxi-demo] [--ranks 1 2 4] [--rl.updates 20 ...]

Each run is launched as torchrun launches it, over gloo, in two parts. The first part ends after SFT. The second part
continues from the checkpoints of a single process, so that online RL begins with the same bits. Recorded are the
episodes of every update of online RL, the first gradient of every training, the results, and the seconds of each stage.

These figures are printed per number of processes: whether the jobs (task and seed) of all updates are the same as with
one process, the share of episodes with the same actions, the largest difference of a first gradient relative to its
norm, success with its interval, and the scaling efficiency T(1) / (N T(N)) of learning and evaluation. The efficiency
is meaningful only with an idle core per process; the number of cores is printed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.optim.optimizer import register_optimizer_step_pre_hook

from benchmarks.forks import Forks

NOTES = "notes"
"""Name of the environment variable with the folder in which a process records its figures."""
LIMIT = 3600
"""Seconds after which a process is killed."""


# ---- in each process -------------------------------------------------------------------------------------------------


def noting(words: Sequence[str], folder: Path, rank: int) -> int:
    """Run a command, and write its episodes and first gradients into the folder. Return the exit code."""
    from reflectrl.cli import main
    from reflectrl.learn.rollouts import EpisodeRollouts

    gradients: dict[str, torch.Tensor] = {}
    optimizers: list[Any] = []
    played: list[Any] = []

    def note(optimizer: Any, *_: Any) -> None:
        if any(optimizer is each for each in optimizers):
            return
        optimizers.append(optimizer)  # kept, so that no later one has its address
        flat_gradients = [
            p.grad.detach().reshape(-1).double()
            for g in optimizer.param_groups
            for p in g["params"]
            if p.grad is not None
        ]
        weights = [p.detach() for group in optimizer.param_groups for p in group["params"]]
        start = hashlib.sha256(b"".join(w.float().cpu().numpy().tobytes() for w in weights)).hexdigest()[:12]
        gradients[f"{len(optimizers)} {start}"] = torch.cat(flat_gradients)

    collect = EpisodeRollouts.collect

    def collected(self: EpisodeRollouts, update: int, critic: Any) -> Any:
        batch = collect(self, update, critic)
        played.append([[each.task.id, each.seed, [step.action for step in each.steps]] for each in self.latest.played])
        return batch

    hook, EpisodeRollouts.collect = register_optimizer_step_pre_hook(note), collected  # type: ignore[method-assign]
    try:
        code = main(list(words))
    finally:
        hook.remove()
        EpisodeRollouts.collect = collect  # type: ignore[method-assign]
    save_file(gradients, folder / f"gradients-{rank}.safetensors")
    (folder / f"played-{rank}.json").write_text(json.dumps(played), encoding="utf-8")
    return code


# ---- launching and comparing -----------------------------------------------------------------------------------------


def run(forks: Forks, words: Sequence[str], ranks: int, folder: Path) -> list[tuple[int, str]]:
    """Run a command of the command line on several processes, as torchrun does. Return exit code and stderr of each.

    Raises:
        TimeoutError: they have not ended within an hour.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    shared = os.environ | {NOTES: str(folder), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = []
    for rank in range(ranks):
        about = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        with (folder / f"stderr-{rank}").open("wb") as stderr:
            command = ["-m", "benchmarks.ranks", "--child", *words]
            processes.append(forks.start(command, env=shared | about, stderr=stderr.fileno()))
    codes = [process.wait(LIMIT) for process in processes]
    return [(code, (folder / f"stderr-{rank}").read_text(encoding="utf-8")) for rank, code in enumerate(codes)]


def difference(left: Path, right: Path) -> tuple[float, int]:
    """Compare first gradients. Return their largest relative difference, and the number of trainings compared.

    Only trainings that begin with the same bits are compared: after steps of AdamW, rounding errors are no longer
    small.
    """
    first, second = load_file(left / "gradients-0.safetensors"), load_file(right / "gradients-0.safetensors")
    assert len(first) == len(second), "the runs trained different things"
    shared = sorted(first.keys() & second.keys())
    return max(float((first[name] - second[name]).norm() / first[name].norm()) for name in shared), len(shared)


def played(folder: Path) -> list[list[Any]]:
    """Return the episodes of each update: task, seed and actions."""
    episodes: list[list[Any]] = json.loads((folder / "played-0.json").read_text(encoding="utf-8"))
    return episodes


def same_jobs(left: Path, right: Path) -> bool:
    """Return whether all updates of two runs played the same tasks with the same seeds, in the same order."""
    jobs = [[[episode[:2] for episode in update] for update in played(folder)] for folder in (left, right)]
    return jobs[0] == jobs[1]


def same_episodes(left: Path, right: Path) -> float:
    """Return the share of episodes, over all updates, with the same actions in two runs."""
    pairs = [pair for updates in zip(played(left), played(right), strict=True) for pair in zip(*updates, strict=True)]
    return sum(first == second for first, second in pairs) / len(pairs)


def seconds(folder: Path, stages: Sequence[str]) -> dict[str, float]:
    """Return the seconds that the artifacts of some stages took."""
    spent: dict[str, float] = {}
    path = folder / "timings.jsonl"
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        about = json.loads(line)
        if "artifact" in about and about["stage"] in stages:
            spent[about["stage"]] = spent.get(about["stage"], 0.0) + about["seconds"]
    return spent


def success(folder: Path, arm: str) -> str:
    """Format the success of an arm on the test tasks, greedy, with its interval."""
    rows = json.loads((folder / "results.json").read_text(encoding="utf-8"))["summary"]
    row = [
        candidate
        for candidate in rows
        if (candidate["arm"], candidate["split"], candidate["sampling"]) == (arm, "test", "greedy")
    ][-1]
    return f"{row['success']:.1%} [{row['low']:.1%}, {row['high']:.1%}]"


def compared_run(
    forks: Forks, words: Sequence[str], ranks: int, workspace: Path, base: int, taught: Path | None = None
) -> str:
    """Run a recipe through SFT, then continue from the checkpoints of `base` processes. Return the errors, or "".

    Args:
        taught: a run folder that has finished SFT. If given, only the rest is run.
    """
    sft, rest = workspace / f"sft{ranks}", workspace / f"run{ranks}"
    ended = [] if taught else run(forks, ["sft", *words, "--folder", str(sft)], ranks, workspace / f"notes-sft{ranks}")
    if not any(code for code, _ in ended):
        shutil.copytree(taught or workspace / f"sft{base}", rest)
        ended = run(forks, ["run", *words, "--folder", str(rest)], ranks, workspace / f"notes{ranks}")
    return "\n".join(error for code, error in ended if code)


def row(workspace: Path, ranks: int, base: int, arm: str) -> str:
    """Format a line of the table."""
    spent, base_spent = (
        seconds(workspace / f"sft{n}", ("sft",)) | seconds(workspace / f"run{n}", ("rl", "eval")) for n in (ranks, base)
    )
    notes = workspace / f"notes{base}", workspace / f"notes{ranks}"
    pairs = [notes, (workspace / f"notes-sft{base}", workspace / f"notes-sft{ranks}")]
    differences = [difference(*pair) for pair in pairs if pair[1].exists()]
    share = base * sum(base_spent.values()) / (ranks * sum(spent.values()))
    return (
        f"| {ranks} | {same_jobs(*notes)} | {same_episodes(*notes):.1%} "
        f"| {max(largest for largest, _ in differences):.1e} of {sum(count for _, count in differences)} "
        f"| {success(workspace / f'run{ranks}', arm)} "
        f"| {spent.get('sft', 0):.1f} | {spent['rl']:.1f} | {spent['eval']:.1f} | {share:.0%} |"
    )


def main() -> int:
    """Run, compare, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--recipe", default="taxi-demo")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--arm", default="reflect-rl", help="whose success is printed")
    parser.add_argument("--taught", type=Path, help="a run folder made through SFT: only what follows is compared")
    parser.add_argument("--folder", type=Path, help="where the runs are kept; a temporary folder if not given")
    options, settings = parser.parse_known_args()
    with TemporaryDirectory() as temporary, Forks() as forks:
        folder = options.folder or Path(temporary)
        words = [options.recipe, "--processes", "1", "--threads", "1", *settings]
        for ranks in options.ranks:
            if failed := compared_run(forks, words, ranks, folder, options.ranks[0], options.taught):
                print(failed, file=sys.stderr)
                return 1
        print(f"{options.recipe}, {len(os.sched_getaffinity(0))} cores, gloo; against {options.ranks[0]} process(es)\n")
        print(
            "| processes | same jobs | same episodes | first gradients | success | sft s | rl s | eval s | efficiency |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        for ranks in options.ranks:
            print(row(folder, ranks, options.ranks[0], options.arm))
    return 0


if __name__ == "__main__":
    if "--child" in sys.argv:
        sys.exit(noting(sys.argv[2:], Path(os.environ[NOTES]), int(os.environ["RANK"])))
    sys.exit(main())
