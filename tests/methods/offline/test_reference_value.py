"""The value of the reference: it reads the prompt's own tokens only, learns, and keeps its best epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from reflectrl.core.types import UserError
from reflectrl.methods.shared.offline.config import OfflineConfig
from reflectrl.methods.shared.offline.reference_value import PromptValue, fit_value, prompt_states, prompt_values, split

Pair = Callable[..., tuple[Any, Any]]
CONFIG = OfflineConfig(value_epochs=3, value_batch=4, value_lr=3e-3)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_values_do_not_depend_on_company_padding_or_its_side(pair: Pair, family: str) -> None:
    lm = pair(family)[0]
    prompts = [tuple(range(5, 5 + n)) for n in (3, 40, 1, 17)] + [tuple(range(30, 50))]
    torch.manual_seed(0)
    head = PromptValue(lm.hidden_size, 1.0).eval()
    together_P = prompt_values(lm, head, prompts)
    alone_P = torch.cat([prompt_values(lm, head, [prompt]) for prompt in prompts])
    torch.testing.assert_close(together_P, alone_P, atol=1e-5, rtol=0)

    hidden_PTD, own_PT = prompt_states(lm, prompts)
    extra = torch.full((len(prompts), 7, lm.hidden_size), 9.0)
    none = torch.zeros(len(prompts), 7, dtype=torch.bool)
    with torch.no_grad():
        right_P = head(torch.cat([hidden_PTD, extra], 1), torch.cat([own_PT, none], 1))
        left_P = head(torch.cat([extra, hidden_PTD], 1), torch.cat([none, own_PT], 1))
    torch.testing.assert_close(right_P, alone_P, atol=1e-5, rtol=0)
    torch.testing.assert_close(left_P, alone_P, atol=1e-5, rtol=0)


def test_bounded_values_stay_between_0_and_the_largest() -> None:
    hidden, own = 50 * torch.randn(20, 3, 16), torch.ones(20, 3, dtype=torch.bool)
    bounded, linear = PromptValue(16, 5.0).eval(), PromptValue(16, None).eval()
    with torch.no_grad():
        bounded.out.weight.mul_(100)
        linear.out.weight.mul_(100)
        assert float(bounded(hidden, own).min()) >= 0 and float(bounded(hidden, own).max()) <= 5
        assert float(linear(hidden, own).max()) > 5 or float(linear(hidden, own).min()) < 0


def test_heads_divide_the_width() -> None:
    assert [PromptValue(width, None).attention.num_heads for width in (64, 12, 7)] == [8, 4, 1]


def task(lm: Any, count: int = 24) -> tuple[list[tuple[int, ...]], torch.Tensor, list[str]]:
    """Prompts whose first token decides what they are worth."""
    prompts = [(20 + i % 2, *range(40, 43 + i % 3)) for i in range(count)]
    return prompts, torch.tensor([float(i % 2) for i in range(count)]), [str(i // 2) for i in range(count)]


@pytest.mark.parametrize("most", [1.0, None])
def test_it_learns_and_the_backbone_stays_as_it_was(pair: Pair, most: float | None) -> None:
    lm = pair("gpt2")[0]
    before, (prompts, returns_P, units) = lm.weights(), task(lm)
    log: list[dict[str, float]] = []
    head = fit_value(lm, prompts, returns_P, units, most, replace(CONFIG, value_epochs=30), 0, log.append)
    assert [one["step"] for one in log] == list(range(1, 31))
    assert log[-1]["explained_variance"] > 0.8
    values_P = prompt_values(lm, head, prompts)
    assert float((values_P - returns_P).square().mean()) < 0.05
    assert all(torch.equal(tensor, before[name]) for name, tensor in lm.weights().items())
    assert all(p.grad is None for p in lm.parameters()) and next(head.parameters()).dtype == torch.float32


def test_the_best_epoch_on_held_out_prompts_is_kept(pair: Pair) -> None:
    """With a rate far too high, later epochs are worse; the head that is returned is that of the best."""
    lm, config = pair("gpt2")[0], replace(CONFIG, value_epochs=6, value_lr=0.5)
    prompts, returns_P, units = task(lm)
    log: list[dict[str, float]] = []
    head = fit_value(lm, prompts, returns_P, units, None, config, 0, log.append)
    _, held = split(units, config.held_out, 0)
    found = float((prompt_values(lm, head, [prompts[i] for i in held]) - returns_P[held]).square().mean())
    losses = [one["value_eval_loss"] for one in log]
    assert found == pytest.approx(min(losses), rel=1e-4) and max(losses) > 2 * min(losses)


def test_a_value_that_is_worse_than_a_constant_is_warned_of(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    lm = pair("gpt2")[0]
    fit_value(lm, *task(lm), 1.0, replace(CONFIG, value_epochs=30), 0, lambda metrics: None)
    assert not caplog.records
    fit_value(lm, *task(lm), 1.0, replace(CONFIG, value_epochs=2, value_lr=100.0), 0, lambda metrics: None)
    assert "worse than a constant" in caplog.text and "offline.value_lr (it is 100)" in caplog.text


def test_the_same_seed_gives_the_same_head(pair: Pair) -> None:
    lm = pair("gpt2")[0]
    heads = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        heads.append(fit_value(lm, *task(lm), 1.0, CONFIG, 3, lambda metrics: None).state_dict())
    assert all(torch.equal(heads[0][name], heads[1][name]) for name in heads[0])


def test_units_are_never_torn_apart() -> None:
    units = [str(i % 7) for i in range(70)]
    train, held = split(units, 0.3, seed=1)
    assert sorted([*train, *held]) == list(range(70))
    assert {units[i] for i in train}.isdisjoint({units[i] for i in held})
    assert len({units[i] for i in held}) == 2
    with pytest.raises(UserError, match="held out"):
        split(["one"] * 5, 0.1, 0)
