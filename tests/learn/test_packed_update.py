"""Updates that encode an episode once against those that encode every step, and how many tokens that takes."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reflectrl.core.config import RLConfig, SFTConfig
from reflectrl.core.envs.base import Outcome, TextEnv
from reflectrl.core.envs.teacher import Teacher
from reflectrl.core.episodes import ChoiceRow, from_line, to_line
from reflectrl.core.players import AnalystPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Episode, Sampling, Task
from reflectrl.learn import minibatches
from reflectrl.learn.examples import choice_examples, evaluate_loss
from reflectrl.learn.losses import entropy
from reflectrl.learn.minibatches import make_batch
from reflectrl.learn.online import train_online, update
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.learn.sft import train_sft
from reflectrl.learn.steps import Steps, flatten, policy_pass
from reflectrl.learn.trainer import Trainer
from reflectrl.learn.value import ValueHead
from reflectrl.models.backend import Counters, Scoring
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import Policy
from reflectrl.models.sharing import no_sharing, pack
from tests.device import ON_GPU

Pair = Callable[..., tuple[LanguageModel, LanguageModel]]
FAMILIES = ("gpt2", "llama", "mistral", "qwen2")
both = pytest.mark.parametrize(
    ("family", "adapters"), [(family, adapters) for family in FAMILIES for adapters in (False, True)]
)


class Optimist(Teacher):
    def expert_action(self, env: Any) -> int:
        return 0

    def analyse(self, env: Any) -> str:
        return f"Day {len(env.days)} is fine. " * (1 + len(env.days) % 3)


class Diary(TextEnv):
    """Each day adds a line of at least 16 tokens to the history; "look" pays, and a lucky day offers more to do."""

    stages: ClassVar[tuple[str, ...]] = ("full",)
    teacher = Optimist()

    def __init__(self, horizon: int = 8) -> None:
        super().__init__(horizon)

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        return [Task(f"{split}-{i}", "diary", {"lucky": i}, split) for i in range(4)]

    def begin(self, task: Task) -> None:
        self.days: tuple[str, ...] = ()

    def apply(self, action: str) -> Outcome:
        self.days = (*self.days, action)
        won = len(self.days) == self.horizon
        return Outcome(1.0 if action == "look" else -0.2, terminated=won, success=won and self.days.count("look") > 1)

    def history(self) -> str:
        tide = self.task.payload["lucky"]
        return "".join(
            f"Day {i} at tide {tide}: we chose to {day} and saw the sea.\n" for i, day in enumerate(self.days)
        )

    def state(self) -> str:
        return f"Now it is day {len(self.days)}.\n"

    def legal_actions(self) -> Sequence[str]:
        more = ("look north", "look north again") if len(self.days) % 4 == self.task.payload["lucky"] else ()
        return ("look", "north", *more)

    def get_state(self) -> Any:
        return self.days

    def set_state(self, state: Any) -> None:
        self.days = state


def play(policy: Policy, count: int = 3, horizon: int = 5) -> list[Episode]:
    tasks = Diary().tasks("train")
    jobs = [Job(tasks[i % 4], i) for i in range(count)]
    return list(rollout(jobs, lambda: Diary(horizon), policy, AnalystPlayer()))


def gradient(lm: LanguageModel, loss: Tensor) -> list[Tensor]:
    found = torch.autograd.grad(loss, lm.parameters(), allow_unused=True)
    return [torch.zeros_like(p) if one is None else one for p, one in zip(lm.parameters(), found, strict=True)]


def distance(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Norm of the difference over the norm."""
    difference = sum(float((a - b).double().square().sum()) for a, b in zip(one, other, strict=True))
    return float((difference / sum(float(b.double().square().sum()) for b in other)) ** 0.5)


def policy_loss(policy: Policy, batch: Steps, index: Sequence[int], packing: Any) -> Tensor:
    """A policy gradient with an entropy bonus, and advantages of both signs."""
    logp_NA, _ = policy_pass(policy, batch, index, packing)
    chosen_N = logp_NA.gather(1, batch.labels_N[index][:, None].to(logp_NA.device))[:, 0]
    advantages_N = torch.linspace(-1, 1.7, len(index), device=logp_NA.device)
    return -(chosen_N * advantages_N).mean() - 0.1 * entropy(logp_NA).mean()


# ---- exactness -------------------------------------------------------------------------------------------------------


