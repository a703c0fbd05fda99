"""Rejection sampling: what it keeps, that the toy is learned from it, and that a kill changes nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectrl.core.config import RLConfig
from reflectrl.core.teach.outcomes import Tried
from reflectrl.learn.trainer import weights_of
from reflectrl.methods.reflector_rejection import (
    State,
    draw_reflections,
    draw_states,
    judged,
    keep_best,
    train_rejection,
    try_actions,
)
from reflectrl.methods.shared.reflecting import ReflectingConfig
from reflectrl.models.players import Policy, Reflector
from tests.methods.reflecting.conftest import SIGNS, Signs
from tests.methods.reflecting.test_online import RL, Metrics, Pair, rollouts_of

SETTINGS = ReflectingConfig(samples=4, states=4, continuations=2, rounds=4, steps=10, batch_size=4, lr=1e-2)
CONFIG = replace(RL, episodes=8)


def train(
    policy: Policy,
    reflector: Reflector,
    settings: ReflectingConfig = SETTINGS,
    log: Any = None,
    config: RLConfig = CONFIG,
    **more: Any,
) -> Metrics:
    found: Metrics = []
    rollouts = rollouts_of(policy, reflector, config, settings)
    train_rejection(rollouts, config, settings, 0, log or found.append, make_env=Signs, batch=8, **more)
    return found


def test_a_reflection_is_judged_by_what_the_policy_may_expect_after_it() -> None:
    tried = [Tried(0, 1, 4, 0.2), Tried(1, 3, 4, 1.0)]
    logp_A = torch.tensor([0.25, 0.75, 0.0]).log()
    assert judged(logp_A, tried, "value") == pytest.approx(0.25 * 0.2 + 0.75 * 1.0)
    assert judged(logp_A, tried, "choice") == pytest.approx(math.log(0.75))


@pytest.mark.parametrize("judge", ["value", "choice"])
def test_what_is_kept_names_the_right_way(pair: Pair, judge: Any) -> None:
    policy, reflector = pair()
    rollouts = rollouts_of(policy, reflector, CONFIG, replace(SETTINGS, judge=judge))
    rollouts.collect(0, None)
    episodes = rollouts.latest.learned
    places = draw_states(episodes, 4, 0)
    assert len({episodes[e].steps[i].observation for e, i in places}) == len(places) > 1
    drawn = draw_reflections(rollouts, places, 8, 0)
    assert all(len(turns) == 4 for turns in drawn.values())
    values = try_actions(rollouts, episodes, places, [Signs() for _ in range(3)], 0)
    kept, gains = keep_best(rollouts, episodes, drawn, values)
    assert len(kept) == len(gains) > 0 and min(gains) > 0
    for row in kept:
        sign, said = (reflector.lm.tokenizer.decode(part) for part in (row.ids[: row.start], row.ids[row.start :]))
        assert next(way for colour, way in SIGNS.items() if colour in sign) in said


def test_where_all_reflections_do_alike_none_is_kept(pair: Pair) -> None:
    policy, reflector = pair()
    rollouts = rollouts_of(policy, reflector, CONFIG, SETTINGS)
    rollouts.collect(0, None)
    episodes = rollouts.latest.learned
    drawn = draw_reflections(rollouts, [State(0, 0)], 8, 0)
    level = {State(0, 0): [Tried(0, 1, 2, 0.5), Tried(1, 1, 2, 0.5)]}
    assert keep_best(rollouts, episodes, drawn, level) == ([], [])


def test_the_reflector_learns_to_say_what_wins(pair: Pair) -> None:
    policy, reflector = pair()
    settings = replace(SETTINGS, samples=8, continuations=4, rounds=6)
    log = train(policy, reflector, settings, config=replace(CONFIG, episodes=32))
    assert log[0]["eval_success"] == 0.25 and max(line["eval_success"] for line in log) == 1.0
    assert log[0]["success"] < 0.4 and log[-2]["success"] > 0.75  # 0.94 to 1 with each of six seeds
    assert [line["step"] for line in log] == [*range(settings.rounds + 1)]
    assert {"judged", "kept", "gain", "reflection_loss", "env_steps", "eval_success"} <= log[0].keys()
    assert log[1]["env_steps"] > log[0]["env_steps"] > 8  # what actions were tried with counts


def test_a_killed_training_ends_with_the_same_weights(pair: Pair, tmp_path: Path) -> None:
    whole = pair()
    lines = train(*whole)
    log: Metrics = []

    def until(line: dict[str, Any]) -> None:
        if line["step"] == 2 and len(log) == 2:
            raise KeyboardInterrupt
        log.append(line)

    with pytest.raises(KeyboardInterrupt):
        train(*pair(), log=until, state_folder=tmp_path / "state")
    resumed = pair()
    assert log == lines[:2] and train(*resumed, state_folder=tmp_path / "state") == lines[2:]
    theirs = weights_of(resumed[1].lm)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in weights_of(whole[1].lm).items())
