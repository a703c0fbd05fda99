"""What completions weigh in tokens, and log-probabilities that depend on nothing but their own prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from reflectrl.core.envs.base import TextEnv
from reflectrl.core.players import RandomPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Episode, Sampling, UserError
from reflectrl.methods.shared.offline.completions import onto_unit, step_dataset
from reflectrl.methods.shared.offline.config import OfflineConfig
from reflectrl.methods.shared.offline.reference_cache import reference_logprobs
from reflectrl.models.players import Policy

CONFIG = OfflineConfig()


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

    def test_what_top_k_left_out_in_play_still_counts(self, tiny: Any, make_rooms: Any) -> None:
        policy, whole = Policy(tiny(), Sampling(1.0, top_k=1)), Policy(tiny(), Sampling(1.0))
        episodes = played(make_rooms, policy)
        assert all(step.choice.support for episode in episodes for step in episode.steps)
        cut, full = (reference_logprobs(step_dataset(player, episodes, CONFIG)) for player in (policy, whole))
        assert torch.equal(cut, full) and bool((cut < 0).all())

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