@both
@settings(max_examples=4, deadline=None)
@given(
    count=st.integers(1, 4),
    horizon=st.integers(1, 6),
    shuffle=st.booleans(),
    scoring=st.sampled_from(get_args(Scoring)),
)
def test_the_packed_gradient_is_the_step_by_step_gradient(
    pair: Pair, family: str, adapters: bool, count: int, horizon: int, shuffle: bool, scoring: Scoring
) -> None:
    lm = pair(family, adapters)[0]
    policy = Policy(lm, Sampling(1.3), shuffle, scoring=scoring)
    batch = flatten(policy, play(policy, count, horizon), 1.0)
    index = [*range(len(batch))][::-1]
    packed, stepwise = (policy_pass(policy, batch, index, packing) for packing in (pack, no_sharing))
    torch.testing.assert_close(packed[0], stepwise[0], atol=1e-4, rtol=0)
    torch.testing.assert_close(packed[1], stepwise[1], atol=1e-4, rtol=0)
    torch.testing.assert_close(entropy(packed[0]), entropy(stepwise[0]), atol=1e-4, rtol=0)
    critic = ValueHead(lm.hidden_size).to(lm.device)
    torch.testing.assert_close(critic(packed[1]), critic(stepwise[1]), atol=1e-4, rtol=0)
    chosen_N = packed[0].cpu().gather(1, batch.labels_N[index][:, None])[:, 0]
    torch.testing.assert_close(chosen_N, batch.old_logp_N[index], atol=1e-4, rtol=0)  # ratios are 1
    found, expected = (gradient(lm, policy_loss(policy, batch, index, packing)) for packing in (pack, no_sharing))
    assert distance(found, expected) < 1e-4


@both
def test_they_agree_when_histories_outgrow_the_context(pair: Pair, family: str, adapters: bool) -> None:
    lm = pair(family, adapters)[0]
    policy = Policy(lm)
    batch = flatten(policy, play(policy, 2, 14), 1.0)
    whole = lm.encode(Diary.history(_finished(14)))
    assert len(whole) > lm.context, "the test needs more than one cut"
    index = [*range(len(batch))]
    found, expected = (gradient(lm, policy_loss(policy, batch, index, packing)) for packing in (pack, no_sharing))
    assert distance(found, expected) < 1e-4


def _finished(days: int) -> Diary:
    env = Diary(days)
    env.reset(seed=0, options={"task": env.tasks("train")[0]})
    for _ in range(days):
        env.step(0)
    return env


