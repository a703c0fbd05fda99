"""The engine's way on GPUs, computed on a CPU: the numbers of the other ways, in few calls, with few questions."""

import copy
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.families import Marks, tiny_model
from reflectrl.core.types import Sampling
from reflectrl.models import batched, packed
from reflectrl.models.attention import Attend, BlockAttention, DecodingAttention
from reflectrl.models.backend import Candidates, Counters
from reflectrl.models.batched import BatchedAttention, WholeAttention, length_buckets
from reflectrl.models.generation import DraftModel
from reflectrl.models.lm import EngineOptions, LanguageModel
from reflectrl.models.players import sampler
from reflectrl.models.sharing import ROUNDING, Block, Ids, KVCache, Packing, extend, no_sharing, pack
from reflectrl.models.text_scoring import make_trie
from reflectrl.models.verification import find_exact_options
from tests.device import DEVICE, ON_GPU
from tests.models.test_families import check_exact

Pair = Callable[..., tuple[LanguageModel, LanguageModel]]
CPU = torch.device("cpu")
families = pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2", "canon_llama"])


@pytest.fixture(autouse=True)
def _block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other way is block by block, however small the blocks are."""
    monkeypatch.setattr(packed, "SMALL", 0)


def as_on_a_gpu(lm: LanguageModel, **options: bool) -> LanguageModel:
    """The same model, computed as GPUs would have it."""
    return replace(lm, engine_options=replace(lm.engine_options, batched=True, **options), counters=Counters())


def drawn_packing(rng: np.random.Generator, texts: int) -> Packing:
    """Prompts that begin alike, and a trie of so many texts behind the first one."""
    history = rng.integers(2, 9, size=40)
    starts = [history[: rng.integers(0, 40)] for _ in range(rng.integers(1, 8))]
    prompts = [(*map(int, start), *map(int, rng.integers(2, 60, size=rng.integers(1, 20)))) for start in starts]
    packing = pack(prompts, least=int(rng.integers(1, 17)))
    if texts:
        trie = make_trie([tuple(map(int, rng.integers(2, 5, size=rng.integers(2, 6)))) for _ in range(texts)])
        path = packing.paths[0]
        packing.blocks.append(Block(trie.ids, sum(count for _, count in path), path, trie))
    return packing


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), groups=st.sampled_from([1, 2, 4]), texts=st.integers(0, 4), some=st.booleans())
def test_attention_and_gradients_are_those_of_block_by_block(seed: int, groups: int, texts: int, some: bool) -> None:
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    blocks = drawn_packing(rng, texts).blocks
    length = sum(len(block.ids) for block in blocks)
    shapes = [(length, heads, 8) for heads in (4, groups, groups)]
    parts = [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]
    wanted = torch.from_numpy(np.unique(rng.integers(0, length, size=5))) if some else None
    found = []
    ways: list[Attend] = [BlockAttention(blocks), BatchedAttention(blocks, None, 1, CPU)]
    for attend in ways:
        query = parts[0] if wanted is None else parts[0][wanted]
        out = attend(0, query, *parts[1:], 0.0, wanted)
        found.append((out, *torch.autograd.grad((out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum(), parts)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=9), groups=st.sampled_from([1, 2, 4]), some=st.booleans()
)
def test_prompts_that_share_nothing_have_the_gradients_of_block_by_block(
    lengths: list[int], groups: int, some: bool
) -> None:
    """Their rows move to padded batches and back by selections, whose gradients are our own."""
    generator, length = torch.Generator().manual_seed(sum(lengths)), sum(lengths)
    blocks = no_sharing([(1,) * size for size in lengths]).blocks
    parts = [torch.randn(length, heads, 8, generator=generator, requires_grad=True) for heads in (4, groups, groups)]
    wanted = torch.tensor(sorted({0, length // 2, length - 1})) if some else None
    found = []
    ways: list[Attend] = [BlockAttention(blocks), WholeAttention(blocks, CPU)]
    for attend in ways:
        out = attend(0, parts[0] if wanted is None else parts[0][wanted], *parts[1:], 0.0, wanted)
        weights = torch.linspace(-1, 1, out.numel()).view_as(out).sin()
        found.append((out, *torch.autograd.grad((out * weights).sum(), parts)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_prompts_are_packed_on_a_gpu_where_that_halves_the_tokens(pair: Pair) -> None:
    lm = as_on_a_gpu(pair("llama")[0])
    history = tuple(range(5, 105))
    much = [(*history, 7, i) for i in range(8)]
    little = [(*history[:40], *range(110 + i, 170 + i)) for i in range(8)]
    for prompts, shared in ((much, True), (little, False)):
        before = lm.counters.copy()
        with torch.no_grad():
            lm.backend.read(prompts)
        assert (lm.counters.since(before).encoded < sum(map(len, prompts))) == shared


def test_blocks_of_like_length_stand_together_and_most_of_a_batch_is_no_padding() -> None:
    blocks = drawn_packing(np.random.default_rng(3), 3).blocks
    groups = length_buckets(blocks)
    assert sorted(i for group in groups for i in group) == [*range(len(blocks))] and len(groups) < len(blocks)
    for group in groups:
        for lengths in ([len(blocks[i].ids) for i in group], [blocks[i].start + len(blocks[i].ids) for i in group]):
            assert max(lengths) < 2 * min(lengths)


@pytest.mark.parametrize("groups", [2, 4])
def test_dropout_scales_what_stays_and_has_gradients(groups: int) -> None:
    """Averaged over many draws, attention with dropout is attention without."""
    blocks = pack([(1, 2, 3, 4), (1, 2, 3, 5)], least=1).blocks
    attend: Attend = BatchedAttention(blocks, None, 1, CPU)
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(5, heads, 8, generator=generator, requires_grad=True) for heads in (4, groups, groups)]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        draws = torch.stack([attend(0, *parts, dropout=0.3) for _ in range(400)])
    torch.testing.assert_close(draws.mean(0), attend(0, *parts), atol=0.3, rtol=0)
    assert float(draws.std(0).detach().max()) > 0.1
    draws.sum().backward()
    assert all(part.grad is not None and bool(part.grad.isfinite().all()) for part in parts)


def test_padded_copies_of_keys_are_not_kept_for_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    history = tuple(range(20))
    blocks = pack([(*history, token, 3) for token in range(5, 9)], least=1).blocks
    parts = [torch.randn(sum(len(block.ids) for block in blocks), 2, 8, requires_grad=True) for _ in range(3)]
    copies: list[weakref.ref[Tensor]] = []
    gather = batched._Batch._gather

    def watched(batch: Any, part: Tensor) -> Tensor:
        copies.append(weakref.ref(whole := gather(batch, part)))
        return whole

    monkeypatch.setattr(batched._Batch, "_gather", watched)
    attend: Attend = BatchedAttention(blocks, None, 1, CPU)
    out = attend(0, *parts)
    assert len(copies) == 2 * 2 and not any(one() is not None for one in copies), "two batches, of keys and values"
    found = torch.autograd.grad(out.sum(), parts)
    assert len(copies) == 2 * 2 * 2, "made again"
    monkeypatch.setattr(batched._Batch, "_gathered_again", lambda *_: nullcontext())
    copies.clear()
    out = attend(0, *parts)
    assert all(one() is not None for one in copies), "autograd would keep them"
    for one, other in zip(found, torch.autograd.grad(out.sum(), parts), strict=True):
        torch.testing.assert_close(one, other)


# ---- whole models ----------------------------------------------------------------------------------------------------


def growing(rng: np.random.Generator, rows: int = 4, steps: int = 3) -> list[list[Ids]]:
    """For each step the prompts of some episodes, whose histories grow."""
    histories: list[list[int]] = [[] for _ in range(rows)]
    found = []
    for _ in range(steps):
        for history in histories:
            history += rng.integers(2, 250, size=rng.integers(1, 30)).tolist()
        found.append([(*history, *map(int, rng.integers(2, 250, size=rng.integers(1, 9)))) for history in histories])
    return found


TEXTS = Candidates(((5, 6, 0), (5, 7, 8, 0), (9, 0), (0,)), (2, 3, 1, 1))
LABELS = Candidates(((5,), (9,), (11,)), (1, 1, 1))


@families
@pytest.mark.parametrize("blocks", [True, False])
def test_growing_prompts_and_actions_texts_are_those_of_the_other_way(pair: Pair, family: str, blocks: bool) -> None:
    lm, steps = pair(family, family == "llama")[0], growing(np.random.default_rng(1))
    gpu, ours, theirs = as_on_a_gpu(lm, blocks=blocks), [KVCache() for _ in range(4)], [KVCache() for _ in range(4)]
    before = lm.counters.copy()
    with torch.inference_mode():
        for prompts in steps:
            for scoring, answers in (("enumeration", LABELS), ("sum", TEXTS), ("trie", TEXTS)):
                found = gpu.backend.score(prompts, [answers] * 4, scoring, ours)  # type: ignore[arg-type]
                expected = lm.backend.score(prompts, [answers] * 4, scoring, theirs)  # type: ignore[arg-type]
                for one, other in zip(found, expected, strict=True):
                    torch.testing.assert_close(one, other, atol=1e-4, rtol=0)
            assert [cache.ids for cache in ours] == prompts == [cache.ids for cache in theirs]
            assert [cache.nbytes for cache in ours] == [cache.nbytes for cache in theirs]
    assert gpu.counters == lm.counters.since(before) and gpu.counters.reused > 0
    another, longer = KVCache(), [(*steps[-1][0], 3, 4)]
    another.copy(ours[0], len(ours[0].ids) - 5)  # a beginning, as episodes share it
    with torch.inference_mode():
        hidden_1D, expected_1D = (
            one.backend.read(longer, caches=[cache]) for one, cache in ((gpu, another), (lm, theirs[0]))
        )
    torch.testing.assert_close(hidden_1D, expected_1D, atol=1e-4, rtol=0)
    assert ours[0].ids == steps[-1][0], "and the one that was copied knows nothing of it"


@families
@pytest.mark.parametrize("scoring", ["enumeration", "token", "trie"])
def test_an_updates_gradients_are_those_of_the_other_way(pair: Pair, family: str, scoring: Any) -> None:
    lm, (*_, prompts) = pair(family, family == "qwen2")[0], growing(np.random.default_rng(2))
    prompts, answers = [*prompts, prompts[0][:-3], prompts[0]], LABELS if scoring == "enumeration" else TEXTS
    found = []
    for one in (as_on_a_gpu(lm), lm):
        logits_PA, _ = one.backend.score(prompts, [answers] * len(prompts), scoring)
        weights_N = torch.linspace(-1, 1, logits_PA.numel(), device=logits_PA.device)
        loss = (logits_PA * weights_N.view_as(logits_PA)).sum()
        found.append(torch.autograd.grad(loss, lm.parameters(), allow_unused=True))
    pairs = [(a, b) for a, b in zip(*found, strict=True) if b is not None and a is not None]
    assert len(pairs) > 5
    size = sum(float(b.square().sum()) for _, b in pairs)
    assert sum(float((a - b).square().sum()) for a, b in pairs) < 1e-8 * size


@pytest.mark.skipif(ON_GPU, reason="GPUs attend all blocks in batches")
@families
@pytest.mark.parametrize("scoring", ["enumeration", "options"])
def test_small_blocks_on_a_cpu_are_learned_in_a_few_calls_with_the_same_gradients(
    pair: Pair, family: str, scoring: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = pair(family)[0]
    lm.ensure_option_head().data.normal_(generator=torch.Generator(lm.device).manual_seed(1))
    prompts = [(1, 2, 3, 4 + row, *range(20, 22 + row % 5)) for row in range(24)]
    answers = [LABELS if scoring == "enumeration" else TEXTS] * len(prompts)
    found, counts, rows = [], [], 0.0
    for small in (0, 4_500):
        monkeypatch.setattr(packed, "SMALL", small)
        with Calls() as counted:
            logits_PA, _ = lm.backend.score(prompts, answers, scoring)
        loss = logits_PA.masked_fill(logits_PA.isinf(), 0.0).sin().sum()
        found.append(torch.autograd.grad(loss, [*lm.parameters()], allow_unused=True))
        counts.append(counted.count)
    for one, other in zip(*found, strict=True):
        if one is not None:
            rows += float(one.abs().sum())
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    assert rows > 0 and counts[1] < 0.8 * counts[0]


@pytest.mark.parametrize(("count", "width", "small"), [(16, 64, True), (16, 256, False), (7, 64, False)])
def test_whether_blocks_are_small_is_a_matter_of_tokens_width_and_number(
    count: int, width: int, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    assert packed.are_small(no_sharing([(1,) * 40] * count).blocks, width) is small


@families
@settings(max_examples=6, deadline=None)
@given(temperature=st.sampled_from([0.0, 0.8, 1.5]), seed=st.integers(0, 999), drafts=st.booleans())
def test_what_is_written_and_the_numbers_that_it_takes_are_the_same(
    pair: Pair, family: str, temperature: float, seed: int, drafts: bool
) -> None:
    lm, rng = pair(family)[0], np.random.default_rng(seed)
    prompts = [tuple(map(int, rng.integers(1, 250, size=size))) for size in (3, 17, 30, 1)]
    found = []
    for one in (as_on_a_gpu(lm), lm):
        model, texts = DraftModel() if drafts else None, []
        generators = [np.random.default_rng([seed, i]) for i in range(4)]
        for _ in range(3):  # from the second time on, much of it can be guessed
            caches = [KVCache() for _ in prompts]
            texts += one.backend.write(prompts, 9, sampler(Sampling(temperature)), generators, caches, model)
        found.append((texts, [generator.random() for generator in generators]))
    (ours, numbers), (theirs, expected) = found
    assert [ids for ids, _ in ours] == [ids for ids, _ in theirs]
    assert numbers == expected, "one number for each token, none for guesses"
    for (_, nats), (_, wanted) in zip(ours, theirs, strict=True):
        assert nats == pytest.approx(wanted, abs=1e-4)


@families
def test_a_model_proves_this_way_too_and_goes_another_where_it_is_wrong(
    pair: Pair, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = as_on_a_gpu(pair(family)[0])
    assert find_exact_options(lm, "right") == (lm.engine_options, [])
    whole = BatchedAttention.__call__
    monkeypatch.setattr(BatchedAttention, "__call__", lambda *rest: whole(*rest).roll(1, 0))
    found, (said,) = find_exact_options(lm, "wrong")
    assert found.packed and found.blocks and not found.batched and "one by one" in said


@pytest.mark.parametrize("name", ["gemma3_text", "phi", "granite", "llama-yarn", "gpt_neox", "qwen3"])
def test_other_families_are_exact_this_way(name: str) -> None:
    lm = LanguageModel(tiny_model(name).to(DEVICE), Marks(), context=64, engine_options=EngineOptions(batched=True))
    found, said = find_exact_options(lm, name)
    assert found.packed and found.batched and not said
    check_exact(replace(lm, engine_options=found))


# ---- calls and questions ---------------------------------------------------------------------------------------------


class Questions(TorchFunctionMode):
    """Counts what the host asks of the device, and what it sends there, by the names of the calls."""

    ASKS = ("tolist", "item", "cpu", "numpy", "nonzero", "unique", "__bool__", "__int__", "__float__", "__index__")

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.sent = Counter[str](), Counter[str]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in self.ASKS:
            self.asked[name] += 1
        if name == "to" and any(isinstance(one, torch.device) for one in args):
            self.sent["waiting" if not kwargs.get("non_blocking") else "in passing"] += 1
        index = args[1] if name in ("__getitem__", "__setitem__") else ()
        listed = any(isinstance(one, list) for one in (index if isinstance(index, tuple) else (index,)))
        if listed or (name in ("tensor", "as_tensor") and "device" in kwargs):
            self.sent["waiting"] += 1
        return func(*args, **kwargs)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_pass_of_writing_asks_the_device_once_whatever_the_rows_and_their_drafts(
    pair: Pair, temperature: float
) -> None:
    lm, rng = as_on_a_gpu(pair("llama")[0]), np.random.default_rng(0)
    for rows in (1, 6):
        prompts, model = [tuple(map(int, rng.integers(1, 250, size=20))) for _ in range(rows)], DraftModel()
        for _ in range(2):
            before = lm.counters.copy()
            with Questions() as questions, torch.inference_mode():
                generators = [np.random.default_rng(i) for i in range(rows)]
                lm.backend.write(prompts, 12, sampler(Sampling(temperature)), generators, None, model)
            counted = lm.counters.since(before)
            assert counted.passes > 1
            assert questions.asked == {"tolist": counted.passes}, "what was drawn"
            assert questions.sent["waiting"] == 0
            per_pass = 2 if temperature else 1  # tokens with their places, and numbers to draw with
            assert questions.sent["in passing"] <= per_pass * counted.passes + 8
        assert counted.drafted > 0, "several tokens of a row in one pass"


@pytest.mark.parametrize("scoring", ["enumeration", "token", "trie"])
def test_reading_asks_the_device_nothing(pair: Pair, scoring: Any) -> None:
    """A device without numbers answers no question: torch raises an error."""
    lm, steps = pair("llama")[0], growing(np.random.default_rng(0))
    away = replace(as_on_a_gpu(lm), model=copy.deepcopy(lm.model).to("meta"))
    answers, caches = LABELS if scoring == "enumeration" else TEXTS, [KVCache() for _ in range(4)]
    with torch.no_grad(), Questions() as questions:
        for prompts in steps:
            logits_PA, _ = away.backend.score(prompts, [answers] * 4, scoring, caches)
        packed_PA, _ = away.backend.score(pack(steps[-1]), [answers] * 4, scoring)
    assert logits_PA.device.type == packed_PA.device.type == "meta" and packed_PA.shape == (4, len(answers.ids))
    assert not questions.asked and not questions.sent["waiting"]


class Calls(TorchDispatchMode):
    """Counts operations that launch a kernel on a GPU."""

    NONE = (torch.ops.aten.permute.default, torch.ops.aten.new_empty.default, torch.ops.aten.expand.default)

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view and func not in self.NONE
        return func(*args, **(kwargs or {}))


def caches_of(count: int, rows: int) -> list[KVCache]:
    """Caches that hold so many tokens, and every second one half of `ROUNDING` more."""
    caches = [KVCache() for _ in range(rows)]
    extend(caches, [0] * rows, [torch.zeros(count + ROUNDING // 2 * (row % 2), 3, 2, 2, 8) for row in range(rows)])
    return caches


def test_the_calls_of_a_pass_do_not_grow_with_the_rows() -> None:
    def calls(rows: int, attention: Callable[..., Attend]) -> int:
        caches, parts = caches_of(ROUNDING - 4, rows), [torch.zeros(8 * rows, 2, 8) for _ in range(3)]
        blocks = [Block((1,) * 8, ROUNDING - 4 + ROUNDING // 2 * (row % 2)) for row in range(rows)]
        attend = attention(blocks, caches)
        with Calls() as counted:
            for layer in range(3):
                attend(layer, *parts)
        return counted.count

    few, many = (calls(rows, partial(BatchedAttention, layers=3, device=CPU)) for rows in (2, 32))
    assert many == few
    assert calls(32, BlockAttention) > 10 * many


def test_the_calls_of_writing_do_not_grow_with_the_rows_nor_with_those_that_leave() -> None:
    def calls(rows: int) -> int:
        caches = caches_of(9, rows)
        for row, cache in enumerate(caches):
            cache.ids = (1,) * (9 + ROUNDING // 2 * (row % 2))
        with Calls() as counted:
            attend = DecodingAttention(caches, 4, CPU, fold=True)
            attend.keep([1] * rows, range(rows // 2, rows))  # the others take the places of those
            attend.advance([[1]] * (rows // 2))
            for layer in range(3):
                attend(layer, *(torch.zeros(rows // 2, 2, 8) for _ in range(3)))
        return counted.count

    assert calls(32) == calls(2)
