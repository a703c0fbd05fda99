"""Reading with kept caches against whole forward passes, tokens counted; and what is cut from prompts too long."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.core.prompts import CUT, Prompt, tokenize
from reflectrl.core.types import Sampling, UserError
from reflectrl.models.generation import DraftModel
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import sampler
from reflectrl.models.sharing import REUSE, ROUNDING, Ids, KVCache, no_sharing, pack, shared_length
from tests.models.calls import choice_logits

Pair = Callable[..., tuple[LanguageModel, LanguageModel]]
FAMILIES = ("gpt2", "llama", "mistral", "qwen2", "canon_llama")
both = pytest.mark.parametrize(
    ("family", "adapters"), [(family, adapters) for family in FAMILIES for adapters in (False, True)]
)
LABELS = [17, 3, 250]


@torch.no_grad()
def plain_logp(lm: LanguageModel, ids: Ids) -> torch.Tensor:
    """Log-probabilities (T, V) after each token, by Hugging Face's own forward pass: fresh prompt, no cache."""
    lm.activate()
    assert lm.adapter is None or lm.model.active_adapter == lm.adapter
    return lm.model(torch.tensor([ids], device=lm.device), use_cache=False).logits[0].log_softmax(-1)


def some(rng: np.random.Generator, count: int) -> Ids:
    return tuple(int(token) for token in rng.integers(1, 257, size=count))


