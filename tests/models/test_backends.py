"""The engine against full forward passes: caching, ragged batches, sampling, stopping."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from reflectrl.core.config import ModelConfig
from reflectrl.core.types import Sampling
from reflectrl.models.load import LanguageModel, load_model
from reflectrl.models.players import draw, nucleus, sampler, truncated
from reflectrl.models.scratch import save_scratch
from reflectrl.models.sharing import no_sharing
from tests.models.calls import choice_logits

TEXTS = ["|T: | : |\nReflection: The taxi moved west.\nActions: 1: south; 2: north\nChoice: 1"]
FAMILIES = ("gpt2", "llama", "mistral", "qwen2", "canon_llama")
GREEDY = Sampling(0.0)
families = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LanguageModel]:
    """A tiny model of each family, through a folder. Small weights are enlarged, so that outputs differ between tokens.

    (Larger ones are left alone: activations in the hundreds would be rounded by more than the tests allow.)
    """
    found = {}
    for family in FAMILIES:
        config = ModelConfig(family=family, layers=2, width=32, heads=2, vocab=280, context=64)
        folder = tmp_path_factory.mktemp(family)
        save_scratch(folder, config, TEXTS, 2, seed=3)
        found[family] = load_model(folder, config)
        with torch.no_grad():
            for weight in found[family].parameters():
                if weight.ndim == 2 and weight.std() < 0.05:
                    weight.mul_(6.0)
    return found


def generators(count: int, seed: int = 0) -> list[np.random.Generator]:
    return [np.random.default_rng([seed, i]) for i in range(count)]


@torch.no_grad()
def full_logp(lm: LanguageModel, ids: Sequence[int]) -> torch.Tensor:
    """Log-probabilities (T, V) after each token, by the model's own forward pass without cache, padding or company."""
    return lm.model(torch.tensor([list(ids)], device=lm.device)).logits[0].log_softmax(-1)


def greedy_by_hand(lm: LanguageModel, prompt: Sequence[int], count: int) -> tuple[list[int], list[float]]:
    ids, logprobs = list(prompt), []
    for _ in range(count):
        logp_V = full_logp(lm, ids)[-1]
        token = int(logp_V.argmax())
        if token == lm.tokenizer.eos_token_id:
            break
        ids.append(token)
        logprobs.append(float(logp_V[token]))
    return ids[len(prompt) :], logprobs


def prompts_of(lengths: Sequence[int], seed: int = 0) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    return [tuple(int(t) for t in rng.integers(1, 257, size=length)) for length in lengths]


ragged = st.lists(st.integers(1, 40), min_size=1, max_size=5)


@families
@settings(max_examples=15, deadline=None)
@given(lengths=ragged, seed=st.integers(0, 1000))
def test_cached_greedy_decoding_is_decoding_without_a_cache(
    models: dict[str, LanguageModel], family: str, lengths: list[int], seed: int
) -> None:
    lm, prompts = models[family], prompts_of(lengths, seed)
    written = lm.backend.write(prompts, 6, sampler(GREEDY), generators(len(prompts)))
    for prompt, (ids, logprobs) in zip(prompts, written, strict=True):
        expected_ids, expected = greedy_by_hand(lm, prompt, 6)
        assert list(ids) == expected_ids
        assert logprobs == pytest.approx(expected, abs=1e-4)


@families
@settings(max_examples=15, deadline=None)
@given(lengths=ragged, seed=st.integers(0, 1000), temperature=st.sampled_from([0.5, 1.0, 2.0]))
def test_recorded_logprobs_are_those_of_the_sampling_distribution(
    models: dict[str, LanguageModel], family: str, lengths: list[int], seed: int, temperature: float
) -> None:
    lm, prompts = models[family], prompts_of(lengths, seed)
    written = lm.backend.write(prompts, 6, sampler(Sampling(temperature)), generators(len(prompts), seed))
    for prompt, (ids, logprobs) in zip(prompts, written, strict=True):
        logp_TV = (full_logp(lm, [*prompt, *ids]) / temperature).log_softmax(-1)
        expected = [float(logp_TV[len(prompt) + i - 1, token]) for i, token in enumerate(ids)]
        assert logprobs == pytest.approx(expected, abs=1e-4)


