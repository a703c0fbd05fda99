"""Actions scored by their texts against one forward pass of the plain model per action."""

from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reflectrl.models import text_scoring
from reflectrl.models.backend import Candidates, Scoring
from reflectrl.models.lm import LanguageModel
from reflectrl.models.sharing import Ids, KVCache, no_sharing, pack
from tests.models.calls import action_texts, cached_text_logits

Pair = Callable[..., tuple[LanguageModel, LanguageModel]]
FAMILIES = ("gpt2", "llama", "mistral", "qwen2", "canon_llama")
SCORINGS = [one for one in get_args(Scoring) if one not in ("enumeration", "options")]
scorings = pytest.mark.parametrize("scoring", SCORINGS)
families = pytest.mark.parametrize("family", FAMILIES)
NAMES = ("go", "go north", "go north now", "look", "look at the sea", "wait", "w", "x y z", "Go!", "1", "1 2")
actions = st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True)
histories = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=4)


def prompts_of(shape: Sequence[tuple[int, int]], seed: int = 0) -> list[Ids]:
    """Each continues the history of the one before it by so many tokens, and ends with some of its own."""
    rng, history, found = np.random.default_rng(seed), (), []
    for grown, rest in shape:
        history = (*history, *(int(t) for t in rng.integers(1, 257, size=grown)))
        found.append((*history, *(int(t) for t in rng.integers(1, 257, size=rest))))
    return found


def naive(lm: LanguageModel, prompt: Ids, texts: Candidates, scoring: Scoring) -> Tensor:
    """Logits (A,): Hugging Face's forward pass over prompt and text for each action; tries token by token."""
    lm.activate()
    found = []
    for ids, words in zip(texts.ids, texts.words, strict=True):
        ids_1T = torch.tensor([[*prompt, *ids]], device=lm.device)
        logits_TV = lm.model(ids_1T, use_cache=False).logits[0, len(prompt) - 1 : -1]
        if scoring == "trie":
            for t in range(len(ids)):
                allowed = {other[t] for other in texts.ids if len(other) > t and other[:t] == ids[:t]}
                banned = [token for token in range(logits_TV.shape[1]) if token not in allowed]
                keys = torch.tensor(t), torch.tensor(banned)
                logits_TV = logits_TV.cpu().index_put(keys, torch.tensor(-torch.inf)).to(lm.device)
        logp = logits_TV.log_softmax(-1)[range(len(ids)), ids].sum()
        found.append(logp / {"token": len(ids), "word": words}.get(scoring, 1))
    return torch.stack(found)


def check_rows(logits_PA: Tensor, expected: Sequence[Tensor]) -> None:
    assert logits_PA.shape == (len(expected), max(map(len, expected)))
    for row, one in zip(logits_PA, expected, strict=True):
        torch.testing.assert_close(row[: len(one)], one, atol=1e-4, rtol=0)
        assert row[len(one) :].isneginf().all()


@scorings
@families
@settings(max_examples=6, deadline=None)
@given(
    shape=histories, listed=st.lists(actions, min_size=4, max_size=4), adapters=st.booleans(), seed=st.integers(0, 99)
)
def test_one_pass_gives_what_a_pass_per_action_gives(
    pair: Pair,
    family: str,
    scoring: Scoring,
    shape: list[tuple[int, int]],
    listed: list[list[str]],
    adapters: bool,
    seed: int,
) -> None:
    lm, prompts = pair(family, adapters)[0], prompts_of(shape, seed)
    texts = [action_texts(lm, one) for one in listed[: len(prompts)]]
    with torch.no_grad():
        expected = [naive(lm, *one, scoring) for one in zip(prompts, texts, strict=True)]
        for packing in (pack(prompts), no_sharing(prompts)):
            logits_PA, hidden_PD = lm.backend.score(packing, texts, scoring)
            check_rows(logits_PA, expected)
            torch.testing.assert_close(hidden_PD, lm.backend.read(no_sharing(prompts)), atol=1e-4, rtol=0)
    caches = [KVCache() for _ in prompts]
    check_rows(cached_text_logits(lm, prompts, texts, scoring, caches), expected)
    one = KVCache()  # the same as one episode, step by step
    for prompt, text, wanted in zip(prompts, texts, expected, strict=True):
        check_rows(cached_text_logits(lm, [prompt], [text], scoring, [one]), [wanted])
        assert one.ids == prompt, "it holds the prompt and no action"
    if scoring == "trie":
        for wanted in expected:
            assert float(wanted.exp().sum()) == pytest.approx(1, abs=1e-4)


@scorings
@families
def test_gradients_are_those_of_a_pass_per_action(pair: Pair, family: str, scoring: Scoring) -> None:
    listed = [("go", "go north", "look at the sea"), ("wait",), ("look", "w", "go north now", "1 2")]
    for adapters in (False, True):
        lm, prompts = pair(family, adapters)[0], prompts_of([(30, 5), (20, 9), (3, 1)])
        texts = [action_texts(lm, one) for one in listed]
        found = _gradients(lm, [*lm.backend.score(pack(prompts), texts, scoring)[0]])
        expected = _gradients(lm, [naive(lm, *one, scoring) for one in zip(prompts, texts, strict=True)])
        difference = sum(float((a - b).square().sum()) for a, b in zip(found, expected, strict=True))
        assert difference**0.5 < 1e-4 * sum(float(grad.square().sum()) for grad in expected) ** 0.5


