"""Where reward is rare: starts near a win, milestones as shaping, bonuses for novelty; reports know of none of them."""

import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.core.config import RLConfig
from reflectrl.core.config.values import from_dict
from reflectrl.core.envs.base import Outcome, TextEnv
from reflectrl.core.envs.pool import EnvPool
from reflectrl.core.episodes import from_line, to_line
from reflectrl.core.players import RandomPlayer
from reflectrl.core.players.simple import ScriptedPlayer
from reflectrl.core.rollout import Job, Start, rollout
from reflectrl.core.types import Choice, Episode, Observation, Sampling, Step, Task, UserError
from reflectrl.learn.checkpoint import load_meta
from reflectrl.learn.curriculum import ReverseCurriculum, Win, replayed
from reflectrl.learn.exploration import ObservationCounts, RewardShaping, potentials, shaping
from reflectrl.learn.losses import rewards_to_go
from reflectrl.learn.minibatches import compute_advantages
from reflectrl.learn.online import train_online
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.learn.steps import flatten
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import Policy

Tiny = Callable[..., LanguageModel]


class Stairs(TextEnv):
    """Climb five stairs; "jump" leads up or down, as the environment's own dice say. Half-way up is a milestone."""

    stages: ClassVar[tuple[str, ...]] = ("half", "full")
    milestones: ClassVar[dict[str, str]] = {"landing": "half", "banister": "half", "view": "view"}

    def __init__(self) -> None:
        super().__init__(horizon=12)

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        stage = stage or "full"
        names = {"train": ("red", "blue"), "validation": ("grey",), "test": ("pink",)}[split]
        return [Task(f"{stage}-{name}", "stairs", {"colour": name}, split, stage) for name in names]

    def begin(self, task: Task) -> None:
        self.stair = 0

    def apply(self, action: str) -> Outcome:
        step = {"up": 1, "down": -1}.get(action) or int(self.np_random.choice([-1, 1]))
        self.stair = max(0, self.stair + step)
        events = {2: ("landing", "banister"), 4: ("view",)}.get(self.stair, ())
        won = self.stair == (2 if self.task.stage == "half" else 5)
        return Outcome(1.0 if won else -0.125, terminated=won, success=won, events=events)

    def state(self) -> str:
        return f"A {self.task.payload['colour']} stair, number {self.stair}.\n"

    def legal_actions(self) -> Sequence[str]:
        return ("down", "up", "jump") if self.stair else ("up", "jump")


RED = Stairs().tasks("train")[0]
EVERYTHING = {"reverse": 0.5, "milestone_coef": 0.5, "count_coef": 0.25}
QUICK = RLConfig(updates=4, episodes=8, group=2, lr=1e-2, eval_every=2, eval_episodes=2, curriculum="none", kl_coef=0.0)


def climbed(script: str = "up up up up up", seed: int = 3, task: Task = RED) -> Episode:
    [episode] = rollout([Job(task, seed)], Stairs, ScriptedPlayer(script.split()))
    return episode


def random_play(count: int = 30, start: Start | None = None) -> list[Episode]:
    return list(rollout([Job(RED, i, {}, start) for i in range(count)], Stairs, RandomPlayer()))


def collector(lm: LanguageModel, config: RLConfig, **more: Any) -> EpisodeRollouts:
    return EpisodeRollouts(Policy(lm), None, Stairs, config, 0, **more)


def train(lm: LanguageModel, config: RLConfig, **more: Any) -> list[dict[str, Any]]:
    log: list[dict[str, Any]] = []
    shown = more.pop("shown", ())
    train_online(collector(lm, config, shown=shown), config, 0, more.pop("log", log.append), **more)
    return log


