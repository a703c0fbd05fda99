"""A run on several ranks, which torchrun or accelerate has started with the same command.

The first rank leads: it locks the run folder, goes through the graph, writes, and prints. The other ranks wait until it
names an artifact to be made together, do their share, and wait again. Their own files go to a temporary folder. A rank
that fails leaves a message for the others before it ends, so that one line is printed and no rank waits in vain.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

from reflectrl.core.config import Recipe
from reflectrl.core.distributed import PATIENCE, LostRank, Team, launched, together
from reflectrl.core.plugins import one_line
from reflectrl.core.terminal import printable_line
from reflectrl.core.types import UserError
from reflectrl.runs.artifact import Artifact, Graph
from reflectrl.runs.folder import Context, RunFolder
from reflectrl.runs.progress import ProgressCallback, silently
from reflectrl.runs.workers import AGAIN, Timings, make

ARRIVAL = 900.0
"""Seconds within which all ranks have to join. Machines of a cluster start at different moments."""
UNDECIDED = "-"
"""Message that "auto" precision is not decided in a run. The empty message already says that the run ends."""
LOOK = 0.05
"""Seconds between two checks whether the first rank has named the next artifact."""


@dataclass(frozen=True)
class FollowersFolder(RunFolder):
    """A run folder for ranks other than the first: they read there, and write to a temporary folder."""

    scratch: Path

    def evaluation(self, arm: str, seed: int, split: str, stage: str, sampling: str) -> Path:
        return self._elsewhere(super().evaluation(arm, seed, split, stage, sampling))

    def learner(self, seed: int, name: str) -> Path:
        return self._elsewhere(super().learner(seed, name))

    def metrics(self, seed: int, name: str) -> Path:
        return self._elsewhere(super().metrics(seed, name))

    @property
    def timings(self) -> Path:
        return self._elsewhere(super().timings)

    def _elsewhere(self, path: Path) -> Path:
        return self.scratch / path.relative_to(self.path)


class Ranks:
    """The processes of a launch, as one of them sees them. Made by `joined`.

    Attributes:
        team: rank and number of the processes, for learners.
    """

    def __init__(self, recipe: Recipe) -> None:
        if recipe.processes > 1 or recipe.engine != "local":
            raise UserError(
                "several ranks make each artifact together, one after another: set processes = 1 and engine = 'local'"
            )
        patience = timedelta(seconds=recipe.rank_timeout)
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        if os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost"):  # the machine's name may not resolve
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        try:
            store, rank, size = next(dist.rendezvous("env://", timeout=timedelta(seconds=ARRIVAL)))
            self.store, self.team, self._made = dist.PrefixStore("reflectrl", store), Team(rank, size), 0
            self.store.add("here", 1)
            self._wait(lambda: self.store.add("here", 0) == size, ARRIVAL)
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"the processes of this launch cannot find each other: {one_line(error)}") from error

    def make(self, context: Context, artifact: Artifact, progress: ProgressCallback) -> Timings:
        """Make an artifact, with all ranks together if its builder supports that. Called by the first rank."""
        if not artifact.maker.shared:
            return make(context, artifact, progress)
        self._say(artifact.key)
        with together(self.team):
            return make(context, artifact, progress)

    def lead(self, precision: str, threads: int) -> None:
        """Send the others the meaning of "auto" precision and the number of threads, before the first artifact."""
        self._say(f"{precision or UNDECIDED} {threads}")

    def follow(self, context: Context, graph: Graph) -> None:
        """Do this rank's share of each artifact that the first rank names, until there are no more."""
        if not (decisions := self._next_key()):
            return  # the first rank has ended before it made anything
        precision, threads = decisions.split()
        context = context.with_decisions(precision.replace(UNDECIDED, ""), int(threads))
        with tempfile.TemporaryDirectory(prefix="reflectrl-rank-") as scratch:
            context = replace(context, run=FollowersFolder(context.run.path, Path(scratch)))
            (Path(scratch) / "episodes").mkdir()
            while key := self._next_key():
                with together(self.team):
                    make(context, graph[key], silently)

    def _say(self, what: str) -> None:
        self.store.set(f"next {self._made}", what)
        self._made += 1

    def _next_key(self) -> str:
        """Return the next artifact's key from the first rank; "" after the last one."""
        with _lost():
            while not self.store.check([f"next {self._made}"]):
                time.sleep(LOOK)
            self._made += 1
            return self.store.get(f"next {self._made - 1}").decode()

    # ---- how it ends -------------------------------------------------------------------------------------------------

    def part(self) -> None:
        """Disconnect from the others, the last rank first.

        So no connection is closed at both ends at once, which once made a first rank abort while it ended. And the
        store, which may live in the first rank, outlives the other ranks.
        """
        with suppress(RuntimeError):
            if self.team.rank == 0:
                self._say("")
            if self.team.rank == 0 or dist.is_initialized():
                self._wait(lambda: self.store.add("gone", 0) >= self.team.size - 1 - self.team.rank)
            self._close()
            self.store.add("gone", 1)
        self._close()

    def fail(self, error: BaseException) -> NoReturn:
        """End with an error, so that the ranks together print it only once.

        Raises:
            UserError, or the error itself: on the first rank, which prints it.
            SystemExit: on the others. If the first rank is gone, one of them has printed the error.
        """
        failure = ""
        with suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # already ending; impatient launchers send SIGKILL
        try:
            if self.team.rank and not isinstance(error, LostRank | KeyboardInterrupt):
                if not isinstance(error, UserError):  # a bug keeps its traceback
                    traceback.print_exception(error)
                self.store.set(
                    "failed", f"process {self.team.rank}: {error if isinstance(error, UserError) else one_line(error)}"
                )
            if self.team.rank:
                self._close()
                self._wait(lambda: self.store.add("said", 0) > 0)
            is_first = self.store.add("said", 1) == 1
            self._close()  # the first rank has said that it will speak before the others learn that it is gone
            if isinstance(error, LostRank | KeyboardInterrupt) and self.store.check(["failed"]):
                failure = self.store.get("failed").decode()
        except RuntimeError:  # the store is gone, and the first rank with it
            is_first = self.team.rank == 1
        self.part()
        if self.team.rank == 0 and is_first:
            raise UserError(failure) if failure else error
        if is_first:
            message = f"interrupted; {AGAIN}" if isinstance(error, KeyboardInterrupt) else one_line(error)
            message = str(error) if isinstance(error, UserError) else message
            sys.stderr.write(f"reflectrl: {printable_line(failure or message)}\n")
        raise SystemExit(2) from error

    def _wait(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
        end = time.monotonic() + seconds
        while not condition() and time.monotonic() < end:
            time.sleep(LOOK)

    def _close(self) -> None:
        """Close the connections, so that ranks which wait for this one learn that it is gone."""
        if dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()


@contextmanager
def joined(recipe: Recipe) -> Iterator[Ranks | None]:
    """Yield the ranks of this launch, until the block ends on all of them; None if the process was started alone.

    Raises:
        UserError: the ranks cannot find each other.
    """
    if launched()[1] == 1:
        yield None
        return
    ranks = Ranks(recipe)
    try:
        yield ranks
    except BaseException as error:
        ranks.fail(error)
    ranks.part()


@contextmanager
def _lost() -> Iterator[None]:
    """Report errors of the store, within the block, as the loss of the first rank, where the store lives."""
    try:
        yield
    except RuntimeError as error:
        raise LostRank(f"the first process of this run ended; {AGAIN}") from error
