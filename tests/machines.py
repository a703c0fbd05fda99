"""What Linux says of the processors of several machines, in the words of /proc/cpuinfo."""

from collections.abc import Callable


def _x86(maker: str, *instructions: str) -> str:
    lines = [f"vendor_id\t: {maker}", "model name\t: some processor", f"flags\t\t: fpu sse2 {' '.join(instructions)}"]
    return "".join(f"processor\t: {number}\n" + "\n".join(lines) + "\n\n" for number in range(2))


INTEL_AMX = _x86("GenuineIntel", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile")
INTEL = _x86("GenuineIntel", "avx512f", "avx512_bf16")
AMD = _x86("AuthenticAMD", "avx512f", "avx512_bf16")
OLD_AMD = _x86("AuthenticAMD", "avx2")
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd bf16\n\n"

Machine = Callable[[str | None], None]
"""`machine(AMD)`: from now on, this process runs on such a processor; None is a system without such a file."""
