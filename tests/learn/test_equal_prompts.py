"""Steps with equal prompts are computed once: the update is what it would be if each were computed by itself."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from reflectrl.core.config import RLConfig
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Episode
from reflectrl.learn import minibatches
from reflectrl.learn.losses import restricted_log_softmax
from reflectrl.learn.minibatches import assign_minibatches, make_batch
from reflectrl.learn.online import update
from reflectrl.learn.steps import Steps, flatten, policy_pass
from reflectrl.learn.trainer import Trainer
from reflectrl.learn.value import ValueHead
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import Policy
from reflectrl.models.sharing import no_sharing

PPO = RLConfig(algorithm="ppo", baseline="critic", gae_lambda=0.9, minibatch=3, max_grad_norm=1e9, kl_coef=0.0)
SETTINGS = {
    "reinforce, KL": RLConfig(minibatch=3, kl_coef=0.3, max_grad_norm=1e9),
    "ppo, critic": PPO,
    "ppo, critic, 4 minibatches, KL": replace(PPO, steps_per_epoch=4, kl_coef=0.3),
    "ppo, critic, prompts dealt to 4 minibatches": replace(PPO, steps_per_epoch=4, deal="prompts"),
}
each_setting = pytest.mark.parametrize("config", SETTINGS.values(), ids=SETTINGS)


def play(policy: Policy, make_rooms: Any, count: int = 24) -> list[Episode]:
    tasks = make_rooms().tasks("train")
    return list(rollout([Job(tasks[i % len(tasks)], i) for i in range(count)], make_rooms, policy))


def each_by_itself(policy: Policy, steps: Steps, index: Sequence[int]) -> tuple[Tensor, Tensor]:
    """`policy_pass` as its definition has it: a block of its own for every step."""
    listed = [steps.actions[i] for i in index]
    logits_NA, hidden_ND = policy.logits(no_sharing([steps.prompts[i] for i in index]), listed)
    counts_N = torch.tensor([len(actions) for actions in listed])
    legal_NA = torch.arange(logits_NA.shape[1])[None] < counts_N[:, None]
    return restricted_log_softmax(logits_NA / policy.sampling.temperature, legal_NA), hidden_ND


def learn(lm: LanguageModel, steps: Steps, config: RLConfig, epochs: int = 1) -> tuple[dict[str, float], list[Tensor]]:
    """The metrics of an update, and what it adds to the weights of policy and critic. The model stays as it was."""
    kept, policy = lm.weights(), Policy(lm)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        critic = ValueHead(lm.hidden_size, "mlp") if config.baseline == "critic" else None
        if critic is not None:
            torch.nn.init.normal_(critic.out.weight)
    reference = Policy(lm.frozen_copy()) if config.kl_coef else None
    if reference is not None:
        reference.lm.load_weights({name: 0.9 * weight for name, weight in kept.items()})
    before = [w.clone() for w in (*kept.values(), *(critic.state_dict().values() if critic else ()))]
    parameters = [*lm.parameters(), *(critic.parameters() if critic else ())]
    trainer = Trainer(
        lm, [torch.optim.SGD(parameters, 0.01)], config.max_grad_norm, parts={"critic": critic} if critic else {}
    )
    batch = make_batch(policy, reference, critic, steps, config, 0.3, np.random.default_rng(0))
    metrics = update(trainer, critic, batch, config, epochs)
    after = [*lm.weights().values(), *(critic.state_dict().values() if critic else ())]
    moved = [now - then for now, then in zip(after, before, strict=True)]
    lm.load_weights(kept)
    return metrics, moved


def require_equal(one: tuple[dict[str, float], list[Tensor]], other: tuple[dict[str, float], list[Tensor]]) -> None:
    assert one[0] == pytest.approx(other[0], rel=1e-4, abs=1e-5)
    assert max(float(part.abs().max()) for part in one[1]) > 1e-4
    for mine, its in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(mine, its, atol=2e-6, rtol=1e-3)


@each_setting
def test_an_update_is_that_of_every_step_by_itself(
    tiny: Callable[..., LanguageModel], make_rooms: Any, monkeypatch: pytest.MonkeyPatch, config: RLConfig
) -> None:
    lm = tiny()
    steps = flatten(Policy(lm), play(Policy(lm), make_rooms), config.gamma)
    assert len(set(steps.prompts)) < 0.5 * len(steps)
    merged = learn(lm, steps, config, 2 if config.algorithm == "ppo" else 1)
    monkeypatch.setattr(minibatches, "policy_pass", each_by_itself)
    require_equal(merged, learn(lm, steps, config, 2 if config.algorithm == "ppo" else 1))


def test_episodes_that_come_again_change_and_cost_nothing(tiny: Callable[..., LanguageModel], make_rooms: Any) -> None:
    """All losses are means over the steps."""
    lm = tiny()
    episodes = play(Policy(lm), make_rooms, 6)
    found, encoded = [], []
    for times in (1, 5):
        before = lm.counters.encoded
        found.append(learn(lm, flatten(Policy(lm), episodes * times, 1.0), PPO))
        encoded.append(lm.counters.encoded - before)
    require_equal(*found)
    assert encoded[0] == encoded[1] > 0


@pytest.mark.parametrize("dealt", ["steps", "prompts"])
def test_slices_hold_so_many_prompts_and_epochs_every_step(
    tiny: Callable[..., LanguageModel], make_rooms: Any, dealt: Any
) -> None:
    policy = Policy(tiny())
    steps = flatten(policy, play(policy, make_rooms), 1.0)
    config = RLConfig(minibatch=2, steps_per_epoch=3, deal=dealt)
    batch = make_batch(policy, None, None, steps, config, 0.0, np.random.default_rng(1))
    assert len(batch.minibatches) == 3
    assert sorted(i for slices in batch.minibatches for part in slices for i in part.units) == [*range(len(steps))]
    for slices in batch.minibatches:
        prompts = [{steps.prompts[i] for i in part.units} for part in slices]
        assert [len(of) for of in prompts[:-1]] == [2] * (len(prompts) - 1) and 1 <= len(prompts[-1]) <= 2
        assert len(set().union(*prompts)) == sum(map(len, prompts))  # none is computed twice
    minibatches = [{steps.prompts[i] for part in slices for i in part.units} for slices in batch.minibatches]
    apart_from_each_other = len(set().union(*minibatches)) == sum(map(len, minibatches))
    assert apart_from_each_other == (dealt == "prompts")


@given(
    prompts=st.lists(st.integers(0, 9), min_size=1, max_size=60),
    count=st.integers(2, 8),
    seed=st.integers(0, 99),
    dealt=st.sampled_from(["steps", "prompts"]),
)
def test_every_step_is_dealt_out_once(prompts: list[int], count: int, seed: int, dealt: Any) -> None:
    prompt_N = np.unique(prompts, return_inverse=True)[1]
    config = RLConfig(steps_per_epoch=count, deal=dealt)
    shares = assign_minibatches(prompt_N, config, np.random.default_rng(seed))
    assert 1 <= len(shares) <= count and all(len(share) for share in shares)
    assert sorted(np.concatenate(shares).tolist()) == [*range(len(prompts))]
    if dealt == "prompts":
        of = [set(prompt_N[share].tolist()) for share in shares]
        assert sum(map(len, of)) == len(set(prompts))
        largest = int(np.bincount(prompt_N).max())
        assert all(len(share) < len(prompts) / count + largest for share in shares)


def test_learning_has_the_precision_of_play(tiny: Callable[..., LanguageModel], make_rooms: Any) -> None:
    lm = tiny(mixed_play="on")
    mixed, exact = Policy(lm), Policy(replace(lm, mixed_play="off"))
    steps = flatten(mixed, play(mixed, make_rooms), 1.0)
    logp_NA, _ = policy_pass(mixed, steps, range(len(steps)))
    chosen_N = logp_NA.gather(1, steps.labels_N[:, None])[:, 0]
    torch.testing.assert_close(chosen_N, steps.old_logp_N, atol=0.02, rtol=0)
    other_NA, _ = policy_pass(exact, steps, range(len(steps)))
    assert not torch.equal(other_NA, logp_NA)
    torch.testing.assert_close(other_NA, logp_NA, atol=0.05, rtol=0)
    logp_NA[:, 0].sum().backward()
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in lm.parameters())
