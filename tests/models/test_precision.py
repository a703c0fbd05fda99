"""Mixed precision: "auto" asks the processor for its instructions, and no stopwatch."""

from pathlib import Path

import pytest
import torch

from reflectrl.models.forward import turned_rows
from reflectrl.models.machine import has_fast_bfloat16, is_mixed
from tests.machines import AMD, ARM, INTEL, INTEL_AMX, OLD_AMD, Machine

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("cpuinfo", "fast"),
    [(INTEL_AMX, True), (INTEL, False), (AMD, True), (OLD_AMD, False), (ARM, False), ("", False)],
    ids=["Intel with AMX", "Intel without", "AMD", "old AMD", "ARM", "nothing known"],
)
def test_auto_is_bfloat16_where_instructions_make_it_faster(cpuinfo: str, fast: bool, machine: Machine) -> None:
    machine(cpuinfo)
    assert is_mixed(CPU, "auto") is has_fast_bfloat16(CPU) is fast
    assert is_mixed(CPU, "on") and not is_mixed(CPU, "off")


def test_a_system_that_says_nothing_of_its_processor_has_none(tmp_path: Path, machine: Machine) -> None:
    machine(None)
    assert not is_mixed(CPU, "auto") and turned_rows() == range(0)


def test_devices_that_are_neither_cpus_nor_gpus_have_none() -> None:
    assert not has_fast_bfloat16(torch.device("mps"))


def test_which_products_are_turned_is_asked_of_the_processor(machine: Machine) -> None:
    found = []
    for cpuinfo in (AMD, INTEL, ARM):
        machine(cpuinfo)
        found.append(turned_rows())
    assert found == [range(2, 9), range(7, 17), range(0)]
