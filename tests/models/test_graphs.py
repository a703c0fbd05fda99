"""Decoding by recorded passes: the same texts as by ordinary ones, whatever the drafts and lengths."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.core.types import Sampling
from reflectrl.models.generation import DraftModel
from reflectrl.models.graphs import DecodingGraphs
from reflectrl.models.lm import LanguageModel
from reflectrl.models.packed import PackedBackend
from reflectrl.models.players import sampler
from reflectrl.models.sharing import Ids

Pair = Callable[..., tuple[LanguageModel, LanguageModel]]
families = pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2", "canon_llama"])


def recorded(lm: LanguageModel) -> LanguageModel:
    return replace(lm, engine_options=replace(lm.engine_options, batched=True, graphs=True))


def unrecorded(lm: LanguageModel) -> LanguageModel:
    return replace(lm, engine_options=replace(lm.engine_options, graphs=False))


def texts(
    lm: LanguageModel, prompts: Sequence[Ids], limits: Sequence[int], drafts: bool
) -> list[tuple[Ids, list[float]]]:
    """Write twice, so that drafts have something to guess from, and return both times' texts."""
    draft_model, found = DraftModel() if drafts else None, []
    for _ in range(2):
        generators = [np.random.default_rng([5, i]) for i in range(len(prompts))]
        written = lm.backend.write(prompts, limits, sampler(Sampling(0.8)), generators, None, draft_model)
        found += [(ids, list(logprobs)) for ids, logprobs in written]
    return found


@families
@settings(max_examples=8, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=5),
    drafts=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_recorded_passes_write_the_same_texts(
    pair: Pair, family: str, rows: list[tuple[int, int]], drafts: bool, seed: int
) -> None:
    lm, rng = unrecorded(pair(family, False)[0]), np.random.default_rng(seed)
    prompts = [tuple(int(token) for token in rng.integers(1, 250, size=length)) for length, _ in rows]
    limits = [limit for _, limit in rows]
    fast = recorded(lm)
    for (ids, logprobs), (found, found_logprobs) in zip(
        texts(lm, prompts, limits, drafts), texts(fast, prompts, limits, drafts), strict=True
    ):
        assert found == ids
        assert found_logprobs == pytest.approx(logprobs, abs=1e-4)


def test_recordings_are_dropped_when_weights_move_and_kept_when_they_change_in_place(pair: Pair) -> None:
    lm = recorded(pair("llama", False)[0])
    prompts = [(3, 4, 5), (6, 7, 8, 9)]
    backend = lm.backend
    assert isinstance(backend, PackedBackend) and isinstance(backend.graphs, DecodingGraphs)
    texts(lm, prompts, [6, 6], False)
    buffers = dict(backend.graphs._buffers)
    parameter = next(iter(lm.core.parameters()))
    with torch.no_grad():
        parameter.mul_(1.5)
    plain = unrecorded(lm)
    assert [ids for ids, _ in texts(lm, prompts, [6, 6], False)] == [
        ids for ids, _ in texts(plain, prompts, [6, 6], False)
    ]
    assert backend.graphs._buffers == buffers, "the same memory was used again"
    parameter.data = parameter.data.clone()
    texts(lm, prompts, [6, 6], False)
    assert set(backend.graphs._buffers.values()).isdisjoint(buffers.values())
    parameter.data.div_(1.5)  # the model belongs to other tests as well


def test_a_batch_too_large_for_its_share_of_memory_is_written_without_recordings(pair: Pair) -> None:
    lm = recorded(pair("llama", False)[0])
    backend = lm.backend
    assert isinstance(backend, PackedBackend) and backend.graphs is not None
    backend.graphs.most_bytes = 1
    plain = unrecorded(lm)
    assert texts(lm, [(3, 4, 5)], [6], True) == texts(plain, [(3, 4, 5)], [6], True)
    assert not backend.graphs._buffers


def test_buffers_stay_within_their_share_of_memory(pair: Pair) -> None:
    lm = recorded(pair("llama", False)[0])
    backend = lm.backend
    assert isinstance(backend, PackedBackend) and backend.graphs is not None
    prompts = [(3 + i, 4, 5) for i in range(8)]
    texts(lm, prompts[:1], [6], False)
    [first] = backend.graphs._buffers.values()
    backend.graphs.most_bytes = 9 * first.nbytes
    for count in (2, 4, 8, 1, 8):
        expected = texts(unrecorded(lm), prompts[:count], [6] * count, False)
        assert [ids for ids, _ in texts(lm, prompts[:count], [6] * count, False)] == [ids for ids, _ in expected]
        assert sum(buffer.nbytes for buffer in backend.graphs._buffers.values()) <= backend.graphs.most_bytes
    assert set(backend.graphs._buffers) == {1, 8}, "the oldest made room"