def _gradients(lm: LanguageModel, rows: Sequence[Tensor]) -> list[Tensor]:
    """Of a fixed function of the rows, which weighs every action otherwise."""
    finite = [row[row.isfinite()] for row in rows]
    sum((row * torch.arange(1.0, 1 + len(row), device=row.device)).sum() for row in finite).backward()  # type: ignore
    found = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in lm.parameters()]
    lm.model.zero_grad()
    assert any(grad.abs().max() > 0 for grad in found)
    return found


@scorings
def test_texts_of_one_token_and_a_single_action(pair: Pair, scoring: Scoring) -> None:
    """End-of-text alone branches nowhere; who has no choice takes it."""
    lm, prompts = pair("gpt2")[0], prompts_of([(5, 3), (20, 2)])
    texts = [Candidates(((0,), (7,)), (1, 1)), Candidates(((5, 6, 0),), (2,))]
    with torch.no_grad():
        expected = [naive(lm, *one, scoring) for one in zip(prompts, texts, strict=True)]
        check_rows(lm.backend.score(pack(prompts), texts, scoring)[0], expected)
        check_rows(cached_text_logits(lm, prompts, texts, scoring, [KVCache(), KVCache()]), expected)
        for prompt, text, wanted in zip(prompts, texts, expected, strict=True):
            check_rows(lm.backend.score(no_sharing([prompt]), [text], scoring)[0], [wanted])
            check_rows(cached_text_logits(lm, [prompt], [text], scoring, [KVCache()]), [wanted])
    if scoring == "trie":
        assert float(expected[1]) == 0


@scorings
def test_a_bias_of_the_head_counts(pair: Pair, scoring: Scoring) -> None:
    """Also one so low that its exponential is nothing."""
    lm, prompts = pair("gpt2")[0], prompts_of([(5, 3)])
    texts = [action_texts(lm, ["go", "go north", "wait"])]
    head = lm.core.get_output_embeddings()  # type: ignore[operator]
    head.bias = torch.nn.Parameter(torch.linspace(-3, 3, len(head.weight), device=lm.device) - 150)
    try:
        with torch.no_grad():
            found = lm.backend.score(pack(prompts), texts, scoring)[0]
            check_rows(found, [naive(lm, prompts[0], texts[0], scoring)])
    finally:
        head.bias = None


def test_the_vocabulary_is_held_for_a_few_positions_at_a_time(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    lm, prompts = pair("llama")[0], prompts_of([(20, 5), (20, 5)])
    texts = [action_texts(lm, NAMES)] * 2
    expected = lm.backend.score(pack(prompts), texts, "sum")[0]
    monkeypatch.setattr(text_scoring, "ROWS", 3)
    found = lm.backend.score(pack(prompts), texts, "sum")[0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    ours, theirs = (_gradients(lm, [*one]) for one in (found, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-4)


def test_a_constrained_choice_computes_only_the_tokens_that_are_allowed(pair: Pair) -> None:
    lm, prompts = pair("gpt2")[0], prompts_of([(20, 5)])
    texts = [action_texts(lm, ["go", "go north", "wait"])]
    edges = {(text[:t], text[t]) for text in texts[0].ids for t in range(len(text))}
    before = lm.counters.copy()
    cached_text_logits(lm, prompts, texts, "trie", [KVCache()])
    assert lm.counters.since(before).logits == len(edges)


def test_texts_end_and_their_words_are_counted(pair: Pair) -> None:
    lm = pair("gpt2")[0]
    texts = action_texts(lm, ["go", "look at  the sea", ""])
    assert [lm.tokenizer.decode(ids[:-1]) for ids in texts.ids] == [" go", " look at  the sea", " "]
    assert {ids[-1] for ids in texts.ids} == {lm.tokenizer.eos_token_id}
    assert texts.words == (1, 4, 1)


@scorings
def test_the_prompt_is_encoded_once_and_kept(pair: Pair, scoring: Scoring) -> None:
    lm, cache = pair("gpt2")[0], KVCache()
    first, second = prompts_of([(40, 6), (9, 8)], seed=1)
    texts = action_texts(lm, ["go", "go north", "wait"])
    branches = len({text[:n] for text in texts.ids for n in range(1, len(text))})
    for prompt, kept in ((first, 0), (second, 40)):
        before = lm.counters.copy()
        cached_text_logits(lm, [prompt], [texts], scoring, [cache])
        counted = lm.counters.since(before)
        assert (counted.passes, counted.encoded) == (1, len(prompt) - kept + branches)
        assert counted.reused == kept


def test_an_update_counts_the_prompt_tokens_that_were_shared(pair: Pair) -> None:
    lm, prompts = pair("gpt2")[0], prompts_of([(40, 6), (30, 8)], seed=1)
    texts = [action_texts(lm, ["go", "go north", "look at the sea"])] * 2
    before = lm.counters.copy()
    lm.backend.score(pack(prompts), texts, "sum")
    assert lm.counters.since(before).reused == 40
    before = lm.counters.copy()
    lm.backend.score(no_sharing(prompts), texts, "sum")
    assert lm.counters.since(before).reused == 0