class TestStarts:
    """An episode that begins part-way into another."""

    def test_it_goes_on_where_the_other_one_was(self) -> None:
        before = climbed("jump jump jump up up up up up up up up up")
        start = Start(before.seed, tuple(s.observation.actions[s.action] for s in before.steps[:6]))
        episodes = random_play(20, start)
        for episode in episodes:
            assert replayed(episode) == 6 and episode.steps[6].observation == before.steps[6].observation
            first = [(step.observation, step.action, step.reward, step.events) for step in episode.steps[:6]]
            assert first == [(step.observation, step.action, step.reward, step.events) for step in before.steps[:6]]
            assert all(step.choice is not None for step in episode.steps[6:]) and len(episode.steps) <= 12
            assert from_line(to_line(episode)) == episode
        assert len({tuple(step.action for step in episode.steps) for episode in episodes}) > 5

    def test_it_is_the_same_in_worker_processes(self) -> None:
        start = Start(3, ("up", "jump", "up"))
        with EnvPool(Stairs, workers=2) as pool:
            far = list(rollout([Job(RED, i, {}, start) for i in range(4)], pool, RandomPlayer()))
        key = lambda episode: episode.seed  # noqa: E731
        assert sorted(far, key=key) == sorted(random_play(4, start), key=key)

    @pytest.mark.parametrize(
        ("actions", "reason"),
        [(("up", "fly"), "2 .*'fly': it was not legal"), (("up",) * 6, "6 .*the episode was over")],
    )
    def test_a_start_that_cannot_be_reached_is_refused_in_one_line(self, actions: Any, reason: str) -> None:
        with pytest.raises(UserError, match=f"Stairs cannot replay task 'full-red': action {reason}") as caught:
            random_play(1, Start(0, actions))
        assert "\n" not in str(caught.value)

    def test_only_the_players_own_steps_are_learned_from(self, tiny: Tiny) -> None:
        policy = Policy(tiny(), Sampling(1.0))
        jobs = [Job(RED, i, {"started_from": 3}, Start(3, ("up",) * k)) for i, k in enumerate((3, 3, 0))]
        episodes = sorted(rollout(jobs, Stairs, policy), key=lambda episode: episode.seed)
        steps = flatten(policy, episodes, 0.5)
        assert [span.stop - span.start for span in steps.spans()] == [len(e.steps) - replayed(e) for e in episodes]
        own = [step for episode in episodes for step in episode.steps[replayed(episode) :]]
        assert steps.rewards_N.tolist() == [step.reward for step in own]
        assert steps.task_ids == ["full-red from step 3"] * 2 + ["full-red"]  # what leave-one-out compares


class TestReverseCurriculum:
    def test_the_start_lies_before_the_win_and_moves_with_success(self) -> None:
        reverse, rng = ReverseCurriculum(0.5, gate=0.5, step=2), np.random.default_rng(0)
        reverse.add([climbed()], Stairs())
        begun = lambda: [len(start.actions) for _, start in reverse.draw("full", 4, rng)]  # noqa: E731
        assert begun() == [3, 3]
        reverse.advance(0.5)
        assert begun() == [1, 1]
        reverse.advance(0.25)
        assert begun() == [1, 1]
        reverse.advance(0.0)
        assert begun() == [3, 3]
        reverse.advance(0.0)
        assert begun() == [3, 3]  # never behind the win
        reverse.advance(1.0)
        reverse.advance(1.0)
        assert begun() == []  # the start has reached the beginning: nothing is left to do

    @given(st.floats(0, 0.99), st.integers(1, 40), st.lists(st.floats(0, 1), max_size=20), st.integers(1, 4))
    def test_a_group_begins_at_the_beginning_and_an_action_is_left_to_do(
        self, share: float, groups: int, rates: list[float], step: int
    ) -> None:
        reverse, rng = ReverseCurriculum(share, 0.5, step), np.random.default_rng(0)
        reverse.add([climbed()], Stairs())
        for rate in rates:
            reverse.advance(rate)
        drawn = reverse.draw("full", groups, rng)
        assert len(drawn) < groups and all(0 < len(start.actions) < 5 for _, start in drawn)
        assert reverse.draw("half", groups, rng) == []  # another stage

    def test_the_shortest_win_of_a_task_is_kept_and_losses_are_not(self) -> None:
        reverse = ReverseCurriculum(0.5, 0.5, 1)
        reverse.add([climbed("up down up up up up up"), climbed(), climbed("up up down up up up up")], Stairs())
        reverse.add([episode for episode in random_play() if not episode.success], Stairs())
        assert [len(win["actions"]) for win in reverse.state()["wins"]] == [5]

    def test_a_win_from_a_start_is_a_win_of_the_whole(self) -> None:
        begun = Start(7, ("jump", "jump", "up"))
        job = Job(RED, 99, {"started_from": 7}, begun)
        [episode] = [e for e in rollout([job], Stairs, ScriptedPlayer(["-"] * 3 + ["up"] * 9)) if e.success]
        assert Win.of(episode).actions[:3] == begun.actions and Win.of(episode).wins_again(Stairs())

    def test_a_win_that_does_not_win_again_is_left_out_and_said_once(self, caplog: pytest.LogCaptureFixture) -> None:
        reverse, won = ReverseCurriculum(0.5, 0.5, 1), climbed()
        elsewhere = [replace(won, steps=won.steps[:3]), replace(won, task=replace(RED, id="full-lost"), steps=())]
        reverse.add(elsewhere, Stairs())
        assert len(reverse) == 0
        [record] = caplog.records
        assert "a win of task 'full-red' does not win again" in record.message and "\n" not in record.message

    def test_without_a_win_it_says_so_once_and_all_begin_at_the_beginning(
        self, tiny: Tiny, caplog: pytest.LogCaptureFixture
    ) -> None:
        rollouts = collector(tiny(), replace(QUICK, **EVERYTHING))
        with caplog.at_level(logging.WARNING):
            for update in range(3):
                rollouts.collect(update, None)
                assert not any(map(replayed, rollouts.latest.played))
        assert [record.message.count("no winning episode yet") for record in caplog.records] == [1]

    def test_a_change_of_stage_begins_near_the_win_again(self, tiny: Tiny) -> None:
        config = replace(QUICK, curriculum="equal", reverse=0.5, reverse_gate=0.0, updates=2)
        rollouts = collector(tiny(), config, shown=[climbed("up up", task=replace(RED, id="half-red", stage="half"))])
        rollouts.collect(0, None)
        assert [replayed(e) for e in rollouts.latest.played if replayed(e)] and rollouts.starts.reverse.distance == 1
        rollouts.end_update()
        assert rollouts.starts.stage == "full" and rollouts.starts.reverse.distance == 1
        rollouts.collect(1, None)
        assert {e.task.stage for e in rollouts.latest.played if replayed(e)} <= {"full"}

    def test_what_is_reported_is_of_episodes_from_the_beginning(self, tiny: Tiny) -> None:
        rollouts = collector(tiny(), replace(QUICK, reverse=0.5), shown=[climbed()])
        rollouts.collect(0, None)
        near = [e for e in rollouts.latest.played if replayed(e)]
        rest = [e for e in rollouts.latest.played if not replayed(e)]
        assert (len(near), len(rest)) == (4, 4) and {replayed(e) for e in near} == {4}
        metrics = rollouts.end_update()
        assert metrics["return"] == sum(e.total_reward for e in rest) / 4
        assert metrics["reverse_success"] == sum(e.success for e in near) / 4 and metrics["reverse_distance"] == 1

    def test_the_mean_of_episodes_near_a_win_is_not_expected_of_the_others(self, tiny: Tiny) -> None:
        rollouts = collector(tiny(), replace(QUICK, reverse=0.5, baseline="mean"), shown=[climbed()])
        batch = rollouts.collect(0, None)
        near_N = torch.tensor([bool(replayed(e)) for e in rollouts.latest.played for _ in e.steps[replayed(e) :]])
        for kind in (near_N, ~near_N):
            assert float(batch.advantages_N[kind].mean()) == pytest.approx(0, abs=1e-5)


