"""Samples under tokenizers of every kind, against what plain `transformers` makes of prompt and completion."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from reflectrl.methods.shared.offline.config import OfflineConfig
from reflectrl.wings.text.learn.text_dataset import text_dataset
from reflectrl.wings.text.samples.sample import Sample
from tests.foreign_models import KINDS, PAIRS, Load

kinds = pytest.mark.parametrize("kind", KINDS)


@kinds
@pytest.mark.parametrize("pair", PAIRS)
def test_samples_are_what_plain_transformers_reads(load: Load, kind: str, pair: tuple[str, str]) -> None:
    """The joined text in the tokenizer's own way, with one end of text, wherever no token crosses the seam."""
    lm, (prompt, completion) = load(kind), pair
    plain = AutoTokenizer.from_pretrained(lm.base)
    data = text_dataset(lm, [Sample("a", "g", prompt, completion, 1.0)], OfflineConfig())
    [start], [answer] = data.completions.prompts, data.completions.answers
    end = plain.eos_token_id
    alone, whole = plain(prompt).input_ids, plain(prompt + completion).input_ids
    alone, whole = (ids[:-1] if ids[-1] == end else ids for ids in (alone, whole))
    assert list(start) == alone and answer[-1] == end
    if whole[: len(alone)] == alone:
        assert [*start, *answer] == [*whole, end]
        model = AutoModelForCausalLM.from_pretrained(lm.base).eval()
        ids = torch.tensor([[*whole, end]])
        with torch.no_grad():
            logp_TV = model(ids).logits[0].log_softmax(-1)
        wanted = float(logp_TV[len(alone) - 1 : -1].gather(1, ids[0, len(alone) :, None]).sum())
        with torch.no_grad():
            assert float(data.completions.logprobs([0]).sum()) == pytest.approx(wanted, abs=1e-3)
    elif kind == "wordpiece":  # which keeps no blanks
        assert [*answer] == [*plain.encode(completion, add_special_tokens=False), end]
    else:
        text = plain.decode([*start, *answer], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert text.lstrip() == prompt + completion
