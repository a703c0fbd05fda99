"""Models with short convolutions: exact in the library's own pass and caches, and in the engine's packed passes."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from benchmarks.families import VOCAB, Marks, tiny_model
from reflectrl.models.backend import Candidates
from reflectrl.models.canon import CanonLlamaConfig, ShortConvolution
from reflectrl.models.lm import EngineOptions, LanguageModel
from reflectrl.models.sharing import Ids, KVCache, pack

FAMILIES = ("canon_llama", "canon_llama-rotary")


def some(rng: np.random.Generator, length: int) -> Ids:
    # Few different tokens, so that prompts and options often share a beginning.
    return tuple(int(token) for token in rng.integers(2, 6, size=length))


def plain_logp(core: Any, prompt: Ids, ids: Ids) -> Tensor:
    """Log-probability (T,) of each of the tokens that follow a prompt, by the library's forward pass."""
    logits_TV = core(input_ids=torch.tensor([(*prompt, *ids)]), use_cache=False).logits[0]
    logp_TV = logits_TV.log_softmax(-1)[len(prompt) - 1 : -1]
    return logp_TV[torch.arange(len(ids)), list(ids)]


def tree_of(seed: int) -> tuple[list[Ids], list[Candidates]]:
    """Prompts that share beginnings of any length, each with continuations that do."""
    rng = np.random.default_rng(seed)
    prompts = [some(rng, int(rng.integers(1, 30)))]
    for _ in range(int(rng.integers(1, 6))):
        earlier = prompts[rng.integers(len(prompts))]
        prompts.append((*earlier[: rng.integers(len(earlier) + 1)], *some(rng, int(rng.integers(1, 25)))))
    texts = []
    for _ in prompts:
        options = {some(rng, int(rng.integers(1, 6))) for _ in range(int(rng.integers(1, 7)))}
        texts.append(Candidates(tuple((*ids, 1) for ids in sorted(options)), (1,) * len(options)))
    return prompts, texts


def model_of(family: str, batched: bool = False, blocks: bool = True) -> LanguageModel:
    options = EngineOptions(batched=batched, blocks=blocks)
    return LanguageModel(tiny_model(family), Marks(), context=96, engine_options=options)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), batched=st.booleans(), blocks=st.booleans())
def test_in_any_tree_of_prompts_and_options_each_token_looks_back_along_its_own_path(
    family: str, seed: int, batched: bool, blocks: bool
) -> None:
    lm, (prompts, texts) = model_of(family, batched, blocks), tree_of(seed)
    packed_PA, _ = lm.backend.score(pack(prompts, least=2), texts, "sum")
    gradients = torch.autograd.grad(packed_PA[packed_PA.isfinite()].sum(), [*lm.core.parameters()])
    expected = [
        torch.stack([plain_logp(lm.core, prompt, ids).sum() for ids in listed.ids])
        for prompt, listed in zip(prompts, texts, strict=True)
    ]
    for row_A, wanted_A in zip(packed_PA, expected, strict=True):
        torch.testing.assert_close(row_A[: len(wanted_A)], wanted_A, atol=2e-4, rtol=1e-4)
    wanted = torch.autograd.grad(torch.cat(expected).sum(), [*lm.core.parameters()])
    for gradient, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, other, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), batched=st.booleans(), scoring=st.sampled_from(["sum", "trie", "options"]))
def test_a_growing_episode_reads_from_its_cache_what_it_would_compute(
    family: str, seed: int, batched: bool, scoring: Any
) -> None:
    lm, rng = model_of(family, batched), np.random.default_rng(seed)
    head = lm.ensure_option_head()
    with torch.no_grad():
        head.normal_(generator=torch.Generator().manual_seed(0))
    prompts, caches = [some(rng, 20), some(rng, 3)], [KVCache(), KVCache()]
    for _ in range(4):
        # Steps cut the last tokens off and add others, as a new state does.
        prompts = [
            (*p[: len(p) - int(rng.integers(min(4, len(p))))], *some(rng, int(rng.integers(1, 9)))) for p in prompts
        ]
        texts = [tree_of(seed + i)[1][0] for i in range(2)]
        with torch.inference_mode():
            grown_PA, _ = lm.backend.score(prompts, texts, scoring, caches)
            anew_PA, _ = lm.backend.score(prompts, texts, scoring)
        torch.testing.assert_close(grown_PA, anew_PA, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_librarys_caches_hold_what_the_convolutions_need(family: str) -> None:
    model, ids = (
        tiny_model(family),
        torch.tensor([some(np.random.default_rng(0), 12), some(np.random.default_rng(1), 12)]),
    )
    whole = model(input_ids=ids).logits
    for first in (1, 2, 7):
        cache = DynamicCache(config=model.config)
        parts = [model(input_ids=ids[:, :first], past_key_values=cache, use_cache=True).logits]
        for i in range(first, 12):
            parts.append(model(input_ids=ids[:, i : i + 1], past_key_values=cache, use_cache=True).logits)
        torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-4, rtol=1e-4)
    asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 8, "do_sample": False}
    assert torch.equal(model.generate(ids, use_cache=True, **asked), model.generate(ids, use_cache=False, **asked))


def test_padding_on_the_left_changes_nothing() -> None:
    model, (short, long) = (
        tiny_model("canon_llama"),
        (some(np.random.default_rng(2), 5), some(np.random.default_rng(3), 9)),
    )
    ids = torch.tensor([(0,) * 4 + short, long])
    mask = torch.tensor([[0] * 4 + [1] * 5, [1] * 9])
    logits = model(input_ids=ids, attention_mask=mask).logits
    torch.testing.assert_close(logits[0, 4:], model(input_ids=torch.tensor([short])).logits[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits[1], model(input_ids=torch.tensor([long])).logits[0], atol=1e-4, rtol=1e-4)


def test_a_token_sees_itself_and_the_tokens_just_before_it() -> None:
    convolution = ShortConvolution(width=2, taps=3, layer=0)
    with torch.no_grad():
        convolution.weight.copy_(torch.tensor([[[0.5, 2.0, 1.0]], [[0.0, 0.0, 3.0]]]))
    x_1TD = torch.tensor([[[1.0, 1.0], [10.0, 1.0], [100.0, 1.0]]])
    expected = [[1 + 1 * 1, 4], [10 + 10 + 2 * 1, 4], [100 + 100 + 2 * 10 + 0.5 * 1, 4]]
    torch.testing.assert_close(convolution(x_1TD), torch.tensor([expected]))


def test_a_saved_folder_loads_by_the_librarys_own_classes(tmp_path: Any) -> None:
    config = CanonLlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, canon_taps=3
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path)
    again, ids = AutoModelForCausalLM.from_pretrained(tmp_path).eval(), torch.tensor([[2, 3, 4, 5, 6]])
    assert torch.equal(model(input_ids=ids).logits, again(input_ids=ids).logits)
    assert float(model.get_input_embeddings().weight.detach().std()) == pytest.approx(1.0, abs=0.05)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