steps_of_chance = st.lists(st.sets(st.sampled_from(["landing", "banister", "view", "noise"])), min_size=1, max_size=12)


def episode_of(events: Sequence[Any], truncated: bool, reward: float = 0.0) -> Episode:
    seen = Observation("", "here", ("go",))
    steps = [Step(seen, (Choice("policy", "go", 0),), 0, reward, tuple(sorted(some))) for some in events]
    return Episode(RED, tuple(steps), False, truncated, 0)


class TestMilestones:
    @given(steps_of_chance)
    def test_the_potential_is_the_share_of_milestones_reached(self, events: Any) -> None:
        found = potentials(episode_of(events, True), Stairs.milestones)
        seen = [set().union(*events[:t]) for t in range(len(events) + 1)]
        assert found == [(bool(now & {"landing", "banister"}) + ("view" in now)) / 2 for now in seen]
        assert found == sorted(found) and found[0] == 0

    @given(st.lists(st.floats(-10, 10), min_size=1, max_size=30), st.floats(0, 1))
    def test_it_telescopes(self, potentials_T1: list[float], gamma: float) -> None:
        rewards = shaping(potentials_T1, gamma)
        T = len(rewards)
        for t in range(T + 1):
            total = math.fsum(gamma ** (i - t) * rewards[i] for i in range(t, T))
            assert total == pytest.approx(gamma ** (T - t) * potentials_T1[-1] - potentials_T1[t], abs=1e-9)

    @given(steps_of_chance, st.booleans(), st.sampled_from([1.0, 0.99, 0.7]), st.sampled_from(["lost", "kept"]))
    def test_what_an_episode_is_paid_more_depends_on_no_action(
        self, events: Any, truncated: bool, gamma: float, horizon: Any
    ) -> None:
        """From any step on, the sum is minus the potential there; at the horizon, if kept, plus that of the last."""
        episode = episode_of(events, truncated, reward=0.5)
        pay = RewardShaping(RLConfig(gamma=gamma, milestone_coef=0.3, milestone_at_horizon=horizon), Stairs())
        own, T = torch.full((len(events),), 0.5), len(events)
        more_T = rewards_to_go(pay(episode), gamma) - rewards_to_go(own, gamma)
        phi = [0.3 * share for share in potentials(episode, Stairs.milestones)]
        kept = phi[-1] if truncated and horizon == "kept" else 0.0
        assert more_T.tolist() == pytest.approx([gamma ** (T - t) * kept - phi[t] for t in range(T)], abs=1e-5)

    @pytest.mark.parametrize("horizon", ["lost", "kept"])
    def test_winning_stays_the_best_while_milestones_are_worth_less(self, horizon: Any) -> None:
        """Every way of five actions: those that are best without shaping are best with it."""
        pay = RewardShaping(RLConfig(milestone_coef=0.9, milestone_at_horizon=horizon), Stairs())
        episodes = random_play(200)
        totals = [(episode.total_reward, float(pay(episode).sum())) for episode in episodes]
        best = max(total for total, _ in totals)
        assert {total for total, shaped in totals if shaped > max(s for _, s in totals) - 1e-6} == {best}
        if horizon == "lost":
            assert all(shaped == pytest.approx(total, abs=1e-6) for total, shaped in totals)

    def test_milestones_on_the_way_to_the_start_count_as_reached(self) -> None:
        [episode] = random_play(1, Start(3, ("up",) * 4))
        pay = RewardShaping(RLConfig(milestone_coef=1.0), Stairs())
        assert sum(pay.shaped(episode)[replayed(episode) :]) == pytest.approx(-1.0)

    def test_subgoals_count_beside_the_milestones(self) -> None:
        class Marked(Stairs):
            subgoals = ("noise", "view")  # "view" is a milestone as well, and counts once

        pay = RewardShaping(RLConfig(gamma=1.0, milestone_coef=0.6, milestone_at_horizon="kept"), Marked())
        episode = episode_of([{"noise"}, {"banister", "noise"}, {"view"}], True)
        assert pay.shaped(episode) == pytest.approx([0.2, 0.2, 0.2])
        assert pay.metrics([episode]) == {"milestones": 1.0}

    def test_group_baselines_compare_as_before(self, tiny: Tiny) -> None:
        policy, config = Policy(tiny(), Sampling(1.0)), RLConfig(baseline="leave-one-out", group=4, gamma=0.9)
        episodes = list(rollout([Job(RED, i) for i in range(4)], Stairs, policy))
        shaped = flatten(policy, episodes, 0.9, RewardShaping(replace(config, milestone_coef=0.7), Stairs()))
        plain = flatten(policy, episodes, 0.9)
        assert shaped.rewards_N.tolist() != plain.rewards_N.tolist()
        found, expected = (compute_advantages(steps, config, 0.0, None) for steps in (shaped, plain))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)

    def test_an_environment_without_milestones_is_refused_in_one_line(self, tiny: Tiny, make_rooms: Any) -> None:
        config = replace(QUICK, milestone_coef=0.5)
        with pytest.raises(UserError, match=r"rl\.milestone_coef is 0\.5, but Rooms has no `milestones`") as caught:
            EpisodeRollouts(Policy(tiny()), None, make_rooms, config, 0)
        assert "\n" not in str(caught.value)


