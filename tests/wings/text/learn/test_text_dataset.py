"""Samples as tokens, and log-probabilities that depend on nothing but their own prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from reflectrl.core.types import UserError
from reflectrl.methods.shared.offline.completions import Affine
from reflectrl.methods.shared.offline.config import OfflineConfig
from reflectrl.methods.shared.offline.reference_cache import reference_logprobs
from reflectrl.models.lm import LanguageModel
from reflectrl.wings.text.learn.text_dataset import shortened, text_dataset
from reflectrl.wings.text.samples.sample import Sample

Pair = Callable[..., tuple[Any, Any]]
PROMPTS = ("Day one:", "Reflection: Go on.\nAction:", "T", "went to see the sea. " * 6)
COMPLETIONS = (" look", " Go on.", " north\n" * 4, " sea")
CONFIG = OfflineConfig()


def samples() -> list[Sample]:
    return [
        Sample(f"{p}.{c}", str(p), prompt, completion, reward=p + c)
        for p, prompt in enumerate(PROMPTS)
        for c, completion in enumerate(COMPLETIONS)
    ]


def plain_logprobs(lm: LanguageModel, ids: tuple[int, ...], start: int) -> torch.Tensor:
    """Of one row alone, through the library's own forward pass."""
    with torch.no_grad():
        logp_TV = lm.model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return torch.stack([logp_TV[t - 1, ids[t]] for t in range(start, len(ids))])


class TestText:
    def test_a_completion_ends_with_end_of_text_and_has_its_prompt_before_it(self, pair: Pair) -> None:
        lm = pair("gpt2")[0]
        data = text_dataset(lm, samples(), CONFIG)
        for sample, prompt, answer in zip(samples(), data.completions.prompts, data.completions.answers, strict=True):
            assert lm.tokenizer.decode(prompt) == sample.prompt
            assert lm.tokenizer.decode(answer[:-1]) == sample.completion
            assert answer[-1] == lm.tokenizer.eos_token_id
        assert data.rewards_N.tolist() == [sample.reward for sample in samples()] and data.affine == Affine()

    @pytest.mark.parametrize("family", ["gpt2", "llama"])
    @pytest.mark.parametrize("side", ["left", "right"])
    def test_log_probabilities_do_not_depend_on_company_or_padding(self, pair: Pair, family: str, side: str) -> None:
        lm = pair(family)[0]
        lm.tokenizer.padding_side = side
        data = text_dataset(lm, samples(), CONFIG)
        together_NT = reference_logprobs(data)
        backwards = list(range(len(data)))[::-1]
        with torch.no_grad():
            backwards_NT = data.completions.logprobs(backwards).flip(0)
        torch.testing.assert_close(backwards_NT, together_NT, atol=1e-5, rtol=0)
        for row, (prompt, answer) in enumerate(zip(data.completions.prompts, data.completions.answers, strict=True)):
            expected_T = plain_logprobs(lm, (*prompt, *answer), len(prompt))
            torch.testing.assert_close(together_NT[row, : len(answer)], expected_T, atol=1e-5, rtol=0)
            assert together_NT[row, len(answer) :].abs().sum() == 0
            with torch.no_grad():
                torch.testing.assert_close(data.completions.logprobs([row])[0], expected_T, atol=1e-5, rtol=0)

    def test_what_is_too_long_is_cut_as_stated(self, pair: Pair) -> None:
        lm = pair("gpt2")[0]
        short = replace(CONFIG, prompt_tokens=4, completion_tokens=3)
        data = text_dataset(lm, samples(), short)
        for sample, prompt, answer in zip(samples(), data.completions.prompts, data.completions.answers, strict=True):
            assert prompt == tuple(lm.encode(sample.prompt)[-4:])
            assert answer == (*lm.encode(sample.completion), lm.tokenizer.eos_token_id)[:3]
        long = [len(lm.encode(sample.prompt)) > 4 for sample in samples()]
        cut = [len(lm.encode(sample.completion)) > 2 for sample in samples()]
        assert shortened(lm, samples(), short) == (sum(long), sum(cut))
        assert shortened(lm, samples(), CONFIG) == (0, 0)

    def test_a_completion_that_fills_the_context_is_refused(self, pair: Pair) -> None:
        lm = replace(pair("gpt2")[0], context=4)
        with pytest.raises(UserError, match="sample 'x'"):
            text_dataset(lm, [Sample("x", "g", "T", " north north north north", 1.0)], CONFIG)

    def test_steps_in_text_are_held_out_by_their_task(self, pair: Pair) -> None:
        rows = [replace(sample, meta={"instance": "one task"}) for sample in samples()]
        assert set(text_dataset(pair("gpt2")[0], rows, CONFIG).units) == {"one task"}

    def test_no_samples_are_refused(self, pair: Pair) -> None:
        with pytest.raises(UserError, match="no samples"):
            text_dataset(pair("gpt2")[0], [], CONFIG)
