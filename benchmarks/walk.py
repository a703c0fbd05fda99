"""Count the named functions and files of ours that an observation passes from `reset` to the optimiser step.

    python -m benchmarks.walk [--plain] [--names]

A profiler records every function of the package that is entered while two small players play a batch of DangerousTaxi
and learn from it: `reset`, reflection, choice, `step`, and an update of online RL. Lambdas, comprehensions and
functions that run only while models are loaded do not count. The program also prints the largest number of our frames
on the stack during play. `--plain` uses the plain backend.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

import reflectrl
from reflectrl.core.config import RLConfig
from reflectrl.core.types import Task
from reflectrl.learn.online import train_online
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.models.players import Policy, Reflector
from reflectrl.wings.taxi.env import TaxiEnv

from .workloads import bench_model, workload

PACKAGE = str(Path(reflectrl.__file__).parent)


class Walk:
    """Profiler that records the functions of ours that were entered, and the deepest stack."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        self.deepest: list[str] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
            self.codes.add(code)
            stack = frames(frame)
            if len(stack) > len(self.deepest):
                self.deepest = stack

    def start(self) -> None:
        """Record calls in this thread from now on, and the functions that are on the stack already."""
        for frame in iterate(sys._getframe(1)):
            self.codes.add(frame.f_code)
        sys.setprofile(self)

    def files(self) -> dict[str, list[str]]:
        """Return the functions by file."""
        functions: dict[str, list[str]] = defaultdict(list)
        for code in sorted(self.codes, key=lambda code: (code.co_filename, code.co_firstlineno)):
            functions[code.co_filename.removeprefix(f"{PACKAGE}/")].append(code.co_qualname)
        return dict(functions)


def iterate(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield our frames on a stack, the innermost first."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE) and not frame.f_code.co_name.startswith("<"):
            yield frame
        frame = frame.f_back


def frames(frame: FrameType) -> list[str]:
    """Return the names of our frames on a stack, the outermost first."""
    return [f"{f.f_code.co_filename.removeprefix(f'{PACKAGE}/')}:{f.f_code.co_qualname}" for f in iterate(frame)][::-1]


class FirstRide(TaxiEnv):
    """DangerousTaxi that starts the walk at the first training task."""

    walk: Walk

    def begin(self, task: Task) -> None:
        if task.split == "train" and sys.getprofile() is None:
            self.walk.start()
        super().begin(task)


def walked(plain: bool) -> Walk:
    """Make an update of online RL with two small players, recorded from the first `reset` to the optimiser step."""
    walk = Walk()
    FirstRide.walk = walk
    work = workload("taxi")
    lms = [bench_model("tiny", work, backend="plain" if plain else "auto") for _ in range(2)]
    policy, reflector = Policy(lms[0]), Reflector(lms[1], max_new_tokens=8)
    config = RLConfig(updates=1, episodes=4, eval_episodes=1, curriculum="none")
    hook = register_optimizer_step_post_hook(lambda *_: sys.setprofile(None))
    try:
        rollouts = EpisodeRollouts(policy, reflector, lambda: FirstRide(horizon=4), config, 0)
        train_online(rollouts, config, 0, lambda _: None)
    finally:
        hook.remove()
        sys.setprofile(None)
    return walk


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.walk", description=__doc__.split("\n")[0])
    parser.add_argument("--plain", action="store_true", help="the plain backend")
    parser.add_argument("--names", action="store_true", help="name every function")
    options = parser.parse_args()
    walk = walked(options.plain)
    files = walk.files()
    print("| file | functions |\n|---|---|")
    for file, names in files.items():
        print(f"| {file} | {', '.join(names) if options.names else len(names)} |")
    print(f"\n{len(walk.codes)} functions in {len(files)} files; {len(walk.deepest)} frames deep while playing:")
    print("\n".join(f"  {frame}" for frame in walk.deepest))


if __name__ == "__main__":
    main()
