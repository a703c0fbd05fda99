from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.measure import count_flops
from benchmarks.plain import LOGITS_BYTES, PlainPair, label_scores, play_tick, policy_texts, score_actions, tokenized
from benchmarks.workloads import records, reflection_lengths, workload
from reflectrl.core.prompts import policy_prompt, reflector_prompt
from reflectrl.core.types import Step
from reflectrl.models.lm import LanguageModel


def some_steps(name: str = "taxi") -> list[Step]:
    return [episode.steps[i] for episode in records(workload(name), 2) for i in (0, 3, 9)]


def passes(lm: LanguageModel, call: Callable[[], Any]) -> int:
    """How many times the model runs."""
    seen: list[int] = []
    hook = lm.model.register_forward_hook(lambda *_: seen.append(1))
    call()
    hook.remove()
    return len(seen)


def test_a_tick_of_two_players_counts_its_tokens(tiny: Callable[..., LanguageModel]) -> None:
    lm, steps = tiny(), some_steps()
    pair = PlainPair(lm, lm)
    seen, reflections = [step.observation for step in steps], [step.reflection or "" for step in steps]
    lengths = reflection_lengths(lm, reflections)
    choices = play_tick(pair, seen, reflections, lengths)
    assert all(0 <= choice < 6 for choice in choices) and len(choices) == len(steps)
    reads = [len(lm.encode("".join(reflector_prompt(o)))) for o in seen]
    acts = [len(lm.encode("".join(policy_prompt(o, r, "123456")))) for o, r in zip(seen, reflections, strict=True)]
    assert pair.tokens.encoded == sum(reads) + sum(acts)
    assert pair.tokens.encoded_padded == len(steps) * (max(reads) + max(acts))
    assert (pair.tokens.decoded, pair.tokens.decoded_padded) == (sum(lengths), len(steps) * max(lengths))


def test_without_a_reflector_the_policy_only_acts(tiny: Callable[..., LanguageModel]) -> None:
    lm, steps = tiny(), some_steps()
    pair = PlainPair(lm)
    play_tick(pair, [step.observation for step in steps], ["never read"] * len(steps), [3] * len(steps))
    assert pair.tokens.encoded == sum(
        len(lm.encode("".join(policy_prompt(s.observation, None, "123456")))) for s in steps
    )
    assert pair.tokens.decoded == 0


def test_a_reflection_has_its_length_and_end_of_text_does_not_end_it(tiny: Callable[..., LanguageModel]) -> None:
    lm, steps = tiny(), some_steps()[:3]
    with torch.no_grad():  # a model that always says end-of-text
        lm.model.transformer.ln_f.weight.zero_()
        lm.model.transformer.ln_f.bias.fill_(1.0)
        lm.model.get_input_embeddings().weight[lm.tokenizer.eos_token_id] = 2.0
    pair = PlainPair(lm, lm)
    assert passes(lm, lambda: pair.reflect([step.observation for step in steps], [4, 11, 1])) == 11


def test_sampled_reflections_have_different_lengths(tiny: Callable[..., LanguageModel]) -> None:
    lm, steps = tiny(), some_steps()[:2]
    torch.manual_seed(0)
    short, long = PlainPair(lm, lm).reflect([step.observation for step in steps], [1, 30])
    assert len(short) < len(long)


def test_scores_do_not_depend_on_padding_or_on_the_size_of_the_parts(
    tiny: Callable[..., LanguageModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    lm, steps = tiny("alfworld"), some_steps("alfworld")
    pair = PlainPair(lm)
    seen, reflections = [step.observation for step in steps], [step.reflection for step in steps]
    labels = pair.labels(20)
    texts = policy_texts(labels, seen, reflections)
    with torch.no_grad():
        together = label_scores(lm, labels, *tokenized(lm, texts, "right"))
        alone = torch.cat([label_scores(lm, labels, *tokenized(lm, [text], "right")) for text in texts])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    assert passes(lm, lambda: pair.act(seen, reflections)) == 1
    monkeypatch.setitem(LOGITS_BYTES, "cpu", 1)
    assert passes(lm, lambda: pair.act(seen, reflections)) == len(steps)


def test_the_whole_head_is_computed_at_every_position(tiny: Callable[..., LanguageModel]) -> None:
    small, large, steps = tiny(vocab=512), tiny(vocab=1512), some_steps()
    seen = [step.observation for step in steps]
    tokens = PlainPair(small)
    more = count_flops(lambda: PlainPair(large).act(seen, [None] * 6)) - count_flops(
        lambda: tokens.act(seen, [None] * 6)
    )
    assert more == 2 * 32 * 1000 * tokens.tokens.encoded_padded


def test_a_prompt_that_is_too_long_loses_its_beginning(tiny: Callable[..., LanguageModel]) -> None:
    lm = tiny(context=40)
    text = some_steps()[0].observation.state
    ids_BT, mask_BT = tokenized(lm, [text], "right", reserve=10)
    assert ids_BT[0].tolist() == lm.encode(text)[-30:] and int(mask_BT.sum()) == 30


@torch.no_grad()
def test_scores_of_action_texts_are_sums_of_log_probabilities(tiny: Callable[..., LanguageModel]) -> None:
    lm = tiny()
    prompt, actions = lm.encode("Taxi row 2"), [lm.encode(" west"), lm.encode(" column 4 steps")]
    expected = []
    for action in actions:
        total, ids = 0.0, list(prompt)
        for token in action:
            total += float(lm.model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)[token])
            ids.append(token)
        expected.append(total)
    assert passes(lm, lambda: score_actions(lm, prompt, actions)) == 2
    torch.testing.assert_close(score_actions(lm, prompt, actions), torch.tensor(expected), atol=1e-4, rtol=0)
