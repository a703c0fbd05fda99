"""The comparison of what each part of the method is worth: its figures by hand, and one whole small run."""

import json
from pathlib import Path

import pytest

from benchmarks import few

SCORES = {("sft", 4): [0.2, 0.4], ("reflect-rl", 4): [0.9, 0.9], ("rl-only", 0): [0.5, 0.7], ("sft", 16): [0.6, 0.6]}


def test_effects_pair_arms_that_differ_in_one_part() -> None:
    for part, pairs in few.EFFECTS.items():
        for with_it, without in pairs:
            words = {"sft-neither": "", "sft-no-reflection": "n", "sft-no-negatives": "r", "sft": "rn"}
            words |= {"neither": "l", "no-reflection": "ln", "no-negatives": "lr", "reflect-rl": "lrn"}
            assert len(set(words[with_it]) - set(words[without])) == 1, part
            assert set(words[without]) < set(words[with_it]), part


def test_tables_by_hand() -> None:
    table = few.success_table(SCORES)
    assert table[0] == "| arm | 0 demonstrated | 4 demonstrated | 16 demonstrated |"
    assert "| reflect-rl |  | 90.0 [90, 90] |  |" in table
    [_, _, line] = few.effects_table(SCORES, [4, 16])
    assert line.startswith("| RL | 60.0 | ") and "| 1.00 | 1.00 to 1.00 |" in line
    assert few.gain([[0.0, 0.5, 0.5, 9.0]], [[0.1, 0.1, 0.1, 0.1]]) == pytest.approx(0.4)


def test_a_small_run_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = "env.train=8 env.validation=3 env.test=3 model.layers=1 model.width=16 sft.steps=2 sft.policy_steps=2"
    quick = "rl.updates=1 rl.episodes=4 rl.eval_episodes=2 eval.sampling=['greedy'] processes=1"
    change = (*small.split(), *quick.split())
    few.main(few.Settings(demonstrations=(0, 2), seeds=(0,), out=tmp_path, change=change))
    printed = capsys.readouterr().out
    assert "| rl-only |" in printed and "| RL | " in printed and "reflections, after RL" in printed
    rows = json.loads((tmp_path / "few.json").read_text())
    assert len(rows) == 10 and all(0 <= value <= 1 for row in rows for value in row["success"])
    assert all(len(row["success"]) == 1 for row in rows)  # a seed counts once, by the whole task
    assert "<svg" in (tmp_path / "few.svg").read_text()
