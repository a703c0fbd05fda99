"""Sizes of passes under autocast are rounded up, and results and gradients are those of the pass as it is."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.core.config import ModelConfig
from reflectrl.models import packed
from reflectrl.models.lm import LanguageModel
from reflectrl.models.load import load_model
from reflectrl.models.rounding import rounded
from reflectrl.models.scratch import save_scratch
from reflectrl.models.sharing import Ids, Packing, no_sharing, pack

PROMPTS: list[Ids] = [tuple(range(3, 3 + length)) for length in (40, 7, 23, 31)]


@given(size=st.integers(0, 10**6))
def test_a_size_grows_by_a_thirty_second_at_most(size: int) -> None:
    assert size <= rounded(size) <= size + size / 32
    assert rounded(rounded(size)) == rounded(size)


def test_there_are_thirty_two_sizes_to_a_doubling() -> None:
    assert len({rounded(size) for size in range(1025, 2049)}) == 32


@pytest.mark.parametrize("layout", [no_sharing, pack])
@pytest.mark.parametrize("at", ["ends", "all", [30, 3, 3, 17]])
@pytest.mark.parametrize("family", ["gpt2", "llama", "canon_llama"])
def test_spare_tokens_change_neither_results_nor_gradients(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: Literal["gpt2", "llama", "canon_llama"],
    at: Any,
    layout: Callable[[Sequence[Ids]], Packing],
) -> None:
    config = ModelConfig(family=family, layers=2, width=32, context=64, mixed_precision="on")
    save_scratch(tmp_path, config, ["go on to the end"], 6, seed=1)
    results = []
    for size in (rounded, lambda count: count):
        monkeypatch.setattr(packed, "rounded", size)
        lm = load_model(tmp_path, config)
        with lm.training():
            hidden_MD = lm.backend.read(layout(PROMPTS), at)
            logits_MV = lm.backend.logits(hidden_MD)
            (logits_MV.float().log_softmax(-1)[:, 5].sum() / 10).backward()
        results.append((hidden_MD.float(), logits_MV.float(), gradient(lm), counts(lm)))
    (hidden, logits, slope, counted), (as_is, as_is_logits, as_is_slope, as_is_counted) = results
    torch.testing.assert_close(hidden, as_is, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(logits, as_is_logits, atol=2e-2, rtol=2e-2)
    assert torch.cosine_similarity(slope, as_is_slope, dim=0) > 0.999
    assert counted == as_is_counted


def gradient(lm: LanguageModel) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in lm.parameters() if p.grad is not None])


def counts(lm: LanguageModel) -> tuple[int, ...]:
    return lm.counters.encoded, lm.counters.reused, lm.counters.pairs
