"""Online RL: it learns, its gradient is the plain one, and a killed training goes on as if it had not been."""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reflectrl.core.config import RLConfig
from reflectrl.core.config.values import from_dict
from reflectrl.core.episodes import from_line
from reflectrl.core.players import AnalystPlayer, ExpertPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Episode, Sampling, UserError
from reflectrl.learn.checkpoint import load_meta
from reflectrl.learn.critic_batches import fit_critic
from reflectrl.learn.curriculum import Curriculum, SuccessRates, chosen_stages, draw_tasks
from reflectrl.learn.exploration import RewardShaping
from reflectrl.learn.losses import POLICY_LOSSES, ppo_loss, reinforce_loss
from reflectrl.learn.minibatches import make_batch
from reflectrl.learn.online import after_imitation, held_kl, train_online, update
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.learn.steps import Steps, flatten, policy_pass
from reflectrl.learn.trainer import Trainer
from reflectrl.learn.validation import mean_return, success_rate
from reflectrl.learn.value import ValueHead
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import Policy

Tiny = Callable[..., LanguageModel]

QUICK = RLConfig(
    updates=4, episodes=6, lr=1e-2, eval_every=2, eval_episodes=2, replay_episodes=2, curriculum="none", kl_coef=0.0
)
Metrics = list[dict[str, Any]]


def train(lm: LanguageModel, make_env: Any, config: RLConfig, seed: int = 0, **more: Any) -> Metrics:
    log: Metrics = []
    rollouts = EpisodeRollouts(Policy(lm), None, make_env, config, seed, more.pop("logged", ()))
    train_online(rollouts, config, seed, more.pop("log", log.append), **more)
    return log


def same_weights(one: LanguageModel, other: LanguageModel) -> bool:
    weights = other.weights()
    return all(torch.equal(tensor, weights[name]) for name, tensor in one.weights().items())


class TestHold:
    def test_a_held_policy_is_pulled_towards_the_first_one_until_the_hold_is_over(
        self, tiny: Tiny, make_rooms: Any
    ) -> None:
        config = replace(QUICK, baseline="critic", hold=3, hold_warmup=2, updates=7, replay_episodes=0)
        config = after_imitation(config)
        assert (config.critic_warmup, config.lr) == (2, pytest.approx(QUICK.lr * config.hold_lr))
        weights = [held_kl(config, step) for step in range(6)]
        assert weights == pytest.approx([0.5, 0.5, 0.5, 0.5 * 2 / 3, 0.5 / 3, 0.0])
        log: Metrics = []
        lm = tiny()
        rollouts = EpisodeRollouts(Policy(lm), None, make_rooms, replace(config, kl_coef=config.hold_kl), 0)
        train_online(rollouts, config, 0, log.append, hold=True)
        assert [line["step"] for line in log if "kl" in line] == [0, 1, 2, 3, 4]

    def test_a_larger_weight_keeps_it_nearer(self, tiny: Tiny, make_rooms: Any) -> None:
        moved = []
        for weight in (0.01, 10.0):
            config = replace(QUICK, baseline="critic", critic_warmup=1, hold=50, hold_kl=weight, replay_episodes=0)
            log: Metrics = []
            rollouts = EpisodeRollouts(Policy(tiny()), None, make_rooms, replace(config, kl_coef=weight), 0)
            train_online(rollouts, config, 0, log.append, hold=True)
            moved.append(log[-2]["kl"])
        assert moved[1] < moved[0]


class TestBudget:
    def test_a_training_ends_with_its_time_and_says_how_much_it_took(self, tiny: Tiny, make_rooms: Any) -> None:
        log = train(tiny(), make_rooms, replace(QUICK, updates=10_000, minutes=1e-3))
        assert len(log) < 10_000 and log[-1]["minutes"] >= 1e-3 and "eval_success" in log[-1]

    def test_patience_ends_a_training_that_has_won_and_no_other(self, tiny: Tiny, make_rooms: Any) -> None:
        config = replace(QUICK, updates=30, eval_every=1, patience=2, lr=1e-9)
        log = train(tiny(), make_rooms, config)
        won = any(line["eval_success"] for line in log)
        assert len(log) == (3 if won else 31)

    def test_a_training_that_has_won_everything_needs_little_patience(self, tiny: Tiny, make_rooms: Any) -> None:
        config = replace(QUICK, updates=80, episodes=12, eval_every=1, patience=50)
        scores = [line["eval_success"] for line in train(tiny(), make_rooms, config) if "eval_success" in line]
        assert scores[0] < 1 and max(scores) == 1
        assert len(scores) <= scores.index(1.0) + 30, "later bests, by return, start the count again"
        assert len(scores) < 50


