"""Online PPO on text: what a token earns, what a step does, that it learns, and that it goes on after a kill."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.cli import main
from reflectrl.core.config import ModelConfig, RLConfig, SFTConfig
from reflectrl.core.types import Sampling, UserError
from reflectrl.learn.batch import Batch
from reflectrl.learn.checkpoint import load_meta, load_tensors
from reflectrl.learn.examples import Example, completion_logits
from reflectrl.learn.online import update
from reflectrl.learn.sft import train_sft
from reflectrl.learn.trainer import Trainer
from reflectrl.learn.value import ValueHead
from reflectrl.methods.shared.offline.config import OfflineConfig
from reflectrl.models.lm import LanguageModel
from reflectrl.models.load import load_model
from reflectrl.models.scratch import save_scratch
from reflectrl.wings.text.learn.online_text import (
    RunningScale,
    TextRollouts,
    adapted_kl_coef,
    draw_prompts,
    train_online_text,
)
from reflectrl.wings.text.learn.text_batch import lengths_of, make_batch, token_advantages, token_slices
from reflectrl.wings.text.learn.text_dataset import text_dataset
from reflectrl.wings.text.learn.written import Completion, write
from reflectrl.wings.text.rewards import build
from reflectrl.wings.text.samples.orders import orders
from reflectrl.wings.text.samples.sample import Sample

Tiny = Callable[..., LanguageModel]
COLOURS = ("red", "blue", "green", "black", "white", "grey")
PROMPTS = [Sample(colour, colour, f"A {colour} room,", "", math.nan) for colour in COLOURS]
LENGTHS = OfflineConfig(prompt_tokens=40, completion_tokens=6)
CONFIG = RLConfig(
    algorithm="ppo",
    updates=4,
    episodes=6,
    update_epochs=2,
    baseline="critic",
    lr=1e-2,
    eval_every=2,
    minibatch=4,
    kl_coef=0.1,
)
PLAIN = replace(
    CONFIG, normalise=False, max_grad_norm=1e9, entropy_coef=0.0, update_epochs=1, baseline="none", kl_coef=0.0
)


def by_letters(samples: Sequence[Sample]) -> list[Sample]:
    """The more of a completion is the letter o, the better."""
    return [replace(s, reward=s.completion.count("o") / (1 + len(s.completion))) for s in samples]


def by_nothing(samples: Sequence[Sample]) -> list[Sample]:
    return [replace(sample, reward=0.0) for sample in samples]


def iter_scores() -> Callable[[], dict[str, float]]:
    """Each evaluation is better than the one before."""
    numbers = count()
    return lambda: {"eval_reward": float(next(numbers))}


def train(lm: LanguageModel, config: RLConfig = CONFIG, seed: int = 0, **more: Any) -> list[dict[str, float]]:
    log: list[dict[str, float]] = []
    evaluate, note = more.pop("evaluate", None) or iter_scores(), more.pop("log", log.append)
    train_online_text(lm, PROMPTS, by_letters, evaluate, config, LENGTHS, seed, note, **more)
    return log


def written(lm: LanguageModel, temperature: float = 1.0, draws: int = 1) -> list[Completion]:
    prompts = [sample for sample in PROMPTS for _ in range(draws)]
    generators = [np.random.default_rng(i) for i in range(len(prompts))]
    return write(lm, prompts, Sampling(temperature), generators, LENGTHS.completion_tokens, LENGTHS.prompt_tokens)


def gradient(lm: LanguageModel, batch: Batch, config: RLConfig, critic: ValueHead | None = None) -> Any:
    """What `update` subtracts from each weight with plain gradient descent at rate 1, and what it reports."""
    before = lm.weights()
    trainer = Trainer(lm, [torch.optim.SGD(lm.parameters(), lr=1.0)], config.max_grad_norm)
    terms = update(trainer, critic, batch, config, config.update_epochs)
    moved = {name: before[name] - now for name, now in lm.weights().items()}
    lm.load_weights(before)
    return moved, terms


def same(one: Any, other: Any, atol: float = 0.0) -> None:
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], atol=atol, rtol=0, msg=name)


class TestWriting:
    @pytest.mark.parametrize("temperature", [1.0, 0.6])
    def test_tokens_are_as_likely_as_when_they_were_drawn(self, tiny: Tiny, temperature: float) -> None:
        """So the ratio is 1 before the first step; end-of-text counts, and its probability is the policy's as well."""
        lm = tiny()
        found = written(lm, temperature, draws=6)
        rows = [one.example for one in found]
        batch = make_batch(lm, None, None, found, torch.zeros(len(rows)), replace(PLAIN, temperature=temperature))
        with torch.no_grad():
            logits_NV, _, targets_N = completion_logits(lm, rows)
        now_N = (logits_NV / temperature).log_softmax(-1).gather(1, targets_N[:, None])[:, 0]
        torch.testing.assert_close(batch.old_logp_N, now_N, atol=1e-5, rtol=0)
        drawn = torch.tensor([logp for one in found for logp in one.logprobs])
        ends = [i for i, token in enumerate(targets_N.tolist()) if token == lm.tokenizer.eos_token_id]
        assert len(drawn) + len(ends) == len(batch.labels_N) and ends
        said = [torch.tensor(one.logprobs) for one in found]
        ours = [row[: len(one)] for row, one in zip(batch.old_logp_N.split(lengths_of(rows)), said, strict=True)]
        assert all(map(torch.equal, ours, said)), "they are those of writing, to the bit"

    def test_end_of_text_belongs_to_what_ended_by_itself(self, tiny: Tiny) -> None:
        lm = tiny()
        for sample, example, logprobs in written(lm, draws=6):
            answer = example.ids[example.start :]
            assert len(answer) <= LENGTHS.completion_tokens
            assert (len(logprobs) < LENGTHS.completion_tokens) == (answer[-1] == lm.tokenizer.eos_token_id)
            assert sample.completion == lm.tokenizer.decode(answer, skip_special_tokens=True)
            assert sample.logprob == pytest.approx(sum(logprobs)) and math.isnan(sample.reward)

    @given(st.integers(1, 9), st.integers(1, 20), st.integers(0, 3))
    @settings(deadline=None, max_examples=25)
    def test_an_epoch_visits_every_prompt_once(self, size: int, prompts: int, seed: int) -> None:
        rows = [row for update in range(3 * prompts) for row in draw_prompts(prompts, update, size, seed)]
        epochs = [rows[start : start + prompts] for start in range(0, len(rows), prompts)]
        assert all(sorted(epoch) == list(range(prompts)) for epoch in epochs)
        assert rows[size : 2 * size] == draw_prompts(prompts, 1, size, seed)  # whatever came before

    def test_a_prompt_without_room_is_named_and_so_is_their_absence(self, tiny: Tiny) -> None:
        with pytest.raises(UserError, match="sample '[a-z]+': 6 tokens leave no room for its prompt in the model's"):
            train(replace(tiny(), context=6))
        with pytest.raises(UserError, match="ppo: no training prompts"):
            train_online_text(tiny(), [], by_letters, iter_scores(), CONFIG, LENGTHS, 0, print)


