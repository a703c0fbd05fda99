"""The program about negatives: arms differ in their demonstrations only, and finished cells are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import negatives

QUICK = (
    "model.layers=1", "model.width=16", "model.heads=2", "model.mixed_precision=off", "teach.tasks=4", "sft.steps=2",
    "teach.validation_tasks=2", "sft.policy_steps=1", "sft.batch_size=4", "rl.updates=3", "rl.episodes=2",
    "rl.eval_episodes=2", "rl.critic_warmup=0", "eval.episodes=3",
)  # fmt: skip


def test_every_number_of_negatives_is_a_line_and_the_same_command_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = negatives.Settings(("taxi",), ("0",), (0,), changes=QUICK, out=tmp_path / "cells.jsonl")
    negatives.main(first)
    negatives.main(negatives.Settings(("taxi",), ("0", "all"), (0,), changes=QUICK, out=first.out))
    lines = [json.loads(line) for line in first.out.read_text().splitlines()]
    assert [line["negatives"] for line in lines] == ["0", "all"]
    assert all(line["tasks"] == 3 and 0 <= line["sft"] <= 1 and 0 <= line["rl"] <= 1 for line in lines)
    assert "| taxi | all | 1 |" in capsys.readouterr().out
    kinds = {}
    for number in ("0", "all"):
        log = tmp_path / f"cells/taxi-{number}-0/episodes/teach-seed0-train.jsonl"
        episodes = [json.loads(line) for line in log.read_text().splitlines()]
        kinds[number] = {episode["provenance"].get("kind") for episode in episodes}
    assert "negative" not in kinds["0"] and "negative" in kinds["all"]


@pytest.mark.parametrize("world", sorted(negatives.RECIPES))
def test_recipes_have_the_keys_that_are_changed(world: negatives.World) -> None:
    name, changes = negatives.RECIPES[world]
    assert negatives.load_recipe(negatives.find_recipe(name), list(changes)).teach.tasks > 0
