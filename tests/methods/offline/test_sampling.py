"""Sampling: which rows come how often, in how many steps, and the same again after a kill."""

from collections import Counter
from itertools import islice

import pytest
import torch

from reflectrl.core.types import UserError
from reflectrl.methods.shared.offline.sampling import batches, make_sampler, scaled_steps

WEIGHTS = torch.tensor([0.0, 1.0, -2.0, 3.0])


def drawn(sampling: str, weights_N: torch.Tensor = WEIGHTS, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return [int(row) for row in make_sampler(sampling, weights_N, generator)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sampling", "rows", "count"),
    [
        ("none", {0, 1, 2, 3}, 4),
        ("good_random", {1, 3}, 2),
        ("good_priority", {1, 3}, 2),
        ("all_priority", {1, 3}, 2),
    ],
)
def test_an_epoch_has_as_many_draws_as_rows_that_can_be_drawn(sampling: str, rows: set[int], count: int) -> None:
    epochs = [drawn(sampling, seed=seed) for seed in range(50)]
    assert {len(epoch) for epoch in epochs} == {count}
    assert {row for epoch in epochs for row in epoch} == rows
    if "priority" not in sampling:  # without replacement: each row once
        assert all(sorted(epoch) == sorted(rows) for epoch in epochs)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [("good_priority", {1: 1 / 4, 3: 3 / 4}), ("all_priority", {1: 1 / 4, 3: 3 / 4})],
)
def test_rows_come_in_proportion_to_their_weights(sampling: str, expected: dict[int, float]) -> None:
    """60,000 draws: four standard errors are below 0.01."""
    weights_N = WEIGHTS.repeat(15_000)  # the same four rows over and over
    counts = Counter(row % 4 for row in drawn(sampling, weights_N))
    total = sum(counts.values())
    assert set(counts) == set(expected)
    for row, share in expected.items():
        assert counts[row] / total == pytest.approx(share, abs=0.01)


def test_a_generator_decides_the_order() -> None:
    weights_N = torch.arange(20.0)
    for sampling in ("none", "good_random", "good_priority", "all_priority"):
        assert drawn(sampling, weights_N) == drawn(sampling, weights_N)
        assert drawn(sampling, weights_N) != drawn(sampling, weights_N, seed=1)


@pytest.mark.parametrize(
    ("sampling", "steps"), [("none", 90), ("all_priority", 45), ("good_random", 45), ("good_priority", 45)]
)
def test_steps_shrink_by_the_share_of_rows_that_are_drawn(sampling: str, steps: int) -> None:
    assert scaled_steps(90, sampling, WEIGHTS) == steps  # type: ignore[arg-type]
    assert scaled_steps(1, "good_random", torch.tensor([1.0] + [0.0] * 99)) == 1
    # Two of four answers are worth imitating; rejected ones of positive weight add to the published number of steps.
    assert scaled_steps(90, "all_priority", torch.tensor([1.0, 2.0, 3.0, -1.0]), imitable=2) == 135


@pytest.mark.parametrize("sampling", ["good_priority", "good_random", "all_priority"])
def test_nothing_to_draw_is_refused(sampling: str) -> None:
    with pytest.raises(UserError, match="nothing can be drawn"):
        drawn(sampling, torch.zeros(3))


@pytest.mark.parametrize("sampling", ["none", "good_priority"])
def test_batches_go_on_where_they_were(sampling: str) -> None:
    weights_N = torch.arange(1.0, 12.0)
    whole = list(islice(batches(sampling, weights_N, 4, seed=5), 10))  # type: ignore[arg-type]
    assert list(islice(batches(sampling, weights_N, 4, seed=5, skip=6), 4)) == whole[6:]  # type: ignore[arg-type]
    assert [len(batch) for batch in whole[:4]] == [4, 4, 3, 4]
    if sampling == "none":
        assert sorted(row for batch in whole[:3] for row in batch) == list(range(11))
        assert whole[:3] != whole[3:6]
