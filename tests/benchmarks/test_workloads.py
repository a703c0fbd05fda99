from collections.abc import Callable
from itertools import chain, pairwise
from statistics import mean
from typing import Any

import numpy as np
import pytest

from benchmarks.workloads import bench_model, make_tokenizer, records, reflection_lengths, workload
from reflectrl.core.prompts import policy_prompt, reflector_prompt
from reflectrl.core.types import UserError
from reflectrl.models.labels import find_labels
from reflectrl.models.lm import LanguageModel
from reflectrl.tools.workbench.check import check_text_env

NAMES = ("taxi", "taxi-history", "alfworld")


def counter(name: str) -> Callable[[str], int]:
    tokenizer: Any = make_tokenizer(name)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("name", NAMES)
def test_any_choice_plays_the_recorded_text(name: str) -> None:
    made = workload(name)
    episode = records(made, 1)[0]
    env, rng = made.make_env(), np.random.default_rng(0)
    env.reset(seed=0, options={"task": episode.task})
    for step in episode.steps:
        assert env.observe() == step.observation
        env.step(int(rng.integers(len(step.observation.actions))))
    assert env.done


@pytest.mark.parametrize("name", NAMES)
def test_records_are_whole_reproducible_and_carry_both_turns(name: str) -> None:
    made = workload(name)
    episodes = records(made, 3)
    assert episodes == records(made, 3)
    assert len({episode.task.id for episode in episodes}) == 3
    for step in (step for episode in episodes for step in episode.steps):
        assert step.reflection and step.choice is not None
        assert step.target == step.choice.choice == step.action


@pytest.mark.parametrize("name", NAMES)
def test_the_longest_prompt_fits_the_context_with_a_reflection_to_be_written(name: str) -> None:
    made, tokens = workload(name), counter(name)
    labels = [str(i) for i in range(1, made.choices + 1)]
    for step in (episode.steps[-1] for episode in records(made, 64)):
        reflection = tokens(step.reflection or "")
        assert tokens("".join(policy_prompt(step.observation, step.reflection, labels))) < made.context
        assert tokens("".join(reflector_prompt(step.observation))) + reflection + 2 < made.context


def test_taxi_rides_are_long() -> None:
    assert {len(episode.steps) for episode in records(workload("taxi"), 64)} <= {15, 16, 17, 18}


def test_a_horizon_cuts_episodes() -> None:
    assert len(records(workload("taxi-history", horizon=7), 1)[0].steps) == 7
    assert len(records(workload("alfworld", horizon=9), 1)[0].steps) == 9


def test_the_household_has_alfworlds_shape() -> None:
    tokens = counter("alfworld")
    episodes = records(workload("alfworld"), 6)
    steps = [step for episode in episodes for step in episode.steps]
    assert {len(episode.steps) for episode in episodes} == {50}
    assert {len(step.observation.actions) for step in steps} == {20}
    listed = [policy_prompt(step.observation, "", [str(i) for i in range(1, 21)]).rest for step in steps]
    assert mean(tokens(text.partition("Actions:")[2]) for text in listed) == pytest.approx(200, rel=0.1)
    seen = [[tokens(step.observation.history) for step in episode.steps] for episode in episodes]
    assert mean(b - a for counts in seen for a, b in pairwise(counts)) == pytest.approx(40, rel=0.1)
    assert mean(tokens(step.reflection or "") for step in steps) == pytest.approx(30, rel=0.15)
    assert max(tokens(step.observation.state) for step in steps) < 30


def test_the_household_passes_the_public_checker() -> None:
    assert check_text_env(workload("alfworld").make_env()) == ["expert", "analyst"]


def test_an_unknown_workload_is_a_users_mistake() -> None:
    with pytest.raises(UserError, match="chess"):
        workload("chess")


@pytest.mark.parametrize("name", NAMES)
def test_history_and_rest_apart_are_the_same_tokens_as_together(name: str) -> None:
    """So implementations that tokenize them apart, and those that do not, read the same."""
    tokenizer: Any = make_tokenizer(name)
    for step in records(workload(name), 1)[0].steps[::5]:
        prompt = reflector_prompt(step.observation)
        apart = [tokenizer.encode(part, add_special_tokens=False) for part in prompt]
        assert list(chain(*apart)) == tokenizer.encode("".join(prompt), add_special_tokens=False)


def test_a_model_of_the_asked_for_size_and_vocabulary() -> None:
    lm = bench_model("4x256", workload("alfworld"))
    assert (lm.model.config.n_layer, lm.hidden_size, lm.model.config.n_head) == (4, 256, 4)
    assert lm.model.get_output_embeddings().weight.shape == (512, 256) and len(lm.tokenizer) <= 512
    assert lm.model.get_output_embeddings().weight is lm.model.get_input_embeddings().weight
    assert not lm.model.training and lm.context == workload("alfworld").context
    assert find_labels(lm.tokenizer, 20).texts == tuple(str(i) for i in range(1, 21))


def test_the_vocabulary_may_be_larger_than_the_tokenizer_but_not_smaller(tiny: Callable[..., LanguageModel]) -> None:
    assert tiny(vocab=2000).model.get_output_embeddings().weight.shape[0] == 2000
    with pytest.raises(UserError, match="too small for the tokenizer"):
        tiny(vocab=100)
    with pytest.raises(UserError, match="gpt5"):
        bench_model("gpt5", workload("taxi"))


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
def test_other_families(tiny: Callable[..., LanguageModel], family: str) -> None:
    assert tiny(family=family).model.config.model_type == family


def test_reflections_are_counted_with_their_end(tiny: Callable[..., LanguageModel]) -> None:
    lm = tiny()
    assert reflection_lengths(lm, ["Next"]) == [len(lm.encode(" Next")) + 1]
