"""Muon in float32 against torch's own, and what it promises of a step."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from reflectrl.learn.optim import Muon, orthogonalised

COEFFICIENTS = (3.4445, -4.775, 2.0315)


def trained(
    optimizer_class: Callable[..., torch.optim.Optimizer], shape: tuple[int, int], steps: int = 4
) -> tuple[Tensor, ...]:
    """A matrix, and its momentum, after some steps along given gradients; and how far the steps went."""
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(shape, generator=generator))
    start = weight.detach().clone()
    optimizer = optimizer_class([weight], lr=0.02, weight_decay=0.1)
    for _ in range(steps):
        weight.grad = torch.randn(shape, generator=generator)
        optimizer.step()
    return weight.detach(), optimizer.state[weight]["momentum_buffer"], (weight.detach() - start).norm()


@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (16, 16)])
def test_without_mixed_precision_steps_are_torchs_but_for_its_rounding(shape: tuple[int, int]) -> None:
    expected, average, far = trained(torch.optim.Muon, shape)
    found, own_average, _ = trained(Muon, shape)
    assert 0 < float((found - expected).norm()) < 0.03 * float(far)
    torch.testing.assert_close(own_average, average)


def test_with_mixed_precision_steps_are_torchs() -> None:
    mixed = partial(Muon, mixed=True)
    for found, expected in zip(trained(mixed, (12, 30)), trained(torch.optim.Muon, (12, 30)), strict=True):
        assert torch.equal(found, expected)


def test_a_matrix_without_a_gradient_stays() -> None:
    frozen, moved = (nn.Parameter(torch.ones(3, 4)) for _ in range(2))
    optimizer = Muon([frozen, moved], lr=0.1)
    moved.grad = torch.randn(3, 4)
    optimizer.step()
    assert torch.equal(frozen, torch.ones(3, 4)) and not torch.equal(moved, torch.ones(3, 4))


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(2, 20), columns=st.integers(2, 20), scale=st.floats(1e-4, 1e4), seed=st.integers(0, 99))
def test_singular_values_become_about_one_whatever_the_scale(rows: int, columns: int, scale: float, seed: int) -> None:
    matrix = scale * torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    found = orthogonalised(matrix, COEFFICIENTS, 5, 1e-7)
    before, values = (torch.linalg.svdvals(one) for one in (matrix, found))
    sizeable = before > 0.05 * before[0]
    assert found.shape == matrix.shape and bool((values < 1.3).all()) and bool((values[sizeable] > 0.5).all())
