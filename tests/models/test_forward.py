"""Forward passes of our own against Hugging Face's: block by block, through the attention interface, in training."""

import contextlib
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from reflectrl.core.types import Sampling, UserError
from reflectrl.models import attention, forward
from reflectrl.models.attention import (
    BlockAttention,
    DecodingAttention,
)
from reflectrl.models.forward import fuse_activations, hidden_states
from reflectrl.models.hf_forward import hf_forward
from reflectrl.models.lm import LanguageModel
from reflectrl.models.lookback import PassLookback
from reflectrl.models.players import sampler
from reflectrl.models.sharing import Block, Ids, KVCache, Packing, extend, no_sharing, pack
from reflectrl.models.text_scoring import make_trie

Pair = Callable[..., tuple[LanguageModel, LanguageModel]]
FAMILIES = ("gpt2", "llama", "mistral", "qwen2", "canon_llama")
OTHERS = ("gpt_neox", "phi", "gemma", "granite")
"""Families that the engine does not know; Granite scales its attention in a way of its own."""
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "head_dim": 16}
families = pytest.mark.parametrize("family", FAMILIES)
every_family = pytest.mark.parametrize("family", [*FAMILIES, *OTHERS])


def configured(family: str, **options: Any) -> Any:
    """A tiny model in evaluation mode, its weights enlarged so that outputs differ."""
    marks = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 1}
    groups = {} if family in ("gpt2", "gpt_neox") else {"num_key_value_heads": 1}
    shape = SHAPE | groups | {"max_position_embeddings": 64, "vocab_size": 60} | marks | options
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(4)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **shape))
        for weight in model.parameters():
            weight.normal_(std=0.12) if weight.ndim == 2 else weight.add_(0.1 * torch.randn_like(weight))
    return model.eval()


def model_of(family: str) -> Any:
    return configured(family, attention_multiplier=0.5) if family == "granite" else configured(family)


def prompts_of(lengths: Sequence[int], seed: int = 0, vocab: int = 60) -> list[Ids]:
    """Every second prompt continues the one before it."""
    rng, found = np.random.default_rng(seed), []
    for i, length in enumerate(lengths):
        new = tuple(int(token) for token in rng.integers(2, vocab, size=length))
        found.append((*found[-1], *new) if i % 2 else new)
    return found


def plain_hidden(core: Any, prompt: Ids) -> Tensor:
    """The model's own forward pass, with attention written out."""
    before = core.config._attn_implementation
    core.set_attn_implementation("eager")
    try:
        hidden: Tensor = core.base_model(input_ids=torch.tensor([prompt]), use_cache=False).last_hidden_state[0]
    finally:
        core.set_attn_implementation(before)
    return hidden


def arguments(packing: Packing) -> tuple[Tensor, Tensor, BlockAttention]:
    ids = torch.tensor([token for block in packing.blocks for token in block.ids])
    depths = [range(len(block.ids)) if block.trie is None else block.trie.depths for block in packing.blocks]
    places = torch.tensor([block.start + n for block, some in zip(packing.blocks, depths, strict=True) for n in some])
    return ids, places, BlockAttention(packing.blocks)


def hidden_of(core: Any, ids: Tensor, places: Tensor, attend: BlockAttention, wanted: Tensor | None = None) -> Tensor:
    lookback = lookback_of(core, attend.blocks)
    return hidden_states(core, ids, places, attend, wanted, forward.walk_of(core), lookback)


def lookback_of(core: Any, blocks: Sequence[Block]) -> PassLookback | None:
    taps = getattr(core.config, "canon_taps", 0)
    return PassLookback(blocks, None, taps, torch.device("cpu")) if taps else None


def gradients(core: Any, hidden_ND: Tensor) -> dict[str, Tensor]:
    """Of a fixed function of hidden states, for every weight."""
    core.zero_grad()
    places = torch.linspace(-1, 1, hidden_ND.numel()).view_as(hidden_ND)
    (hidden_ND * places.sin()).sum().backward()
    found = {name: p.grad.clone() for name, p in core.named_parameters() if p.grad is not None}
    core.zero_grad()
    return found


