"""No folder of a model or of an adapter runs code of its own: each either cannot be loaded, or plays as any other."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reflectrl.core.config import ModelConfig
from reflectrl.core.types import UserError
from reflectrl.models.load import load_model, second_player
from tests.hostile import CODE
from tests.test_trust import ran
from tests.wings.hostile_files import ADAPTERS, MODELS, MODULE, change

SETTINGS = ModelConfig(device="cpu", lora_rank=0, mixed_precision="off", context=128)


@pytest.fixture
def model(tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A model in a folder below the current one, both of which hold modules of a stranger's."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "stranger.py").write_text(CODE, encoding="utf-8")
    folder = Path(shutil.copytree(tiny_folder("gpt2"), "model"))
    for place in (folder, tmp_path):
        (place / "own.py").write_text(MODULE, encoding="utf-8")
    yield folder
    for name in ("stranger", "own"):
        sys.modules.pop(name, None)


def load(folder: Path) -> None:
    """Load a model and, where it has a chat template, render a prompt with it."""
    try:
        lm = load_model(folder, SETTINGS)
        if lm.tokenizer.chat_template:
            from reflectrl.core.prompts.chat import chat_of

            chat_of(lm.tokenizer, "Be good.", "model")
    except UserError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_no_model_runs_code(model: Path, make: Callable[[Path], object]) -> None:
    make(model)
    load(model)
    assert not ran()


@pytest.mark.parametrize("settings", ADAPTERS.values(), ids=ADAPTERS)
@pytest.mark.parametrize("place", ["policy", "reflector"])
def test_no_adapter_runs_code(model: Path, settings: dict[str, Any], place: str) -> None:
    change(model / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.T", "own.T"]})
    adapter = Path("adapter")
    first = load_model(model, ModelConfig(device="cpu", lora_rank=2, mixed_precision="off"), "policy")
    first.save(adapter)
    written = json.loads((adapter / "adapter_config.json").read_text())
    kept = {} if "PROMPT" in str(settings) or "XLORA" in str(settings) else written
    base = {"base_model_name_or_path": str(model)}
    (adapter / "adapter_config.json").write_text(json.dumps(base | kept | settings))
    try:
        if place == "policy":
            load_model(adapter, ModelConfig(device="cpu", lora_rank=2, mixed_precision="off"), "policy")
        else:
            second_player(first, "reflector", adapter)
    except UserError as error:
        assert "\n" not in str(error)
    assert not ran()