class TestRewards:
    @given(st.lists(st.lists(st.integers(-50, 50), min_size=1, max_size=6), min_size=1, max_size=5))
    @settings(deadline=None, max_examples=50)
    def test_rewards_are_divided_by_the_deviation_of_all_so_far(self, batches: list[list[int]]) -> None:
        scale, seen = RunningScale(), list[int]()
        for batch in batches:
            seen += batch
            scaled = scale.add(torch.tensor(batch, dtype=torch.float64))
            deviation = float(np.std(seen))
            divisor = deviation or 1.0
            np.testing.assert_allclose(scaled, np.array(batch) / divisor, rtol=1e-9)

    def test_the_reward_is_earned_at_the_end_and_every_token_pays_for_its_distance(self, tiny: Tiny) -> None:
        """Two tokens, penalties k0 and k1, reward 2: GAE by hand, and the critic's lambda-returns from it."""
        lm, reference, critic = tiny(), tiny(), ValueHead(16, "linear")
        with torch.no_grad():
            critic.out.bias.fill_(0.5)  # the critic expects 0.5 everywhere
            for weight in reference.parameters():
                weight += 0.05
        row = Completion(PROMPTS[0], Example((5, 6, 7, 8, 9), 3), (-1.0, -2.0))
        config = replace(CONFIG, gamma=0.5, gae_lambda=0.8, kl_coef=0.3)
        batch = make_batch(lm, reference, critic, [row], torch.tensor([2.0]), config)
        with torch.no_grad():
            ours, theirs = (m.model(torch.tensor([row.example.ids])).logits[0].log_softmax(-1) for m in (lm, reference))
        distance = [float(ours[2, 8] - theirs[2, 8]), float(ours[3, 9] - theirs[3, 9])]
        k0, k1 = (-0.3 * d for d in distance)
        last = k1 + 2 - 0.5
        np.testing.assert_allclose(batch.returns_N, [k0 + 0.5 * (0.5 + 0.8 * last), k1 + 2], atol=1e-5)
        np.testing.assert_allclose(batch.advantages_N, [k0 + 0.5 * 0.5 - 0.5 + 0.5 * 0.8 * last, last], atol=1e-5)
        assert batch.old_logp_N.tolist() == [-1.0, -2.0]
        assert batch.metrics["kl"] == pytest.approx(sum(math.exp(-d) - 1 + d for d in distance), abs=1e-5)
        assert max(map(abs, distance)) > 1e-3

    def test_at_the_reference_nothing_is_paid(self, tiny: Tiny) -> None:
        lm = tiny()
        found = written(lm)
        scores = torch.arange(len(found)).float()
        batch = make_batch(lm, lm.frozen_copy(), None, found, scores, CONFIG)
        lengths = torch.tensor(lengths_of([one.example for one in found]))
        assert batch.metrics["kl"] == pytest.approx(0, abs=1e-6)
        torch.testing.assert_close(batch.returns_N, scores.repeat_interleave(lengths), atol=1e-6, rtol=0)

    def test_baselines_compare_whole_completions(self) -> None:
        rewards = torch.tensor([0.0, 1.0, 3.0, 0.0, -1.0, 2.0, 5.0])
        lengths, config = [2, 1, 2, 2], replace(PLAIN, group=2)
        totals = {"none": [1, 3, -1, 7], "mean": [-1.5, 0.5, -3.5, 4.5], "leave-one-out": [-2, 2, -8, 8]}
        for baseline, expected in totals.items():
            found = token_advantages(rewards, None, lengths, replace(config, baseline=baseline))
            assert found.tolist() == [x for x, n in zip(expected, lengths, strict=True) for _ in range(n)]
        found = token_advantages(rewards, None, lengths, replace(config, baseline="dr-grpo"))
        assert found.tolist() == [-1, -1, 1, -4, -4, 4, 4]
        found = token_advantages(rewards, None, lengths, replace(config, baseline="grpo"))  # mean length 7 / 4
        assert found.tolist() == pytest.approx([-7 / 8, -7 / 8, 7 / 4, -7 / 8, -7 / 8, 7 / 8, 7 / 8])


