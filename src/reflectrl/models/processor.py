"""The processor's maker and instructions, as Linux tells them; read without torch, which a dry run does without.

What decides how something is computed is asked here and not timed: a stopwatch says otherwise in a busy moment, and two
processes of one run would round differently.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
"""Other systems than Linux have no such file: nothing is known of their processors."""


@dataclass(frozen=True)
class Processor:
    """One of the machine's processors, which are all alike.

    Attributes:
        maker: such as "GenuineIntel"; "" if it is not known.
        instructions: the names of its instruction sets.
    """

    maker: str = ""
    instructions: frozenset[str] = frozenset()

    @property
    def bfloat16(self) -> str:
        """The instructions by which products in bfloat16 are about twice as fast as in float32; "" without such.

        Intel's AVX-512 does not count: without AMX, a Xeon made 150 GFLOP/s with it and 260 in float32.
        """
        if "amx_bf16" in self.instructions:
            return "amx_bf16"
        return "avx512_bf16" if self.maker == "AuthenticAMD" and "avx512_bf16" in self.instructions else ""


@cache
def processor() -> Processor:
    """Read what is known of this machine's processor."""
    try:
        first = CPUINFO.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError:
        return Processor()
    pairs = (line.partition(":") for line in first.splitlines())
    fields = {key.strip(): value.strip() for key, _, value in pairs}
    return Processor(fields.get("vendor_id", ""), frozenset(fields.get("flags", "").split()))
