"""A run whose environments live in worker processes: the same bytes, on the same run folder if need be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from reflectrl import runs as pipeline

Said = Callable[[Path], dict[str, str]]


def test_what_a_run_says_does_not_depend_on_where_its_environments_live(
    tmp_path: Path, finished: Path, like: Any, said: Said
) -> None:
    folder = tmp_path / "run"
    pipeline.run(like("env_workers=2"), folder, "rl")
    pipeline.run(like("env_workers=1"), folder, "eval")
    assert said(folder) == said(finished)
