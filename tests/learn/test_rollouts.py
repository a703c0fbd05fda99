"""From episodes to updates: what a batch holds, advantages by hand, and the policy's pass over it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from reflectrl.core.config import RLConfig
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.episodes import from_line, to_line, without_reflections
from reflectrl.core.players import AnalystPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Episode, Sampling
from reflectrl.learn.minibatches import compute_advantages
from reflectrl.learn.steps import Steps, flatten, policy_pass
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import Policy


def play(policy: Policy, make_rooms: Callable[[], TextEnv], count: int = 12) -> list[Episode]:
    tasks = make_rooms().tasks("train")
    return list(rollout([Job(tasks[i % len(tasks)], i) for i in range(count)], make_rooms, policy))


@pytest.fixture(params=[False, True], ids=["in order", "shuffled"])
def policy(tiny: Callable[..., LanguageModel], request: Any) -> Policy:
    return Policy(tiny(), Sampling(1.7), shuffle_labels=request.param)


def by_hand(rewards: list[list[float]], tasks: list[str]) -> Steps:
    """A batch of which only rewards and tasks matter."""
    flat = torch.tensor([reward for episode in rewards for reward in episode])
    to_go = torch.tensor([sum(episode[t:]) for episode in rewards for t in range(len(episode))])
    ends = [sum(map(len, rewards[: i + 1])) for i in range(len(rewards))]
    nothing = torch.zeros(len(flat))
    return Steps([()] * len(flat), [2] * len(flat), nothing.long(), nothing, flat, to_go, ends, tasks)


class TestBatch:
    def test_it_holds_every_step_in_order(self, policy: Policy, make_rooms: Any) -> None:
        episodes = play(policy, make_rooms)
        batch = flatten(policy, episodes, gamma=0.5)
        steps = [step for episode in episodes for step in episode.steps]
        assert len(batch) == len(steps) and batch.task_ids == [episode.task.id for episode in episodes]
        assert [batch.prompts[span][0] for span in batch.spans()] != []
        for i, step in enumerate(steps):
            text = policy.lm.tokenizer.decode(batch.prompts[i])
            label = policy.labels(len(batch.actions[i])).texts[int(batch.labels_N[i])]
            assert step.observation.state.strip() in text and len(batch.actions[i]) == len(step.observation.actions)
            assert f"{label}: {step.observation.actions[step.action]}" in text
        for episode, span in zip(episodes, batch.spans(), strict=True):
            rewards = [step.reward for step in episode.steps]
            assert batch.rewards_N[span].tolist() == rewards
            expected = [sum(r * 0.5**k for k, r in enumerate(rewards[t:])) for t in range(len(rewards))]
            assert batch.returns_N[span].tolist() == pytest.approx(expected)

    def test_prompts_are_those_of_play_and_of_a_file(self, policy: Policy, make_rooms: Any) -> None:
        class Speechless(Policy):
            def prompt(self, *_: Any) -> Any:
                raise AssertionError("learning rendered a prompt that had been read in play")

        episodes = play(policy, make_rooms)
        carried = flatten(Speechless(policy.lm, policy.sampling), episodes, 1.0)
        from_file = [from_line(to_line(episode)) for episode in episodes]
        assert from_file == episodes
        rendered = flatten(policy, from_file, 1.0)
        assert rendered.prompts == carried.prompts and torch.equal(rendered.labels_N, carried.labels_N)
        with pytest.raises(AssertionError):
            flatten(Speechless(policy.lm, policy.sampling), from_file, 1.0)

    def test_a_step_that_lost_its_reflection_is_rendered_anew(self, tiny: Any, make_rooms: Any) -> None:
        policy, tasks = Policy(tiny()), make_rooms().tasks("train")
        episodes = list(rollout([Job(tasks[0], 0)], make_rooms, policy, AnalystPlayer()))
        plain = list(without_reflections(episodes))
        assert flatten(policy, plain, 1.0).prompts == [
            policy.prompt(step.observation, None) for step in episodes[0].steps
        ]
        assert set(flatten(policy, episodes, 1.0).prompts).isdisjoint(flatten(policy, plain, 1.0).prompts)


class TestPass:
    def test_it_repeats_the_probabilities_of_play(self, policy: Policy, make_rooms: Any) -> None:
        """Ratios are 1 before the first update."""
        episodes = play(policy, make_rooms)
        batch = flatten(policy, episodes, 1.0)
        logp_NA, hidden_ND = policy_pass(policy, batch, range(len(batch)))
        chosen_N = logp_NA.gather(1, batch.labels_N[:, None])[:, 0]
        torch.testing.assert_close(chosen_N, batch.old_logp_N, atol=1e-5, rtol=0)
        assert hidden_ND.shape == (len(batch), policy.lm.hidden_size)
        steps = [step for episode in episodes for step in episode.steps]
        for row, step in zip(logp_NA.detach().exp(), steps, strict=True):
            assert step.choice is not None
            order = step.choice.order or range(len(step.observation.actions))
            assert row[: len(order)].tolist() == pytest.approx([step.choice.probs[i] for i in order], abs=1e-5)

    def test_an_action_that_is_not_listed_has_probability_zero(self, policy: Policy, make_rooms: Any) -> None:
        batch = flatten(policy, play(policy, make_rooms, 30), 1.0)
        assert set(map(len, batch.actions)) == {2, 3}
        logp_NA, _ = policy_pass(policy, batch, range(len(batch)))
        for row, count in zip(logp_NA, map(len, batch.actions), strict=True):
            assert row[count:].isneginf().all() and row[:count].isfinite().all()
            assert float(row.detach().exp().sum()) == pytest.approx(1.0)

    def test_any_slice_gives_the_same_rows(self, policy: Policy, make_rooms: Any) -> None:
        batch = flatten(policy, play(policy, make_rooms), 1.0)
        whole, _ = policy_pass(policy, batch, range(len(batch)))
        for i in range(len(batch)):
            alone, _ = policy_pass(policy, batch, [i])
            torch.testing.assert_close(alone[0], whole[i, : len(batch.actions[i])], atol=1e-6, rtol=0)


class TestAdvantages:
    batch = by_hand([[1.0, 2.0], [4.0], [0.0, -1.0, 0.5]], ["a", "b", "a"])

    def test_none_and_mean(self) -> None:
        returns = [3.0, 2.0, 4.0, -0.5, -0.5, 0.5]
        assert compute_advantages(self.batch, RLConfig(baseline="none"), 1.5, None).tolist() == returns
        found = compute_advantages(self.batch, RLConfig(baseline="mean"), 1.5, None)
        assert found.tolist() == pytest.approx([value - 1.5 for value in returns])

    def test_leave_one_out_compares_whole_returns_of_one_task(self) -> None:
        found = compute_advantages(self.batch, RLConfig(baseline="leave-one-out", group=2), 99.0, None)
        assert found.tolist() == pytest.approx([3.5, 3.5, 4.0, -3.5, -3.5, -3.5])  # "b" has nothing to compare with

    def test_critic(self) -> None:
        values_N = torch.tensor([1.0, 1.0, 2.0, 0.0, 0.0, 0.0])
        config = RLConfig(baseline="critic", gamma=1.0, gae_lambda=1.0)
        found = compute_advantages(self.batch, config, 99.0, values_N)
        assert found.tolist() == pytest.approx([2.0, 1.0, 2.0, -0.5, -0.5, 0.5])  # reward-to-go minus value
        found = compute_advantages(self.batch, RLConfig(baseline="critic", gae_lambda=0.0), 99.0, values_N)
        assert found.tolist() == pytest.approx([1.0, 1.0, 2.0, 0.0, -1.0, 0.5])  # one-step differences