class TestLearning:
    @pytest.mark.parametrize("algorithm", ["reinforce", "ppo"])
    @pytest.mark.parametrize("baseline", ["none", "mean", "leave-one-out", "grpo", "dr-grpo", "gigpo", "critic"])
    def test_it_finds_the_action_that_pays(self, tiny: Tiny, make_rooms: Any, algorithm: Any, baseline: Any) -> None:
        lm = tiny()
        config = replace(QUICK, algorithm=algorithm, baseline=baseline, updates=16, episodes=12, group=3, eval_every=8)
        log = train(lm, make_rooms, config)
        jobs = [Job(task, i) for i in range(10) for task in make_rooms().tasks("test")]
        after = list(rollout(jobs, make_rooms, Policy(lm)))
        assert log[0]["success"] < 0.5 and success_rate(after) > 0.8

    def test_the_reflector_is_part_of_the_environment(self, tiny: Tiny, make_rooms: Any) -> None:
        lm, log = tiny(), []
        config = replace(QUICK, reflect_probability=0.5)
        train_online(EpisodeRollouts(Policy(lm), AnalystPlayer(), make_rooms, config, 0), config, 0, log.append)
        assert [line["step"] for line in log] == [0, 1, 2, 3, 4]

    def test_it_ends_with_the_weights_that_did_best_on_validation(self, tiny: Tiny, make_rooms: Any) -> None:
        lm = tiny()
        log = train(lm, make_rooms, replace(QUICK, updates=8, lr=0.3, eval_every=1, normalise=False))
        scores = [(line["eval_success"], line["eval_return"]) for line in log]
        jobs = [Job(task, 0) for task in make_rooms().tasks("validation")]
        played = list(rollout(jobs, make_rooms, Policy(lm, Sampling(0.0))))
        assert (success_rate(played), mean_return(played)) == max(scores)
        assert len(set(scores)) > 1

    def test_adam_penalises_weights_in_the_gradient(self, tiny: Tiny, make_rooms: Any) -> None:
        ends = {}
        for optimizer in ("adamw", "adam"):
            ends[optimizer] = tiny()
            train(ends[optimizer], make_rooms, replace(QUICK, optimizer=optimizer, weight_decay=0.1, updates=2))
        assert not same_weights(ends["adamw"], ends["adam"])

    def test_a_critic_may_learn_in_some_updates_only(self, tiny: Tiny, make_rooms: Any) -> None:
        config = replace(QUICK, baseline="critic", critic_every=2, replay_episodes=0)
        log = train(tiny(), make_rooms, config)
        assert [line["step"] for line in log if "value_loss" in line] == [1, 3]  # the second update, and the fourth

    def test_advantages_are_centred_and_predictions_clipped_on_request(self, tiny: Tiny, make_rooms: Any) -> None:
        config = replace(QUICK, algorithm="ppo", update_epochs=2, baseline="critic", critic_lr=0.1)
        ends = {}
        for name, change in (("plain", {}), ("centred", {"centre": True}), ("clipped", {"value_clip": 0.05})):
            ends[name] = tiny()
            train(ends[name], make_rooms, replace(config, critic_shares=True, **change))
        assert not same_weights(ends["plain"], ends["centred"]) and not same_weights(ends["plain"], ends["clipped"])
        # Centred advantages have mean 0, so the loss of the first pass, in which all ratios are 1, is 0.
        lm, settings = tiny(), replace(config, centre=True, update_epochs=1)
        rollouts = EpisodeRollouts(Policy(lm), None, make_rooms, settings, 0)
        trainer = Trainer(lm, [torch.optim.AdamW(lm.parameters(), lr=0.0)], 1.0)
        batch = rollouts.collect(0, ValueHead(lm.hidden_size))
        assert abs(float(batch.advantages_N.mean())) > 0.01
        assert update(trainer, None, batch, settings, 1)["policy_loss"] == pytest.approx(0, abs=1e-5)

    def test_a_critic_may_learn_from_the_batches_of_several_updates(self, tiny: Tiny, make_rooms: Any) -> None:
        config = replace(QUICK, baseline="critic", critic_every=2, critic_epochs=3)
        log = train(tiny(), make_rooms, config)
        assert [line["step"] for line in log if "value_loss" in line] == [1, 3]
        # Before it has learned, it predicts 0 everywhere. Then it predicts the returns of all collected steps.
        lm = tiny()
        rollouts = EpisodeRollouts(Policy(lm), None, make_rooms, config, 0)
        critic = ValueHead(lm.hidden_size)
        optimizer = torch.optim.AdamW([*lm.parameters(), *critic.parameters()], lr=0.1)
        trainer, before = Trainer(lm, [optimizer], 0.3, parts={"critic": critic}), lm.weights()
        batches = [rollouts.collect(update, critic) for update in range(2)]
        assert all(not batch.values_N.any() for batch in batches if batch.values_N is not None)
        first = fit_critic(trainer, critic, batches, replace(config, critic_epochs=1))["value_loss"]
        last = fit_critic(trainer, critic, batches, replace(config, critic_epochs=60))["value_loss"]
        assert last < 0.7 * first
        assert all(torch.equal(tensor, before[name]) for name, tensor in lm.weights().items())

    def test_epochs_over_collected_batches_are_steps_on_their_hidden_states(self, tiny: Tiny, make_rooms: Any) -> None:
        config = replace(QUICK, baseline="critic", critic_epochs=2, steps_per_epoch=2, critic_coef=0.5)
        lm = tiny()
        rollouts = EpisodeRollouts(Policy(lm), None, make_rooms, config, 0)
        critics = [ValueHead(lm.hidden_size) for _ in range(2)]
        batches = [rollouts.collect(update, critics[0]) for update in range(2)]
        trainer = Trainer(lm, [torch.optim.SGD(critics[0].parameters(), lr=0.1)], None, parts={"critic": critics[0]})
        fit_critic(trainer, critics[0], batches, config)
        plain = torch.optim.SGD(critics[1].parameters(), lr=0.1)
        for minibatch in [minibatch for _ in range(2) for batch in batches for minibatch in batch.minibatches]:
            batch = next(batch for batch in batches if minibatch in batch.minibatches)
            hidden_ND = torch.cat([part.read()[1].detach() for part in minibatch])
            returns_N = torch.cat([batch.returns_N[part.units] for part in minibatch])
            loss = 0.5 * ((critics[1](hidden_ND) - returns_N) ** 2).mean()
            plain.zero_grad()
            loss.backward()
            plain.step()
        for ours, expected in zip(critics[0].parameters(), critics[1].parameters(), strict=True):
            torch.testing.assert_close(ours, expected)

    def test_entropy_may_be_part_of_the_returns_that_are_learned(self, tiny: Tiny, make_rooms: Any) -> None:
        episodes = list(rollout([Job(make_rooms().tasks("train")[0], 0)], make_rooms, Policy(tiny(), Sampling(1.0))))
        config = replace(QUICK, entropy_coef=0.5, entropy_in="returns")
        plain, with_bonus = RewardShaping(QUICK, make_rooms()), RewardShaping(config, make_rooms())
        gained = with_bonus(episodes[0]) - plain(episodes[0])
        expected = [0.5 * step.choice.entropy for step in episodes[0].steps]
        assert gained.tolist() == pytest.approx(expected, abs=1e-4) and gained.min() > 0

    def test_the_entropy_bonus_is_in_no_return(self, tiny: Tiny, make_rooms: Any) -> None:
        log = train(tiny(), make_rooms, replace(QUICK, entropy_coef=100.0))
        assert all(-0.5 <= line["return"] <= 1.0 for line in log[:-1])
        assert all(-0.5 <= line[key] <= 1.0 for line in log for key in line if key == "eval_return")
        assert log[1]["entropy"] > 0.5 and log[1]["loss"] < -50  # it is in the loss


