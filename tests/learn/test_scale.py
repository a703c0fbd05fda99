"""The size of what an update learns: nothing is blown up where nothing is left to learn, and the critic's targets."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reflectrl.core.config import RLConfig
from reflectrl.learn.batch import Batch, Slice
from reflectrl.learn.losses import normalise, rewards_to_go
from reflectrl.learn.online import update
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.learn.steps import flatten
from reflectrl.learn.trainer import Trainer
from reflectrl.learn.value import ValueHead
from reflectrl.models.players import Policy

CONFIG = RLConfig(algorithm="reinforce", entropy_coef=0.0, kl_coef=0.0, max_grad_norm=1e9)


def moved_by(advantages: list[float], scale: float = 0.0) -> Tensor:
    """Return how far a step of plain gradient descent moves the logits of two actions, of which the first was chosen.

    All steps share the logits (0, 0), so each adds advantage / N times (1/2, -1/2). Returns are 1 everywhere.
    """
    model = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(model.weight)
    count = len(advantages)

    def read() -> tuple[Tensor, Tensor]:
        logits_NA = model(torch.ones(count, 1))
        return logits_NA.log_softmax(-1), torch.zeros(count, 1)

    nothing_N = torch.zeros(count)
    minibatches = [[Slice(list(range(count)), read)]]
    batch = Batch(minibatches, nothing_N.long(), nothing_N, torch.tensor(advantages), torch.ones(count), scale=scale)
    update(Trainer(model, [torch.optim.SGD(model.parameters(), lr=1.0)], 1e9), None, batch, CONFIG, epochs=1)
    return model.weight.detach()[:, 0]


def test_gains_that_are_nearly_nothing_move_nearly_nothing() -> None:
    """One gain of 0.001 among 100 steps: the root mean square is 0.0001, so that the gain used to count as 10."""
    gains = [0.001] + [0.0] * 99
    assert float(normalise(torch.tensor(gains))[0]) == pytest.approx(10.0)
    # Fresh episodes had advantages of size 0.5: the gain is 0.002 in their unit, and 1 of 100 steps.
    expected = 0.001 / 0.5 / 100 / 2
    assert moved_by(gains, scale=0.5).tolist() == pytest.approx([expected, -expected])


def test_without_fresh_advantages_a_thousandth_of_the_returns_is_the_least_unit() -> None:
    gains = [0.001] + [0.0] * 99
    expected = 0.001 / 0.001 / 100 / 2
    assert moved_by(gains).tolist() == pytest.approx([expected, -expected])
    rounding = [1e-7, -1e-7] * 50
    assert moved_by([*rounding[:99], 0.0]).abs().max() < 1e-6


def test_ordinary_advantages_are_still_brought_to_unit_size() -> None:
    assert moved_by([3.0, -1.0, 1.0, 1.0]).tolist() == pytest.approx([0.5 / 3**0.5, -0.5 / 3**0.5])
    # The larger of the two sizes counts: a past win that is a surprise is not enlarged by dull fresh episodes.
    assert torch.equal(moved_by([3.0, -1.0, 1.0, 1.0], scale=0.1), moved_by([3.0, -1.0, 1.0, 1.0]))


def rollouts(tiny: Callable[..., Any], make_rooms: Any, **settings: Any) -> EpisodeRollouts:
    config = RLConfig(baseline="critic", episodes=12, kl_coef=0.0, curriculum="none", gamma=0.9, **settings)
    return EpisodeRollouts(Policy(tiny()), None, make_rooms, config, seed=3)


def test_replayed_wins_are_measured_in_the_unit_of_fresh_episodes(tiny: Any, make_rooms: Any) -> None:
    playing, critic = rollouts(tiny, make_rooms, self_imitation=True), ValueHead(16)
    fresh = playing.collect(0, critic)
    past = playing.replay(critic)
    assert past is not None
    assert past.scale == pytest.approx(float(fresh.advantages_N.square().mean().sqrt())) and fresh.scale == 0.0


@pytest.mark.parametrize("gae_lambda", [0.0, 0.5, 1.0])
def test_the_critic_learns_lambda_returns(tiny: Any, make_rooms: Any, gae_lambda: float) -> None:
    """G_t = r_t + gamma ((1 - lambda) V_{t+1} + lambda G_{t+1}), from the last step backwards."""
    playing, critic = rollouts(tiny, make_rooms, gae_lambda=gae_lambda), ValueHead(16)
    with torch.no_grad():
        critic.out.bias.fill_(0.3)  # the critic expects 0.3 everywhere
    batch = playing.collect(0, critic)
    steps, expected = flatten(playing.policy, playing.latest.learned, 0.9), []
    for span in steps.spans():
        later = 0.0
        targets = []
        for n in reversed(range(span.start, span.stop)):
            last = n == span.stop - 1
            later = float(steps.rewards_N[n]) + (0.0 if last else 0.9 * ((1 - gae_lambda) * 0.3 + gae_lambda * later))
            targets.append(later)
        expected += reversed(targets)
    torch.testing.assert_close(batch.returns_N, torch.tensor(expected))
    if gae_lambda == 1.0:
        whole = torch.cat([rewards_to_go(steps.rewards_N[span], 0.9) for span in steps.spans()])
        torch.testing.assert_close(batch.returns_N, whole)


def test_self_imitation_still_compares_whole_returns(tiny: Any, make_rooms: Any) -> None:
    playing, critic = rollouts(tiny, make_rooms, self_imitation=True, gae_lambda=0.0), ValueHead(16)
    playing.collect(0, critic)
    past = playing.replay(critic)
    assert past is not None and past.values_N is not None
    # An untrained critic expects 0. Wins of two rooms return 0.5 + 0.9 * 0.5, then 0.5.
    assert {round(gain, 6) for gain in past.advantages_N.tolist()} == {0.95, 0.5}
