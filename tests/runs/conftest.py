"""A tiny recipe, and the folder of one finished run of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.forks import Forks
from reflectrl import runs as pipeline
from reflectrl.core.advice import on_the_command_line
from reflectrl.core.config import Recipe, load_recipe
from reflectrl.models.scratch import save_scratch
from tests.runs.launcher import Launcher

RECIPE = """
name = "tiny"
arms = ["random", "sft", "reflect-rl"]
env = {name = "corridor", train = 6, validation = 3, test = 5}
model = {layers = 1, width = 16, heads = 2, mixed_precision = "off"}
play.reflection_tokens = 8
teach = {negatives = 1, tasks = 5}
sft = {steps = 5, batch_size = 8, eval_every = 2, eval_rows = 8}
rl = {updates = 3, episodes = 4, eval_every = 1, eval_episodes = 2, replay_episodes = 2}
eval = {sampling = ["greedy", "sampled"], batch = 3}
"""

LIKE = Callable[..., Recipe]


@pytest.fixture(scope="session")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "tiny.toml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def like(recipe_file: Path) -> LIKE:
    """`like("rl.lr=1")`: the tiny recipe with overrides."""

    def changed(*overrides: str) -> Recipe:
        return load_recipe(recipe_file, overrides)

    return changed


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, like: LIKE) -> Path:
    """A finished run that nobody changes."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    pipeline.run(like(), folder)
    return folder


@pytest.fixture
def typed() -> Iterator[None]:
    """Word advice in errors as on the command line, of which it is part."""
    with on_the_command_line():
        yield


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """A finished run of one's own."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


@pytest.fixture
def small_model(finished: Path, tmp_path: Path, like: LIKE) -> Path:
    """A language model in Hugging Face's format in a folder."""
    from reflectrl.runs.training import corpus

    texts, choices = corpus(finished / "episodes" / "teach-seed0-train.jsonl", 4000)
    folder = tmp_path / "model"
    folder.mkdir()
    save_scratch(folder, like("model.family=llama").model, texts, choices, 5)
    return folder


@pytest.fixture
def launcher(tmp_path: Path, forks: Forks) -> Launcher:
    return Launcher(tmp_path, forks)


def contents(folder: Path, patterns: Sequence[str] = ("episodes/*", "metrics.jsonl", "results.json")) -> dict[str, str]:
    """What the files of a run say, by name; the commit may change while tests run."""
    import re

    found = sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())
    texts = {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in found}
    return {name: re.sub(r'"commit": ".*?"', "", text) for name, text in texts.items()}


@pytest.fixture
def said() -> Callable[[Path], dict[str, str]]:
    """`said(folder)`: episodes, metrics and results of a run as text."""
    return contents
