"""What a process holds of the machine's memory."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from reflectrl.models.machine import release_memory


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep their own rules")

WORK = """
import resource
from reflectrl.models.machine import keep_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [bytearray(b"x") * 20_000_000 for _ in range(10)]
    del pieces
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
without = faults()
keep_memory()
faults()
print(without, faults())
"""


@glibc
def test_memory_that_is_freed_and_taken_again_and_again_does_not_come_page_by_page() -> None:
    """In a process of its own, for the allocator's rules hold for all of it."""
    done = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, check=True)
    without, kept = map(int, done.stdout.split())
    assert kept < 1_000 < 20_000 < without


@glibc
def test_free_memory_between_pieces_that_are_in_use_goes_back_to_the_system() -> None:
    pieces = [bytearray(b"x") * 65_536 for _ in range(2_000)]
    kept, before = pieces[::100], _resident()
    del pieces
    release_memory()
    assert before - _resident() > 60_000_000 and all(kept)