class Playing:
    """An episode by its tokens: a history that grows, and at each step a suffix for each of two players."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.history = rng, some(rng, int(rng.integers(1, 40)))
        self.caches = (KVCache(), KVCache())

    def prompts(self) -> tuple[Ids, Ids]:
        self.history += some(self.rng, int(self.rng.integers(0, 30)))
        return tuple(self.history + some(self.rng, int(self.rng.integers(1, 30))) for _ in range(2))  # type: ignore


@both
@settings(max_examples=8, deadline=None)
@given(count=st.integers(1, 5), steps=st.integers(1, 5), leaving=st.floats(0, 0.6), seed=st.integers(0, 1000))
def test_cached_is_uncached_while_episodes_grow_and_leave_and_players_take_turns(
    pair: Pair, family: str, adapters: bool, count: int, steps: int, leaving: float, seed: int
) -> None:
    policy, reflector = pair(family, adapters)
    rng = np.random.default_rng(seed)
    live = [Playing(rng) for _ in range(count)]
    for _ in range(steps):
        asked, read_by = zip(*(one.prompts() for one in live), strict=True)
        generators = [np.random.default_rng([seed, i]) for i in range(len(live))]
        written = reflector.backend.write(asked, 4, sampler(Sampling(0.7)), generators, [one.caches[1] for one in live])
        with torch.no_grad():
            scored = choice_logits(policy, read_by, LABELS, [one.caches[0] for one in live])
        for one, prompt, (ids, logprobs), other, row in zip(live, asked, written, read_by, scored, strict=True):
            assert (one.caches[1].ids, one.caches[0].ids) == (prompt, other)
            logp_TV = (plain_logp(reflector, prompt + ids) / 0.7).log_softmax(-1)[len(prompt) - 1 :]
            expected = [float(logp_TV[i, token]) for i, token in enumerate(ids)]
            assert logprobs == pytest.approx(expected, abs=1e-4)
            chosen_A = plain_logp(policy, other)[-1, LABELS]
            torch.testing.assert_close(row.log_softmax(-1), chosen_A.log_softmax(-1), atol=1e-4, rtol=0)
        live = [one for one in live if rng.random() >= leaving] or live[:1]


@both
def test_the_same_prompts_in_other_company_give_the_same_rows(pair: Pair, family: str, adapters: bool) -> None:
    lm, rng = pair(family, adapters)[0], np.random.default_rng(2)
    prompts = [some(rng, length) for length in (3, 70, 1, 24, 51)]
    together = lm.backend.read(prompts, caches=[KVCache() for _ in prompts])
    with torch.no_grad():
        torch.testing.assert_close(lm.backend.read(pack(prompts)), together, atol=1e-5, rtol=0)
    for i, prompt in enumerate(prompts):
        torch.testing.assert_close(lm.backend.read([prompt], caches=[KVCache()])[0], together[i], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_what_is_read_are_those_of_the_plain_model(pair: Pair, family: str) -> None:
    lm, rng = pair(family, True)[0], np.random.default_rng(3)
    prompts = [some(rng, length) for length in (3, 40, 21)]
    weights = torch.randn(3, lm.hidden_size, generator=torch.Generator().manual_seed(0)).to(lm.device)
    lm.backend.logits(lm.backend.read(no_sharing(prompts)) * weights).logsumexp(-1).sum().backward()
    found = [p.grad.clone() for p in lm.parameters() if p.grad is not None]
    lm.model.zero_grad()
    states = [
        lm.model(torch.tensor([p], device=lm.device), output_hidden_states=True, use_cache=False).hidden_states[-1]
        for p in prompts
    ]
    lm.backend.logits(torch.stack([state[0, -1] for state in states]) * weights).logsumexp(-1).sum().backward()
    expected = [p.grad.clone() for p in lm.parameters() if p.grad is not None]
    lm.model.zero_grad()
    difference = sum(float((a - b).square().sum()) for a, b in zip(found, expected, strict=True))
    assert len(found) == len(lm.parameters())
    assert difference**0.5 < 1e-4 * sum(float(grad.square().sum()) for grad in expected) ** 0.5


# ---- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_only_what_is_new_is_encoded_however_long_the_history_is(pair: Pair, family: str) -> None:
    lm, rng = pair(family)[0], np.random.default_rng(4)
    history: Ids = tuple(range(3, 253, 2))[:40]
    cache = KVCache()
    for step in range(30):
        new = tuple(int(t) for t in 2 * rng.integers(1, 120, size=7) + 1)
        history, suffix = history + new, tuple(int(t) for t in 2 * rng.integers(1, 120, size=11))
        before = lm.counters.copy()
        lm.backend.read([history + suffix], caches=[cache])
        counted = lm.counters.since(before)
        assert counted.passes == 1
        if step:
            assert (counted.encoded, counted.reused) == (len(new) + len(suffix), len(history) - len(new))
            expected = counted.encoded * counted.reused + counted.encoded * (counted.encoded + 1) // 2
            assert counted.pairs == expected


def test_too_little_is_not_worth_keeping_and_an_equal_prompt_costs_one_token(pair: Pair) -> None:
    lm, rng = pair("gpt2")[0], np.random.default_rng(5)
    cache, first = KVCache(), some(rng, 50)
    for prompt, encoded in (
        (first, 50),
        (first, 1),
        (first[:30], 1),
        (first[:REUSE] + (0,) * 5, 5),
        (first[: REUSE - 1] + (2,) * 5, REUSE + 4),
    ):
        before = lm.counters.copy()
        lm.backend.read([prompt], caches=[cache])
        counted = lm.counters.since(before)
        assert (counted.encoded, counted.encoded + counted.reused) == (encoded, len(prompt))


def test_decoded_counts_the_tokens_that_were_fed_back(pair: Pair) -> None:
    """The first token comes from the prompt; the last one is not read any more."""
    lm, rng = pair("llama")[0], np.random.default_rng(6)
    prompts = [some(rng, length) for length in (5, 30, 12)]
    before = lm.counters.copy()
    written = lm.backend.write(prompts, [3, 9, 1], sampler(Sampling(1.0)), [np.random.default_rng(i) for i in range(3)])
    counted = lm.counters.since(before)
    assert [len(ids) for ids, _ in written] == [3, 9, 1], "the test needs rows that do not end by themselves"
    assert (counted.encoded, counted.reused, counted.decoded) == (47, 0, 2 + 8)
    assert counted.passes == 1 + 8
    assert counted.logits == 13 * lm.core.get_output_embeddings().weight.shape[0]  # type: ignore[operator]
    own = sum(len(p) * (len(p) + 1) // 2 for p in prompts)
    assert counted.pairs == own + sum(5 + i for i in (1, 2)) + sum(30 + i for i in range(1, 9))


# ---- the context -----------------------------------------------------------------------------------------------------


def lines(count: int, first: int = 0) -> str:
    return "".join(f"Day {first + i}: went to see the sea.\n" for i in range(count))


@settings(max_examples=60, deadline=None)
@given(days=st.integers(0, 60), rest=st.integers(1, 12), reserve=st.integers(0, 40))
def test_a_prompt_too_long_loses_whole_quarters_of_the_oldest_history(
    pair: Pair, days: int, rest: int, reserve: int
) -> None:
    lm = pair("gpt2")[0]
    prompt = Prompt(lines(days), "Now. " + "The sea. " * rest)
    history, needed = lm.encode(prompt.history), tuple(lm.encode(prompt.rest))
    ids = tokenize(lm, prompt, reserve)
    assert ids == tokenize(lm, prompt, reserve), "of the prompt alone"
    assert ids[len(ids) - len(needed) :] == needed, "never cut"
    kept = ids[: len(ids) - len(needed)]
    assert len(ids) + reserve <= lm.context
    lost = len(history) - len(kept)
    piece = lm.context // CUT
    assert kept == tuple(history[lost:])
    assert not kept or lost % piece == 0
    assert lost == 0 or len(history) - (lost - piece) + len(needed) + reserve > lm.context, "no piece more than must be"


def test_what_may_not_be_cut_and_does_not_fit_is_refused(pair: Pair) -> None:
    lm = pair("gpt2")[0]
    words = len(lm.encode("word " * 20))
    assert len(tokenize(lm, Prompt(lines(50), "word " * 20), lm.context - words)) == words
    with pytest.raises(UserError, match=f"{words} tokens of observation and {lm.context - words + 1} to be written"):
        tokenize(lm, Prompt("", "word " * 20), lm.context - words + 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_an_episode_longer_than_the_context_few_steps_encode_more_than_what_is_new(pair: Pair, family: str) -> None:
    lm, cache = pair(family)[0], KVCache()
    encoded, news, shared, before = [], [], [], ()
    for day in range(1, 90):
        prompt = tokenize(lm, Prompt(lines(day), f"Now it is {day}. Choose."), reserve=10)
        new = len(lm.encode(lines(1, day - 1))) + len(lm.encode(f"Now it is {day}. Choose."))
        shared.append(shared_length(before, prompt))
        counted = lm.counters.encoded
        hidden_D = lm.backend.read([prompt], caches=[cache])[0]
        encoded.append(lm.counters.encoded - counted)
        news.append(new)
        before = prompt
        if day % 30 == 0:
            with torch.no_grad():
                torch.testing.assert_close(hidden_D, lm.backend.read(no_sharing([prompt]))[0], atol=1e-4, rtol=0)
    usual = [e == n for e, n in zip(encoded[1:], news[1:], strict=True)]
    cuts = len(lm.encode(lines(89))) // (lm.context // CUT)
    assert sum(not one for one in usual) <= cuts, "all is read again at a cut only"
    assert sum(encoded) < sum(news) + cuts * lm.context
    assert sum(encoded) / len(encoded) < 0.5 * lm.context


def test_a_cut_update_is_packed_between_the_cuts(pair: Pair) -> None:
    lm = pair("gpt2")[0]
    prompts: Sequence[Any] = [tokenize(lm, Prompt(lines(day), f"Now it is {day}. Go."), 1) for day in range(1, 60)]
    packing = pack(prompts)
    assert [packing[i] for i in range(len(prompts))] == prompts
    read_whole = len(lm.encode(lines(59))) // (lm.context // CUT) + 1
    suffixes = sum(len(lm.encode(f"Now it is {day}. Go.")) for day in range(1, 60))
    assert sum(len(block.ids) for block in packing.blocks) <= read_whole * lm.context + suffixes


# ---- in bfloat16 -----------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("gpu", [False, True])
def test_mixed_play_reads_and_writes_what_float32_does_but_for_its_rounding(
    pair: Pair, family: str, adapters: bool, gpu: bool
) -> None:
    lm, rng = pair(family, adapters)[0], np.random.default_rng(5)
    mixed = replace(lm, mixed_play="on", engine_options=replace(lm.engine_options, batched=gpu))
    prompts = [some(rng, length) for length in (3, 40, 25)]
    caches = [KVCache() for _ in prompts]
    generators = [np.random.default_rng(i) for i in range(3)]
    for _ in range(3):
        prompts = [prompt[:-3] + some(rng, 9) for prompt in prompts]
        with mixed.playing():
            written = mixed.backend.write(prompts, 4, sampler(Sampling()), generators, caches, DraftModel())
            chosen_PA = choice_logits(mixed, prompts, LABELS, caches).log_softmax(-1)
        for prompt, (ids, logprobs), row_A in zip(prompts, written, chosen_PA, strict=True):
            logp_TV = plain_logp(lm, prompt + ids)[len(prompt) - 1 :]
            expected = [float(logp_TV[i, token]) for i, token in enumerate(ids)]
            assert logprobs == pytest.approx(expected, abs=0.1)
            torch.testing.assert_close(row_A, logp_TV[0, LABELS].log_softmax(-1), atol=0.1, rtol=0)
    kept = sum(-(-len(prompt) // ROUNDING) * ROUNDING for prompt in prompts)
    if family != "canon_llama":  # which keeps the inputs of its convolutions in float32
        assert mixed.token_bytes == lm.token_bytes // 2
    assert sum(cache.nbytes for cache in caches) <= kept * mixed.token_bytes
