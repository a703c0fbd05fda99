"""The offline learner: what a step does, that accumulation changes nothing, that it learns, and that it goes on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from transformers import get_scheduler

from reflectrl.core.players import RandomPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Sampling, UserError
from reflectrl.learn.trainer import SCHEDULES, linear
from reflectrl.methods.expert_iteration import own_successes, train_expert_iteration
from reflectrl.methods.offline import play_tasks, train_offline
from reflectrl.methods.shared.offline.algorithms import Item, items_of, losses_of, mean_loss
from reflectrl.methods.shared.offline.completions import Dataset, step_dataset
from reflectrl.methods.shared.offline.config import Algorithm, OfflineConfig
from reflectrl.methods.shared.offline.reference_cache import ReferenceCache, fit_reference, score_reference
from reflectrl.methods.shared.offline.reference_value import split
from reflectrl.models.players import Policy
from tests.methods.offline.texts import Text, texts

Tiny = Callable[..., Any]
ALGORITHMS = get_args(Algorithm)
CONFIG = OfflineConfig(steps=6, batch_size=5, eval_every=2, lr=1e-3, held_out=0.25, sampling="none")
COLOURS = ("red", "blue", "green", "black", "white", "grey")
SAMPLES = [
    Text(colour, f"A {colour} room,", f" {word}", reward)
    for colour in COLOURS
    for word, reward in (("left", 1.0), ("go right", 0.0), ("wait", 0.5))
]


@pytest.fixture
def text(tiny: Tiny) -> Callable[..., tuple[Dataset, ReferenceCache]]:
    """`text()`: samples bound to a fresh model, and its view of them with a value of 0.25 everywhere."""

    def made(samples: list[Text] = SAMPLES, **settings: Any) -> tuple[Dataset, ReferenceCache]:
        data = texts(tiny(**settings), samples)
        return data, score_reference(data, torch.full((len(data),), 0.25))

    return made


def learned(given: tuple[Dataset, ReferenceCache], config: OfflineConfig, **more: Any) -> list[dict[str, float]]:
    log: list[dict[str, float]] = []
    train_offline(*given, config, more.pop("seed", 0), more.pop("log", log.append), **more)
    return log


def close(one: Any, other: Any, atol: float = 1e-6) -> None:
    weights = other.weights()
    for name, tensor in one.weights().items():
        torch.testing.assert_close(tensor, weights[name], atol=atol, rtol=0, msg=name)


class TestItems:
    def test_pairs_and_rankings_come_from_groups(self, text: Any) -> None:
        data, _ = text([*SAMPLES[:3], SAMPLES[3]._replace(reward=0.0), SAMPLES[4]])
        assert items_of(data, "nll") == [Item((i,), (r,)) for i, r in enumerate([1.0, 0.0, 0.5, 0.0, 0.0])]
        assert items_of(data, "dpo") == [Item((0, 2), (1.0, 0.5)), Item((0, 1), (1.0, 0.0))]  # the second group ties
        assert items_of(data, "pro") == [Item((0, 2, 1), (1.0, 0.5, 0.0))]

    def test_equal_completions_count_once_with_their_mean_reward(self, text: Any) -> None:
        again = SAMPLES[0]._replace(reward=0.2)
        assert items_of(text([*SAMPLES[:3], again])[0], "pro") == [Item((0, 2, 1), (pytest.approx(0.6), 0.5, 0.0))]

    def test_pro_imitates_the_answer_that_the_row_names(self, text: Any) -> None:
        data = replace(text(SAMPLES[:3])[0], imitable=(False, True, False))
        assert items_of(data, "pro") == [Item((0, 2, 1), (1.0, 0.5, 0.0), target=2)]

    @pytest.mark.parametrize("algorithm", ["dpo", "pro"])
    def test_nothing_to_compare_is_refused(self, text: Any, algorithm: Any) -> None:
        with pytest.raises(UserError, match=algorithm):
            items_of(text(SAMPLES[::3])[0], algorithm)


class TestLoss:
    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_at_the_reference_it_is_what_the_formulas_say(self, text: Any, algorithm: Any) -> None:
        data, cache = text()
        config = replace(CONFIG, algorithm=algorithm)
        items = items_of(data, algorithm)
        loss_N, noted = losses_of(data, cache, items, config)
        logp_N, lengths_N = cache.ref_logp_NT.sum(1), torch.tensor([len(a) for a in data.completions.answers])
        by_reward = dict.fromkeys(("wbc", "r_lol", "r_lol_kl"), data.rewards_N)
        weights_N = {"nll": torch.ones(18), **by_reward}.get(algorithm)
        if weights_N is None:
            weights_N = (data.rewards_N - 0.25).clamp_min(0)
        if algorithm == "dpo":
            expected_N = torch.full((len(items),), math.log(2))
        elif algorithm == "dpo_ref_free":
            margins_N = torch.stack([logp_N[one.rows[0]] - logp_N[one.rows[1]] for one in items])
            expected_N = -torch.nn.functional.logsigmoid(config.beta * margins_N)
        elif algorithm == "pro":
            best = [item.rows[0] for item in items]
            sft_N = 0.05 * 4 * -logp_N[best]
            means = logp_N / lengths_N
            first = [torch.logsumexp(means[[a, b, c]] * torch.tensor([1.0, 0.5, 1.0]), 0) - means[a] for a, b, c in
                     (item.rows for item in items)]  # fmt: skip
            second = [torch.logsumexp(means[[b, c]] * 0.5, 0) - 0.5 * means[b] for _, b, c in (i.rows for i in items)]
            expected_N = torch.stack(first) + torch.stack(second) + sft_N
        elif algorithm == "r_gold":
            logp_NT = cache.ref_logp_NT
            expected_N = data.rewards_N * -(logp_NT.exp().clamp_min(0.1) * logp_NT).sum(1)
        else:
            expected_N = -weights_N * logp_N
        torch.testing.assert_close(loss_N.detach(), expected_N, atol=1e-5, rtol=1e-5)
        assert noted["clip_fraction"] == 0 and noted["kl"] == pytest.approx(0, abs=1e-6)

    def test_clipped_ratios_are_counted(self, text: Any) -> None:
        """A reference that is made less sure of half the completions: their ratios leave the interval."""
        data, cache = text()
        shifted_NT = cache.ref_logp_NT.clone()
        shifted_NT[::2, 0] -= 2.0
        moved = replace(cache, ref_logp_NT=shifted_NT)
        lengths = [len(answer) for answer in data.completions.answers]
        for algorithm, share in (("a_lol", 0.5), ("a_lol_seq", 9 / sum(lengths))):
            config = replace(CONFIG, algorithm=algorithm)  # type: ignore[arg-type]
            _, noted = losses_of(data, moved, items_of(data, algorithm), config)
            assert noted["clip_fraction"] == pytest.approx(share) and noted["kl"] > 0

    def test_checkpoints_are_compared_by_weights_that_stay(self, text: Any) -> None:
        data, cache = text()
        moved = replace(cache, ref_logp_NT=cache.ref_logp_NT - 1.0)
        for algorithm, free in (("a_lol", "a_lol_ref_free"), ("a_lol_seq", "a_lol_ref_free"), ("r_lol", "wbc")):
            items = items_of(data, algorithm)
            one, other = (mean_loss(data, moved, items, replace(CONFIG, algorithm=a)) for a in (algorithm, free))  # type: ignore[arg-type]
            assert one == other


class TestLoop:
    @pytest.mark.parametrize("algorithm", ["nll", "a_lol", "a_lol_seq", "a_lol_kl", "dpo", "pro"])
    def test_accumulation_equals_a_large_batch(self, text: Any, algorithm: Any) -> None:
        config = replace(CONFIG, algorithm=algorithm, batch_size=4)
        runs = [(text(), replace(config, accumulate=n)) for n in (1, 2, 4)]
        logs = [learned(*run) for run in runs]
        for log, ((data, _), _) in zip(logs[1:], runs[1:], strict=True):
            for one, other in zip(logs[0], log, strict=True):
                assert one == pytest.approx(other, rel=1e-4, abs=1e-6)
            close(runs[0][0][0].completions.lm, data.completions.lm, atol=1e-5)

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_every_algorithm_makes_the_better_completion_likelier(self, text: Any, algorithm: Any) -> None:
        data, cache = text()
        config = replace(CONFIG, algorithm=algorithm, steps=40, lr=1e-2, eval_every=40)
        numbers = count()
        learned((data, cache), config, evaluate=lambda: {"score": float(next(numbers))})  # the last is kept
        better, worse = ([i for i, s in enumerate(SAMPLES) if s.reward == r] for r in (1.0, 0.0))
        with torch.no_grad():
            now_N = data.completions.logprobs(range(len(data))).sum(1) - cache.ref_logp_NT.sum(1)
        if algorithm == "nll":
            assert float(now_N[better].mean()) > 0 and float(now_N[worse].mean()) > 0
        else:
            assert float(now_N[better].mean()) > max(0.0, float(now_N[worse].mean()))

    def test_steps_shrink_with_the_share_of_good_completions(self, text: Any) -> None:
        given = text()
        log = learned(given, replace(CONFIG, steps=9, sampling="good_random"), evaluate=lambda: {"score": 0.0})
        assert log[-1]["step"] == log[-1]["steps"] == 6 and log[-1]["positive_share"] == pytest.approx(2 / 3)
        given = text()
        log = learned(given, replace(CONFIG, steps=9, algorithm="nll", sampling="good_random"))
        assert log[-1]["step"] == 9  # likelihood draws from all

    def test_held_out_prompts_are_not_learned_from(self, text: Any) -> None:
        """Poisoned rewards of the held-out groups change their loss, and not one weight."""
        given = text()
        learned(given, CONFIG)
        poisoned = text()
        _, held = split(poisoned[0].units, CONFIG.held_out, 0)
        advantages_N = poisoned[1].advantages_N.clone()
        advantages_N[held] *= 50
        learned((poisoned[0], replace(poisoned[1], advantages_N=advantages_N)), CONFIG)
        assert len(held) == 6  # the three completions of two colours
        close(given[0].completions.lm, poisoned[0].completions.lm, atol=0)

    def test_the_best_scored_weights_are_kept(self, text: Any) -> None:
        data, cache = text()
        lm, seen, scores = data.completions.lm, [], iter([0.1, 0.5, 0.9, 0.3])

        def evaluate() -> dict[str, float]:
            seen.append(lm.weights())
            return {"success": next(scores)}

        log = learned((data, cache), CONFIG, evaluate=evaluate)
        assert [one["success"] for one in log] == [0.1, 0.5, 0.9, 0.3]
        assert all(torch.equal(tensor, seen[2][name]) for name, tensor in lm.weights().items())
        assert {"loss", "clip_fraction", "positive_share", "kl", "grad_norm"} <= log[-1].keys()

    def test_a_killed_training_goes_on_to_the_same_weights(self, text: Any, tmp_path: Path) -> None:
        config = replace(CONFIG, sampling="good_priority", steps=12, optimizer="muon", accumulate=2)
        whole, killed, resumed = text(), text(), text()
        expected = learned(whole, config, state_folder=tmp_path / "whole")
        said: list[dict[str, float]] = []

        def until(metrics: dict[str, float]) -> None:
            if metrics["step"] == 6:
                raise KeyboardInterrupt
            said.append(metrics)

        with pytest.raises(KeyboardInterrupt):
            learned(killed, config, log=until, state_folder=tmp_path / "killed")
        said += learned(resumed, config, state_folder=tmp_path / "killed")
        assert said == expected
        close(whole[0].completions.lm, resumed[0].completions.lm, atol=0)

    def test_an_adapter_learns_and_its_backbone_stays(self, text: Any) -> None:
        data, cache = text(lora_rank=2, lora_alpha=4)
        lm = data.completions.lm
        base = {n: p.clone() for n, p in lm.model.named_parameters() if not p.requires_grad}
        learned((data, cache), CONFIG, evaluate=iter_scores())
        assert base and all(torch.equal(p, dict(lm.model.named_parameters())[n]) for n, p in base.items())
        with torch.no_grad():
            now_T = data.completions.logprobs([0])[0]
        assert not torch.allclose(now_T, cache.ref_logp_NT[0, : len(now_T)], atol=1e-6)

    def test_no_positive_weight_is_refused(self, text: Any) -> None:
        data, cache = text()
        none = replace(cache, advantages_N=-torch.ones(len(data)))
        with pytest.raises(UserError, match="nothing can be drawn"):
            learned((data, none), replace(CONFIG, sampling="good_priority"))


class TestMovingReference:
    CONFIG = replace(CONFIG, algorithm="a_lol", steps=10, reference_update=0.1)

    def moved(
        self, given: tuple[Dataset, ReferenceCache], scores: list[float], good: int = 18, **more: Any
    ) -> tuple[list[dict[str, float]], list[ReferenceCache]]:
        """Train with these validation scores. A new reference's first `good` completions have an advantage."""
        data, caches, remaining = given[0], list[ReferenceCache](), iter(scores)

        def renew() -> ReferenceCache:
            values_N = torch.where(torch.arange(len(data)) < good, data.rewards_N - 0.5, data.rewards_N + 0.5)
            caches.append(score_reference(data, values_N))
            return caches[-1]

        config = more.pop("config", self.CONFIG)
        log = learned(given, config, evaluate=lambda: {"score": next(remaining)}, renew=renew, **more)
        return log, caches

    def test_it_moves_to_weights_that_beat_it_by_more_than_the_threshold(self, text: Any) -> None:
        """From 0.5 to 0.65, since 0.55 is too near; then to 0.8, since 0.7 is within 0.1 of 0.65."""
        data, cache = text()
        log, caches = self.moved((data, cache), [0.5, 0.55, 0.65, 0.7, 0.8, 0.85])
        assert [line["reference_step"] for line in log[1:]] == [0, 4, 4, 8, 8]
        assert len(caches) == 2 and not torch.equal(caches[0].ref_logp_NT, cache.ref_logp_NT)
        with torch.no_grad():  # training ended with the weights of step 10; those of step 8 are the reference
            now_NT = data.completions.logprobs(range(len(data)))
        assert not torch.allclose(now_NT, caches[1].ref_logp_NT, atol=1e-6)

    def test_learning_goes_on_by_the_new_advantages(self, text: Any) -> None:
        """Once only the first completion has an advantage, it alone is drawn, and gains most of its prompt."""
        data, cache = text()
        config = replace(self.CONFIG, sampling="good_priority", lr=1e-2, steps=18, eval_every=4)
        log, caches = self.moved((data, cache), [0.0, 1.0, 1.05, 1.06], good=1, config=config)
        assert [line["positive_share"] for line in log] == pytest.approx([2 / 3, 2 / 3, 1 / 18, 1 / 18])
        with torch.no_grad():
            gain_N = (data.completions.logprobs(range(len(data))) - caches[0].ref_logp_NT).sum(1)
        assert float(gain_N[0]) > max(1.0, float(gain_N[1]), float(gain_N[2]))  # beside its prompt's others

    def test_it_ends_when_nothing_is_better_than_the_new_reference(self, text: Any, tmp_path: Path) -> None:
        config = replace(self.CONFIG, sampling="good_priority", steps=18)
        given = text()
        log, _ = self.moved(given, [0.0, 1.0], good=0, config=config, state_folder=tmp_path)
        assert [line["step"] for line in log] == [0, 2]
        again = text()
        assert self.moved(again, [], good=0, config=config, state_folder=tmp_path)[0] == []
        close(given[0].completions.lm, again[0].completions.lm, atol=0)

    @pytest.mark.parametrize("kill", [4, 6, 10])
    def test_a_killed_training_goes_on_to_the_same_weights(self, text: Any, tmp_path: Path, kill: int) -> None:
        config = replace(self.CONFIG, sampling="good_priority", steps=15, lr=1e-2)
        scores = [0.0, 0.05, 0.3, 0.35, 0.5, 0.55]
        whole, killed, resumed = text(), text(), text()
        expected, _ = self.moved(whole, scores, good=3, config=config)
        said: list[dict[str, float]] = []

        def until(metrics: dict[str, float]) -> None:
            if metrics["step"] == kill:
                raise KeyboardInterrupt
            said.append(metrics)

        with pytest.raises(KeyboardInterrupt):
            self.moved(killed, scores, good=3, config=config, log=until, state_folder=tmp_path)
        rest, _ = self.moved(resumed, scores[kill // 2 :], good=3, config=config, state_folder=tmp_path)
        assert said + rest == expected
        close(whole[0].completions.lm, resumed[0].completions.lm, atol=0)

    def test_it_needs_scores_that_do_not_depend_on_the_reference(self, text: Any) -> None:
        with pytest.raises(UserError, match="'reference_update' needs evaluations by reward or success"):
            learned(text(), self.CONFIG)

    @pytest.mark.parametrize("algorithm", ["nll", "wbc", "pro"])
    def test_algorithms_without_a_reference_learn_as_before(self, text: Any, algorithm: Any) -> None:
        first, second = text(), text()
        config = replace(self.CONFIG, algorithm=algorithm)
        expected = learned(first, replace(config, reference_update=0.0), evaluate=iter_scores())
        assert learned(second, config, evaluate=iter_scores()) == expected
        close(first[0].completions.lm, second[0].completions.lm, atol=0)


def iter_scores() -> Callable[[], dict[str, float]]:
    """Each evaluation is better than the one before."""
    numbers = count()
    return lambda: {"score": float(next(numbers))}


def test_the_rate_rises_and_then_falls_to_nothing() -> None:
    rates = [linear(step, 20, 0.2) for step in range(21)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0]) and rates[-1] == 0
    assert all(a > b for a, b in pairwise(rates[4:]))
    assert linear(0, 1, 0.0) == 1.0


@pytest.mark.parametrize("name", ["constant", "linear"])
@pytest.mark.parametrize("steps", [1, 7])
def test_schedules_without_warm_up_are_those_of_transformers(name: str, steps: int) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    usual = get_scheduler(name, optimizer, 0, steps)
    for step in range(steps):
        assert SCHEDULES[name](step, steps, 0.0) == pytest.approx(usual.get_last_lr()[0])
        optimizer.step()
        usual.step()
    assert SCHEDULES["constant"](0, steps, 0.5) == 1.0  # transformers' "constant" has no warm-up either


@pytest.mark.parametrize(("schedule", "depends"), [("constant", False), ("linear", True), ("cosine", True)])
def test_a_constant_rate_alone_does_not_depend_on_the_number_of_steps(text: Any, schedule: Any, depends: bool) -> None:
    config = replace(CONFIG, algorithm="nll", schedule=schedule, warmup=0.5)
    few, many = (learned(text(), replace(config, steps=steps)) for steps in (2, 6))
    assert few[0]["eval_loss"] == many[0]["eval_loss"]
    assert (few[1]["eval_loss"] != many[1]["eval_loss"]) == depends


class TestSteps:
    @pytest.mark.parametrize("algorithm", ["a_lol", "wbc", "dpo"])
    def test_a_policy_learns_from_a_random_log(self, tiny: Tiny, make_rooms: Any, algorithm: Any) -> None:
        env = make_rooms()
        tasks = [*env.tasks("train")] * 15
        episodes = list(rollout([Job(task, i) for i, task in enumerate(tasks)], make_rooms, RandomPlayer()))
        policy = Policy(tiny(), Sampling(1.0))
        data = step_dataset(policy, episodes, CONFIG)
        cache = score_reference(data, torch.full((len(data),), float(data.rewards_N.mean())))
        config = replace(CONFIG, algorithm=algorithm, steps=90, batch_size=16, lr=1e-2, sampling="good_priority")

        def evaluate() -> dict[str, float]:
            played = play_tasks(policy.with_sampling(Sampling(0.0)), make_rooms, env.tasks("validation"), 1, 0)
            return {"success": sum(e.success for e in played) / len(played)}

        log = learned((data, cache), replace(config, eval_every=30), evaluate=evaluate)
        assert max(one["success"] for one in log) == 1.0

    def test_the_reference_of_a_policy_moves_once_it_wins_more(self, tiny: Tiny, make_rooms: Any) -> None:
        env = make_rooms()
        jobs = [Job(task, i) for i, task in enumerate([*env.tasks("train")] * 15)]
        policy = Policy(tiny(), Sampling(1.0))
        data = step_dataset(policy, list(rollout(jobs, make_rooms, RandomPlayer())), CONFIG)
        cache = score_reference(data, torch.full((len(data),), float(data.rewards_N.mean())))
        config = replace(
            CONFIG, algorithm="a_lol", steps=90, batch_size=16, lr=1e-2, eval_every=10, reference_update=0.2
        )
        config = replace(config, value_epochs=1, sampling="good_priority")

        def evaluate() -> dict[str, float]:
            played = play_tasks(policy.with_sampling(Sampling(0.0)), make_rooms, env.tasks("validation"), 1, 0)
            return {"success": sum(e.success for e in played) / len(played)}

        log = learned(
            (data, cache), config, evaluate=evaluate, renew=lambda: fit_reference(data, config, 0, lambda _: None)
        )
        step, won = 0, log[0]["success"]
        for line in log[1:]:
            if line["success"] > won + 0.2:
                step, won = line["step"], line["success"]
            assert line["reference_step"] == step
        assert step > 0

    def test_expert_iteration_learns_from_its_own_successes_and_goes_on(
        self, tiny: Tiny, make_rooms: Any, tmp_path: Path
    ) -> None:
        config = replace(CONFIG, steps=30, batch_size=8, lr=1e-2, eval_every=5, rounds=3, round_episodes=5)
        tasks = make_rooms().tasks("train")

        def trained(folder: Path, stop: int | None = None) -> tuple[Policy, list[dict[str, float]]]:
            policy, log = Policy(tiny(), Sampling(1.0)), list[dict[str, float]]()

            def note(metrics: dict[str, float]) -> None:
                if metrics["step"] == stop:
                    raise KeyboardInterrupt
                log.append(metrics)

            try:
                collect = partial(own_successes, policy, make_rooms, tasks, config, 0)
                train_expert_iteration(policy.lm, collect, config, 0, note, folder, iter_scores())
            except KeyboardInterrupt:
                assert stop
            return policy, log

        whole, log = trained(tmp_path / "whole")
        assert [one["step"] for one in log] == [0, 5, 10, 15, 20, 25, 30]
        assert log[-1]["played_success"] > log[0]["played_success"]
        trained(tmp_path / "killed", stop=25)
        resumed, rest = trained(tmp_path / "killed")
        assert [one["step"] for one in rest] == [25, 30]
        close(whole.lm, resumed.lm, atol=0)
