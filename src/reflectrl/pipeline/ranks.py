"""A run on several ranks, which torchrun or accelerate has started with the same command.

The first rank leads: it holds the run folder, goes through the graph, writes, and speaks. The others wait until it says
which artifact is to be made together, make their share of it, and wait again; what they would write goes to a temporary
folder. Whoever fails leaves word for the others before it ends, so that one line is said and nobody waits in vain.
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

from reflectrl.config import Recipe
from reflectrl.distributed import PATIENCE, LostRank, Team, launched, together
from reflectrl.pipeline.artifacts import Artifact, Graph
from reflectrl.pipeline.folder import Context, RunFolder
from reflectrl.pipeline.progress import Tick
from reflectrl.pipeline.workers import Timings, function, make
from reflectrl.plugins import one_line
from reflectrl.terminal import printable_line
from reflectrl.types import UserError

ARRIVAL = 900.0
"""Seconds within which all ranks have to be there: machines of a cluster start at different moments."""
UNDECIDED = "-"
"""Said of "auto" precision where it has no meaning, since "" says that the run ends."""
LOOK = 0.05
"""Seconds between two looks at whether the first rank has said what comes next."""


@dataclass(frozen=True)
class FollowersFolder(RunFolder):
    """A run folder as ranks other than the first see it: they read there, and write to a temporary folder."""

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
    """The processes of a launch, as one of them sees them. `joined` makes it.

    Attributes:
        team: what learners see of them.
    """

    def __init__(self, recipe: Recipe) -> None:
        if recipe.processes > 1 or recipe.engine != "local":
            raise UserError(
                "several ranks make one artifact after another, together: set processes = 1 and engine = 'local'"
            )
        patience = timedelta(seconds=recipe.rank_timeout)
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        if os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost"):  # the machine's name may lead nowhere
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        try:
            store, rank, size = next(dist.rendezvous("env://", timeout=timedelta(seconds=ARRIVAL)))
            self.store, self.team, self._made = dist.PrefixStore("reflectrl", store), Team(rank, size), 0
            self.store.add("here", 1)
            self._wait(lambda: self.store.add("here", 0) == size, ARRIVAL)
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)
        except (RuntimeError, ValueError) as error:
            raise UserError(f"the processes of this launch do not find each other: {one_line(error)}") from error

    def refuse_undivided(self, recipe: Recipe, graph: Graph) -> None:
        """Raise UserError where models are to be divided, and the first rank alone would learn one of them."""
        for artifact in graph.values() if recipe.model.shard else ():
            if artifact.training and not is_shared(artifact):
                about = (
                    f"{artifact.key} is learned by the first process alone, which would have to hold the whole model"
                )
                raise UserError(f"model.shard: {about}; leave its arm out, or set model.shard = false")

    def make(self, context: Context, artifact: Artifact, tick: Tick) -> Timings:
        """Make an artifact: all ranks together, if its builder is for that. Called by the first rank."""
        if not is_shared(artifact):
            return make(context, artifact, tick)
        self._say(artifact.key)
        with together(self.team):
            return make(context, artifact, tick)

    def lead(self, precision: str) -> None:
        """Tell the others what "auto" precision means in this run, before the first artifact."""
        self._say(precision or UNDECIDED)

    def follow(self, context: Context, graph: Graph) -> None:
        """Make one's share of what the first rank says, until it has nothing more to say."""
        if not (precision := self._heard()):
            return  # the first rank has ended before it made anything
        context = context.with_precision(precision.replace(UNDECIDED, ""))
        with tempfile.TemporaryDirectory(prefix="reflectrl-rank-") as scratch:
            context = replace(context, run=FollowersFolder(context.run.path, Path(scratch)))
            (Path(scratch) / "episodes").mkdir()
            while key := self._heard():
                with together(self.team):
                    make(context, graph[key], _silently)

    def _say(self, what: str) -> None:
        self.store.set(f"next {self._made}", what)
        self._made += 1

    def _heard(self) -> str:
        """What the first rank says next; "" once it has nothing more to say."""
        with _lost():
            while not self.store.check([f"next {self._made}"]):
                time.sleep(LOOK)
            self._made += 1
            return self.store.get(f"next {self._made - 1}").decode()

    # ---- how it ends -------------------------------------------------------------------------------------------------

    def part(self) -> None:
        """Let go of the others, the last rank first.

        So no connection is closed at both ends at once (a first rank was seen to abort as it ended), and the store,
        which may live in the first rank, outlives them.
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
        """End with an error: what one rank says the others do not say again.

        Raises:
            UserError, or the error itself: on the first rank, which says it.
            SystemExit: on the others; one of them has said it where the first rank is gone.
        """
        told = ""
        with suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is ending; launchers kill who takes too long
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
                told = self.store.get("failed").decode()
        except RuntimeError:  # the store is gone, and the first rank with it
            is_first = self.team.rank == 1
        self.part()
        if self.team.rank == 0 and is_first:
            raise UserError(told) if told else error
        if is_first:
            said = "interrupted; the same command goes on" if isinstance(error, KeyboardInterrupt) else one_line(error)
            said = str(error) if isinstance(error, UserError) else said
            sys.stderr.write(f"reflectrl: {printable_line(told or said)}\n")
        raise SystemExit(2) from error

    def _wait(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
        end = time.monotonic() + seconds
        while not condition() and time.monotonic() < end:
            time.sleep(LOOK)

    def _close(self) -> None:
        """Close the connections, by which ranks that wait for this one learn that it is gone."""
        if dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()


def is_shared(artifact: Artifact) -> bool:
    """Whether all ranks make an artifact together."""
    return getattr(function(artifact.build), "on_all_ranks", False)


@contextmanager
def joined(recipe: Recipe) -> Iterator[Ranks | None]:
    """The ranks of this launch, until the block ends on all of them; None where the process was started alone.

    Raises:
        UserError: it was, and models are to be divided; or the ranks do not find each other.
    """
    if launched()[1] == 1:
        if recipe.model.shard:
            raise UserError("model.shard divides a model among processes; start several with torchrun (docs/scale.md)")
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
    """Errors of the store, within the block, are those of the rank in which it lives."""
    try:
        yield
    except RuntimeError as error:
        raise LostRank("the first process of this run ended; the same command goes on") from error


def _silently(done: int, total: int, note: str) -> None:
    """The first rank shows how far things are."""
