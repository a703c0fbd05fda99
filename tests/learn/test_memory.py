"""What a training holds of the machine's memory."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from reflectrl.learn.memory import release_memory


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library gives memory back by itself, or not")
def test_free_memory_between_pieces_that_are_in_use_goes_back_to_the_system() -> None:
    pieces = [bytearray(b"x") * 65_536 for _ in range(2_000)]
    kept, before = pieces[::100], _resident()
    del pieces
    release_memory()
    assert before - _resident() > 60_000_000 and all(kept)
