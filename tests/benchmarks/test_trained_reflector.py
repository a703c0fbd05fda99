"""The comparison of a trained reflector with a frozen one: its tables by hand, and one whole small run, continued."""

import json
from pathlib import Path

import pytest

from benchmarks import trained_reflector as compared

SCORES = {
    ("sft", "greedy"): [0.2, 0.4],
    ("reflect-rl", "greedy"): [0.8, 0.8],
    ("reflector-rl", "greedy"): [0.9, 0.7],
    ("reflector-rl", "sampled"): [0.6, 0.6],
}
COSTS = [
    {"seed": 0, "arm": "sft"},
    {"seed": 0, "arm": "reflector-rl", "episodes": 100, "env_steps": 1000, "seconds": 3.0},
    {"seed": 1, "arm": "reflector-rl", "episodes": 100, "env_steps": 3000, "seconds": 5.0},
]


def test_tables_by_hand() -> None:
    lines = compared.table(SCORES, COSTS)
    assert "| sft | 30.0 [0, 100] | 20.0, 40.0 |  |  |  |  |" in lines
    [line] = [one for one in lines if one.startswith("| reflector-rl ")]
    assert line.endswith("| 90.0, 70.0 | 60.0 [60, 60] | 100 | 2,000 | 4 |")
    found = compared.differences(SCORES)
    assert [line.split(" | ")[0] for line in found[2:]] == [
        "| reflect-rl over sft",
        "| reflector-rl over sft",
        "| reflector-rl over reflect-rl",
    ]
    assert found[4].startswith("| reflector-rl over reflect-rl | 0.0 | ") and found[4].endswith(" | 0.50 |")


def test_a_small_run_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = "env.train=8 env.validation=3 env.test=3 model.layers=1 model.width=16 sft.steps=2 sft.policy_steps=2"
    quick = "rl.updates=2 rl.episodes=4 rl.eval_episodes=2 eval.sampling=['greedy'] teach.tasks=2"
    told = "reflecting.states=3 reflecting.samples=2 reflecting.continuations=1 reflecting.rounds=1 reflecting.steps=1"
    change = (*small.split(), *quick.split(), *told.split(), "play.reflection_tokens=8", "eval.batch=8")
    settings = compared.Settings(seeds=(0,), out=tmp_path, change=change)
    compared.main(settings)
    printed = capsys.readouterr().out
    assert all(f"| {arm} | " in printed for arm in compared.ARMS)
    found = json.loads((tmp_path / "trained_reflector.json").read_text())
    assert {one["arm"] for one in found["success"]} == set(compared.ARMS)
    costs = {one["arm"]: one for one in found["cost"]}
    assert "seconds" not in costs["sft"]
    for arm in compared.ARMS[1:4]:
        assert costs[arm]["episodes"] == 8 and costs[arm]["seconds"] > 0
    assert costs["reflector-rejection"]["episodes"] > 4
    compared.main(settings)
    assert json.loads((tmp_path / "trained_reflector.json").read_text()) == found
