"""The program that compares kinds of reflection: every arm trains and plays, and writes only what it may write."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import reflection

QUICK = reflection.Settings(seeds=(0,), seconds=0.05, shown=6, tasks=5, split="validation")


def test_every_arm_is_a_line_and_the_same_command_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = replace(QUICK, out=tmp_path / "cells.jsonl", arms=reflection.ARMS[:2])
    reflection.main(settings)
    reflection.main(replace(settings, arms=reflection.ARMS))
    lines = [json.loads(line) for line in settings.out.read_text().splitlines()]
    assert [line["arm"] for line in lines] == list(reflection.ARMS)
    for line in lines:
        alone = line["arm"] in reflection.ALONE
        assert line["tasks"] == 5 and 0 <= line["success"] <= 1 and 0 <= line["right"] <= 1
        assert ("written" in line) == ("followed" in line) == (not alone)
        assert len(line["steps"]) == (1 if alone or line["arm"] == "one" else 2) and min(line["steps"]) > 0
    capsys.readouterr()
    reflection.main(replace(settings, arms=reflection.ARMS))
    rows = capsys.readouterr().out.splitlines()[2:]
    assert sorted(row.split(" | ")[3] for row in rows) == sorted(reflection.ARMS)


def test_the_arms_write_all_the_last_sentence_or_words_without_content() -> None:
    analysis = "d4, c4 b4. Last move up helped. Next down."
    assert reflection.answer_of(analysis) == "Next down."
    assert reflection.filler_of(analysis) == "so so so so so so so Next down."
    assert reflection.answer_of("down 2, right.") == "down 2, right."
    [whole, short] = (reflection.episodes_of("lake", 6, arm) for arm in ("unrolled", "answer"))
    for step, other in zip(whole[0].steps, short[0].steps, strict=True):
        assert step.reflection is not None and other.reflection is not None
        assert step.reflection != other.reflection and step.reflection.endswith(f" {other.reflection}")
        assert (step.action, step.target, step.observation) == (other.action, other.target, other.observation)
        assert other.reflection == f"Next {step.observation.actions[step.target or 0]}."