@families
def test_a_row_does_not_depend_on_its_company(models: dict[str, LanguageModel], family: str) -> None:
    lm, prompts = models[family], prompts_of([3, 40, 1, 17, 8, 25])
    together = lm.backend.write(prompts, 8, sampler(Sampling()), generators(6))
    for index in itertools.chain([[i] for i in range(6)], [[5, 0], [1, 2, 3]]):
        alone = lm.backend.write([prompts[i] for i in index], 8, sampler(Sampling()), [generators(6)[i] for i in index])
        for i, (ids, logprobs) in zip(index, alone, strict=True):
            assert ids == together[i][0]
            assert logprobs == pytest.approx(together[i][1], abs=1e-4)


@families
def test_rows_stop_at_end_of_text_each_at_its_own(models: dict[str, LanguageModel], family: str) -> None:
    lm, ends = models[family], models[family].backend.ends
    prompts = prompts_of([5, 20, 2, 9, 30, 12], seed=1)
    try:
        lm.backend.ends = frozenset({280})  # not said by any row
        free = [ids for ids, _ in lm.backend.write(prompts, 10, sampler(Sampling()), generators(6))]
        assert not any(280 in ids for ids in free)
        said = max((ids[4] for ids in free), key=lambda token: sum(token in ids for ids in free))
        lm.backend.ends = frozenset({said})
        stopped = [ids for ids, _ in lm.backend.write(prompts, 10, sampler(Sampling()), generators(6))]
    finally:
        lm.backend.ends = ends
    assert stopped == [ids[: ids.index(said)] if said in ids else ids for ids in free]
    assert len({len(ids) for ids in stopped}) > 1, "the test needs rows of different lengths"


def test_a_generation_fills_the_context_to_its_last_place(models: dict[str, LanguageModel]) -> None:
    for lm in models.values():
        [prompt] = prompts_of([lm.context - 5])
        [(ids, _)] = lm.backend.write([prompt], 5, sampler(GREEDY), generators(1))
        assert list(ids) == greedy_by_hand(lm, prompt, 5)[0]


@families
@settings(max_examples=15, deadline=None)
@given(lengths=ragged, seed=st.integers(0, 1000))
def test_choice_logits_are_rows_of_the_whole_head_whatever_the_padding(
    models: dict[str, LanguageModel], family: str, lengths: list[int], seed: int
) -> None:
    lm, prompts, labels = models[family], prompts_of(lengths, seed), [17, 3, 250]
    with torch.no_grad():
        logits_NA = choice_logits(lm, prompts, labels)
    for prompt, row in zip(prompts, logits_NA, strict=True):
        with torch.no_grad():
            whole = lm.model(torch.tensor([list(prompt)], device=lm.device)).logits[0, -1]
        assert row.tolist() == pytest.approx(whole[labels].tolist(), abs=1e-4)


def test_choice_logits_count_the_bias_of_a_head(models: dict[str, LanguageModel]) -> None:
    lm = models["gpt2"]
    head = lm.core.lm_head
    head.bias = torch.nn.Parameter(torch.arange(head.weight.shape[0], dtype=torch.float32, device=lm.device))
    try:
        hidden_ND = lm.backend.read(no_sharing(prompts_of([4, 7])))
        rows = torch.tensor([5, 200], device=lm.device)
        assert torch.allclose(lm.backend.logits(hidden_ND, rows), lm.backend.logits(hidden_ND)[:, rows], atol=1e-4)
    finally:
        head.bias = None


def test_gradients_flow_through_choice_logits(models: dict[str, LanguageModel]) -> None:
    lm = models["llama"]
    choice_logits(lm, prompts_of([4, 7]), [1, 2]).sum().backward()
    assert all(p.grad is not None for p in lm.parameters())
    lm.model.zero_grad()