observations = st.builds(
    Observation, st.sampled_from(["", "a past"]), st.sampled_from("abc"), st.sampled_from([("x",), ("x", "y")])
)


class TestCounts:
    @given(st.lists(st.lists(observations, min_size=1, max_size=6), max_size=8), observations)
    def test_the_bonus_is_one_by_the_root_of_how_often_it_was_reached(self, walks: Any, asked: Observation) -> None:
        counts, again = ObservationCounts(), ObservationCounts()
        turns = (Choice("policy", "x", 0),)
        counts.add(Episode(RED, tuple(Step(seen, turns, 0, 0.0) for seen in walk), False, True, 0) for walk in walks)
        same = [(seen.state, seen.actions) == (asked.state, asked.actions) for walk in walks for seen in walk[1:]]
        assert counts.bonus(asked) == pytest.approx(1 / math.sqrt(max(1, sum(same))))
        again.load(json.loads(json.dumps(counts.state())))
        assert again.bonus(asked) == counts.bonus(asked) and again.state() == counts.state()

    def test_a_step_is_paid_for_what_it_led_to(self) -> None:
        episode, pay = climbed("up up down up up up up"), RewardShaping(RLConfig(count_coef=0.6), Stairs())
        pay.counts.add([episode])  # stairs 1 2 1 2 3 4, and the top, of which nothing is seen
        expected = [0.6 / math.sqrt(n) for n in (2, 2, 2, 2, 1, 1)] + [0.0]
        assert pay.bonuses(episode) == pytest.approx(expected)
        rewards = [step.reward for step in episode.steps]
        assert pay(episode).tolist() == pytest.approx([r + b for r, b in zip(rewards, expected, strict=True)])

    def test_an_episode_without_a_choice_has_a_bonus_for_each_step(self) -> None:
        episode, pay = climbed("up up up up up"), RewardShaping(RLConfig(count_coef=0.6), Stairs())
        assert (
            pay.bonuses(replace(episode, steps=tuple(replace(step, turns=()) for step in episode.steps))) == [0.0] * 5
        )

    def test_what_was_replayed_is_neither_counted_nor_paid(self) -> None:
        [episode] = random_play(1, Start(3, ("up",) * 4))
        pay = RewardShaping(RLConfig(count_coef=1.0), Stairs())
        pay.counts.add([episode])
        assert sum(pay.counts.state().values()) == len(episode.steps) - 5
        assert pay.bonuses(episode)[:4] == [0.0] * 4

    def test_it_is_in_no_return(self, tiny: Tiny) -> None:
        log = train(tiny(), replace(QUICK, count_coef=100.0))
        assert all(-1.5 <= line[key] <= 1 for line in log for key in ("return", "eval_return") if key in line)
        assert log[0]["count_bonus"] > 1.5


