"""The small references learn a small task, and say how long it took them."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.small_networks import Encoder, Network
from benchmarks.small_ppo import Settings, position, reached, spread, summary, train
from reflectrl.core.types import Observation, UserError

TINY = Settings(
    env="reflectrl.examples.key_door:KeyDoorEnv",
    options='{"length": 5}',
    stage="key",
    episodes=600,
    eval_every=200,
    eval_episodes=20,
    envs=8,
)


@pytest.mark.parametrize("policy", ["tabular", "mlp"])
def test_both_learn_a_small_task(policy: Any) -> None:
    curve = train(replace(TINY, policy=policy), seed=0)
    assert curve[0]["episodes"] == 0 and curve[-1]["episodes"] >= 600
    assert curve[-1]["train_sampled"] >= 0.9 > curve[0]["train_sampled"]
    assert curve[-1]["train_greedy"] == 1


def test_a_training_depends_on_its_seed_alone() -> None:
    few = replace(TINY, episodes=100, eval_every=100)
    first, again, other = (train(few, seed) for seed in (1, 1, 2))
    for line in (*first, *again, *other):
        line["seconds"] = 0
    assert first == again != other


SEEN = Observation("", "T : P\nLast: left\n", ("left", "right"))
MOVED = Observation("", "  : T\nLast: right\n", ("right", "wait"))


def test_a_table_tells_texts_apart_and_leaves_out_ignored_lines() -> None:
    encode = Encoder("tabular", "Last:")
    assert encode(SEEN, True)[0].tolist() == [0] and encode(MOVED, True)[0].tolist() == [1]
    assert encode(replace(SEEN, state="T : P\nLast: none\n"), True)[0].tolist() == [0]
    assert Encoder("tabular", "").features == {} and len(list(Encoder("mlp", "").parts(SEEN))) == 5 + 4


def test_what_training_never_met_leaves_all_actions_alike() -> None:
    encode, network = Encoder("tabular", "Last:"), Network("tabular", 8)
    torch.nn.init.normal_(network.actor[0].weight)
    encode(SEEN, True)
    features, _ = encode(MOVED, False)
    logp_NA, values_N = network([(features, encode(MOVED, False)[1]), encode(SEEN, True)])
    assert features.tolist() == [] and values_N[0] == 0
    assert logp_NA[0].exp().nonzero()[:, 0].tolist() == [1, 2] and logp_NA[0, 1] == logp_NA[0, 2]
    assert logp_NA[1, 0] != logp_NA[1, 1]
    assert position(encode, MOVED, 2) == 1


def test_too_many_actions_are_said_so() -> None:
    with pytest.raises(UserError, match="more than .* features or 16 actions"):
        Encoder("mlp", "")(Observation("", "here", tuple(map(str, range(17)))), True)


def test_a_summary_by_hand() -> None:
    names = ("train_sampled", "train_greedy", "held_out_sampled", "held_out_greedy")
    curves = [
        [
            {"episodes": n, "env_steps": 10 * n} | dict.fromkeys(names, rate)
            for n, rate in zip((0, 500, 1000), rates, strict=True)
        ]
        for rates in ((0.1, 0.8, 0.7), (0.0, 0.2, 0.9), (0.0, 0.1, 0.2))
    ]
    assert [reached(curve, "train_sampled", 0.8, "episodes") for curve in curves] == [500, 1000, math.inf]
    row = summary(curves, 0.8)[0]
    assert row["episodes to 80%"] == "1,000 (500 to never)" and row["env_steps to 80%"] == "10,000 (5,000 to never)"
    assert row["in the end"] == spread([0.7, 0.9, 0.2], "{:.0%}") == "70% (20% to 90%)"


def test_the_program_prints_a_table_and_writes_curves(tmp_path: Path) -> None:
    words = ["--env", TINY.env, "--options", TINY.options, "--stage", "key", "--seeds", "1", "--episodes", "50"]
    words += ["--eval-episodes", "5", "--out", str(tmp_path / "out.json")]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.small_ppo", *words], capture_output=True, text=True, check=True, timeout=120
    )
    assert "held out sampled" in done.stdout and '"train_greedy"' in done.stderr
    assert (tmp_path / "out.json").read_text().startswith('{"settings"')


def test_no_training_at_all_is_refused() -> None:
    with pytest.raises(SystemExit, match="--seeds is how many trainings there are, 1 or more, not 0"):
        replace(TINY, seeds=0)