# ---- drawing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_are_those_of_the_softmax(temperature: float) -> None:
    logits_V = torch.tensor([1.0, -0.5, 2.0, 0.0, -1.0])
    count = 20_000
    tokens, logprobs = draw(logits_V.expand(count, -1), generators(count), Sampling(temperature))
    expected = (logits_V.double() / temperature).softmax(-1)
    counts = np.bincount(tokens.numpy(), minlength=5)
    assert chisquare(counts, expected.numpy() * count).pvalue > 1e-3
    assert torch.allclose(logprobs, expected[tokens].log().float(), atol=1e-6)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    probabilities = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]])
    kept = nucleus(probabilities.log(), 0.65).isfinite()
    assert kept[0].tolist() == [False, True, False, True]
    assert kept[1].sum() == 3
    assert nucleus(probabilities.log(), 1e-9).isfinite().sum(-1).tolist() == [1, 1], "never nothing"


def test_sampling_with_top_p_stays_within_it_and_records_its_distribution() -> None:
    logits_V = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    tokens, logprobs = draw(logits_V.expand(5000, -1), generators(5000), Sampling(1.0, top_p=0.65))
    assert set(tokens.tolist()) == {1, 3}
    assert logprobs.exp().tolist() == pytest.approx([4 / 7 if token == 1 else 3 / 7 for token in tokens.tolist()])
    assert np.mean(tokens.numpy() == 1) == pytest.approx(4 / 7, abs=0.03)


def test_top_k_keeps_so_many_and_top_p_measures_what_is_left() -> None:
    probabilities = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]])
    kept = truncated(probabilities.log(), Sampling(top_k=3)).isfinite()
    assert kept.tolist() == [[False, True, True, True], [True] * 4], "equal ones are all kept"
    # Of 0.4, 0.3 and 0.2, the first two have 7/9 of the probability.
    assert truncated(probabilities.log(), Sampling(1.0, 0.75, 3)).isfinite()[0].tolist() == [False, True, False, True]
    for most in (0, 4, 9):
        assert truncated(probabilities.log(), Sampling(top_k=most)).isfinite().all()
    tokens, logprobs = draw(probabilities[0].log().expand(500, -1), generators(500), Sampling(1.0, top_k=2))
    assert set(tokens.tolist()) == {1, 3}
    assert logprobs.exp().tolist() == pytest.approx([4 / 7 if token == 1 else 3 / 7 for token in tokens.tolist()])


def test_greedy_takes_the_likeliest_and_draws_nothing() -> None:
    [generator] = generators(1)
    before = generator.bit_generator.state
    tokens, logprobs = draw(torch.tensor([[0.0, 3.0, 1.0]]), [generator], GREEDY)
    assert tokens.tolist() == [1]
    assert float(logprobs) == pytest.approx(float(torch.tensor([0.0, 3.0, 1.0]).log_softmax(-1)[1]))
    assert generator.bit_generator.state == before


def test_a_sampled_token_takes_one_number_of_its_own_rows_generator() -> None:
    [used], [other] = generators(1), generators(1)
    draw(torch.zeros(1, 50), [used], Sampling())
    other.random()
    assert used.bit_generator.state == other.bit_generator.state


# ---- limits ----------------------------------------------------------------------------------------------------------


def reloaded(folder: Path, config: ModelConfig, **changes: Any) -> LanguageModel:
    save_scratch(folder, config, TEXTS, 2, seed=3)
    lm = load_model(folder, config)
    for name, value in changes.items():
        setattr(lm.model.config, name, value)
    lm.model.save_pretrained(folder)
    return load_model(folder, ModelConfig(context=10_000))


def test_the_context_ends_where_the_model_does(tmp_path: Path) -> None:
    config = ModelConfig(family="mistral", layers=1, width=16, heads=2, vocab=280, context=64)
    assert reloaded(tmp_path / "a", config, sliding_window=None).context == 64
    assert reloaded(tmp_path / "b", config, sliding_window=24).context == 24


def test_within_a_sliding_window_rows_do_not_depend_on_their_company(tmp_path: Path) -> None:
    config = ModelConfig(family="mistral", layers=2, width=16, heads=2, vocab=280, context=64)
    lm = reloaded(tmp_path, config, sliding_window=24)
    prompts = prompts_of([2, 18])
    for prompt, (ids, _) in zip(prompts, lm.backend.write(prompts, 6, sampler(GREEDY), generators(2)), strict=True):
        assert list(ids) == greedy_by_hand(lm, prompt, 6)[0]
