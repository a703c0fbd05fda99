"""The value head: shapes, its start at zero, and that it can learn a return."""

import pytest
import torch

from reflectrl.learn.losses import explained_variance, value_loss
from reflectrl.learn.value import ValueHead


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_predicts_zero_before_learning(kind):
    values_N = ValueHead(8, kind)(torch.randn(5, 8))
    assert values_N.shape == (5,) and torch.all(values_N == 0)


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_learns_a_linear_return(kind):
    torch.manual_seed(0)
    head, hidden_ND = ValueHead(4, kind), torch.randn(256, 4)
    returns_N = hidden_ND @ torch.tensor([1.0, -2.0, 0.5, 0.0]) + 3
    optimiser = torch.optim.AdamW(head.parameters(), lr=0.05)
    for _ in range(200):
        optimiser.zero_grad()
        value_loss(head(hidden_ND), returns_N).backward()
        optimiser.step()
    assert explained_variance(head(hidden_ND), returns_N) > 0.8


def test_reads_half_precision_hidden_states():
    values_N = ValueHead(8, "mlp")(torch.randn(2, 8, dtype=torch.bfloat16))
    assert values_N.dtype == torch.float32


def test_survives_a_state_dict_round_trip():
    torch.manual_seed(0)
    first, second = ValueHead(4, "mlp"), ValueHead(4, "mlp")
    torch.nn.init.normal_(first.out.weight)
    second.load_state_dict(first.state_dict())
    hidden_ND = torch.randn(3, 4)
    assert torch.equal(first(hidden_ND), second(hidden_ND)) and torch.any(first(hidden_ND) != 0)
