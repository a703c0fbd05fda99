"""The program about portals: every arm trains and plays, finished cells are kept, and the auxiliary loss by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import portals
from reflectrl.core.episodes import sft
from reflectrl.learn.examples import choice_examples

QUICK = portals.Settings(portals=(2,), layers=(1,), seeds=(0,), seconds=0.05, shown=12, split="validation")


def test_every_arm_is_a_line_and_the_same_command_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = replace(QUICK, out=tmp_path / "cells.jsonl", arms=portals.ARMS[:2])
    portals.main(settings)
    portals.main(replace(settings, arms=portals.ARMS))
    lines = [json.loads(line) for line in settings.out.read_text().splitlines()]
    assert [line["arm"] for line in lines] == list(portals.ARMS)
    for line in lines:
        alone = line["arm"] in ("alone", "supervised")
        assert line["tasks"] == 100 and 0 <= line["success"] <= line["first"] <= 1
        assert ("written" in line) == ("followed" in line) == (not alone)
        assert len(line["steps"]) == (1 if alone or line["arm"] == "one" else 2) and min(line["steps"]) > 0
    capsys.readouterr()
    portals.main(replace(settings, arms=portals.ARMS))
    table = capsys.readouterr().out.splitlines()
    assert len(settings.out.read_text().splitlines()) == len(lines)
    assert [row.split(" | ")[3] for row in table[2:]] == list(portals.ARMS)


def test_the_auxiliary_loss_is_the_mean_over_the_stops() -> None:
    """Heads of zeros give every room an eighth, so each stop costs log 8, and imitation costs what it does alone."""
    cell = portals.Cell(2, 1, "supervised", 0, 1.0, 12, "validation")
    episodes = portals.demonstrated(2, "steps", 12)
    lm = portals.base_model(cell, episodes)
    rows = list(choice_examples(portals.make_policy(lm), sft(episodes), 0))
    stops = torch.tensor([portals.written_rooms(step.reflection or "") for one in episodes for step in one.steps])
    heads = nn.ModuleList(nn.Linear(lm.hidden_size, 8) for _ in range(2))
    for head in heads:
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
    both = portals.supervised(lm, rows, stops, heads)([0, 3, 5])
    alone = portals.imitation(lm, rows)([0, 3, 5])
    assert (both - alone).item() == pytest.approx(torch.tensor(8.0).log().item(), abs=1e-5)
    both.backward()
    wanted = nn.functional.one_hot(stops[[0, 3, 5], 1], 8).float()
    expected = (torch.full((3, 8), 1 / 8) - wanted).mean(0) / 2
    torch.testing.assert_close(heads[1].bias.grad, expected)
