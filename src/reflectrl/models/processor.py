"""The processor's maker and instruction sets, as Linux reports them. Imports no torch, so that dry runs are quick.

Decisions that affect rounding depend on these facts and not on timings: measured times vary with the machine's load,
and two processes of one run could then round differently.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
"""File that describes the processors. Only Linux has it, so nothing is known about them on other systems."""


@dataclass(frozen=True)
class Processor:
    """The machine's processor. If there are several, they are taken to be the same.

    Attributes:
        maker: for example "GenuineIntel"; "" if it is not known.
        instructions: the names of its instruction sets.
    """

    maker: str = ""
    instructions: frozenset[str] = frozenset()

    @property
    def bfloat16(self) -> str:
        """Instruction set that makes bfloat16 products about twice as fast as float32 products; "" if there is none.

        Intel's AVX-512 does not count: without AMX, a Xeon made 150 GFLOP/s with it and 260 in float32.
        """
        if "amx_bf16" in self.instructions:
            return "amx_bf16"
        return "avx512_bf16" if self.maker == "AuthenticAMD" and "avx512_bf16" in self.instructions else ""


@cache
def processor() -> Processor:
    """Describe this machine's processor. All fields are empty if the system does not say."""
    try:
        first = CPUINFO.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        return Processor()
    pairs = (line.partition(":") for line in first.splitlines())
    fields = {key.strip(): value.strip() for key, _, value in pairs}
    return Processor(fields.get("vendor_id", ""), frozenset(fields.get("flags", "").split()))
