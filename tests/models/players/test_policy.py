"""The policy: legal actions only, probabilities at the right places, memory."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from reflectrl.core.config import ModelConfig
from reflectrl.core.envs import make
from reflectrl.core.players import LiveEpisode
from reflectrl.core.types import Observation, Reflection, Sampling, UserError
from reflectrl.models.load import LanguageModel, load_model
from reflectrl.models.players import Policy
from reflectrl.models.scratch import save_scratch

TEXT = "|T: | : |\nReflection: Go on.\nActions: " + "; ".join(f"{i}: a{i}" for i in range(1, 15)) + "\nChoice: 1"
GREEDY = Sampling(0.0)

ENV = make({"name": "corridor"})
TASK = ENV.tasks("train")[0]


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    """A tiny model that lists up to 14 actions; enlarged weights give it opinions."""
    folder = tmp_path_factory.mktemp("policy")
    config = ModelConfig(family="llama", layers=1, width=32, heads=2, vocab=300, context=256)
    save_scratch(folder, config, [TEXT], 14, seed=2)
    loaded = load_model(folder, config)
    with torch.no_grad():
        for weight in loaded.parameters():
            if weight.ndim == 2:
                weight.mul_(4.0)
    return loaded


def episode(
    actions: Sequence[str], seed: int = 0, state: str = "|T: | : |\n", reflection: str | None = "Go on."
) -> LiveEpisode:
    turns = [] if reflection is None else [Reflection("reflector", reflection)]
    return LiveEpisode(ENV, TASK, seed, np.random.default_rng(seed), Observation("", state, tuple(actions)), turns)


def actions(count: int) -> list[str]:
    return [f"a{i}" for i in range(1, count + 1)]


def by_hand(lm: LanguageModel, one: LiveEpisode, order: Sequence[int], temperature: float) -> np.ndarray:
    """The probability of each action: the whole head's softmax over the labels, by the model's own forward pass."""
    policy = Policy(lm)
    ids = policy.prompt(one.observation, one.reflection, order)
    with torch.no_grad():
        logits_V = lm.model(torch.tensor([list(ids)])).logits[0, -1].double()
    count = len(one.observation.actions)
    listed = torch.softmax(logits_V[list(policy.labels(count).token_ids[:count])] / temperature, -1).numpy()
    aligned = np.empty(count)
    aligned[list(order) or list(range(count))] = listed
    return aligned


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(1, 14), min_size=1, max_size=6),
    shuffle=st.booleans(),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    seed=st.integers(0, 1000),
)
def test_every_row_of_a_batch_gets_the_probabilities_of_its_own_legal_actions(
    lm: LanguageModel, counts: list[int], shuffle: bool, temperature: float, seed: int
) -> None:
    policy = Policy(lm, Sampling(temperature), shuffle)
    episodes = [episode(actions(count), seed + i) for i, count in enumerate(counts)]
    for one, turn in zip(episodes, policy.turns(episodes), strict=True):
        count = len(one.observation.actions)
        assert turn.choice is not None and 0 <= turn.choice < count
        assert turn.text == one.observation.actions[turn.choice]
        assert sorted(turn.order) == (list(range(count)) if shuffle else [])
        expected = by_hand(lm, one, turn.order, temperature or 1.0)
        assert turn.probs == pytest.approx(expected.tolist(), abs=1e-4)
        assert sum(turn.probs) == pytest.approx(1, abs=1e-4)
        assert turn.logprobs[0] == pytest.approx(float(np.log(expected[turn.choice])), abs=1e-3)
        assert turn.entropy == pytest.approx(float(-(expected * np.log(expected)).sum()), abs=1e-3)
        label = turn.order.index(turn.choice) if shuffle else turn.choice
        assert turn.token_ids == (policy.labels(count).token_ids[label],)
        if temperature == 0:
            assert turn.choice == int(np.argmax(expected))


def test_a_prompt_does_not_depend_on_what_was_listed_before(lm: LanguageModel) -> None:
    few = episode(actions(3)).observation
    fresh = Policy(lm).prompt(few, "Go on.")
    used = Policy(lm)
    used.turns([episode(actions(3)), episode(actions(14))])
    assert used.prompt(few, "Go on.") == fresh


def test_samples_have_the_frequencies_of_the_probabilities(lm: LanguageModel) -> None:
    policy = Policy(lm, Sampling(2.0), shuffle_labels=False)
    turns = [
        turn
        for start in range(0, 4000, 500)
        for turn in policy.turns([episode(actions(4), start + i) for i in range(500)])
    ]
    counts = np.bincount([turn.choice or 0 for turn in turns], minlength=4)
    expected = by_hand(lm, episode(actions(4)), (), 2.0) * len(turns)
    assert chisquare(counts, expected / expected.sum() * counts.sum()).pvalue > 1e-3


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 14),
    top_k=st.integers(0, 6),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    shuffle=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_top_k_and_top_p_leave_the_likeliest_actions_with_all_of_the_probability(
    lm: LanguageModel, count: int, top_k: int, top_p: float, shuffle: bool, seed: int
) -> None:
    policy, one = Policy(lm, Sampling(2.0, top_p, top_k), shuffle), episode(actions(count), seed)
    [turn] = policy.turns([one])
    whole = by_hand(lm, one, turn.order, 2.0)
    likeliest = np.argsort(-whole)[: top_k or count]
    within = np.cumsum(whole[likeliest] / whole[likeliest].sum())
    expected = likeliest[: int(np.searchsorted(within, top_p - 1e-6)) + 1] if top_p < 1 else likeliest
    left = set(turn.support) or set(range(count))
    assert left == set(expected.tolist()) and turn.choice in left
    probabilities = np.where(np.isin(np.arange(count), expected), whole, 0.0)
    probabilities /= probabilities.sum()
    assert turn.probs == pytest.approx(probabilities.tolist(), abs=1e-4)
    assert turn.logprobs[0] == pytest.approx(float(np.log(probabilities[turn.choice or 0])), abs=1e-3)
    remaining = probabilities[probabilities > 0]
    assert turn.entropy == pytest.approx(float(-(remaining * np.log(remaining)).sum()), abs=1e-3)


def test_greedy_choices_leave_nothing_out(lm: LanguageModel) -> None:
    [plain], [cut] = (
        Policy(lm, sampling).turns([episode(actions(9))]) for sampling in (GREEDY, Sampling(0.0, top_p=0.1, top_k=2))
    )
    assert dataclasses.replace(cut, sampling=GREEDY) == plain and not cut.support


def test_the_same_seed_takes_the_same_turn_in_any_company(lm: LanguageModel) -> None:
    episodes = [3, 14, 5, 1]
    together = Policy(lm, shuffle_labels=True).turns([episode(actions(n), 7 + i) for i, n in enumerate(episodes)])
    for i, n in enumerate(episodes):
        [alone] = Policy(lm, shuffle_labels=True).turns([episode(actions(n), 7 + i)])
        assert (alone.choice, alone.order, alone.token_ids) == (
            together[i].choice,
            together[i].order,
            together[i].token_ids,
        )


def test_a_reflection_is_read(lm: LanguageModel) -> None:
    spoken, silent = Policy(lm, GREEDY).turns([episode(actions(5)), episode(actions(5), reflection=None)])
    assert spoken.probs != pytest.approx(silent.probs, abs=1e-3)
    assert silent.probs == pytest.approx(by_hand(lm, episode(actions(5), reflection=None), (), 1.0).tolist(), abs=1e-4)


def test_memory_never_changes_a_turn_and_forgetting_sees_new_weights(lm: LanguageModel) -> None:
    learner = dataclasses.replace(lm, model=lm.frozen_copy().model)
    kept, forgetful = Policy(learner, GREEDY), Policy(learner, GREEDY, memory=0)
    before = kept.turns([episode(actions(6))] * 2)
    assert before == kept.turns([episode(actions(6))] * 2)
    for turn, anew in zip(before, forgetful.turns([episode(actions(6))] * 2), strict=True):
        assert (turn.choice, turn.token_ids) == (anew.choice, anew.token_ids)
        assert (*turn.logprobs, turn.entropy) == pytest.approx((*anew.logprobs, anew.entropy), abs=1e-5)
    with torch.no_grad():
        learner.model.lm_head.weight.mul_(-1.0)
    assert kept.turns([episode(actions(6))]) == before[:1], "remembered"
    assert forgetful.turns([episode(actions(6))]) != before[:1]
    kept.clear_cache()
    assert kept.turns([episode(actions(6))]) == forgetful.turns([episode(actions(6))])


def test_what_is_remembered_is_not_bound_to_a_temperature(lm: LanguageModel) -> None:
    policy = Policy(lm, Sampling(1.0))
    policy.turns([episode(actions(6))])
    policy.sampling = Sampling(0.5)
    [turn] = policy.turns([episode(actions(6))])
    assert turn.probs == pytest.approx(by_hand(lm, episode(actions(6)), (), 0.5).tolist(), abs=1e-4)


def test_more_actions_than_labels_are_refused(lm: LanguageModel) -> None:
    with pytest.raises(UserError, match="400 actions"):
        Policy(lm).turns([episode(actions(400))])


def test_broken_weights_are_told_and_not_played(lm: LanguageModel) -> None:
    broken = dataclasses.replace(lm, model=lm.frozen_copy().model)
    with torch.no_grad():
        broken.model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(UserError, match="not finite"):
        Policy(broken).turns([episode(actions(3))])


def test_an_adapter_plays_as_itself(lm: LanguageModel, tmp_path: Path) -> None:
    """A policy on an adapter that was changed by hand differs from the backbone; its sibling does not."""
    lm.save(tmp_path)
    first = load_model(tmp_path, ModelConfig(lora_rank=2, context=256), "policy")
    reference = Policy(first.frozen_copy(), GREEDY)
    with torch.no_grad():
        for weight in first.parameters():
            weight.add_(0.3)
    [changed], [kept] = Policy(first, GREEDY).turns([episode(actions(5))]), reference.turns([episode(actions(5))])
    assert kept.probs == pytest.approx(by_hand(lm, episode(actions(5)), (), 1.0).tolist(), abs=1e-4)
    assert changed.probs != pytest.approx(kept.probs, abs=1e-3)
