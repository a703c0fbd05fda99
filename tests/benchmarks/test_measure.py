import json
import operator
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from benchmarks.measure import CLEAR, count_flops, gemm_rate, interleaved, peak_memory, report, table
from reflectrl.models.lm import LanguageModel

B, T, V, D, LAYERS = 3, 64, 500, 32, 2


@pytest.fixture
def lm(tiny: Callable[..., LanguageModel]) -> LanguageModel:
    return tiny(vocab=V, layers=LAYERS, width=D)


def forward(lm: LanguageModel, mask: Tensor | None = None) -> Tensor:
    return lm.model(input_ids=torch.ones(B, T, dtype=torch.long), attention_mask=mask, use_cache=False).logits


MATRICES = B * T * (LAYERS * 24 * D * D + 2 * D * V)
"""By hand: 12 D² weights a layer, and the head."""
ATTENTION = LAYERS * B * 4 * D * T * T
"""By hand, with nothing skipped."""
CAUSAL = (T + 1) / (2 * T)


def test_the_flops_of_a_forward_pass_agree_with_a_count_by_hand(lm: LanguageModel) -> None:
    assert count_flops(lambda: forward(lm)) == MATRICES + CAUSAL * ATTENTION


def test_nothing_is_skipped_under_a_mask(lm: LanguageModel) -> None:
    mask_BT = torch.ones(B, T, dtype=torch.long)
    mask_BT[0, :5] = 0
    assert count_flops(lambda: forward(lm, mask_BT)) == MATRICES + ATTENTION


@pytest.mark.parametrize(
    "context", [torch.no_grad, torch.inference_mode, partial(torch.autocast, "cpu", torch.bfloat16)]
)
@pytest.mark.parametrize("masked", [False, True])
def test_the_count_does_not_depend_on_the_mode(lm: LanguageModel, context: Callable, masked: bool) -> None:  # type: ignore[type-arg]
    mask_BT = torch.ones(B, T, dtype=torch.long)
    mask_BT[0, :5] = 0
    given = mask_BT if masked else None

    def within() -> None:
        with context():
            forward(lm, given)

    assert count_flops(within) == count_flops(lambda: forward(lm, given))


@pytest.mark.parametrize("mixed", [False, True])
def test_the_backward_pass_is_two_more_of_each_matrix_product_and_five_of_attention(
    lm: LanguageModel, mixed: bool
) -> None:
    def both() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            loss = forward(lm).float().logsumexp(-1).sum()
        loss.backward()

    assert count_flops(both) == pytest.approx(3 * MATRICES + 3.5 * CAUSAL * ATTENTION)


def test_a_product_with_a_vector_counts() -> None:
    assert count_flops(lambda: torch.ones(5, 7) @ torch.ones(7)) == 70


def test_the_gemm_rate_is_that_of_a_computer() -> None:
    assert 1e8 < gemm_rate(torch.float32, seconds=0.05) < 1e15


def test_calls_alternate_after_one_warm_up_each() -> None:
    calls: list[str] = []
    taken = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"
    assert [len(seconds) for seconds in taken.values()] == [3, 3]


def test_a_function_may_measure_itself() -> None:
    assert interleaved({"a": lambda: 7.0}, 2, warm_up=False) == {"a": [7.0, 7.0]}


@pytest.mark.skipif(not CLEAR.exists(), reason="the kernel's high-water mark is Linux's")
def test_peak_memory_is_what_the_call_adds_even_if_it_is_freed_at_once() -> None:
    megabytes = 200 * 2**20
    peak = peak_memory(operator.mul, b"x", megabytes)
    assert peak == pytest.approx(megabytes, rel=0.05)
    prepared = peak_memory(len, megabytes, prepare=partial(operator.mul, b"x"))
    assert prepared is not None and prepared < 0.05 * megabytes


ROWS = [
    {"part": "[play] " + "x" * 150, "steps": 12345, "share": 0.12345},
    {"part": "learn", "steps": None, "share": 2.0},
]


def test_a_table_has_one_line_per_row_however_wide() -> None:
    head, first, second = table(ROWS, ["part", "steps", "share", "none"]).splitlines()
    assert head.split() == ["part", "steps", "share", "none"]
    assert first.split() == ["[play]", "x" * 150, "12,345", "0.123", "-"]
    assert second.split() == ["learn", "-", "2", "-"]
    assert len({line.index(word) + len(word) for line, word in ((head, "share"), (first, "0.123"))}) == 1


def test_a_report_is_a_table_or_json() -> None:
    assert json.loads(report(ROWS, as_json=True)) == ROWS
    assert report(ROWS, as_json=False) == table(ROWS, ["part", "steps", "share"])
