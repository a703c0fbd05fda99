"""The reflector: decoding until end-of-text, and a memory that nobody notices but the clock."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.core.config import ModelConfig
from reflectrl.core.envs import make
from reflectrl.core.players import LiveEpisode
from reflectrl.core.prompts import reflector_prompt, tokenize
from reflectrl.core.types import Observation, Sampling, UserError
from reflectrl.models.load import LanguageModel, load_model
from reflectrl.models.players import Reflector, sampler
from reflectrl.models.scratch import save_scratch

ENV = make({"name": "corridor"})
TASK = ENV.tasks("train")[0]


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    folder = tmp_path_factory.mktemp("reflector")
    config = ModelConfig(layers=1, width=32, heads=2, vocab=300, context=128)
    save_scratch(folder, config, ["|T: |\nReflection: The taxi moved west.\n"], 2, seed=2)
    loaded = load_model(folder, config)
    with torch.no_grad():
        for weight in loaded.parameters():
            if weight.ndim == 2:
                weight.mul_(5.0)
    return loaded


def episode(state: str, seed: int = 0) -> LiveEpisode:
    return LiveEpisode(ENV, TASK, seed, np.random.default_rng(seed), Observation("", state, ("south",)))


def episodes(states: Sequence[str]) -> list[LiveEpisode]:
    return [episode(state, i) for i, state in enumerate(states)]


def test_a_reflection_is_what_the_model_writes_after_the_prompt(lm: LanguageModel) -> None:
    [turn] = Reflector(lm, 8).turns([episode("|T: |\n")])
    prompt = tokenize(lm, reflector_prompt(episode("|T: |\n").observation), reserve=8)
    [(ids, logprobs)] = lm.backend.write([prompt], 8, sampler(Sampling(0.0)), [np.random.default_rng(0)])
    assert (turn.player, turn.choice, turn.sampling) == ("reflector", None, Sampling(0.0))
    assert turn.token_ids == ids and 0 < len(ids) <= 8
    assert turn.logprobs == pytest.approx(logprobs, abs=1e-5)
    assert turn.text == lm.tokenizer.decode(ids).strip()


@settings(max_examples=25, deadline=None)
@given(
    ticks=st.lists(st.lists(st.sampled_from("ABCDE"), min_size=1, max_size=5), min_size=1, max_size=5),
    memory=st.integers(0, 4),
)
def test_memory_changes_no_turn_whatever_its_size(lm: LanguageModel, ticks: list[list[str]], memory: int) -> None:
    reflector, forgetful = Reflector(lm, 4, memory=memory), Reflector(lm, 4, memory=0)
    for states in ticks:
        remembered, fresh = reflector.turns(episodes(states)), forgetful.turns(episodes(states))
        assert [turn.token_ids for turn in remembered] == [turn.token_ids for turn in fresh]
        assert [turn.text for turn in remembered] == [turn.text for turn in fresh]
    assert reflector.lookups == sum(map(len, ticks))
    assert reflector.hits >= forgetful.hits


def test_an_identical_prompt_is_decoded_once(lm: LanguageModel) -> None:
    reflector = Reflector(lm, 4)
    first = reflector.turns(episodes(["A", "B", "A"]))
    assert (reflector.lookups, reflector.hits) == (3, 1)
    assert reflector.turns(episodes(["B", "A"])) == [first[1], first[0]]
    assert (reflector.lookups, reflector.hits) == (5, 3)


def test_the_least_recently_used_is_forgotten(lm: LanguageModel) -> None:
    reflector = Reflector(lm, 4, memory=2)
    for states, decoded in ((["A"], 1), (["B"], 2), (["A"], 2), (["C"], 3), (["A"], 3), (["B"], 4)):
        reflector.turns(episodes(states))
        assert reflector.lookups - reflector.hits == decoded, states


def test_remembered_and_new_prompts_in_one_batch_that_overflows_the_memory(lm: LanguageModel) -> None:
    reflector = Reflector(lm, 4, memory=1)
    [known] = reflector.turns(episodes(["A"]))
    assert reflector.turns(episodes(["A", "B", "C"]))[0] == known


def test_sampled_reflections_come_from_the_seats_own_seed_and_are_not_remembered(lm: LanguageModel) -> None:
    def sampled(states: Sequence[str], first: int) -> list[str]:
        reflector = Reflector(lm, 6, Sampling(1.0))
        written = reflector.turns([episode(state, first + i) for i, state in enumerate(states)])
        assert reflector.hits == 0
        return [turn.text for turn in written]

    together = sampled(["A", "A", "A"], 0)
    assert len(set(together)) > 1
    assert [sampled(["A"], i)[0] for i in range(3)] == together


def test_a_reflection_has_room_or_is_refused(lm: LanguageModel) -> None:
    assert Reflector(lm, 60).turns([episode("|" * 50)])[0].token_ids
    with pytest.raises(UserError, match="120 to be written"):
        Reflector(lm, 120).turns([episode("|" * 50)])
