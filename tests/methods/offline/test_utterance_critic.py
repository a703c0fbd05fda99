"""The utterance-level critic: values worked out by hand, credit that logged returns cannot give, what it keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import one_hot

from reflectrl.core.players import RandomPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Episode, Sampling, UserError
from reflectrl.methods.offline import play_tasks, train_offline
from reflectrl.methods.shared.offline import utterance_critic
from reflectrl.methods.shared.offline.algorithms import items_of
from reflectrl.methods.shared.offline.completions import Dataset, step_dataset
from reflectrl.methods.shared.offline.config import OfflineConfig
from reflectrl.methods.shared.offline.reference_cache import reference_logprobs
from reflectrl.methods.shared.offline.transitions import StepFeatures, Transitions, step_features, transitions
from reflectrl.methods.shared.offline.utterance_critic import cached_critic, fit_critic
from reflectrl.models.players import Policy
from reflectrl.models.sharing import no_sharing
from tests.methods.offline.texts import Text, texts

Tiny = Callable[..., Any]
Walk = Sequence[tuple[int, int, float]]
"""The (state, action, reward) of each step of an episode."""

SIZE, TASKS = 4, 4
HAND = OfflineConfig(
    gamma=0.8, expectile=0.75, target_rate=0.1, critic_steps=400, critic_lr=3e-3, critic_batch=64, held_out=0.25
)


def nothing(metrics: dict[str, float]) -> None:
    pass


def learned(walks: Sequence[Walk], cut: Sequence[int] = (), config: OfflineConfig = HAND) -> dict[tuple[int, int], Any]:
    """(state, action) → (Q, V, mean logged return) from walks that were logged once for every task.

    Args:
        cut: which of the walks were ended by the horizon.
    """
    states, actions, rewards, returns, following, lost, units = [], [], [], [], [], [], []
    for task in range(TASKS):
        for number, walk in enumerate(walks):
            for t, (state, action, reward) in enumerate(walk):
                last = t == len(walk) - 1
                following.append(-1 if last else len(states) + 1)
                lost.append(last and number in cut)
                states.append(state)
                actions.append(action)
                rewards.append(reward)
                returns.append(sum(config.gamma**k * r for k, (_, _, r) in enumerate(walk[t:])))
                units.append(f"task {task}")
    features = StepFeatures(one_hot(torch.tensor(states), SIZE).float(), one_hot(torch.tensor(actions), SIZE).float())
    steps = Transitions(torch.tensor(rewards), torch.tensor(returns), torch.tensor(following), torch.tensor(lost))
    critic = fit_critic(features, steps, units, config, 0, nothing)
    with torch.no_grad():
        q_N = critic.q_values(features.states_ND, features.actions_ND).amin(0).tolist()
        values_N = critic.values(features.states_ND).tolist()
    found: dict[tuple[int, int], list[tuple[float, float, float]]] = {}
    for state, action, q, v, back in zip(states, actions, q_N, values_N, returns, strict=True):
        found.setdefault((state, action), []).append((q, v, back))
    return {pair: tuple(torch.tensor(rows).mean(0).tolist()) for pair, rows in found.items()}


ON, STOP = 0, 1


def test_on_a_chain_it_finds_the_values_worked_out_by_hand() -> None:
    """Four states in a row; going on from the last one earns 1, stopping nothing. Half the log stops at every state.

    An expectile of 3/4 of Q and 0, equally often, is 3/4 Q. So Q(3, on) = 1, V(3) = 3/4, Q(2, on) = 0.8 · 3/4 = 0.6,
    and each state before that has 0.6 times as much.
    """
    on = [(state, ON, float(state == 3)) for state in range(4)]
    walks = [[*on[:state], (state, STOP, 0.0)] for state in range(4) for _ in range(8 >> state)]
    found = learned([*walks, on])
    for state in range(4):
        going, stopping = found[state, ON], found[state, STOP]
        assert going[:2] == pytest.approx((0.6 ** (3 - state), 0.75 * 0.6 ** (3 - state)), abs=0.03)
        assert stopping[0] == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize(("cut", "value"), [((), 0.75), ((0,), 1.0)], ids=["lost", "cut off"])
def test_two_halves_that_only_together_reach_the_goal_are_stitched(cut: Sequence[int], value: float) -> None:
    """One episode comes from 0 to 1 and fails there (or is cut off there); another begins in 1 and wins.

    No episode from 0 earned anything, so logged returns cannot tell the two actions there apart. What was cut off says
    nothing about its last action, so then 1 is worth what the winner made of it; an end without reward counts as 0.
    """
    first, second, other = [(0, ON, 0.0), (1, STOP, 0.0)], [(1, ON, 1.0)], [(0, STOP, 0.0)]
    found = learned([first, second, other], cut)
    on, stop = found[0, ON], found[0, STOP]
    assert on[2] == stop[2] == 0
    assert on[0] == pytest.approx(0.8 * value, abs=0.04) and stop[0] == pytest.approx(0, abs=0.04)
    assert on[0] - on[1] > 0.05 and stop[0] - stop[1] < -0.3


def test_checkpoints_are_compared_on_held_out_tasks() -> None:
    """Each report is of steps of another task; with one task only, there is nothing to compare on."""
    log: list[dict[str, float]] = []
    features = StepFeatures(torch.randn(6, 3), torch.randn(6, 3))
    steps = Transitions(torch.ones(6), torch.ones(6), torch.tensor([1, 2, -1] * 2), torch.zeros(6, dtype=torch.bool))
    config = replace(HAND, critic_steps=40)
    fit_critic(features, steps, ["a"] * 3 + ["b"] * 3, config, 0, log.append)
    assert [one["step"] for one in log] == list(range(2, 41, 2)) and log[-1].keys() == {
        "step", "critic_loss", "critic_eval_loss", "explained_variance",
    }  # fmt: skip
    with pytest.raises(UserError, match="held out"):
        fit_critic(features, steps, ["a"] * 6, config, 0, nothing)


# ---- of real episodes ------------------------------------------------------------------------------------------------

SMALL = replace(HAND, gamma=1.0, critic_steps=20)


@pytest.fixture
def logged(tiny: Tiny, make_rooms: Any) -> Callable[..., tuple[Dataset, list[Episode]]]:
    """`logged(n)`: the steps of n random episodes per training task, bound to a fresh model, and the episodes."""

    def made(count: int = 2, scoring: Any = "enumeration", lm: Any = None) -> tuple[Dataset, list[Episode]]:
        tasks = [*make_rooms().tasks("train")] * count
        episodes = list(rollout([Job(task, i) for i, task in enumerate(tasks)], make_rooms, RandomPlayer()))
        policy = Policy(lm or tiny(), Sampling(1.0), scoring=scoring)
        return step_dataset(policy, episodes, SMALL), episodes

    return made


@pytest.mark.parametrize("scoring", ["enumeration", "sum"])
def test_features_stand_behind_the_prompt_and_behind_the_action(logged: Any, scoring: str) -> None:
    data, _ = logged(scoring=scoring)
    steps, lm = data.completions, data.completions.lm
    found = step_features(data)
    with torch.no_grad():
        for i, prompt in enumerate(steps.prompts):
            action = steps.steps.actions[i][int(steps.steps.labels_N[i])]
            label = steps.policy.answer(steps.steps.actions[i], 0, int(steps.steps.labels_N[i]))
            answer = label if scoring == "enumeration" else tuple(lm.encode(f" {action}"))
            alone = lm.backend.read(no_sharing([prompt, (*prompt, *answer)]))
            torch.testing.assert_close(found.states_ND[i], alone[0], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(found.actions_ND[i], alone[1], atol=1e-5, rtol=1e-5)


def test_a_prompt_that_fills_the_context_makes_room_for_its_action(logged: Any) -> None:
    data, _ = logged()
    data.completions.lm.context = max(map(len, data.completions.prompts))
    assert all(tensor.isfinite().all() and len(tensor) == len(data) for tensor in vars(step_features(data)).values())


def test_transitions_follow_the_log(logged: Any) -> None:
    data, episodes = logged()
    episodes[1] = replace(episodes[1], truncated=True)
    found = transitions(data, [replace(episodes[0], steps=()), *episodes])  # an episode without steps is passed over
    ends = data.completions.steps.ends
    assert found.next_N.tolist() == [-1 if i + 1 in ends else i + 1 for i in range(len(data))]
    assert found.truncated_N.nonzero()[:, 0].tolist() == [ends[1] - 1]
    rewards = [step.reward for episode in episodes for step in episode.steps]
    assert found.rewards_N.tolist() == pytest.approx([data.affine.scale * reward for reward in rewards])


class TestCache:
    def test_advantages_are_those_of_the_critic_and_are_kept(self, logged: Any, tmp_path: Path) -> None:
        data, episodes = logged()
        log: list[dict[str, float]] = []
        found = cached_critic(tmp_path / "critic", data, episodes, SMALL, 0, log.append)
        torch.testing.assert_close(found.ref_logp_NT, reference_logprobs(data))
        assert found.values_N.shape == found.advantages_N.shape == (len(data),) and len(log) == 20
        assert sorted(path.name for path in tmp_path.iterdir()) == ["critic", "critic-features"]
        before = data.completions.lm.counters.copy()
        again = cached_critic(tmp_path / "critic", data, episodes, SMALL, 0, log.append)
        assert data.completions.lm.counters.since(before).passes == 0 and len(log) == 20
        assert all(torch.equal(tensor, getattr(again, name)) for name, tensor in vars(found).items())

    def test_killed_while_it_is_fitted_nothing_is_read_again(self, logged: Any, tmp_path: Path) -> None:
        data, episodes = logged()
        whole = cached_critic(tmp_path / "whole", data, episodes, SMALL, 0, nothing)

        def kill(metrics: dict[str, float]) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            cached_critic(tmp_path / "killed", data, episodes, SMALL, 0, kill)
        before = data.completions.lm.counters.copy()
        reference_logprobs(data)
        scoring = data.completions.lm.counters.since(before).passes
        before = data.completions.lm.counters.copy()
        resumed = cached_critic(tmp_path / "killed", data, episodes, SMALL, 0, nothing)
        assert data.completions.lm.counters.since(before).passes == scoring
        assert all(torch.equal(tensor, getattr(resumed, name)) for name, tensor in vars(whole).items())

    @pytest.mark.parametrize(
        ("change", "named"),
        [("expectile", "other settings;"), ("truncated", "other episodes;"), ("code", "other code;")],
    )
    def test_a_stale_one_is_refused_by_what_differs(
        self, logged: Any, tmp_path: Path, change: str, named: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data, episodes = logged()
        config = replace(SMALL, critic_steps=1)
        cached_critic(tmp_path / "critic", data, episodes, config, 0, nothing)
        if change == "expectile":
            config = replace(config, expectile=0.9)
        elif change == "truncated":
            episodes[0] = replace(episodes[0], truncated=True)
        else:
            monkeypatch.setattr(utterance_critic, "CODE", utterance_critic.CODE[:1])
        with pytest.raises(UserError, match=named) as caught:
            cached_critic(tmp_path / "critic", data, episodes, config, 0, nothing)
        assert str(tmp_path / "critic") in str(caught.value)

    def test_features_of_another_reference_are_refused(self, logged: Any, tiny: Tiny, tmp_path: Path) -> None:
        config = replace(SMALL, critic_steps=1)
        cached_critic(tmp_path / "critic", *logged(), config, 0, nothing)
        lm = tiny()
        with torch.no_grad():
            next(iter(lm.parameters())).view(-1)[0] += 1e-3
        (tmp_path / "critic").rename(tmp_path / "gone")
        with pytest.raises(UserError, match=r"critic-features was made with other reference;"):
            cached_critic(tmp_path / "critic", *logged(lm=lm), config, 0, nothing)


def test_a_policy_learns_from_a_random_log(logged: Any, make_rooms: Any, tmp_path: Path) -> None:
    data, episodes = logged(15)
    config = replace(SMALL, critic_steps=200, algorithm="archer", steps=90, batch_size=16, lr=1e-2, eval_every=30)
    cache = cached_critic(tmp_path / "critic", data, episodes, config, 0, nothing)
    chosen = [episode.steps[t].observation.actions[episode.steps[t].action] for episode in episodes
              for t in range(len(episode.steps))]  # fmt: skip
    good_N = torch.tensor([action == "left" for action in chosen])
    assert float(cache.advantages_N[good_N].min()) > float(cache.advantages_N[~good_N].max())
    policy, log = data.completions.policy.with_sampling(Sampling(0.0)), list[dict[str, float]]()

    def evaluate() -> dict[str, float]:
        played = play_tasks(policy, make_rooms, make_rooms().tasks("validation"), 1, 0)
        return {"success": sum(episode.success for episode in played) / len(played)}

    train_offline(data, cache, config, 0, log.append, evaluate=evaluate)
    assert max(one["success"] for one in log) == 1.0


def test_texts_are_refused(tiny: Tiny) -> None:
    samples = [Text("a", "A red room,", " left", 1.0), Text("b", "A blue room,", " right", 0.0)]
    with pytest.raises(UserError, match="archer learns from the steps of episode logs"):
        items_of(texts(tiny(), samples), "archer")
