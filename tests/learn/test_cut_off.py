"""A time limit is no end: the critic's value of the last observation stands for what would have followed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from reflectrl.core.config import RLConfig
from reflectrl.core.episodes import from_line, to_line
from reflectrl.core.players.base import LiveEpisode
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Reflection, Turn
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.learn.value import ValueHead
from reflectrl.models.players import Policy
from tests.learn.conftest import Rooms

LIMITED: dict[str, Any] = {"episodes": 24, "kl_coef": 0.0, "curriculum": "none", "gamma": 0.9, "first_horizon": 1}
"""In the first update, episodes are cut off after one step: before the second room."""


class Notes:
    """A reflector that writes the room's number, and keeps count of what it was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        self.asked += [len(live.steps) for live in episodes]
        return [Reflection("notes", f"Room {len(live.steps)}, go left.") for live in episodes]


def optimistic(value: float) -> ValueHead:
    critic = ValueHead(16)
    with torch.no_grad():
        critic.out.bias.fill_(value)  # expected everywhere
    return critic


def collected(tiny: Any, reflector: Any = None, **settings: Any) -> tuple[EpisodeRollouts, Any]:
    playing = EpisodeRollouts(Policy(tiny()), reflector, Rooms, RLConfig(**{**LIMITED, **settings}), seed=3)
    return playing, playing.collect(0, optimistic(0.3) if playing.config.baseline == "critic" else None)


@pytest.mark.parametrize("gae_lambda", [0.0, 0.95, 1.0])
def test_what_would_have_followed_counts_with_the_critics_value(tiny: Any, gae_lambda: float) -> None:
    """One step each: 0.5 + 0.9 * 0.3 - 0.3 where the limit came, and -0.5 - 0.3 where the walk ended."""
    playing, batch = collected(tiny, baseline="critic", gae_lambda=gae_lambda)
    episodes = playing.latest.learned
    assert {episode.truncated for episode in episodes} == {True, False}
    expected = [0.47 if episode.truncated else -0.8 for episode in episodes]
    torch.testing.assert_close(batch.advantages_N, torch.tensor(expected))
    torch.testing.assert_close(batch.returns_N, torch.tensor(expected) + 0.3)  # the critic's targets as well


def test_without_a_critic_the_rewards_alone_count(tiny: Any) -> None:
    playing, batch = collected(tiny, baseline="none")
    expected = [0.5 if episode.truncated else -0.5 for episode in playing.latest.learned]
    torch.testing.assert_close(batch.advantages_N, torch.tensor(expected))


@pytest.mark.parametrize("baseline", ["critic", "none"])
def test_a_reflector_writes_about_the_last_observation_for_a_critic_only(tiny: Any, baseline: Any) -> None:
    notes = Notes()
    playing, _ = collected(tiny, notes, baseline=baseline)
    cut = [episode.cut_off for episode in playing.latest.learned if episode.cut_off is not None]
    assert cut and all("number 1" in one.observation.state for one in cut)
    wanted = "Room 1, go left." if baseline == "critic" else None
    assert {one.reflection for one in cut} == {wanted}
    assert notes.asked.count(1) == (len(cut) if baseline == "critic" else 0)


def test_milestones_keep_their_potential_where_a_critic_goes_on(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a critic the shaped reward of the last step gives the potential back."""
    monkeypatch.setattr(Rooms, "subgoals", ("left",))
    apply = Rooms.apply

    def marked(env: Rooms, action: str) -> Any:
        outcome = apply(env, action)
        return type(outcome)(outcome.reward, outcome.terminated, outcome.success, ("left",) if action == "left" else ())

    monkeypatch.setattr(Rooms, "apply", marked)
    for baseline, shaped in (("critic", 0.9 * 0.2), ("none", 0.0)):
        playing, _ = collected(tiny, baseline=baseline, milestone_coef=0.2)
        episode = next(episode for episode in playing.latest.learned if episode.truncated)
        assert playing.shaping(episode).tolist() == pytest.approx([0.5 + shaped])


def test_the_point_is_kept_in_memory_only(tiny: Any) -> None:
    jobs = [Job(task, i, horizon=1) for i, task in enumerate(Rooms().tasks("train") * 4)]
    episodes = list(rollout(jobs, Rooms, Policy(tiny())))
    assert any(episode.cut_off for episode in episodes)
    for episode in episodes:
        again = from_line(to_line(episode))
        assert again == episode and again.cut_off is None and "cut_off" not in to_line(episode)