def close(one: dict[str, Tensor], other: dict[str, Tensor], limit: float = 1e-4) -> bool:
    """Whether the norm of the difference, over all weights, is small beside the norm."""
    assert one.keys() == other.keys() and one
    difference = sum(float((one[name] - other[name]).square().sum()) for name in one)
    return bool(difference**0.5 < limit * sum(float(grad.square().sum()) for grad in other.values()) ** 0.5)


@every_family
def test_packed_hidden_states_and_gradients_are_the_models_own(family: str) -> None:
    core, prompts = model_of(family), prompts_of([20, 18, 5, 1, 30])
    packing = pack(prompts)
    assert len(packing.blocks) < len(prompts)
    hidden_ND = hidden_of(core, *arguments(packing))
    expected = [plain_hidden(core, prompt)[-1] for prompt in prompts]
    ends = torch.tensor(packing.ends())
    torch.testing.assert_close(hidden_ND[ends], torch.stack(expected), atol=1e-4, rtol=0)
    assert close(gradients(core, hidden_ND[ends]), gradients(core, torch.stack(expected)))


@families
def test_block_by_block_is_the_same_as_through_transformers(family: str) -> None:
    core, packing = model_of(family), pack(prompts_of([20, 18, 5, 1, 30]))
    assert forward.walk_of(core) is not None, "the engine knows this family"
    walked = hidden_of(core, *arguments(packing))
    led = hf_forward(core, *arguments(packing), lookback_of(core, packing.blocks))
    torch.testing.assert_close(walked, led, atol=1e-5, rtol=0)
    assert close(gradients(core, walked), gradients(core, led))


@every_family
@settings(max_examples=10, deadline=None)
@given(
    wanted=st.sets(st.integers(0, 77), min_size=1, max_size=20),
    texts=st.lists(st.lists(st.integers(2, 5), min_size=2, max_size=5).map(tuple), max_size=4),
)
def test_asking_for_some_tokens_gives_their_hidden_states_and_gradients(
    family: str, wanted: set[int], texts: list[Ids]
) -> None:
    core, packing = model_of(family), pack(prompts_of([20, 18, 5, 1, 30]))
    if texts:
        trie = make_trie(texts)
        path = packing.paths[1]
        packing.blocks.append(Block(trie.ids, sum(n for _, n in path), path, trie))
    length = sum(len(block.ids) for block in packing.blocks)
    at = torch.tensor(sorted(index % length for index in wanted)).unique()
    found = hidden_of(core, *arguments(packing), at)
    expected = hidden_of(core, *arguments(packing))[at]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert close(gradients(core, found), gradients(core, expected))