class TestLosses:
    """A new loss is a function and an entry of the table, in one file."""

    def test_the_recipe_takes_every_entry(self) -> None:
        for name in POLICY_LOSSES:
            assert from_dict(RLConfig, {"algorithm": name}, "here").algorithm == name

    def test_an_entry_is_learned_with(self, tiny: Tiny, make_rooms: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def half(logp_N: Any, old_logp_N: Any, advantages_N: Any, config: RLConfig) -> dict[str, torch.Tensor]:
            return {"policy_loss": reinforce_loss(logp_N, advantages_N) / 2, "two": torch.tensor(2.0)}

        monkeypatch.setitem(POLICY_LOSSES, "half", half)
        log = train(tiny(), make_rooms, replace(QUICK, algorithm="half", update_epochs=2))
        plain = train(tiny(), make_rooms, QUICK)
        assert [line["two"] for line in log[:-1]] == [pytest.approx(2.0)] * 4
        assert log[0]["success"] == plain[0]["success"] and "two" not in plain[0]


class TestCurriculum:
    def stages(self, log: Metrics) -> list[str]:
        return [line["stage"] for line in log]

    def test_thirds_visits_every_stage(self, tiny: Tiny, make_rooms: Any) -> None:
        log = train(tiny(), make_rooms, replace(QUICK, curriculum="equal"))
        assert self.stages(log) == ["one", "one", "full", "full", "full"]

    def test_stages_may_be_chosen_and_merged(self, tiny: Tiny, make_rooms: Any) -> None:
        first, last = make_rooms().stages[0], make_rooms().stages[-1]
        config = replace(QUICK, curriculum="equal", stages=(f"{first}+{last}",), rehearsal=0.0)
        assert set(self.stages(train(tiny(), make_rooms, config))) == {f"{first}+{last}"}
        env = make_rooms()
        tasks = draw_tasks(env, Curriculum(config.stages, "equal", 4, 0.9), 40, 0.0, np.random.default_rng(0))
        assert {task.stage for task in tasks} == {first, last}
        with pytest.raises(UserError, match=r"rl.stages: unknown stage 'attic'"):
            chosen_stages((f"{first}+attic",), env.stages)

    def test_none_stays_at_the_last(self, tiny: Tiny, make_rooms: Any) -> None:
        assert set(self.stages(train(tiny(), make_rooms, QUICK))) == {"full"}

    @pytest.mark.parametrize(("gate", "expected"), [(0.0, ["one"] * 5 + ["full"] * 3), (1.0, ["one"] * 8)])
    def test_a_gate_opens_at_its_rate(self, tiny: Tiny, make_rooms: Any, gate: float, expected: list[str]) -> None:
        config = replace(QUICK, curriculum="gate", gate=gate, updates=7, lr=1e-9)
        assert self.stages(train(tiny(), make_rooms, config)) == expected

    def test_the_buffer_holds_successes_of_the_present_stage(self, tiny: Tiny, make_rooms: Any, tmp_path: Path) -> None:
        kept: list[list[Any]] = []

        def look(line: dict[str, Any]) -> None:
            meta = load_meta(tmp_path / "learner")
            assert meta is not None
            kept.append([from_line(text) for text in meta["replay"]])

        config = replace(QUICK, curriculum="equal", updates=6, eval_every=1, replay=4, rehearsal=0.0)
        log = train(tiny(), make_rooms, config, log=look, state_folder=tmp_path / "learner")
        assert log == []
        assert kept[0] == [] and kept[3] == []  # at the change of stage
        assert max(map(len, kept)) == 4
        for number, episodes in enumerate(kept):
            assert all(episode.success for episode in episodes)
            assert {episode.task.stage for episode in episodes} <= {"one" if number < 3 else "full"}

    def test_undecided_tasks_are_drawn_more(self, make_rooms: Any) -> None:
        env, rates = make_rooms(), SuccessRates()
        tasks = env.tasks("train")
        rates.add(Episode(task, (), i > 0 or k % 2 == 0, False, 0) for i, task in enumerate(tasks) for k in range(20))
        curriculum, rng = Curriculum(env.stages, "none", updates=9, gate=1.0), np.random.default_rng(0)
        drawn = [draw_tasks(env, curriculum, 1, 0.0, rng, rates)[0] for _ in range(200)]
        assert sum(task == tasks[0] for task in drawn) > 100 > 200 / len(tasks)

    @pytest.mark.parametrize(("kind", "rehearsed"), [("equal", 3), ("none", 0)])
    def test_a_share_of_the_tasks_rehearses_the_other_stages(self, make_rooms: Any, kind: Any, rehearsed: int) -> None:
        env = make_rooms()
        curriculum = Curriculum(env.stages, kind, updates=9, gate=1.0)
        tasks = draw_tasks(env, curriculum, 12, 0.25, np.random.default_rng(0))
        assert len(tasks) == 12
        assert sum(task.stage != curriculum.stage for task in tasks) == rehearsed


class TestResuming:
    CONFIG = replace(
        QUICK,
        algorithm="ppo",
        baseline="critic",
        curriculum="equal",
        kl_coef=0.1,
        update_epochs=2,
        updates=5,
        eval_every=2,
    )
    ADAPTIVE = replace(
        CONFIG,
        baseline="gigpo",
        group=2,
        refills=2,
        curriculum="none",
        draw="by-success",
        first_horizon=2,
        schedule="cosine",
        warmup=0.4,
        target_kl=1e-5,
        self_imitation=True,
    )

    @pytest.mark.parametrize("kill", [1, 3, 4])
    def test_so_it_does_where_much_adapts(self, tiny: Tiny, make_rooms: Any, tmp_path: Path, kill: int) -> None:
        whole, resumed = tiny(), tiny()
        expected = train(whole, make_rooms, self.ADAPTIVE)

        def until_killed(line: dict[str, Any]) -> None:
            if line["step"] == kill:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            train(tiny(), make_rooms, self.ADAPTIVE, log=until_killed, state_folder=tmp_path / "learner")
        rest = train(resumed, make_rooms, self.ADAPTIVE, state_folder=tmp_path / "learner")
        assert rest == expected[rest[0]["step"] :] and same_weights(resumed, whole)

    @pytest.mark.parametrize("kill", [2, 3, 4])
    def test_the_batches_that_a_critic_has_not_learned_from_are_kept(
        self, tiny: Tiny, make_rooms: Any, tmp_path: Path, kill: int
    ) -> None:
        # Saved before every second update; the critic learns after the third, from a batch before and one after.
        config = replace(self.CONFIG, critic_every=3, critic_epochs=2, critic_warmup=1, steps_per_epoch=2, updates=6)
        whole, resumed = tiny(), tiny()
        expected = train(whole, make_rooms, config)
        assert [line["step"] for line in expected if "value_loss" in line] == [0, 2, 5]

        def until_killed(line: dict[str, Any]) -> None:
            if line["step"] == kill:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            train(tiny(), make_rooms, config, log=until_killed, state_folder=tmp_path / "learner")
        meta = load_meta(tmp_path / "learner")
        assert meta is not None and len(meta["critic_batches"]) == 2  # fresh episodes, and replayed ones
        rest = train(resumed, make_rooms, config, state_folder=tmp_path / "learner")
        assert rest == expected[rest[0]["step"] :] and same_weights(resumed, whole)

    @pytest.mark.parametrize(
        ("kill", "settings"), [*((kill, {}) for kill in range(6)), (1, {"lora_rank": 2}), (4, {"lora_rank": 2})]
    )
    def test_after_a_kill_it_ends_as_if_uninterrupted(
        self, tiny: Tiny, make_rooms: Any, tmp_path: Path, kill: int, settings: dict[str, Any]
    ) -> None:
        whole = tiny(**settings)
        expected = train(whole, make_rooms, self.CONFIG)

        def until_killed(line: dict[str, Any]) -> None:
            if line["step"] == kill:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            train(tiny(**settings), make_rooms, self.CONFIG, log=until_killed, state_folder=tmp_path / "learner")
        resumed = tiny(**settings)
        rest = train(resumed, make_rooms, self.CONFIG, state_folder=tmp_path / "learner")
        assert rest == expected[rest[0]["step"] :] and rest[0]["step"] == (kill if kill == 5 else kill // 2 * 2)
        assert same_weights(resumed, whole)

    def test_the_seed_decides(self, tiny: Tiny, make_rooms: Any) -> None:
        lms = [tiny() for _ in range(3)]
        logs = [train(lm, make_rooms, self.CONFIG, seed) for lm, seed in zip(lms, (0, 0, 1), strict=True)]
        assert logs[0] == logs[1] != logs[2]
        assert same_weights(lms[0], lms[1]) and not same_weights(lms[0], lms[2])


class TestTruncatedSampling:
    """Top-k and top-p in play: the learner's probabilities are those that were sampled from."""

    TWO = Sampling(1.0, top_k=2)

    def steps(self, lm: LanguageModel, make_rooms: Any, sampling: Sampling) -> Steps:
        policy = Policy(lm, sampling, shuffle_labels=True)
        jobs = [Job(task, i) for i in range(4) for task in make_rooms().tasks("train")]
        return flatten(policy, list(rollout(jobs, make_rooms, policy)), 1.0)

    @pytest.mark.parametrize("sampling", [TWO, Sampling(1.0, top_p=0.6), Sampling(2.0, 0.9, 2)])
    def test_ratios_are_1_before_the_first_step(self, tiny: Tiny, make_rooms: Any, sampling: Sampling) -> None:
        lm = tiny()
        steps = self.steps(lm, make_rooms, sampling)
        assert any(steps.supports)
        logp_NA, _ = policy_pass(Policy(lm, sampling), steps, range(len(steps)))
        logp_N = logp_NA.gather(1, steps.labels_N[:, None])[:, 0]
        torch.testing.assert_close(logp_N, steps.old_logp_N, atol=1e-5, rtol=0)
        for row_A, labels, actions in zip(logp_NA, steps.supports, steps.actions, strict=True):
            assert row_A.isfinite().nonzero()[:, 0].tolist() == list(labels or range(len(actions)))

    def test_an_action_keeps_its_probability_when_new_weights_would_leave_it_out(
        self, tiny: Tiny, make_rooms: Any
    ) -> None:
        lm = tiny()
        steps = self.steps(lm, make_rooms, self.TWO)
        with torch.no_grad():
            for weight in lm.parameters():
                weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
        policy = Policy(lm, self.TWO)
        logits_NA, _ = policy.logits(steps.prompts, steps.actions)
        logp_NA, _ = policy_pass(policy, steps, range(len(steps)))
        gone = 0
        for n, (labels, listed) in enumerate(zip(steps.supports, steps.actions, strict=True)):
            now = set(logits_NA[n, : len(listed)].topk(2).indices.tolist())
            gone += int(steps.labels_N[n]) not in now
            rest = list(labels or range(len(listed)))
            # The new policy, restricted to what the old one could take.
            torch.testing.assert_close(logp_NA[n, rest], logits_NA[n, rest].log_softmax(-1))
        assert gone > 0, "some action would be left out now"
        labels_N = steps.labels_N[:, None]
        loss, _ = ppo_loss(logp_NA.gather(1, labels_N)[:, 0], steps.old_logp_N, torch.ones(len(steps)), 0.2, 0.2, 0.0)
        loss.backward()
        assert loss.isfinite() and all(p.grad is None or p.grad.isfinite().all() for p in lm.parameters())

    @pytest.mark.parametrize("sampling", [TWO, Sampling(1.0, top_p=0.7)])
    def test_it_learns_so_and_a_killed_training_goes_on(
        self, tiny: Tiny, make_rooms: Any, tmp_path: Path, sampling: Sampling
    ) -> None:
        config = replace(QUICK, algorithm="ppo", kl_coef=0.01, updates=12, episodes=12, eval_every=4)

        def run(lm: LanguageModel, log: Any, folder: Path | None = None) -> None:
            rollouts = EpisodeRollouts(Policy(lm, sampling), None, make_rooms, config, 0)
            train_online(rollouts, config, 0, log, folder)

        def until_killed(line: dict[str, Any]) -> None:
            if line["step"] == 6:
                raise InterruptedError

        whole, resumed = tiny(), tiny()
        expected, rest = Metrics(), Metrics()
        run(whole, expected.append)
        with pytest.raises(InterruptedError):
            run(tiny(), until_killed, tmp_path / "learner")
        run(resumed, rest.append, tmp_path / "learner")
        assert rest == expected[4:] and same_weights(resumed, whole)
        assert expected[-1]["eval_success"] == 1.0 and expected[0]["eval_success"] < 1.0
        assert all(np.isfinite(line["kl"]) for line in expected[:-1])


class TestTools:
    """What a recipe can ask of the learner beside its loss."""

    def test_the_rate_follows_the_schedule(self, tiny: Tiny, make_rooms: Any) -> None:
        log = train(tiny(), make_rooms, replace(QUICK, schedule="linear", warmup=0.5, updates=4))
        assert [line["lr"] for line in log[:-1]] == pytest.approx([1e-2 / 3, 2e-2 / 3, 1e-2, 5e-3])

    @pytest.mark.parametrize(("target", "grows"), [(1e3, True), (1e-9, False)])
    def test_the_rate_keeps_the_policy_at_its_pace(
        self, tiny: Tiny, make_rooms: Any, target: float, grows: bool
    ) -> None:
        config = replace(QUICK, algorithm="ppo", update_epochs=2, target_kl=target)
        rates = [line["lr"] for line in train(tiny(), make_rooms, config)[:-1]]
        assert rates == sorted(rates, reverse=not grows) and rates[0] == 1e-2 != rates[-1]
        assert rates[-1] / rates[0] == pytest.approx(1.5**3 if grows else 1.5**-3)

    def test_groups_that_say_nothing_are_played_anew(self, tiny: Tiny, make_rooms: Any) -> None:
        config = replace(QUICK, baseline="dr-grpo", group=2, updates=3)
        plain, refilled = (train(tiny(), make_rooms, replace(config, refills=n)) for n in (0, 4))
        assert all(line["episodes"] == 6 * (line["step"] + 1) for line in plain[:-1])
        assert refilled[-2]["episodes"] > plain[-2]["episodes"]
        assert all(0 <= line["groups_with_signal"] <= 1 for line in refilled[:-1])

    def test_only_groups_that_say_something_are_learned_from(self, tiny: Tiny, make_rooms: Any) -> None:
        config = replace(QUICK, baseline="dr-grpo", group=2, refills=8)
        rollouts = EpisodeRollouts(Policy(tiny()), None, make_rooms, config, 0)
        rollouts.collect(0, None)
        totals = [sum(step.reward for step in episode.steps) for episode in rollouts.latest.learned]
        assert len(rollouts.latest.played) > len(totals) > 0, "some groups were level, and others not"
        assert all(one != other for one, other in zip(totals[::2], totals[1::2], strict=True))

    def test_every_update_says_what_was_played_and_learned(self, tiny: Tiny, make_rooms: Any) -> None:
        log = train(tiny(), make_rooms, replace(QUICK, algorithm="ppo", baseline="critic"))
        told = {"episodes", "env_steps", "distinct_actions", "explained_variance", "approx_kl", "clip_fraction"}
        assert all(told <= line.keys() for line in log[:-1])
        assert [line["episodes"] for line in log[:-1]] == [6, 12, 18, 24]
        steps = [line["env_steps"] for line in log[:-1]]
        assert steps[0] >= 6 and all(6 <= after - before <= 18 for before, after in pairwise(steps))
        assert all(1 <= line["distinct_actions"] <= 3 and line["explained_variance"] <= 1 for line in log[:-1])

    def test_the_rate_waits_for_updates_that_can_move_the_policy(self, tiny: Tiny, make_rooms: Any) -> None:
        settings = {"baseline": "critic", "critic_warmup": 2, "update_epochs": 2, "target_kl": 1e9}
        log = train(tiny(), make_rooms, replace(QUICK, algorithm="ppo", **settings))
        assert [line["lr"] for line in log[:-1]] == pytest.approx([1e-2, 1e-2, 1e-2, 1.5e-2])

    @pytest.mark.parametrize("baseline", ["leave-one-out", "grpo", "dr-grpo", "gigpo"])
    def test_replayed_wins_are_not_compared_with_each_other(self, tiny: Tiny, make_rooms: Any, baseline: Any) -> None:
        """Two wins of one task, and one of another: each is better than an update in which nothing was won."""
        config = replace(QUICK, baseline=baseline, group=2, replay_episodes=3)
        rollouts = EpisodeRollouts(Policy(tiny()), None, make_rooms, config, 0)
        rollouts.collect(0, None)
        rollouts.latest.mean_return, rollouts.latest.played = -0.5, []
        first, second = make_rooms().tasks("train")[:2]
        rollouts.buffer.add(rollout([Job(first, 0), Job(first, 1), Job(second, 2)], make_rooms, ExpertPlayer()))
        past = rollouts.replay(None)
        assert past is not None and len(past.advantages_N) == 6 and (past.advantages_N > 0).all()

    def test_episodes_grow_longer(self, tiny: Tiny, make_rooms: Any) -> None:
        log = train(tiny(), make_rooms, replace(QUICK, first_horizon=1, updates=6, lr=1e-9))
        assert log[0]["steps"] == 1 < log[-2]["steps"]

    def test_the_bonus_ends_at_the_entropy_floor(self, tiny: Tiny, make_rooms: Any) -> None:
        policy, batch = batch_of(tiny(), make_rooms)
        full, _ = gradient(policy, batch, replace(PLAIN, entropy_coef=5.0))
        none, _ = gradient(policy, batch, PLAIN)
        high, _ = gradient(policy, batch, replace(PLAIN, entropy_coef=5.0, entropy_floor=9.0))
        low, _ = gradient(policy, batch, replace(PLAIN, entropy_coef=5.0, entropy_floor=1e-6))
        assert any(not torch.allclose(full[name], none[name], atol=1e-6) for name in full)
        for name in full:
            torch.testing.assert_close(high[name], full[name], atol=1e-6, rtol=0)
            torch.testing.assert_close(low[name], none[name], atol=1e-6, rtol=0)

    def test_wins_that_are_replayed_say_nothing_about_confidence(self, tiny: Tiny, make_rooms: Any) -> None:
        rollouts = EpisodeRollouts(Policy(tiny()), None, make_rooms, replace(QUICK, brier_coef=1.0), 0)
        fresh = rollouts.collect(0, None)
        played = rollouts.latest.played
        won = [float(episode.success) for episode in played for _ in episode.steps]
        assert fresh.won_N is not None and fresh.won_N.tolist() == won
        task = make_rooms().tasks("train")[0]
        rollouts.buffer.add(rollout([Job(task, 0)], make_rooms, ExpertPlayer()))
        past = rollouts.replay(None)
        assert past is not None and past.won_N is None

    def test_self_imitation_learns_from_rare_wins(self, tiny: Tiny, make_rooms: Any) -> None:
        config = replace(QUICK, self_imitation=True, baseline="critic", updates=12, episodes=12, replay_episodes=6)
        log = train(tiny(), make_rooms, config)
        assert log[-2]["success"] > log[0]["success"] and log[-2]["replay_loss"] != 0


HUGE = 1e9
PLAIN = RLConfig(normalise=False, max_grad_norm=HUGE, entropy_coef=0.0, kl_coef=0.0, baseline="mean")


def batch_of(lm: LanguageModel, make_rooms: Any, temperature: float = 1.3, count: int = 12) -> tuple[Policy, Steps]:
    policy = Policy(lm, Sampling(temperature))
    tasks = make_rooms().tasks("train")
    played = rollout([Job(tasks[i % 2], i) for i in range(count)], make_rooms, policy)  # two tasks: equal prompts
    batch = flatten(policy, list(played), 1.0)
    assert len(set(batch.prompts)) < len(batch)
    return policy, batch


def gradient(
    policy: Policy, batch: Steps, config: RLConfig, reference: Policy | None = None, critic: Any = None
) -> Any:
    """What `update` subtracts from each weight with plain gradient descent at rate 1, and what it reports."""
    before = policy.lm.weights()
    optimizer = torch.optim.SGD(policy.lm.parameters(), lr=1.0)
    critic = critic if config.baseline == "critic" else None
    trainer = Trainer(policy.lm, [optimizer], config.max_grad_norm)
    prepared = make_batch(policy, reference, critic, batch, config, 0.2)
    terms = update(trainer, critic, prepared, config, 1, warming=config.critic_warmup > 0)
    moved = {name: before[name] - now for name, now in policy.lm.weights().items()}
    policy.lm.load_weights(before)
    return moved, terms


def perturbed(lm: LanguageModel) -> Policy:
    reference = Policy(lm.frozen_copy(), Sampling(1.3))
    generator = torch.Generator().manual_seed(0)
    noisy = {n: p + 0.05 * torch.randn(p.shape, generator=generator) for n, p in reference.lm.weights().items()}
    reference.lm.load_weights(noisy)
    return reference


class TestGradient:
    @pytest.mark.parametrize("settings", [{}, {"lora_rank": 2}], ids=["weights", "adapter"])
    @pytest.mark.parametrize("algorithm", ["reinforce", "ppo"])
    def test_it_is_that_of_the_plain_computation(
        self, tiny: Tiny, make_rooms: Any, algorithm: Any, settings: dict[str, Any]
    ) -> None:
        """One forward pass per step, written out, with entropy, KL and ratios away from 1."""
        policy, batch = batch_of(tiny(**settings), make_rooms)
        reference = perturbed(policy.lm)
        batch.old_logp_N = batch.old_logp_N + torch.linspace(-0.3, 0.3, len(batch))
        config = replace(
            PLAIN, algorithm=algorithm, entropy_coef=0.3, kl_coef=0.7, brier_coef=0.5, normalise=True, minibatch=5
        )
        batch.won_N = torch.tensor([float(i % 3 == 0) for i in range(len(batch))])
        moved, terms = gradient(policy, batch, config, reference)

        advantages = batch.returns_N - 0.2
        advantages = advantages / advantages.square().mean().sqrt()
        loss = torch.zeros(())
        for i, prompt in enumerate(batch.prompts):
            with torch.no_grad():
                ref = self.logp(reference, prompt, len(batch.actions[i]))
            logp = self.logp(policy, prompt, len(batch.actions[i]))
            chosen = logp[batch.labels_N[i]]
            if algorithm == "reinforce":
                surrogate = advantages[i] * chosen
            else:
                ratio = (chosen - batch.old_logp_N[i]).exp()
                surrogate = torch.minimum(ratio * advantages[i], ratio.clamp(0.9, 1.1) * advantages[i])
            entropy = -(logp.exp() * logp).sum()
            divergence = (logp.exp() * (logp - ref)).sum()
            brier = (chosen.exp() - float(i % 3 == 0)) ** 2
            loss = loss + (-surrogate - 0.3 * entropy + 0.7 * divergence + 0.5 * brier) / len(batch)
        parameters = policy.lm.parameters()
        expected = torch.autograd.grad(loss, parameters)
        names = [name for name, _ in policy.lm.model.named_parameters()]
        by_name = self.named(policy.lm, parameters, expected, names)
        assert by_name and max(float(g.abs().max()) for g in by_name.values()) > 1e-3
        for name, grad in by_name.items():
            torch.testing.assert_close(moved[name], grad, atol=1e-5, rtol=0, msg=name)
        assert terms["loss"] == pytest.approx(float(loss.detach()), abs=1e-5)

    def logp(self, policy: Policy, prompt: Any, count: int) -> torch.Tensor:
        policy.lm.activate()
        logits = policy.lm.model(torch.tensor([prompt])).logits[0, -1]
        return (logits[list(policy.labels(count).token_ids[:count])] / 1.3).log_softmax(-1)

    def named(self, lm: LanguageModel, parameters: Any, grads: Any, names: list[str]) -> dict[str, torch.Tensor]:
        places = {id(parameter): grad for parameter, grad in zip(parameters, grads, strict=True)}
        found = {name: places[id(p)] for name, p in lm.model.named_parameters() if id(p) in places}
        return {name.replace(f".{lm.adapter}.", ".adapter."): grad for name, grad in found.items()}

    @pytest.mark.parametrize("minibatch", [1, 5])
    def test_slices_change_nothing(self, tiny: Tiny, make_rooms: Any, minibatch: int) -> None:
        policy, batch = batch_of(tiny(), make_rooms)
        config = replace(PLAIN, entropy_coef=0.1, algorithm="ppo")
        whole, terms = gradient(policy, batch, replace(config, minibatch=1000))
        sliced, other = gradient(policy, batch, replace(config, minibatch=minibatch))
        for name, grad in whole.items():
            torch.testing.assert_close(sliced[name], grad, atol=1e-6, rtol=0, msg=name)
        assert other == pytest.approx(terms, abs=1e-5)

    @pytest.mark.parametrize("scoring", ["enumeration", "sum"])
    def test_passes_that_would_take_too_much_memory_are_cut(
        self, tiny: Tiny, make_rooms: Any, monkeypatch: pytest.MonkeyPatch, scoring: Any
    ) -> None:
        policy, batch = batch_of(tiny(), make_rooms)
        policy = Policy(policy.lm, policy.sampling, scoring=scoring)
        config = replace(PLAIN, minibatch=1000)
        whole, _ = gradient(policy, batch, config)
        [once] = make_batch(policy, None, None, batch, config, 0.2).minibatches
        longest = max(map(len, batch.prompts)) + len(policy.action_tokens(batch.actions[0]))
        monkeypatch.setattr("reflectrl.models.machine.ACTIVATIONS", 2 * longest * policy.lm.activation_bytes)
        [cut] = make_batch(policy, None, None, batch, config, 0.2).minibatches
        assert len(once) == 1 and len(cut) > 1
        assert sorted(i for part in cut for i in part.units) == [*range(len(batch))]
        sliced, _ = gradient(policy, batch, config)
        for name, grad in whole.items():
            torch.testing.assert_close(sliced[name], grad, atol=1e-6, rtol=0, msg=name)

    @pytest.mark.parametrize("shares", [2, 3, 1000])
    def test_a_step_is_in_one_minibatch_of_each_epoch(self, tiny: Tiny, make_rooms: Any, shares: int) -> None:
        policy, steps = batch_of(tiny(), make_rooms)
        reference = Policy(policy.lm.frozen_copy(), policy.sampling)
        config = replace(PLAIN, algorithm="ppo", kl_coef=0.1, minibatch=2, steps_per_epoch=shares, update_epochs=2)
        batch = make_batch(policy, reference, None, steps, config, 0.2, np.random.default_rng(0))
        assert len(batch.minibatches) == min(shares, len(steps))
        rows = [[row for part in slices for row in part.units] for slices in batch.minibatches]
        assert sorted(row for each in rows for row in each) == list(range(len(steps)))
        assert shares > len(steps) or max(rows[0]) > len(rows[0])  # dealt out at random, not cut into runs
        assert max(map(len, rows)) - min(map(len, rows)) <= 1
        for part in chain.from_iterable(batch.minibatches):
            torch.testing.assert_close(part.ref_logp_NA, part.read()[0])
        optimizer, counted = torch.optim.SGD(policy.lm.parameters(), lr=0.0), []
        optimizer.register_step_post_hook(lambda *_: counted.append(1))
        trainer = Trainer(policy.lm, [optimizer], config.max_grad_norm)
        metrics = update(trainer, None, batch, config, 2)
        assert len(counted) == 2 * len(batch.minibatches)
        assert metrics.pop("grad_norm") > 0  # norms do not add up
        whole = update(trainer, None, make_batch(policy, reference, None, steps, config, 0.2), config, 1)
        del whole["grad_norm"]
        assert metrics == pytest.approx(whole, abs=1e-5)  # nothing has moved, so shares add up to the whole

    def test_at_the_start_ratios_are_one_and_the_divergence_is_zero(self, tiny: Tiny, make_rooms: Any) -> None:
        policy, batch = batch_of(tiny(), make_rooms)
        reference = Policy(policy.lm.frozen_copy(), policy.sampling)
        moved, terms = gradient(policy, batch, replace(PLAIN, algorithm="ppo", kl_coef=0.5), reference)
        assert terms["clip_fraction"] == 0 and terms["kl"] == pytest.approx(0, abs=1e-7)
        assert terms["policy_loss"] == pytest.approx(-float((batch.returns_N - 0.2).mean()), abs=1e-5)
        plain, _ = gradient(policy, batch, PLAIN)
        for name, grad in plain.items():
            torch.testing.assert_close(moved[name], grad, atol=1e-5, rtol=0, msg=name)

    def test_the_clip_fraction_is_the_share_of_ratios_outside(self, tiny: Tiny, make_rooms: Any) -> None:
        policy, batch = batch_of(tiny(), make_rooms)
        batch.old_logp_N[:3] += 1.0
        _, terms = gradient(policy, batch, replace(PLAIN, algorithm="ppo", minibatch=2))
        assert terms["clip_fraction"] == pytest.approx(3 / len(batch))

    def test_a_critic_that_shares_pulls_at_the_policy_and_one_that_warms_up_moves_itself_alone(
        self, tiny: Tiny, make_rooms: Any
    ) -> None:
        policy, batch = batch_of(tiny(), make_rooms)
        critic = ValueHead(policy.lm.hidden_size, "mlp")
        with torch.no_grad():
            critic.out.weight.normal_()
        config = replace(PLAIN, baseline="critic", critic_coef=50.0)
        apart, _ = gradient(policy, batch, config, critic=critic)
        shared, _ = gradient(policy, batch, replace(config, critic_shares=True), critic=critic)
        assert max(float((shared[name] - grad).abs().max()) for name, grad in apart.items()) > 1e-3
        critic.zero_grad()
        still, terms = gradient(policy, batch, replace(config, critic_warmup=1), critic=critic)
        assert all(not grad.any() for grad in still.values()) and terms["policy_loss"] != 0
        assert all(p.grad is not None and p.grad.any() for p in critic.parameters())
        still, _ = gradient(policy, batch, replace(config, critic_warmup=1, critic_shares=True), critic=critic)
        assert all(not grad.any() for grad in still.values())

    def test_the_critic_does_not_pull_at_the_policy(self, tiny: Tiny, make_rooms: Any) -> None:
        policy, batch = batch_of(tiny(), make_rooms)
        critic = ValueHead(policy.lm.hidden_size, "mlp")
        with torch.no_grad():
            critic.out.weight.normal_()
        config = replace(PLAIN, baseline="critic", critic_coef=0.0)
        without, _ = gradient(policy, batch, config, critic=critic)
        critic.zero_grad()
        pulled, terms = gradient(policy, batch, replace(config, critic_coef=50.0), critic=critic)
        assert terms["value_loss"] > 0 and any(p.grad is not None for p in critic.parameters())
        for name, grad in without.items():
            torch.testing.assert_close(pulled[name], grad, atol=1e-6, rtol=0, msg=name)

    def test_the_norm_is_clipped(self, tiny: Tiny, make_rooms: Any) -> None:
        policy, batch = batch_of(tiny(), make_rooms)
        moved, terms = gradient(policy, batch, replace(PLAIN, max_grad_norm=1e-3))
        unique = {name: grad for name, grad in moved.items() if name in dict(policy.lm.model.named_parameters())}
        norm = sum(float(grad.square().sum()) for grad in unique.values()) ** 0.5
        assert terms["grad_norm"] > 1e-2 and norm == pytest.approx(1e-3, rel=1e-2)
