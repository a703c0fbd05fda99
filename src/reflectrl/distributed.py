"""Several processes that make one artifact together: data parallelism on torch.distributed.

`torchrun --nproc-per-node N -m reflectrl run ...` (or `accelerate launch`) starts N processes, the ranks. All of them
hold the model. Each plays its stripe of the episodes and computes its share of a batch's gradient; episodes are
gathered and gradients summed, so that every rank knows the same and takes the same optimiser step. `team` is None
where a process works alone, and everything here then does nothing: learning is written once, for one process and for
many.

The first rank leads: it makes what is not worth sharing, and it alone writes (`pipeline/ranks.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from reflectrl.types import UserError

if TYPE_CHECKING:  # torch is slow to import, and whoever uses a team has it already
    from torch import Tensor, nn

T = TypeVar("T")
Build = TypeVar("Build", bound=Callable[..., Any])

PATIENCE = 8.0
"""Seconds in which ranks that fail or end wait for each other's last word."""

BUCKET = 2**23
"""Most numbers of gradients that are summed in one message."""


def launched() -> tuple[int, int]:
    """(rank, ranks) as torchrun, accelerate or a cluster's launcher says; (0, 1) for a process started alone."""
    try:
        ranks = int(os.environ["WORLD_SIZE"])
        return (int(os.environ["RANK"]), ranks) if ranks > 1 else (0, 1)
    except (KeyError, ValueError):
        return 0, 1


def spoken_for() -> bool:
    """Whether another rank says what goes wrong on all of them. It is given time: launchers end all after the first."""
    if launched()[0] > 0:
        time.sleep(PATIENCE)
    return launched()[0] > 0


class LostRank(UserError):
    """Another process of this run has ended, or did not answer in time."""


class HasSeed(Protocol):
    """An episode, or the job of one."""

    @property
    def seed(self) -> int: ...


class Steps(Protocol):
    """Keeps the ranks in step where models are divided among them (`models/sharded.py`)."""

    def settle(self) -> None:
        """Help the others with their passes until all are here."""

    def backward(self, loss: Tensor) -> None:
        """Go back through the passes that led to a loss, and through those of the others."""


class Team:
    """The ranks, as one of them sees them. Its methods are called by all ranks in the same order.

    Attributes:
        rank: the number of this process, from 0.
        size: how many there are.
        lockstep: keeps them in step; None as long as every rank holds whole models.

    Raises:
        LostRank: in every method, where a rank has died or kept the others waiting too long.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.lockstep: Steps | None = None

    def settle(self) -> None:
        """Help the others with their passes through divided models until all are here."""
        if self.lockstep is not None:
            self.lockstep.settle()

    def gather(self, value: T) -> list[T]:
        """What each rank gives, by rank, on every rank; anything that can be pickled."""
        import torch.distributed as dist

        self.settle()
        found: list[Any] = [None] * self.size
        with all_present():
            dist.all_gather_object(found, value)
        return found

    def share(self, value: T) -> T:
        """What the first rank gives, on every rank."""
        import torch.distributed as dist

        self.settle()
        found: list[Any] = [value]
        with all_present():
            dist.broadcast_object_list(found, src=0)
        return found[0]

    def sum(self, tensor: Tensor) -> None:
        """Add up a tensor over the ranks, in place; the sum has the same bits on all of them."""
        import torch.distributed as dist

        self.settle()
        with all_present():
            dist.all_reduce(tensor)

    def reduce(self, parameters: Sequence[nn.Parameter], metrics: Mapping[str, float]) -> dict[str, float]:
        """Add up gradients in place, and metrics.

        Each rank brings its share of both, as parts of one sum: what was divided was divided by the whole batch's
        numbers. A parameter that no rank has a gradient for keeps none. Those of divided models are added up already.

        Returns:
            The summed metrics, those of ranks that had nothing to do included.
        """
        import torch

        parameters = [p for p in parameters if not is_divided(p)]
        gathered = self.gather((dict(metrics), [p.grad is not None for p in parameters]))
        used = [any(flags) for flags in zip(*(flags for _, flags in gathered), strict=True)]
        waiting = [p for p, is_used in zip(parameters, used, strict=True) if is_used]
        for p in waiting:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        for bucket in buckets([p.grad for p in waiting if p.grad is not None]):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            self.sum(flat)
            for gradient, piece in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
                gradient.copy_(piece.view_as(gradient))
        names = dict.fromkeys(name for one, _ in gathered for name in one)
        return {name: sum(one.get(name, 0.0) for one, _ in gathered) for name in names}

    def play(self, jobs: Iterable[Any], rollout: Callable[[Sequence[Any]], Iterable[HasSeed]]) -> Iterator[Any]:
        """Every n-th job is played here; all episodes, in the order of their jobs, are given on every rank.

        Args:
            rollout: plays some jobs. An episode depends on its own job, not on where it is played.
        """
        jobs = list(jobs)
        with alone():
            played = list(rollout(jobs[self.rank :: self.size]))
        order = {job.seed: number for number, job in enumerate(jobs)}
        episodes = [episode for stripe in self.gather(played) for episode in stripe]
        yield from sorted(episodes, key=lambda episode: order[episode.seed])


def buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one kind in a row, as many as go into one message."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        kind = (tensor.dtype, tensor.device)
        full = sum(one.numel() for one in bucket) + tensor.numel() > BUCKET
        if bucket and (full or kind != (bucket[0].dtype, bucket[0].device)):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


@contextmanager
def all_present() -> Iterator[None]:
    """Torch's errors of a collective call, within the block, are those of a rank that is gone."""
    try:
        yield
    except RuntimeError as error:  # torch has no narrower class for what gloo says
        slow = "timed out" in str(error).lower() or "timeout" in str(error).lower()
        what = "did not answer in time (rank_timeout)" if slow else "ended (out of memory?)"
        raise LostRank(f"another process of this run {what}; the same command goes on") from error


team: Team | None = None
"""The ranks that are making an artifact together at this moment; None where this process works alone."""


@contextmanager
def together(ranks: Team) -> Iterator[None]:
    """Within the block, this process is one of a team."""
    global team
    before, team = team, ranks
    try:
        yield
    finally:
        team = before


@contextmanager
def alone() -> Iterator[None]:
    """Within the block, this process works for itself."""
    global team
    before, team = team, None
    try:
        yield
    finally:
        team = before


# ---- what learners call; without a team each does what its name says for one process --------------------------------


def mine(items: Sequence[T]) -> Sequence[T]:
    """This rank's piece of a sequence: neighbours stay together, and pieces are about equally long."""
    if team is None:
        return items
    return items[len(items) * team.rank // team.size : len(items) * (team.rank + 1) // team.size]


def is_divided(tensor: Tensor) -> bool:
    """Whether this rank has a piece of it only: torch's `DTensor`, whose module takes a second to import."""
    return hasattr(tensor, "full_tensor")


def total(value: float) -> float:
    """The sum of what the ranks give, on each of them."""
    return value if team is None else float(sum(team.gather(value)))


def first(function: Callable[[], T]) -> T:
    """What a function returns on the first rank, where alone it is called; on every rank."""
    if (ranks := team) is None:
        return function()
    with alone():
        found = function() if ranks.rank == 0 else None
    return ranks.share(found)  # type: ignore[return-value]


def on_all_ranks(build: Build) -> Build:
    """Mark a builder of artifacts that all ranks call together; others are called by the first rank alone."""
    build.on_all_ranks = True  # type: ignore[attr-defined]
    return build
