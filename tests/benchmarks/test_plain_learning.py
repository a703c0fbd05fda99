from collections.abc import Callable

import pytest
import torch

from benchmarks.plain import LOGITS_BYTES
from benchmarks.plain_learning import trainer_sft, update_gradients
from benchmarks.sft import fitting
from benchmarks.workloads import records, workload
from reflectrl.core.prompts import policy_prompt, reflection_completion, reflector_prompt
from reflectrl.models.labels import find_labels
from reflectrl.models.lm import LanguageModel

Examples = list[tuple[list[int], int]]


def test_the_gradient_is_that_of_the_written_loss_and_does_not_depend_on_the_minibatch(
    tiny: Callable[..., LanguageModel],
) -> None:
    lm, steps = tiny(), records(workload("taxi"), 1)[0].steps[:5]
    labels = find_labels(lm.tokenizer, 6)
    terms = []
    for step in steps:
        text = "".join(policy_prompt(step.observation, step.reflection, labels.texts))
        logits = lm.model(torch.tensor([lm.encode(text)])).logits[0, -1, list(labels.token_ids)]
        logp = logits.log_softmax(-1)
        terms.append(-2.0 * logp[step.action] + 0.01 * (logp.exp() * logp).sum())
    loss = torch.stack(terms).mean()
    loss.backward()
    expected = {name: p.grad.clone() for name, p in lm.model.named_parameters()}
    for minibatch in (2, 5):
        lm.model.zero_grad()
        update = update_gradients(lm, steps, minibatch, advantage=2.0)
        assert update.loss == pytest.approx(float(loss.detach()), rel=1e-5)
        for name, parameter in lm.model.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name], atol=1e-5, rtol=1e-4)


def test_an_update_encodes_every_prompt_whole(tiny: Callable[..., LanguageModel]) -> None:
    lm, steps = tiny("taxi-history"), records(workload("taxi-history"), 1)[0].steps[:4]
    with_reflections, without = update_gradients(lm, steps, 4), update_gradients(lm, steps, 4, reflections=False)
    lengths = [len(lm.encode("".join(policy_prompt(s.observation, s.reflection, "123456")))) for s in steps]
    assert (with_reflections.tokens.encoded, with_reflections.tokens.encoded_padded) == (sum(lengths), 4 * max(lengths))
    assert without.tokens.encoded < with_reflections.tokens.encoded


def examples(lm: LanguageModel) -> Examples:
    found = []
    for step in records(workload("taxi"), 1)[0].steps[:8]:
        prompt = lm.encode("".join(reflector_prompt(step.observation)))
        completion = lm.encode(reflection_completion(step.reflection or ""))
        found.append(([*prompt, *completion, lm.tokenizer.eos_token_id], len(prompt)))
    return found


@pytest.mark.parametrize("packing", [False, True])
def test_the_trainer_counts_useful_tokens_and_leaves_the_model_as_it_was(
    tiny: Callable[..., LanguageModel], packing: bool
) -> None:
    lm = tiny()
    rows, before = examples(lm), lm.model.forward
    run = trainer_sft(lm, rows, batch_size=4, steps=2, packing=packing, bf16=True)
    assert run.tokens == sum(len(ids) for ids, _ in rows)
    assert run.padded_tokens == run.tokens if packing else run.padded_tokens > run.tokens
    assert run.seconds > 0
    assert lm.model.forward == before and not lm.model.training and lm.model.config.use_cache
    assert all(parameter.grad is None for parameter in lm.model.parameters())


def test_the_loss_is_on_completions_and_packing_does_not_change_it(tiny: Callable[..., LanguageModel]) -> None:
    lm = tiny()
    rows = examples(lm)
    padded, packed = (trainer_sft(lm, rows, 8, 1, packing=packing, learning_rate=0.0) for packing in (False, True))
    nll = []
    for ids, start in rows:
        logp = lm.model(torch.tensor([ids])).logits[0].log_softmax(-1).detach()
        nll += [-float(logp[t - 1, ids[t]]) for t in range(start, len(ids))]
    assert padded.loss == pytest.approx(sum(nll) / len(nll), rel=1e-4)
    assert packed.loss == pytest.approx(padded.loss, rel=1e-5)


def test_accumulated_gradients_are_those_of_the_batch(tiny: Callable[..., LanguageModel]) -> None:
    weights = []
    for minibatch in (0, 2):
        lm = tiny()
        run = trainer_sft(lm, examples(lm), 8, 1, learning_rate=1e-2, minibatch=minibatch)
        weights.append((run.tokens, run.loss, lm.weights()))
    assert weights[0][0] == weights[1][0] and weights[0][1] == pytest.approx(weights[1][1], rel=1e-4)
    for name, weight in weights[0][2].items():
        torch.testing.assert_close(weights[1][2][name], weight, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("batch", "share", "rows"), [(16, 0.05, 16), (16, 0.2, 4), (16, 0.3, 2), (12, 0.2, 4), (64, 3.0, 1), (1, 0.1, 1)]
)
def test_as_many_rows_as_fit_go_through_at_a_time(batch: int, share: float, rows: int) -> None:
    assert fitting(batch, int(share * LOGITS_BYTES["cpu"]), "cpu") == rows


def test_each_training_has_its_own_precision(tiny: Callable[..., LanguageModel]) -> None:
    """What one training leaves behind would otherwise decide the next one's."""
    lm = tiny()
    seen: list[torch.dtype] = []
    lm.model.transformer.h[0].mlp.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    for bf16 in (False, True, False):
        trainer_sft(lm, examples(lm), 8, 1, bf16=bf16)
    assert seen == [torch.float32, torch.bfloat16, torch.float32]


def test_training_learns(tiny: Callable[..., LanguageModel]) -> None:
    lm = tiny()
    rows = examples(lm)
    before = trainer_sft(lm, rows, 8, 1, learning_rate=0.0).loss
    trainer_sft(lm, rows, 8, 10, learning_rate=1e-2)
    assert trainer_sft(lm, rows, 8, 1, learning_rate=0.0).loss < before - 1
