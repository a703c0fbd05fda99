"""Data parallelism on torch.distributed: several processes that make an artifact together.

`torchrun --nproc-per-node N -m reflectrl run ...` (or `accelerate launch`) starts N processes, the ranks. Each rank
holds the model, plays its stripe of the episodes, and computes its share of a batch's gradient. Episodes are gathered
and gradients are summed, so that all ranks have the same data and take the same optimiser step. A process that works
alone is a team of one. So the code of learning is the same for one process and for many.

The first rank leads: it makes artifacts that are not worth sharing, and it alone writes (`runs/ranks.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from reflectrl.core.types import UserError

if TYPE_CHECKING:  # torch is slow to import, and only processes that have imported it use a team
    from torch import Tensor, nn

T = TypeVar("T")

PATIENCE = 8.0
"""Seconds for which ranks that fail or end wait for each other's last message."""

BUCKET = 2**23
"""Largest number of gradient elements that are summed in one message."""


def launched() -> tuple[int, int]:
    """Return (rank, number of ranks) as set by torchrun, accelerate or a cluster's launcher; (0, 1) without one."""
    try:
        ranks = int(os.environ["WORLD_SIZE"])
        return (int(os.environ["RANK"]), ranks) if ranks > 1 else (0, 1)
    except (KeyError, ValueError):
        return 0, 1


def spoken_for() -> bool:
    """Return True if the first rank reports an error that all ranks have, so that this rank should stay silent.

    In that case, wait a while first: launchers kill all ranks as soon as one ends, and the first needs time to report.
    """
    if launched()[0] > 0:
        time.sleep(PATIENCE)
    return launched()[0] > 0


class LostRank(UserError):
    """Error: another process of this run has ended, or did not answer in time."""


class HasSeed(Protocol):
    """Episode or job, identified by its seed."""

    @property
    def seed(self) -> int: ...


class Team:
    """Group of ranks, as seen by one of them. All ranks must call its methods in the same order.

    A process that works alone is a team of one (`ALONE`), so learners need no special case.

    Attributes:
        rank: number of this process, from 0.
        size: number of ranks.

    Raises:
        LostRank: in every method, if a rank has died or kept the others waiting too long.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    # ---- who does what -----------------------------------------------------------------------------------------------

    def part(self, items: Sequence[T]) -> Sequence[T]:
        """Return this rank's part of a sequence. Parts are contiguous and about equally long."""
        return items[len(items) * self.rank // self.size : len(items) * (self.rank + 1) // self.size]

    def stripe(self, items: Sequence[T]) -> Sequence[T]:
        """Return every n-th item, starting at this rank's number, where n is the number of ranks."""
        return items[self.rank :: self.size]

    def first(self, function: Callable[[], T]) -> T:
        """Call a function on the first rank only, and return its result on every rank."""
        if self.size == 1:
            return function()
        with without_team():
            result = function() if self.rank == 0 else None
        return self.share(result)  # type: ignore[return-value]

    # ---- exchange between the ranks ----------------------------------------------------------------------------------

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of ranks, on every rank. Values must be picklable."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        with all_present():
            dist.all_gather_object(values, value)
        return values

    def share(self, value: T) -> T:
        """Return the first rank's value on every rank. The value must be picklable."""
        if self.size == 1:
            return value
        import torch.distributed as dist

        values: list[Any] = [value]
        with all_present():
            dist.broadcast_object_list(values, src=0)
        return values[0]

    def total(self, value: float) -> float:
        """Return the sum of all ranks' values, on every rank."""
        return float(sum(self.gather(value)))

    def sum(self, tensor: Tensor) -> None:
        """Sum a tensor over the ranks, in place. The sum has the same bits on all ranks."""
        if self.size == 1:
            return
        import torch.distributed as dist

        with all_present():
            dist.all_reduce(tensor)

    def reduce(self, parameters: Sequence[nn.Parameter], metrics: Mapping[str, float]) -> dict[str, float]:
        """Sum gradients over the ranks in place, and metrics too.

        Each rank has its share of both, already divided by the size of the whole batch, so that the sums are means over
        the batch. A parameter without a gradient on any rank keeps none.

        Returns:
            The summed metrics. A metric that a rank lacks counts as 0.
        """
        if self.size == 1:
            return dict(metrics)
        import torch

        gathered = self.gather((dict(metrics), [p.grad is not None for p in parameters]))
        used = [any(flags) for flags in zip(*(flags for _, flags in gathered), strict=True)]
        used_parameters = [p for p, is_used in zip(parameters, used, strict=True) if is_used]
        for p in used_parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        for bucket in buckets([p.grad for p in used_parameters if p.grad is not None]):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            self.sum(flat)
            for gradient, piece in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
                gradient.copy_(piece.view_as(gradient))
        sums: dict[str, float] = {}
        for own, _ in gathered:
            for name, value in own.items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def play(self, jobs: Iterable[Any], rollout: Callable[[Sequence[Any]], Iterable[HasSeed]]) -> Iterator[Any]:
        """Play every n-th job on this rank, and yield all ranks' episodes in the order of their jobs.

        Args:
            rollout: function that plays some jobs. An episode depends only on its own job, not on the rank.
        """
        jobs = list(jobs)
        with without_team():
            played = list(rollout(self.stripe(jobs)))
        order = {job.seed: index for index, job in enumerate(jobs)}
        episodes = [episode for stripe in self.gather(played) for episode in stripe]
        yield from sorted(episodes, key=lambda episode: order[episode.seed])


ALONE = Team(0, 1)
"""Team of a process that works alone."""


def buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Group consecutive tensors of the same dtype and device, as many as fit into one message."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        kind = (tensor.dtype, tensor.device)
        is_full = sum(queued.numel() for queued in bucket) + tensor.numel() > BUCKET
        if bucket and (is_full or kind != (bucket[0].dtype, bucket[0].device)):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


@contextmanager
def all_present() -> Iterator[None]:
    """Turn torch's errors of a collective call within the block into `LostRank`."""
    try:
        yield
    except RuntimeError as error:  # torch has no narrower class for what gloo says
        slow = "timed out" in str(error).lower() or "timeout" in str(error).lower()
        failure = "did not answer in time (rank_timeout)" if slow else "ended (out of memory?)"
        raise LostRank(f"another process of this run {failure}; run the same command again to continue") from error


_current = ALONE


def current() -> Team:
    """Return the ranks that are making an artifact together at this moment.

    Learners ask once, when they begin, and hand the team to whatever divides its work.
    """
    return _current


@contextmanager
def together(team: Team) -> Iterator[None]:
    """Make this process a member of a team within the block."""
    global _current
    before, _current = _current, team
    try:
        yield
    finally:
        _current = before


def without_team() -> AbstractContextManager[None]:
    """Make this process work alone within the block."""
    return together(ALONE)


def first(function: Callable[[], T]) -> T:
    """Call a function on the current team's first rank only, and return its result on every rank."""
    return _current.first(function)
