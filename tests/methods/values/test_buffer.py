"""The buffer of transitions, and what a frozen model makes of states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from reflectrl.core.players import RandomPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Episode, Sampling, UserError
from reflectrl.learn.steps import flatten
from reflectrl.learn.trainer import weights_of
from reflectrl.methods.shared.buffer import END, TransitionBuffer
from reflectrl.methods.shared.features import choice_table, read_states
from reflectrl.models.players import Policy
from reflectrl.models.sharing import no_sharing

Tiny = Callable[..., Any]


@pytest.fixture
def played(make_rooms: Any) -> Callable[..., list[Episode]]:
    """`played(n)`: n random episodes of each training task, those of `seed` onwards."""

    def episodes(count: int = 2, seed: int = 0) -> list[Episode]:
        tasks = [*make_rooms().tasks("train")] * count
        return list(rollout([Job(task, seed + i) for i, task in enumerate(tasks)], make_rooms, RandomPlayer()))

    return episodes


def filled(policy: Policy, episodes: list[Episode], size: int = 1000) -> TransitionBuffer:
    buffer = TransitionBuffer(size, policy)
    buffer.add(flatten(policy, episodes, 1.0), episodes)
    return buffer


@pytest.mark.parametrize("scoring", ["enumeration", "sum"])
def test_features_stand_behind_the_prompt_and_behind_each_action(tiny: Tiny, played: Any, scoring: Any) -> None:
    policy = Policy(tiny(), Sampling(1.0), scoring=scoring)
    buffer, lm = filled(policy, played()), policy.lm
    assert {len(actions) for _, actions in buffer.questions} == {2, 3}
    with torch.no_grad():
        for i, (prompt, actions) in enumerate(buffer.questions):
            for k, action in enumerate(actions):
                answer = policy.candidates(actions).ids[k][:1] if scoring == "enumeration" else lm.encode(f" {action}")
                alone = lm.backend.read(no_sharing([prompt, (*prompt, *answer)]))
                torch.testing.assert_close(buffer.states_SD[i], alone[0], atol=1e-5, rtol=1e-5)
                torch.testing.assert_close(buffer.actions_SAD[i, k], alone[1], atol=1e-5, rtol=1e-5)
            logits, _ = policy.logits([prompt], [actions])
            expected = logits[0, : len(actions)].log_softmax(-1)
            torch.testing.assert_close(buffer.prior_SA[i, : len(actions)], expected, atol=1e-5, rtol=1e-5)
            assert buffer.prior_SA[i, len(actions) :].isneginf().all()


def test_a_table_of_choices_is_that_of_play_at_its_temperature(tiny: Tiny, played: Any) -> None:
    policy = Policy(tiny(), Sampling(0.5))
    questions = filled(policy, played()).questions
    table_NA = choice_table(policy, questions, 5)
    assert table_NA.shape == (len(questions), 5) and table_NA[:, 3:].isneginf().all()
    torch.testing.assert_close(table_NA.exp().sum(1), torch.ones(len(questions)))
    read = read_states(policy, questions, temperature=0.5).logp_NA
    torch.testing.assert_close(table_NA[:, :3], read, atol=1e-5, rtol=1e-5)


class TestTransitions:
    def test_the_buffer_knows_which_actions_were_tried(self, tiny: Tiny, played: Any) -> None:
        buffer = filled(Policy(tiny()), played())
        found = buffer.transitions()
        pairs = set(zip(found.state_N.tolist(), found.label_N.tolist(), strict=True))
        assert set(map(tuple, buffer.tried().nonzero().tolist())) == pairs
        assert buffer.tried().shape == buffer.prior_SA.shape
        assert not buffer.tried()[buffer.prior_SA.isneginf()].any()

    def test_they_follow_the_episodes(self, tiny: Tiny, played: Any) -> None:
        policy, episodes = Policy(tiny()), played()
        buffer = filled(policy, episodes)
        found, steps = buffer.transitions(), flatten(policy, episodes, 1.0)
        assert len(buffer) == len(steps) == sum(len(episode.steps) for episode in episodes)
        assert found.label_N.tolist() == [step.action for episode in episodes for step in episode.steps]
        assert found.reward_N.tolist() == [step.reward for episode in episodes for step in episode.steps]
        for i, (state, following) in enumerate(zip(found.state_N.tolist(), found.next_N.tolist(), strict=True)):
            assert buffer.questions[state] == (steps.prompts[i], steps.actions[i])
            assert following == (END if i + 1 in steps.ends else found.state_N[i + 1])
        assert len(buffer.questions) == len(set(steps.prompts))  # each state is read once

    def test_what_the_horizon_cut_off_is_left_out(self, tiny: Tiny, played: Any) -> None:
        episodes = played(1)
        long = next(i for i, episode in enumerate(played(4)) if len(episode.steps) == 2)
        episodes = [replace(played(4)[long], truncated=True)]
        buffer = filled(Policy(tiny()), episodes)
        assert len(buffer) == 1 and buffer.transitions().next_N.tolist() != [END]
        short = replace(episodes[0], steps=episodes[0].steps[:1])
        with pytest.raises(UserError, match="every episode was cut off at its first step"):
            filled(Policy(tiny()), [short])

    def test_the_oldest_go_and_with_them_the_states_that_nobody_speaks_of(self, tiny: Tiny, played: Any) -> None:
        policy = Policy(tiny())
        whole, small = filled(policy, played(4)), filled(policy, played(4), size=5)
        kept, last = small.transitions(), [tensor[-5:] for tensor in whole.transitions()]
        assert len(small) == 5 and torch.equal(kept.reward_N, last[2])
        for now, before in ((kept.state_N, last[0]), (kept.next_N, last[3])):
            for state, was in zip(now.tolist(), before.tolist(), strict=True):
                assert (state == END) == (was == END)
                assert state == END or small.questions[state] == whole.questions[was]
        speaks_of = {*kept.state_N.tolist(), *kept.next_N.tolist()} - {END}
        assert speaks_of == set(range(len(small.questions))) and len(small.states_SD) == len(small.questions)

    def test_saved_and_loaded_it_draws_the_same(self, tiny: Tiny, played: Any) -> None:
        policy = Policy(tiny())
        first, second = filled(policy, played(4), size=9), TransitionBuffer(9, policy)
        second.load_state_dict(weights_of(first))
        second.load([[list(ids), list(actions)] for ids, actions in first.questions])  # as JSON has them
        for buffer in (first, second):
            more = played(1, seed=50)
            buffer.add(flatten(policy, more, 1.0), more)
        drawn = [buffer.draw(20, torch.Generator().manual_seed(1)) for buffer in (first, second)]
        assert all(map(torch.equal, *drawn)) and first.questions == second.questions
        assert torch.equal(first.actions_SAD, second.actions_SAD)
