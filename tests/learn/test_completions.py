"""What completions weigh in tokens, and log-probabilities that depend on nothing but their own prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from reflectrl.config import OfflineConfig
from reflectrl.envs.base import TextEnv
from reflectrl.learn.completions import Affine, onto_unit, step_dataset
from reflectrl.learn.reference_cache import reference_logprobs
from reflectrl.models.lm import LanguageModel
from reflectrl.players import Policy, RandomPlayer
from reflectrl.rollout import Job, rollout
from reflectrl.types import Episode, Sampling, UserError
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


def played(make_env: Callable[[], TextEnv], player: Any = None) -> list[Episode]:
    jobs = [Job(task, i) for i, task in enumerate(make_env().tasks("train") * 3)]
    return sorted(rollout(jobs, make_env, player or RandomPlayer()), key=lambda episode: episode.seed)


class TestSteps:
    @pytest.mark.parametrize("scoring", ["enumeration", "trie"])
    def test_a_choice_is_as_likely_as_it_was_in_play(self, tiny: Any, make_rooms: Any, scoring: Any) -> None:
        """The same action set and the same temperature, so the ratio of the policy to itself is 1."""
        policy = Policy(tiny(), Sampling(0.7), scoring=scoring, shuffle_labels=True)
        episodes = played(make_rooms, policy)
        data = step_dataset(policy, episodes, CONFIG)
        said = torch.tensor([turn.logprobs[0] for e in episodes for s in e.steps if (turn := s.choice) is not None])
        torch.testing.assert_close(reference_logprobs(data)[:, 0], said, atol=1e-5, rtol=0)
        assert data.completions.about == {"kind": "steps", "temperature": 0.7, "scoring": scoring}

    def test_others_choices_have_a_probability_too(self, tiny: Any, make_rooms: Any) -> None:
        policy = Policy(tiny())
        data = step_dataset(policy, played(make_rooms), CONFIG)
        logp_NA = reference_logprobs(data)
        assert logp_NA.shape == (len(data), 1) and bool((logp_NA < 0).all())
        assert data.completions.lengths([0, 1]).tolist() == [1, 1]

    def test_rewards_are_rewards_to_go_on_the_unit_interval(self, tiny: Any, make_rooms: Any) -> None:
        episodes = played(make_rooms)
        data = step_dataset(Policy(tiny()), episodes, replace(CONFIG, gamma=0.5))
        expected = []
        for episode in episodes:
            rewards = [step.reward for step in episode.steps]
            expected += [sum(0.5 ** (k - t) * rewards[k] for k in range(t, len(rewards))) for t in range(len(rewards))]
        assert float(data.rewards_N.min()) == 0.0 and float(data.rewards_N.max()) == 1.0
        np.testing.assert_allclose(data.rewards_N, data.affine(torch.tensor(expected)), atol=1e-6)
        low, high = min(expected), max(expected)
        assert (data.affine.shift, data.affine.scale) == pytest.approx((low, 1 / (high - low)))

    def test_steps_of_a_task_stay_together_and_equal_prompts_are_a_group(self, tiny: Any, make_rooms: Any) -> None:
        episodes = played(make_rooms)
        data = step_dataset(Policy(tiny()), episodes, CONFIG)
        assert len(set(data.units)) == len({episode.task.id for episode in episodes})
        prompts = [tuple(prompt) for prompt in data.completions.prompts]
        assert len(set(data.groups)) == len(set(prompts)) < len(prompts)

    def test_an_empty_log_is_refused(self, tiny: Any) -> None:
        with pytest.raises(UserError, match="no steps"):
            step_dataset(Policy(tiny()), [], CONFIG)


def test_equal_rewards_all_go_to_0() -> None:
    assert onto_unit(torch.tensor([2.0, 2.0]))(torch.tensor([2.0, 2.0])).tolist() == [0.0, 0.0]
