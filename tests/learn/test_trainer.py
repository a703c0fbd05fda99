"""The trainer under all loops: what a step does, which weights are kept, and that a state brings everything back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from reflectrl.core.config import RLConfig
from reflectrl.core.types import UserError
from reflectrl.learn.batch import Batch, Rollouts
from reflectrl.learn.checkpoint import load_meta, load_state
from reflectrl.learn.trainer import Log, Trainer, Verdict
from reflectrl.learn.value import ValueHead
from reflectrl.models.lm import LanguageModel


def made(folder: Path | None = None, clip: float | None = None) -> tuple[nn.Linear, nn.Linear, Trainer]:
    """A model and a critic, always with the same weights, and their trainer."""
    torch.manual_seed(0)
    model, critic = nn.Linear(3, 1), nn.Linear(3, 1)
    optimizers = [torch.optim.AdamW(part.parameters(), lr=0.1) for part in (model, critic)]
    return model, critic, Trainer(model, optimizers, clip, folder, {"critic": critic})


def step(model: nn.Linear, critic: nn.Linear, trainer: Trainer, scale: float = 1.0) -> dict[str, float]:
    x = torch.arange(6.0).view(2, 3) + trainer.step
    loss = model(x).square().mean()
    (loss + scale * critic(x).square().mean()).backward()
    trainer.step += 1
    return trainer.update({"loss": float(loss.detach())})


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_a_saved_state_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    model, critic, trainer = made()
    for _ in range(6):
        step(model, critic, trainer)
    first = made(tmp_path / "learner")
    for _ in range(3):
        step(*first)
    first[2].keep_if_best((0.5, 2.0))
    best = {name: tensor.clone() for name, tensor in first[0].state_dict().items()}
    first[2].keep_if_best((0.4, 9.0))
    first[2].save(logged=3, scale=[1, 2])
    assert load_meta(tmp_path / "learner") == {
        "step": 3,
        "stale": 1,
        "best": [0.5, 2.0],
        "rate": 1.0,
        "stopped": False,
        "logged": 3,
        "scale": [1, 2],
    }
    saved = load_state(tmp_path / "learner")
    assert saved is not None and set(saved[0]) == {"weights", "critic", "best", "optimizer0", "optimizer1"}

    resumed = made(tmp_path / "learner")
    again = resumed[2]
    assert (again.step, again.stale, again.best) == (3, 1, (0.5, 2.0))
    assert again.resumed is not None and again.resumed["scale"] == [1, 2]
    for _ in range(3):
        step(*resumed)
    assert same(resumed[0], model) and same(resumed[1], critic)
    again.finish()
    assert all(torch.equal(tensor, best[name]) for name, tensor in resumed[0].state_dict().items())


def test_a_state_without_one_of_its_parts_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "learner"
    model, critic, _ = made()
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.1)]
    Trainer(model, optimizers, None, folder).save(logged=0)
    with pytest.raises(UserError, match=r"learner holds the state .* \(without critic\); remove it"):
        Trainer(model, optimizers, None, folder, {"critic": critic})


def test_without_a_state_it_begins(tmp_path: Path) -> None:
    for folder in (None, tmp_path / "absent"):
        trainer = made(folder)[2]
        assert (trainer.step, trainer.resumed) == (0, None)
    made()[2].save(logged=0)
    assert list(tmp_path.iterdir()) == []


def test_the_last_of_equal_scores_is_kept_and_nan_is_none() -> None:
    model, critic, trainer = made()
    kept = []
    for score in (float("nan"), 0.3, 0.3, 0.2):
        step(model, critic, trainer)
        kept.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        trainer.keep_if_best((score,))
    assert (trainer.best, trainer.stale) == ((0.3,), 2)
    trainer.finish()
    assert torch.equal(model.weight, kept[2]["weight"])


def test_a_critic_that_is_far_off_does_not_starve_the_policy() -> None:
    norms = [step(*made(clip=1e-3), scale=scale)["grad_norm"] for scale in (1.0, 1e6)]
    assert norms[0] == norms[1] > 1e-3
    assert "grad_norm" not in step(*made())


def test_what_was_noted_is_averaged_since_the_last_time() -> None:
    model, critic, trainer = made()
    losses = [step(model, critic, trainer)["loss"] for _ in range(5)]
    assert trainer.means() == {"loss": pytest.approx(sum(losses) / 5)}
    last = step(model, critic, trainer)["loss"]
    assert trainer.means() == {"loss": last}


class Numbers(Rollouts):
    """Batches that depend on what was collected before, as those of a curriculum do."""

    def __init__(self, model: nn.Linear, config: RLConfig) -> None:
        super().__init__(cast(LanguageModel, model), config, seed=0)
        self.model, self.collected, self.closed = model, 0.0, False

    def evaluate(self) -> dict[str, float]:
        return {"eval": -abs(self.model(torch.ones(3)).item() - 1.0)}

    def collect(self, update: int, critic: ValueHead | None) -> Batch:
        self.collected = 0.5 * self.collected + update + 1
        nothing = torch.zeros(0)
        return Batch([], nothing, nothing, nothing, nothing, metrics={"collected": self.collected})

    def end_update(self) -> dict[str, float]:
        return {"ended": self.collected}

    def state(self) -> dict[str, Any]:
        return {"collected": self.collected}

    def load(self, state: Mapping[str, Any]) -> None:
        self.collected = state["collected"]

    def close(self) -> None:
        self.closed = True


class Steps:
    """A further part of a method's state."""

    taken = 0

    def state(self) -> int:
        return self.taken

    def load(self, state: int) -> None:
        self.taken = state