class TestStep:
    def test_the_gradient_of_two_tokens_by_hand(self, tiny: Tiny) -> None:
        """One ratio is inside the clip; the other is outside with a positive advantage, and so has no gradient."""
        lm = tiny()
        row = Example((5, 6, 7, 8, 9), 3)
        logp_TV = lm.model(torch.tensor([row.ids])).logits[0].log_softmax(-1)
        chosen = torch.stack([logp_TV[2, 8], logp_TV[3, 9]])
        old = chosen.detach() - torch.tensor([0.05, 0.5])
        ratio = math.exp(0.05)
        names = [name for name, _ in lm.model.named_parameters()]
        expected = dict(zip(names, torch.autograd.grad(2 * ratio * chosen[0] / 2, lm.parameters()), strict=True))
        assert max(float(grad.abs().max()) for grad in expected.values()) > 1e-3
        given = torch.tensor([8, 9]), old, torch.tensor([-2.0, 3.0]), torch.zeros(2)
        batch = Batch([token_slices(lm, [row], 1, 1.0)], *given)
        moved, terms = gradient(lm, batch, replace(PLAIN, clip_coef=0.2))
        assert terms["policy_loss"] == pytest.approx((2 * ratio - 1.2 * 3) / 2, abs=1e-5)
        assert terms["clip_fraction"] == 0.5
        same(expected, moved, atol=1e-5)

    @pytest.mark.parametrize("settings", [{}, {"lora_rank": 2}], ids=["weights", "adapter"])
    def test_slices_change_nothing(self, tiny: Tiny, settings: dict[str, Any]) -> None:
        lm, critic = tiny(**settings), ValueHead(16)
        found = written(lm, draws=2)
        config = replace(PLAIN, baseline="critic", entropy_coef=0.1, kl_coef=0.1, normalise=True)
        batches = [
            make_batch(lm, lm.frozen_copy(), critic, found, torch.arange(12.0), replace(config, minibatch=size))
            for size in (100, 5)
        ]
        whole, terms = gradient(lm, batches[0], config, critic)
        critic.zero_grad()
        sliced, other = gradient(lm, batches[1], config, critic)
        same(whole, sliced, atol=1e-5)
        assert other == pytest.approx(terms, abs=1e-4)
        assert terms["clip_fraction"] == 0 and max(float(moved.abs().max()) for moved in whole.values()) > 1e-4

    def test_a_critic_that_shares_teaches_the_model_too(self, tiny: Tiny) -> None:
        """Without advantages, only the value loss is left: it moves the model if the critic shares, else nothing."""
        lm, critic = tiny(), ValueHead(16, "linear")
        with torch.no_grad():
            critic.out.weight.fill_(0.1)
        config = replace(PLAIN, baseline="critic")
        batch = make_batch(lm, None, critic, written(lm), torch.ones(len(PROMPTS)), config)
        batch.advantages_N = torch.zeros_like(batch.advantages_N)
        still, _ = gradient(lm, batch, config, critic)
        moved, _ = gradient(lm, batch, replace(config, critic_shares=True), critic)
        assert all(not tensor.any() for tensor in still.values())
        assert max(float(tensor.abs().max()) for tensor in moved.values()) > 1e-4

    def test_what_is_rewarded_becomes_likelier(self, tiny: Tiny) -> None:
        lm = tiny()
        found = written(lm, draws=4)
        scores = torch.tensor([1.0 if i % 2 else -1.0 for i in range(len(found))])
        batch = make_batch(lm, None, None, found, scores, PLAIN)
        update(Trainer(lm, [torch.optim.SGD(lm.parameters(), lr=0.1)], 1e9), None, batch, PLAIN, 1)
        again = make_batch(lm, None, None, [one._replace(logprobs=()) for one in found], scores, PLAIN)
        moved = torch.stack(
            [
                part.sum()
                for part in (again.old_logp_N - batch.old_logp_N).split(lengths_of([one.example for one in found]))
            ]
        )
        assert float(moved[scores > 0].mean()) > float(moved[scores < 0].mean())