@pytest.fixture
def stepwise(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Call it, and updates encode every step by itself."""

    def every_step(policy: Policy, batch: Steps, index: Sequence[int]) -> tuple[Tensor, Tensor]:
        return policy_pass(policy, batch, index, no_sharing)

    yield lambda: monkeypatch.setattr(minibatches, "policy_pass", every_step)


@pytest.mark.parametrize("scoring", ["enumeration", "token"])
@both
def test_a_whole_update_is_the_same_packed_or_step_by_step(
    pair: Pair, stepwise: Callable[[], None], family: str, adapters: bool, scoring: Scoring
) -> None:
    """Critic, reference and slices of several episodes included."""
    lm, kept = pair(family, adapters)[0], pair(family, adapters)[0].weights()
    policy = Policy(lm, scoring=scoring)
    batch = flatten(policy, play(policy), 1.0)
    config = RLConfig(baseline="critic", minibatch=6, kl_coef=0.1, max_grad_norm=1e9)
    results = []
    for way in (lambda: None, stepwise):
        way()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            critic = ValueHead(lm.hidden_size, "mlp").to(lm.device)
        reference = Policy(lm.frozen_copy(), scoring=scoring)
        reference.lm.load_weights({name: 0.9 * weight for name, weight in reference.lm.weights().items()})
        parameters = [*lm.parameters(), *critic.parameters()]
        trainer = Trainer(lm, [torch.optim.SGD(parameters, 0.01)], config.max_grad_norm, parts={"critic": critic})
        metrics = update(trainer, critic, make_batch(policy, reference, critic, batch, config, 0.3), config, 1)
        moved = [*lm.weights().values(), *critic.state_dict().values()]
        results.append((metrics, [now.clone() for now in moved]))
        lm.load_weights(kept)
    packed, reference_way = results
    assert packed[0] == pytest.approx(reference_way[0], rel=1e-4, abs=1e-5)
    assert packed[0]["kl"] > 0 and packed[0]["grad_norm"] > 0
    steps = [[now - old for now, old in zip(moved, kept.values(), strict=False)] for _, moved in results]
    assert distance(*steps) < 1e-3  # differences of weights are rounded
    for one, other in zip(packed[1], reference_way[1], strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


# ---- tokens ----------------------------------------------------------------------------------------------------------


shares_everything = pytest.mark.skipif(ON_GPU, reason="GPUs share only what halves the tokens of a pass")


def roomy(lm: LanguageModel) -> LanguageModel:
    """The same player where nothing needs to be cut, with counters of its own."""
    return replace(lm, context=2048, counters=Counters())


@both
def test_an_update_encodes_each_history_once_and_every_suffix(pair: Pair, family: str, adapters: bool) -> None:
    lm = roomy(pair(family, adapters)[0])
    policy = Policy(lm)
    episodes = play(policy, 3, 9)
    batch, expected = flatten(policy, episodes, 1.0), 0
    for episode, span in zip(episodes, batch.spans(), strict=True):
        pasts = [len(lm.encode(step.observation.history)) for step in episode.steps]
        lengths = [len(prompt) for prompt in batch.prompts[span]]
        before = lm.counters.copy()
        policy_pass(policy, batch, range(len(batch))[span])
        counted = lm.counters.since(before)
        needed = pasts[-1] + sum(lengths) - sum(pasts)
        assert (counted.passes, counted.encoded, counted.reused) == (1, needed, sum(pasts) - pasts[-1])
        expected += needed
    before = lm.counters.copy()
    policy_pass(policy, batch, range(len(batch)))
    counted = lm.counters.since(before)
    assert counted.encoded <= expected
    assert counted.encoded + counted.reused == sum(map(len, set(batch.prompts)))  # equal ones are one


@shares_everything
def test_an_update_costs_as_many_tokens_per_step_late_as_early(pair: Pair) -> None:
    """And as many query-key pairs more as the step has new tokens, times what they see."""
    lm = roomy(pair("gpt2")[0])
    policy = Policy(lm)
    [episode] = play(policy, 1, 35)
    batch, tallies = flatten(policy, [episode], 1.0), []
    for steps in range(1, len(batch) + 1):
        before = lm.counters.copy()
        with torch.no_grad():
            policy_pass(policy, batch, range(steps))
        tallies.append(lm.counters.since(before))
    pasts = [len(lm.encode(step.observation.history)) for step in episode.steps]
    for t in range(1, len(batch)):
        suffix, grown = len(batch.prompts[t]) - pasts[t], pasts[t] - pasts[t - 1]
        assert tallies[t].encoded - tallies[t - 1].encoded == grown + suffix
        seen = (pasts[t - 1] + 1 + len(batch.prompts[t])) * (grown + suffix) // 2
        assert tallies[t].pairs - tallies[t - 1].pairs == seen


@shares_everything
@pytest.mark.parametrize("family", FAMILIES)
def test_slices_of_an_update_encode_a_history_once_each(pair: Pair, family: str) -> None:
    """Prompts of one episode stand together, so a history is read once more at most where a slice ends."""
    lm = roomy(pair(family)[0])
    policy = Policy(lm)
    batch = flatten(policy, play(policy, 3, 9), 1.0)
    histories = [max(map(len, batch.prompts[span])) for span in batch.spans()]
    kept = lm.weights()
    lm.counters.encoded = 0
    config = RLConfig(baseline="mean", minibatch=7, kl_coef=0.0)
    trainer = Trainer(lm, [torch.optim.SGD(lm.parameters(), 1e-6)], config.max_grad_norm)
    update(trainer, None, make_batch(policy, None, None, batch, config, 0.0), config, 1)
    lm.load_weights(kept)
    alone = 0
    with torch.no_grad():
        for span in batch.spans():
            before = lm.counters.encoded
            policy_pass(policy, batch, range(len(batch))[span])
            alone += lm.counters.encoded - before
            lm.counters.encoded = before
    cuts = -(-len(batch) // config.minibatch) - 1
    assert lm.counters.encoded <= alone + cuts * max(histories)


# ---- policies that score texts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scoring", "adapters"), [*zip(get_args(Scoring), [True, False] * 3, strict=False)])
def test_a_policy_learns_by_sft_and_by_rl_however_it_scores(pair: Pair, scoring: Scoring, adapters: bool) -> None:
    lm = replace(pair("llama", adapters)[0])  # a head that scores options stays in this copy
    if scoring == "options":
        lm.ensure_option_head()
    kept = lm.weights()
    try:
        policy = Policy(lm, scoring=scoring)
        episodes = play(policy, 4, 4)
        assert [from_line(to_line(episode)) for episode in episodes] == episodes
        rows = [ChoiceRow(step.observation, step.reflection, 0) for e in episodes for step in e.steps]
        examples = choice_examples(policy, rows, 0)
        for example in examples if scoring != "options" else ():
            answer = lm.tokenizer.decode(example.ids[example.start :], skip_special_tokens=True)
            assert answer == (" 1" if scoring == "enumeration" else " look")
        before = evaluate_loss(lm, examples, 8)
        quick = SFTConfig(steps=20, batch_size=8, lr=1e-2, warmup=0.0, eval_every=10)
        train_sft(lm, examples, examples, quick, 0, lambda _: None)
        policy.clear_cache()
        assert evaluate_loss(lm, examples, 8) < 0.5 * before
        assert _probability(policy) > 0.5
        lm.load_weights(kept)
        config = RLConfig(updates=8, episodes=8, lr=3e-3, max_grad_norm=1.0, eval_every=8, eval_episodes=2, kl_coef=0.0)
        policy.clear_cache()
        unlearned, log = _probability(policy), []
        train_online(EpisodeRollouts(policy, AnalystPlayer(), lambda: Diary(3), config, 0), config, 0, log.append)
        assert len(log) == 9 and all(math.isfinite(line["loss"]) for line in log[:-1])  # type: ignore[arg-type]
        assert _probability(Policy(lm, scoring=scoring)) > unlearned + 0.3
    finally:
        lm.load_weights(kept)


def _probability(policy: Policy) -> float:
    """Mean probability of "look"."""
    steps = [step for episode in play(policy, 4, 3) for step in episode.steps]
    return float(sum(step.choice.probs[0] for step in steps if step.choice) / len(steps))