UPDATES = RLConfig(updates=5, eval_every=2, kl_coef=0.0)


def learn(log: Log, folder: Path | None = None) -> tuple[nn.Linear, Numbers, Steps]:
    """A method as its author writes it: collect, learn, report."""
    model, critic, trainer = made(folder)
    rollouts, steps = Numbers(model, UPDATES), Steps()
    for metrics in trainer.updates(rollouts, UPDATES, log, {"taken": steps}):
        metrics |= rollouts.collect(trainer.step, None).metrics
        loss = (model(torch.ones(3)) - rollouts.collected).square().mean()
        (loss + critic(torch.ones(3)).square().mean()).backward()
        metrics |= trainer.update({"loss": float(loss.detach())})
        steps.taken += 1
    return model, rollouts, steps


class TestUpdates:
    def test_the_frame_evaluates_logs_and_keeps_the_best(self) -> None:
        lines: list[dict[str, Any]] = []
        _, rollouts, steps = learn(lines.append)
        assert [line["step"] for line in lines] == [0, 1, 2, 3, 4, 5] and steps.taken == 5
        assert ["eval" in line for line in lines] == [True, False, True, False, True, True]
        assert ["loss" in line for line in lines] == [True] * 5 + [False], "the last line is an evaluation only"
        assert all(line["ended"] == line["collected"] for line in lines[:-1])
        scores = [line["eval"] for line in lines if "eval" in line]
        assert rollouts.evaluate()["eval"] == max(scores) > scores[0] and rollouts.closed

    @pytest.mark.parametrize("kill", range(6))
    def test_a_killed_method_ends_as_if_it_had_not_been(self, tmp_path: Path, kill: int) -> None:
        expected: list[dict[str, Any]] = []
        whole, _, _ = learn(expected.append)

        def until_killed(line: dict[str, Any]) -> None:
            if line["step"] == kill:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            learn(until_killed, tmp_path / "learner")
        rest: list[dict[str, Any]] = []
        resumed, rollouts, steps = learn(rest.append, tmp_path / "learner")
        assert rest == expected[rest[0]["step"] :] and rest[0]["step"] == (kill if kill == 5 else kill // 2 * 2)
        assert same(resumed, whole) and steps.taken == 5 and rollouts.closed

    def test_a_callback_stops_it_or_rolls_it_back(self) -> None:
        stopped: list[dict[str, Any]] = []

        def stop(line: dict[str, Any]) -> Verdict:
            stopped.append(line)
            return "stop" if line["step"] == 1 else ""

        learn(stop)
        assert [line["step"] for line in stopped] == [0, 1, 2] and "eval" in stopped[-1]
        plain: list[dict[str, Any]] = []
        back: list[dict[str, Any]] = []

        def roll_back(line: dict[str, Any]) -> Verdict:
            back.append(line)
            return "roll-back" if line["step"] == 0 else ""

        learn(plain.append)
        learn(roll_back)
        assert back[0] == plain[0]
        # The first weights were the best so far, so the second update begins from them as well.
        model, _, _ = made()
        first = (model(torch.ones(3)) - back[1]["collected"]).square().item()
        assert back[1]["loss"] == pytest.approx(first) != plain[1]["loss"]