class TestMinibatches:
    @pytest.mark.parametrize("count", [2, 5, 100])
    @pytest.mark.parametrize("deal", ["steps", "prompts"])
    def test_each_completion_is_whole_in_one_of_them(self, tiny: Tiny, deal: Any, count: int) -> None:
        lm = tiny()
        found = sorted(written(lm, draws=4), key=lambda one: one.example.ids)
        rows = [one.example for one in found]
        config = replace(PLAIN, steps_per_epoch=count, deal=deal, minibatch=3)
        batch = make_batch(lm, None, None, found, torch.zeros(len(rows)), config, np.random.default_rng(0))
        starts = np.cumsum([0, *lengths_of(rows)])
        completions = []
        for minibatch in batch.minibatches:
            units = [unit for part in minibatch for unit in part.units]
            own = sorted({int(np.searchsorted(starts, unit, side="right")) - 1 for unit in units})
            assert units == [unit for i in own for unit in range(starts[i], starts[i + 1])]
            for part in minibatch:  # and their passes read these very tokens
                now_N = part.read()[0].gather(1, batch.labels_N[part.units, None])[:, 0]
                torch.testing.assert_close(now_N, batch.old_logp_N[part.units], atol=1e-5, rtol=0)
            completions.append(own)
        assert sorted(i for own in completions for i in own) == list(range(len(rows)))
        prompts = [{rows[i].ids[: rows[i].start] for i in own} for own in completions]
        if deal == "prompts":
            assert sum(map(len, prompts)) == len(PROMPTS)  # no prompt is in two of them
        else:
            sizes = [len(own) for own in completions]
            assert len(sizes) == min(count, len(rows)) and max(sizes) - min(sizes) <= 1

    def test_together_they_have_the_gradient_of_the_whole_batch(self, tiny: Tiny) -> None:
        """With a vanishing rate, the steps of an epoch add up; each is a mean over its own tokens."""
        lm, scores = tiny(), torch.arange(12.0)
        found = written(lm, draws=2)
        whole, _ = gradient(lm, make_batch(lm, None, None, found, scores, PLAIN), PLAIN)
        config = replace(PLAIN, steps_per_epoch=3)
        batch = make_batch(lm, None, None, found, scores, config, np.random.default_rng(1))
        total = len(batch.labels_N)
        assert len(batch.minibatches) == 3
        parts = [gradient(lm, replace(batch, minibatches=[minibatch]), PLAIN)[0] for minibatch in batch.minibatches]
        sizes = [sum(len(part.units) for part in minibatch) for minibatch in batch.minibatches]
        summed = {
            name: sum(part[name] * size / total for part, size in zip(parts, sizes, strict=True)) for name in whole
        }
        same(whole, summed, atol=1e-5)

    def test_each_is_a_step_of_the_optimiser(self, tiny: Tiny, tmp_path: Path) -> None:
        train(tiny(), replace(CONFIG, steps_per_epoch=3, updates=2), state_folder=tmp_path)
        steps = {int(tensor) for name, tensor in load_tensors(tmp_path)["optimizer0"].items() if name.endswith("step")}
        assert steps == {2 * 2 * 3}  # updates, epochs, minibatches


