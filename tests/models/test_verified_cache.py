"""A model is checked once; the result is reused at the next load, as long as everything is the same."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from reflectrl.core.config import ModelConfig
from reflectrl.models import verified_cache
from reflectrl.models.load import load_model
from reflectrl.models.verification import logged

CONFIG = ModelConfig(context=128, device="cpu")


@pytest.fixture
def verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the cached results; every model counts as large."""
    monkeypatch.setenv("REFLECTRL_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(verified_cache, "LEAST", 1)
    return tmp_path / "cache" / "verified"


def noted(place: Path) -> dict[str, object]:
    [file] = place.glob("*.json")
    found: dict[str, object] = json.loads(file.read_text())
    return found


def test_what_was_found_is_kept_and_believed(tiny_folder: Callable[[str], Path], verified: Path) -> None:
    first = load_model(tiny_folder("llama"), CONFIG)
    kept = noted(verified)
    ways = {"packed": True, "blocks": True, "compiled": False, "batched": False, "graphs": False, "rows": True}
    assert kept["options"] == {**ways, "cache": True}
    [file] = verified.glob("*.json")
    logged.clear()
    words = "it runs another way (as a test has it)"
    slow = {"packed": False, "blocks": True, "rows": True, "cache": True}
    file.write_text(json.dumps({**kept, "options": slow, "warnings": [words], "attention": "eager"}))
    again = load_model(tiny_folder("llama"), CONFIG)
    assert not again.engine_options.packed and again.core.config._attn_implementation == "eager"
    ids = (5, 9, 33, 7, 4)
    with torch.inference_mode():
        torch.testing.assert_close(again.backend.read([ids]), first.backend.read([ids]), atol=1e-4, rtol=1e-4)


def test_other_bits_or_another_precision_are_tried_anew(
    tiny_folder: Callable[[str], Path], verified: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder("llama"), folder)
    load_model(folder, CONFIG)
    load_model(folder, ModelConfig(context=128, device="cpu", dtype="bfloat16"))
    assert len(list(verified.glob("*.json"))) == 2
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**about, "rope_theta": 500.0}))
    load_model(folder, CONFIG)
    assert len(list(verified.glob("*.json"))) == 3


@pytest.mark.parametrize("written", ["", "[]", '{"options": {"odd": 1}, "warnings": [], "attention": "sdpa"}'])
def test_a_damaged_file_is_ignored(written: str, tiny_folder: Callable[[str], Path], verified: Path) -> None:
    load_model(tiny_folder("gpt2"), CONFIG)
    [file] = verified.glob("*.json")
    file.write_text(written)
    assert load_model(tiny_folder("gpt2"), CONFIG).engine_options.packed
    assert json.loads(file.read_text())["options"]["packed"] is True


def test_small_models_leave_nothing_behind(
    tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFLECTRL_DATA", str(tmp_path / "cache"))
    load_model(tiny_folder("llama"), CONFIG)
    assert not (tmp_path / "cache").exists()


def test_a_small_model_is_checked_once_in_a_process(
    tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder("llama"), folder)
    checked = list[str]()
    check = verified_cache.find_exact_options
    monkeypatch.setattr(verified_cache, "_RESULTS", {})
    monkeypatch.setattr(
        verified_cache, "find_exact_options", lambda lm, source: checked.append(source) or check(lm, source)
    )
    first = load_model(folder, CONFIG).engine_options
    assert load_model(folder, CONFIG).engine_options == first and len(checked) == 1
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**about, "rope_theta": 500.0}))
    load_model(folder, CONFIG)
    assert len(checked) == 2
