"""A small library, a finished run on it with tiny players, and the agent that it gives."""

from pathlib import Path

import pytest

from reflectrl import runs as pipeline
from reflectrl.core.config import load_recipe
from reflectrl.tools.exporting.agents import export_agent
from tests.wings.autoexplore.shelf import make_library

RECIPE = """
name = "tiny"
arms = ["random", "expert", "baseline", "sft", "sft-no-reflection"]
env = {{name = "autoexplore", library = "{library}", horizon = 6, hits = 2}}
model = {{layers = 1, width = 16, heads = 2, context = 1024, mixed_precision = "off"}}
play = {{reflection_tokens = 8, scoring = "trie"}}
teach = {{negatives = 1, tasks = 2}}
sft = {{steps = 2, batch_size = 4, eval_every = 2, eval_rows = 4}}
eval.splits = ["validation", "test"]
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_library(tmp_path_factory.mktemp("shelf") / "library")


@pytest.fixture(scope="session")
def run_folder(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    recipe = folder / "tiny.toml"
    recipe.write_text(RECIPE.format(library=library), encoding="utf-8")
    pipeline.run(load_recipe(recipe), folder / "run")
    return folder / "run"


@pytest.fixture(scope="session")
def agent_folder(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agents") / "tiny"
    export_agent(run_folder, "sft", 0, folder)
    return folder


@pytest.fixture(scope="session")
def repo(library: Path) -> Path:
    """A repository that it never saw in training."""
    return library / "repos" / "zoo"