class TestAdaptiveKL:
    @pytest.mark.parametrize(
        ("kl", "expected"),
        [
            (0.0, 0.2 * (1 - 0.2 * 0.0016)),
            (6.0, 0.2),
            (6.6, 0.2 * (1 + 0.1 * 0.0016)),
            (60.0, 0.2 * (1 + 0.2 * 0.0016)),
        ],
    )
    def test_the_weight_follows_the_distance_from_the_target(self, kl: float, expected: float) -> None:
        """Sixteen completions of a horizon of 10,000, as published; a distance counts up to a fifth."""
        config = RLConfig(adaptive_kl=6.0, adaptive_kl_horizon=10_000)
        assert adapted_kl_coef(0.2, kl, 16, config) == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize(("target", "factor"), [(1e-6, 1.2), (1e6, 0.8)])
    def test_it_grows_far_from_the_reference_and_shrinks_near_it(
        self, tiny: Tiny, target: float, factor: float
    ) -> None:
        log = train(tiny(), replace(CONFIG, adaptive_kl=target, adaptive_kl_horizon=6))
        weights = [line["kl_coef"] for line in log[:-1]]
        # The first completions come from the reference itself, at no distance from it.
        assert weights[:2] == pytest.approx([0.1, 0.08])
        assert [b / a for a, b in pairwise(weights[1:])] == pytest.approx([factor] * 2)

    def test_tokens_pay_by_the_adapted_weight(self, tiny: Tiny) -> None:
        """The same completions of no reward: what they lose by the penalty is proportional to its weight."""
        lm, config = tiny(), replace(PLAIN, kl_coef=0.1, adaptive_kl=1.0)
        rollouts = TextRollouts(lm, PROMPTS, by_nothing, iter_scores(), config, LENGTHS, 0)
        with torch.no_grad():
            for weight in lm.parameters():
                weight += 0.05
        before = rollouts.collect(0, None).advantages_N
        rollouts.load({"scale": {}, "kl_coef": 0.3})
        after = rollouts.collect(0, None).advantages_N
        torch.testing.assert_close(after, 3 * before)
        assert float(before.abs().max()) > 1e-3

    def test_without_a_target_the_weight_stays(self, tiny: Tiny) -> None:
        assert not any("kl_coef" in line for line in train(tiny()))


