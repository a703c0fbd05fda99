"""The program that measures memory beside the estimate goes through every cell of its table."""

from collections.abc import Callable
from pathlib import Path

from benchmarks.fitting import Settings, rows
from benchmarks.measure import CLEAR


def test_every_kind_of_training_is_measured_in_both_precisions(tiny_folder: Callable[[str], Path]) -> None:
    found = rows(Settings(str(tiny_folder("llama")), gpt2=False, stages=("sft", "rl"), context=160, batch=2))
    cells = {(row["training"], row["dtype"], row["stage"]) for row in found}
    assert len(found) == len(cells) == 8
    assert all(row["estimate GiB"] > 0 for row in found)
    assert all(row["measured GiB"] > 0 for row in found) or not CLEAR.exists()