class TestTraining:
    @pytest.mark.parametrize("algorithm", ["reinforce", "ppo"])
    @pytest.mark.parametrize("baseline", ["none", "mean", "leave-one-out", "critic"])
    def test_all_keys_work_with_every_learner(self, tiny: Tiny, algorithm: Any, baseline: Any) -> None:
        config = replace(QUICK, algorithm=algorithm, baseline=baseline, updates=3, **EVERYTHING)
        log = train(tiny(), config, shown=[climbed()])
        assert all(math.isfinite(value) for line in log for value in line.values() if isinstance(value, float))
        assert log[0]["reverse_distance"] == 1 and {"count_bonus", "milestones"} <= log[0].keys()

    @pytest.mark.parametrize("kill", range(5))
    def test_after_a_kill_it_ends_as_if_uninterrupted(self, tiny: Tiny, tmp_path: Path, kill: int) -> None:
        config = replace(QUICK, algorithm="ppo", baseline="critic", curriculum="equal", reverse_gate=0.1, **EVERYTHING)
        whole, resumed, shown = tiny(), tiny(), [climbed()]
        expected = train(whole, config, shown=shown)

        def until_killed(line: dict[str, Any]) -> None:
            if line["step"] == kill:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            train(tiny(), config, log=until_killed, state_folder=tmp_path / "learner", shown=shown)
        meta = load_meta(tmp_path / "learner")
        assert meta is not None and meta["reverse"]["wins"] and bool(meta["counts"]) == (meta["step"] > 0)
        rest = train(resumed, config, state_folder=tmp_path / "learner", shown=shown)
        assert rest == expected[rest[0]["step"] :]
        other = whole.weights()
        assert all(torch.equal(tensor, other[name]) for name, tensor in resumed.weights().items())

    def test_equal_groups_teach_nothing(self, tiny: Tiny) -> None:
        """Seven episodes that are equally bad: what rounding leaves of their sums must not become an advantage."""
        policy, episode = Policy(tiny()), episode_of([()] * 3, True, reward=-0.1)
        config = RLConfig(baseline="leave-one-out", group=7)
        assert compute_advantages(flatten(policy, [episode] * 7, 1.0), config, 0.0, None).tolist() == [0.0] * 21

    @pytest.mark.parametrize(
        ("settings", "problem"),
        [
            ({"reverse": 1.0}, "reverse"),
            ({"reverse": 0.5, "episodes": 4, "group": 4}, "at least twice 'group'"),
            ({"reverse_step": 0}, "reverse_step"),
            ({"milestone_coef": -1.0}, "milestone_coef"),
            ({"milestone_at_horizon": "gone"}, "kept"),
            ({"count_coef": -0.1}, "count_coef"),
            ({"milestone_coef": 0.5, "baseline": "leave-one-out", "group": 2}, "'milestone_at_horizon' to kept"),
        ],
    )
    def test_a_wrong_value_is_refused_in_one_line(self, settings: dict[str, Any], problem: str) -> None:
        with pytest.raises(UserError, match=problem) as caught:
            from_dict(RLConfig, settings, "here")
        assert "\n" not in str(caught.value)