class TestLoop:
    @pytest.mark.parametrize("baseline", ["critic", "mean", "leave-one-out", "grpo", "dr-grpo"])
    @pytest.mark.parametrize(("kill", "settings"), [(1, {}), (2, {}), (4, {}), (3, {"lora_rank": 2})])
    def test_after_a_kill_it_ends_as_if_uninterrupted(
        self, tiny: Tiny, tmp_path: Path, baseline: Any, kill: int, settings: dict[str, Any]
    ) -> None:
        config = replace(
            CONFIG, baseline=baseline, group=2, steps_per_epoch=2, adaptive_kl=0.01, adaptive_kl_horizon=60
        )
        whole, killed, resumed = tiny(**settings), tiny(**settings), tiny(**settings)

        def evaluate(lm: LanguageModel) -> Callable[[], dict[str, float]]:
            return lambda: {"eval_reward": float(sum(p.detach().abs().sum() for p in lm.parameters()))}

        expected = train(whole, config, evaluate=evaluate(whole))

        def until_killed(line: dict[str, float]) -> None:
            if line["step"] == kill:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            train(killed, config, evaluate=evaluate(killed), log=until_killed, state_folder=tmp_path / "learner")
        rest = train(resumed, config, evaluate=evaluate(resumed), state_folder=tmp_path / "learner")
        assert rest == expected[kill // 2 * 2 :]
        same(resumed.weights(), whole.weights())
        meta = load_meta(tmp_path / "learner")
        assert meta is not None and meta["step"] == 4 and meta["scale"]["count"] == 24
        assert meta["kl_coef"] != config.kl_coef

    def test_every_update_says_what_happened(self, tiny: Tiny) -> None:
        log = train(tiny())
        assert [line["step"] for line in log] == [0, 1, 2, 3, 4]
        assert [line.get("eval_reward") for line in log] == [0.0, None, 1.0, None, 2.0]
        told = {"return", "scaled_reward_std", "kl", "clip_fraction", "entropy", "explained_variance", "length"}
        assert all(told <= line.keys() for line in log[:-1])
        assert log[0]["kl"] == pytest.approx(0, abs=1e-6) and log[-2]["kl"] > 1e-4
        assert 0 < log[0]["length"] <= LENGTHS.completion_tokens
        assert "kl" not in train(tiny(), replace(CONFIG, kl_coef=0.0))[0]

    def test_the_best_scored_weights_are_kept(self, tiny: Tiny) -> None:
        lm, seen, scores = tiny(), [], iter([0.1, 0.9, 0.5, 0.9, 0.3])

        def evaluate() -> dict[str, float]:
            seen.append(lm.weights())
            return {"eval_reward": next(scores)}

        train(lm, replace(CONFIG, eval_every=1), evaluate=evaluate)
        same(lm.weights(), seen[3])  # the later of equals

    def test_an_adapter_learns_and_its_backbone_stays(self, tiny: Tiny) -> None:
        lm = tiny(lora_rank=2)
        before = lm.weights()
        base = {n: p.clone() for n, p in lm.model.named_parameters() if not p.requires_grad}
        train(lm)
        same(base, dict(lm.model.named_parameters()))
        assert any(not torch.equal(tensor, before[name]) for name, tensor in lm.weights().items())


@pytest.fixture(scope="module")
def waiter(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], LanguageModel]:
    """A tiny model that has begun to imitate the logged waiter."""
    folder = tmp_path_factory.mktemp("waiter") / "model"
    logged = list(orders(120, 2, "train", 0))
    texts = [part for sample in logged for part in (sample.prompt, sample.completion)]
    model = ModelConfig(layers=1, width=48, heads=2, context=96, vocab=400, mixed_precision="off", device="cpu")
    save_scratch(folder, model, texts, 0, seed=1)
    lm = load_model(folder, model, "policy")
    data = text_dataset(lm, logged, OfflineConfig(prompt_tokens=60, completion_tokens=30))
    rows: Any = data.completions
    sft = SFTConfig(steps=200, batch_size=16, lr=1e-2, eval_every=200, eval_rows=8)
    train_sft(lm, rows.examples, rows.examples[:8], sft, 0, lambda _: None)
    weights = lm.weights()

    def fresh() -> LanguageModel:
        lm.load_weights(weights)
        return lm

    return fresh


@pytest.mark.parametrize("baseline", ["critic", "leave-one-out"])
def test_a_waiter_learns_to_please(waiter: Callable[[], LanguageModel], baseline: Any) -> None:
    """Mean reward of the first and the last updates, apart by many standard errors of single completions."""
    reward = build({"order_relevance": 0.5, "order_politeness": 0.25, "order_economy": 0.25})
    prompts, kept = list(orders(120, 1, "train", 0)), list[list[float]]()

    def label(samples: Sequence[Sample]) -> list[Sample]:
        found = reward.label(samples)
        kept.append([sample.reward for sample in found])
        return found

    config = replace(
        CONFIG, baseline=baseline, updates=20, episodes=32, group=4, update_epochs=4, lr=1e-3, eval_every=100
    )
    config = replace(config, minibatch=32, clip_coef=0.2, kl_coef=0.05)
    lengths = OfflineConfig(prompt_tokens=60, completion_tokens=24)
    train_online_text(waiter(), prompts, label, iter_scores(), config, lengths, 0, lambda _: None)
    first, last = (np.concatenate(part) for part in (kept[:5], kept[-5:]))
    error = math.hypot(first.std() / len(first) ** 0.5, last.std() / len(last) ** 0.5)
    assert last.mean() - first.mean() > max(0.05, 4 * error), (first.mean(), last.mean(), error)


@pytest.mark.parametrize("key", ["rl.refills", "rl.critic_epochs"])
def test_what_only_episodes_have_is_refused(key: str, tmp_path: Path, capsys: Any) -> None:
    more = ["--rl.group", "2", "--rl.baseline", "dr-grpo"] if key == "rl.refills" else []
    assert main(["run", "orders", f"--{key}", "2", *more, "--folder", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert f"{key} is for agents" in err and err.count("\n") == 1
