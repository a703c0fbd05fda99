"""A tiny run on a frozen lake, really trained for a few steps, and pages of it, where there is what they run on."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

import reflectrl
from reflectrl.core.types import UserError
from reflectrl.tools.browser.export import Exported, export_run
from reflectrl.tools.browser.graph import NEEDED
from reflectrl.tools.browser.runtime import PACKAGES, find_runtime, is_there

TASKS = 3


@pytest.fixture(scope="session")
def exporter() -> None:
    """Tests of exported models are skipped without the packages of the extra `browser`."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: the extra browser")


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`lake("gpt2")`: the folder of a run with players of that family."""
    runs: dict[str, Path] = {}

    def run_of(family: str) -> Path:
        if family not in runs:
            runs[family] = tmp_path_factory.mktemp("runs") / family
            reflectrl.train(
                "frozenlake",
                runs[family],
                until="sft",
                arms=["random", "sft", "sft-no-reflection"],
                model={"family": family, "layers": 2, "width": 32, "heads": 2, "context": 192},
                play={"reflection_tokens": 24},
                sft={"steps": 12, "batch_size": 8, "eval_rows": 8},
                teach={"tasks": 6, "negatives": 1},
            )
        return runs[family]

    return run_of


@pytest.fixture(scope="session")
def runtime() -> None:
    """Tests of whole pages are skipped where npm has not fetched yet what pages compute with: tests fetch nothing."""
    from reflectrl.core.config.folders import data_folder

    if not all(is_there(data_folder("browser"), name) for name in PACKAGES):
        pytest.skip("the page's runtime is not here; `reflectrl export-browser` fetches it once")
    try:
        find_runtime()
    except UserError as error:
        pytest.fail(str(error))


@pytest.fixture(scope="session")
def exported(lake: Callable[[str], Path], exporter: None, runtime: None) -> Callable[..., tuple[Path, Exported]]:
    """`exported("gpt2", "sft")`: the page of an arm, and what was said of it."""
    pages: dict[tuple[str, str], tuple[Path, Exported]] = {}

    def page_of(family: str, arm: str) -> tuple[Path, Exported]:
        if (family, arm) not in pages:
            out = lake(family).parent / f"{family}-{arm}"
            pages[family, arm] = out, export_run(lake(family), out, arm, tasks=TASKS)
        return pages[family, arm]

    return page_of
