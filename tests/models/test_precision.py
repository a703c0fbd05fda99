"""Mixed precision: "auto" is what is faster."""

from collections.abc import Iterator

import pytest
import torch

from reflectrl.models import machine
from reflectrl.models.machine import FASTER, has_fast_bfloat16, is_mixed

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    has_fast_bfloat16.cache_clear()
    yield
    has_fast_bfloat16.cache_clear()


@pytest.mark.parametrize(
    ("supported", "times", "fast"),
    [(True, 2.0, True), (True, FASTER - 0.1, False), (True, 0.6, False), (False, 2.0, False)],
)
def test_auto_is_bfloat16_where_there_are_instructions_for_it_that_are_faster(
    supported: bool, times: float, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: supported, raising=False)
    seconds = {torch.float32: 1.0, torch.bfloat16: 1.0 / times}
    monkeypatch.setattr(machine, "_product_seconds", seconds.__getitem__)
    assert is_mixed(CPU, "auto") is has_fast_bfloat16(CPU) is fast
    assert is_mixed(CPU, "on") and not is_mixed(CPU, "off")


def test_products_are_timed_in_their_own_precision_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    seen: list[torch.dtype] = []
    linear = torch.nn.functional.linear

    def watched(*operands: torch.Tensor) -> torch.Tensor:
        out = linear(*operands)
        seen.append(out.dtype)
        return out

    monkeypatch.setattr(torch.nn.functional, "linear", watched)
    with torch.autocast("cpu", torch.bfloat16):
        first = has_fast_bfloat16(CPU)
    assert set(seen) == {torch.float32, torch.bfloat16}
    asked = len(seen)
    assert has_fast_bfloat16(CPU) is first and len(seen) == asked


def test_devices_that_are_neither_cpus_nor_gpus_have_none() -> None:
    assert not has_fast_bfloat16(torch.device("mps"))