def test_copies_of_contexts_are_not_kept_for_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    core, (history,) = model_of("gpt2"), prompts_of([20])
    packing = pack([(*history, token, 3) for token in range(5, 9)], least=1)
    copies: list[weakref.ref[Tensor]] = []
    join = torch.cat

    def watched(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
        whole = join(parts, dim)
        if dim == 2:  # keys or values
            copies.append(weakref.ref(whole))
        return whole

    monkeypatch.setattr(torch, "cat", watched)
    found = hidden_of(core, *arguments(packing))
    assert len(copies) == 2 * 2 * 3, "keys and values, two layers, three branches"
    assert not any(copy() is not None for copy in copies)
    grads = gradients(core, found)
    assert len(copies) == 2 * 2 * 2 * 3, "made again"

    monkeypatch.setattr(attention, "kept_in_parts", lambda *_: contextlib.nullcontext())
    copies.clear()
    kept = hidden_of(core, *arguments(packing))
    assert all(copy() is not None for copy in copies), "autograd would keep them"
    assert close(grads, gradients(core, kept))


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_branches_have_gradients_with_and_without_dropout(groups: int, dropout: float) -> None:
    (history,) = prompts_of([20])
    attend = BlockAttention(pack([(*history, token, 3) for token in range(5, 9)], least=1).blocks)
    tokens = sum(len(block.ids) for block in attend.blocks)
    parts = [torch.randn(tokens, n, 8, requires_grad=True) for n in (4, groups, groups)]
    attend(0, *parts, dropout).sum().backward()
    assert all(part.grad is not None and bool(part.grad.isfinite().all()) for part in parts)


@pytest.mark.parametrize("family", OTHERS)
def test_an_unknown_family_reads_writes_and_keeps_like_any_other(family: str, pair: Pair) -> None:
    core = model_of(family)
    assert forward.walk_of(core) is None
    lm = LanguageModel(core, pair("gpt2")[0].tokenizer, context=64)
    prompts, caches = prompts_of([20, 6, 9, 17]), [KVCache() for _ in range(4)]
    written = lm.backend.write(prompts, 5, sampler(Sampling(0.0)), [np.random.default_rng(i) for i in range(4)], caches)
    longer = [(*prompt, 7, 8, 9) for prompt in prompts]
    encoded = lm.counters.encoded
    hidden_PD = lm.backend.read(longer, caches=caches)
    assert lm.counters.encoded - encoded < sum(map(len, longer)), "something was kept"
    for prompt, (ids, logprobs), hidden_D, more in zip(prompts, written, hidden_PD, longer, strict=True):
        with torch.no_grad():
            torch.testing.assert_close(plain_hidden(core, more)[-1], hidden_D, atol=1e-4, rtol=0)
            logp_TV = lm.backend.logits(plain_hidden(core, (*prompt, *ids))).log_softmax(-1)[len(prompt) - 1 : -1]
        assert logp_TV.argmax(-1).tolist() == list(ids)
        assert logp_TV.amax(-1).tolist() == pytest.approx(logprobs, abs=1e-4)


def test_their_own_forward_pass_still_works_after_ours() -> None:
    core, prompts = model_of("phi"), prompts_of([12, 7])
    with torch.no_grad():
        before = core(torch.tensor([prompts[1]])).logits
        hidden_of(core, *arguments(no_sharing(prompts)))
        torch.testing.assert_close(core(torch.tensor([prompts[1]])).logits, before, atol=1e-5, rtol=0)


@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(1, 18),
    turned=st.sampled_from([range(2, 9), range(7, 17)]),
    bias=st.booleans(),
    large=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_product_is_the_same_whichever_way_round_it_is_computed(
    rows: int, turned: range, bias: bool, large: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, weight = (torch.randn(n, 32, generator=generator) for n in (rows, forward.LARGE // 32 if large else 20))
    added = torch.randn(len(weight), generator=generator) if bias else None
    module = torch.nn.Linear(32, len(weight), bias=bias)
    module.load_state_dict({"weight": weight} | ({} if added is None else {"bias": added}))
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(forward, "turned_rows", lambda: turned)
        found = forward.linear(module, x)
    assert found.is_contiguous()
    torch.testing.assert_close(found, torch.nn.functional.linear(x, weight, added), atol=1e-4, rtol=1e-5)


# ---- dropout and activations -----------------------------------------------------------------------------------------

DROPOUTS = {"gpt2": ("resid_pdrop", "embd_pdrop", "attn_pdrop")} | dict.fromkeys(FAMILIES[1:], ("attention_dropout",))


@pytest.mark.parametrize(("family", "name"), [(family, name) for family in DROPOUTS for name in DROPOUTS[family]])
def test_dropout_works_in_training_and_nowhere_else(family: str, name: str) -> None:
    zeros = dict.fromkeys(DROPOUTS[family], 0.0)
    core, plain = configured(family, **zeros | {name: 0.4}), configured(family, **zeros)
    packing = pack(prompts_of([20, 18]))
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        expected = hidden_of(plain, *arguments(packing))
        torch.testing.assert_close(hidden_of(core, *arguments(packing)), expected, atol=1e-5, rtol=0)
        core.train()
        once, again = (hidden_of(core, *arguments(packing)) for _ in range(2))
        assert not torch.allclose(once, again, atol=1e-3) and not torch.allclose(once, expected, atol=1e-3)
        plain.train()
        torch.testing.assert_close(hidden_of(plain, *arguments(packing)), expected, atol=1e-5, rtol=0)


def test_dropout_scales_what_stays() -> None:
    """Averaged over many draws, attention with dropout is attention without."""
    attend, like = BlockAttention(pack([(1, 2, 3, 4), (1, 2, 3, 5)], least=1).blocks), torch.randn(5, 2, 8)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        draws = torch.stack([attend(0, like, like, like, dropout=0.3) for _ in range(3000)])
    torch.testing.assert_close(draws.mean(0), attend(0, like, like, like), atol=0.15, rtol=0)
    assert float(draws.std(0).max()) > 0.1


def test_a_fused_gelu_is_the_same_function() -> None:
    core = configured("gpt2", activation_function="gelu_new")
    written, fused = core.transformer.h[0].mlp.act, None
    packing = no_sharing(prompts_of([20]))
    with torch.no_grad():
        before = hidden_of(core, *arguments(packing))
        fuse_activations(core)
        fused = core.transformer.h[0].mlp.act
        assert isinstance(fused, torch.nn.GELU) and not isinstance(written, torch.nn.GELU)
        torch.testing.assert_close(hidden_of(core, *arguments(packing)), before, atol=1e-5, rtol=0)
        x = torch.linspace(-6, 6, 500)
        torch.testing.assert_close(fused(x), written(x), atol=1e-6, rtol=0)
    learned = x.clone().requires_grad_()
    torch.testing.assert_close(fused(learned), written(x), atol=1e-6, rtol=0)
    fused(learned).sum().backward()
    assert learned.grad is not None, "and has a gradient"
    exact = configured("gpt2", activation_function="gelu")
    fuse_activations(exact)
    torch.testing.assert_close(exact.transformer.h[0].mlp.act(x), torch.nn.functional.gelu(x), atol=1e-6, rtol=0)


# ---- attention by itself ---------------------------------------------------------------------------------------------


def by_hand(query_SHD: Tensor, key_TGD: Tensor, value_TGD: Tensor, seen_ST: Tensor) -> Tensor:
    """Attention written out."""
    group = query_SHD.shape[1] // key_TGD.shape[1]
    keys, values = (part.repeat_interleave(group, dim=1) for part in (key_TGD, value_TGD))
    scores = torch.einsum("shd,thd->hst", query_SHD, keys) / query_SHD.shape[2] ** 0.5
    weights = scores.masked_fill(~seen_ST, -torch.inf).softmax(-1)
    return torch.einsum("hst,thd->shd", weights, values).flatten(1)


@settings(max_examples=30, deadline=None)
@given(
    texts=st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=6).map(tuple), min_size=1, max_size=5),
    length=st.integers(1, 20),
    grouped=st.booleans(),
)
def test_branches_see_the_prompt_and_their_own_past_only(texts: list[Ids], length: int, grouped: bool) -> None:
    trie = make_trie(texts)
    nodes, count = len(trie.ids), length + len(trie.ids)
    packing = Packing([Block((1,) * length), Block(trie.ids, length, ((0, length),), trie)], [((0, length),)])
    generator = torch.Generator().manual_seed(count)
    query = torch.randn(count, 2, 4, generator=generator)
    key, value = (torch.randn(count, 1 if grouped else 2, 4, generator=generator) for _ in range(2))
    seen = torch.ones(count, count).tril().bool()
    for node in range(nodes):
        above, parent = {node}, trie.parents[node]
        while parent >= 0:
            above.add(parent)
            parent = trie.parents[parent]
        seen[length + node, length:] = torch.tensor([other in above for other in range(nodes)])
    expected = by_hand(query, key, value, seen)
    torch.testing.assert_close(BlockAttention(packing.blocks)(0, query, key, value), expected, atol=1e-5, rtol=0)
    cache = KVCache()
    cached = BlockAttention([packing.blocks[0], replace(packing.blocks[1], context=())], [cache, cache])
    torch.testing.assert_close(cached(0, query, key, value), expected, atol=1e-5, rtol=0)


@settings(max_examples=30, deadline=None)
@given(data=st.data(), held=st.lists(st.integers(1, 12), min_size=1, max_size=6), gpu=st.booleans())
def test_rows_add_and_keep_what_they_like_and_those_that_leave_take_nothing_with_them(
    data: st.DataObject, held: list[int], gpu: bool
) -> None:
    generator = torch.Generator().manual_seed(sum(held))
    keys = [torch.randn(length, 1, 4, generator=generator) for length in held]
    caches, before = [], [key.clone() for key in keys]
    for key in keys:
        cache, layers = KVCache(), [(as_one(key + layer), as_one(2 * key + layer)) for layer in (0, 1)]
        if gpu:
            extend([cache], [0], [torch.stack([torch.cat(layer) for layer in layers]).permute(3, 0, 1, 2, 4)])
        else:
            for layer, (keys_1GSD, values_1GSD) in enumerate(layers):
                cache.append(layer, 0, keys_1GSD, values_1GSD)
        cache.ids = (0,) * len(key)
        caches.append(cache)
    attend = DecodingAttention(caches, 20, torch.device("cpu"), fold=gpu)
    rows, kept = list(range(len(held))), [1] * len(held)
    for _ in range(5):
        stay = [i for i in range(len(rows)) if data.draw(st.integers(0, 3))]
        attend.keep(kept, stay)
        rows = [rows[i] for i in stay]
        if not rows:
            break
        counts = [data.draw(st.integers(1, 4)) for _ in rows]
        ids, places = attend.advance([range(10 * count, 11 * count) for count in counts])
        assert ids.tolist() == [10 * count + i for count in counts for i in range(count)]
        new, query = torch.randn(2, sum(counts), 1, 4, generator=generator)
        found = [attend(layer, query, new + layer, 2 * new + layer) for layer in (0, 1)]
        assert attend.pairs == int(places.sum()) + len(places)
        for row, start, count in zip(rows, accumulate(counts, initial=0), counts, strict=False):
            own = slice(start, start + count)
            assert places[own].tolist() == list(range(len(keys[row]), len(keys[row]) + count))
            keys[row] = torch.cat([keys[row], new[own]])
            seen = torch.ones(count, len(keys[row])).tril(len(keys[row]) - count).bool()
            for layer in (0, 1):
                expected = by_hand(query[own], keys[row] + layer, 2 * keys[row] + layer, seen)
                torch.testing.assert_close(found[layer][own], expected, atol=1e-5, rtol=0)
        kept = [data.draw(st.integers(1, count)) for count in counts]
        for row, count, keeps in zip(rows, counts, kept, strict=True):
            keys[row] = keys[row][: len(keys[row]) - count + keeps]
    attend.keep(kept[: len(rows)], [])
    for cache, key, length in zip(caches, before, held, strict=True):
        assert len(cache.ids) == length
        for layer, both in enumerate(held_2GTD[:, :, :length] for held_2GTD in cache.layers):
            assert torch.equal(both[:1], as_one(key + layer)), "the caches stay as they were"
            assert torch.equal(both[1:], as_one(2 * key + layer))


def as_one(part_TGD: Tensor) -> Tensor:
    """As caches have it, (1, G, T, D)."""
    return part_TGD.transpose(0, 1)[None]


@families
def test_a_pass_counts_what_it_computes(family: str, pair: Pair) -> None:
    lm, prompts = pair(family)[0], prompts_of([20, 18, 5], vocab=250)
    before = lm.counters.copy()
    packing = pack(prompts)
    lm.backend.read(packing, "all")
    counted = lm.counters.since(before)
    assert (counted.passes, counted.encoded, counted.decoded, counted.logits) == (1, 38 + 5, 0, 0)
    assert counted.reused == 20
    assert counted.pairs == 38 * 39 // 2 + 5 * 6 // 2


@pytest.mark.parametrize("family", ["gpt_neo"])
def test_a_family_with_attention_of_its_own_is_refused(family: str) -> None:
    options = {"attention_types": [[["global"], 2]]} if family == "gpt_neo" else {}
    with pytest.raises(UserError, match=family):
        hidden_of(configured(family, **options), *arguments(pack(prompts_of([20, 18]))))


def test_a_family_whose_scores_are_capped_is_refused_or_right() -> None:
    core, prompt = configured("gemma2", attn_logit_softcapping=1.0, query_pre_attn_scalar=16), prompts_of([20])[0]
    with torch.no_grad():
        try:
            found = hidden_of(core, *arguments(no_sharing([prompt])))
        except UserError:
            return
        torch.testing.assert_close(found, plain_hidden(core, prompt), atol=1e-4, rtol=0)
