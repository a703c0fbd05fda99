"""Each program measures both sides on a tiny model, and the two sides do the same work."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import blocks, choices, identical, offline, play, sft, update
from benchmarks.settings import Settings
from reflectrl.cli import main
from reflectrl.models.lm import LanguageModel
from reflectrl.models.machine import has_fast_bfloat16

TINY = Settings(workloads=("taxi-history",), sizes=("tiny",), batches=(3,), repetitions=1, threads=1, shares=(0.5,))


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings are short, and so are the texts where only repetitions count."""
    monkeypatch.setattr(sft, "STEPS", {"cpu": 2})
    monkeypatch.setattr(identical, "LENGTH", 8)
    monkeypatch.setattr(identical, "ROLLOUTS", 3)


def test_play_reads_less_and_writes_as_much_as_the_plain_side() -> None:
    [row] = play.rows(replace(TINY, speculative="off"))
    assert row["read"] < row["plain read"] / 2
    assert row["written"] == row["plain written"] - 1  # the last token drawn is never read again
    assert 0 < row["model"] < 1 and row["predicted"] > 2


def test_with_drafts_a_pass_of_play_writes_several_tokens_of_the_recorded_reflection() -> None:
    [row] = play.rows(TINY)
    assert row["read"] < row["plain read"] / 2
    assert row["per pass"] > 2 and row["written"] >= row["plain written"] - 1


def test_an_update_gives_the_plain_sides_gradient_from_fewer_tokens() -> None:
    [row] = update.rows(TINY)
    assert row["difference"] < 1e-4
    assert row["read"] < row["plain read"] and row["predicted"] > 1


def test_sft_is_measured_in_the_precisions_that_the_machine_computes() -> None:
    found = sft.rows(Settings(workloads=("taxi",), sizes=("tiny",), batches=(4,), repetitions=1, threads=1))
    both = has_fast_bfloat16(torch.device("cpu"))
    assert [row["precision"] for row in found] == (["fp32", "bf16"] if both else ["fp32"])
    assert all(row["tokens/s"] > 0 and row["padded tokens/s"] > 0 and row["packed tokens/s"] > 0 for row in found)


def test_a_pretrained_model_is_measured_in_the_place_of_the_sizes(
    tiny: Callable[..., LanguageModel], tmp_path: Path
) -> None:
    """Its prompts open with a token of its own, on both sides."""
    made, folder = tiny("taxi-history", vocab=600, family="llama"), tmp_path / "mine"
    tokenizer = copy.deepcopy(made.tokenizer)
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    made.model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    asked = replace(TINY, model=str(folder), heavy=0.0)
    [played], [updated] = play.rows(asked), update.rows(asked)
    assert played["size"] == updated["size"] == "mine"
    assert played["read"] < played["plain read"] / 2 and played["written"] >= played["plain written"] - 1
    assert updated["difference"] < 1e-4 and updated["read"] < updated["plain read"]
    [trained] = sft.rows(replace(asked, workloads=("taxi",), batches=(2,), dtype="bfloat16"))
    assert trained["size"] == "mine" and trained["speed-up"] > 0


def test_a_lol_reads_the_samples_that_likelihood_reads() -> None:
    [row] = offline.rows(TINY)
    assert row["nll tokens/s"] > 0 and row["A-LoL tokens/s"] > 0 and row["throughput"] > 0
    assert row["nll MiB"] > 0 and row["memory"] > 0


def test_action_texts_get_the_plain_sides_scores() -> None:
    [row] = choices.rows(TINY)
    assert row["largest difference"] < 1e-4 and row["enumeration, ms"] > 0


def test_small_blocks_are_measured_both_ways(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "--widths 64 --counts 9 --before 40 --new 6 100 --repetitions 1"
    monkeypatch.setattr("sys.argv", ["blocks", *words.split()])
    blocks.main()
    *_, small, large, _, _ = capsys.readouterr().out.splitlines()
    assert small.startswith("| 64 | 9 | 40 | 6 |") and small.endswith("| batched |")
    assert large.endswith("| one by one |")


def test_memories_are_hit() -> None:
    [row] = identical.rows(TINY)
    assert row["reflector's hit rate"] > 0.5 and row["policy's hit rate"] > 0.3
    assert row["speed-up"] > 0


def test_the_verb_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "choices", "--sizes", "tiny", "--repetitions", "1", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["choices"]
    assert row["size"] == "tiny"


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (["plya"], "play"),
        (["play", "--sizes", "huge"], "huge"),
        (["play", "--workloads", "texi"], "texi"),
        (["choices", "--repetitions", "0"], "repetitions"),
        (["memory", "--model", "mine"], "takes no --model"),
        (["update", "--model", "./gone"], "gone"),
        (["choices", "--nonsense", "1"], "nonsense"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], about: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 2
    assert about in capsys.readouterr().err
