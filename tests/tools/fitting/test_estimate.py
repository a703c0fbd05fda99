"""What a run with pretrained models needs is told from their files, and what cannot fit is refused before anything."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reflectrl.cli import main
from reflectrl.core.config import ModelConfig, Recipe, from_dict
from reflectrl.core.types import UserError
from reflectrl.models.load import load_model
from reflectrl.models.memory import refuse_unless_fitting
from reflectrl.models.weights import shapes_of, weight_bytes
from reflectrl.tools.fitting.check import note, require_memory
from reflectrl.tools.fitting.estimate import adapter_bytes, estimate


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_and_adapters_are_counted_as_they_are_loaded(
    tiny_folder: Callable[[str], Path], family: str, dtype: str
) -> None:
    config = ModelConfig(context=64, dtype=dtype, lora_rank=4, device="cpu")
    lm = load_model(tiny_folder(family), config, "policy")
    shapes = shapes_of(tiny_folder(family))
    own = {id(p) for p in lm.parameters()}
    assert weight_bytes(shapes, config) == sum(p.nbytes for p in lm.model.parameters() if id(p) not in own)
    assert adapter_bytes(shapes, config) == 4 * sum(p.numel() for p in lm.parameters())


def recipe(source: Path, **model: object) -> Recipe:
    about = {"source": str(source), "lora_rank": 0, **model}
    return from_dict(Recipe, {"name": "r", "env": {"name": "corridor"}, "model": about}, "a test")


def test_lora_and_bfloat16_need_less_than_full_training(tiny_folder: Callable[[str], Path]) -> None:
    source = tiny_folder("llama")
    full, lora = estimate(recipe(source)), estimate(recipe(source, lora_rank=2))
    half = estimate(recipe(source, lora_rank=2, dtype="bfloat16"))
    assert full is not None and lora is not None and half is not None
    assert full.weights == (lora.weights[0],) * 2 and lora.weights[1] == 0
    assert half.weights[0] * 2 == lora.weights[0] and half.caches * 2 == lora.caches
    assert full.trained == full.weights[0] and lora.trained == lora.adapter < full.trained
    assert lora.least.sft < full.least.sft < full.least.rl


def test_what_is_set_for_learning_changes_what_it_needs(tiny_folder: Callable[[str], Path]) -> None:
    made = recipe(tiny_folder("llama"))
    fewer = estimate(replace(made, rl=replace(made.rl, minibatch=made.rl.minibatch // 2)))
    unbound = estimate(replace(made, rl=replace(made.rl, kl_coef=0.0)))
    usual, thrifty = estimate(made), estimate(recipe(tiny_folder("llama"), gradient_checkpointing=True))
    assert usual is not None and thrifty is not None and fewer is not None and unbound is not None
    assert thrifty.rows[1] < usual.rows[1] and thrifty.least == usual.least
    assert fewer.rows[1] < usual.rows[1] and fewer.rows[0] == usual.rows[0]
    assert unbound.rl == usual.rl - usual.trained


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_frozen_layers_need_nothing_of_what_learning_takes(family: str, tiny_folder: Callable[[str], Path]) -> None:
    whole, part = (estimate(recipe(tiny_folder(family), frozen_layers=frozen)) for frozen in (0, 1))
    lm = load_model(tiny_folder(family), ModelConfig(context=128, frozen_layers=1))
    assert whole is not None and part is not None and whole.learned == whole.trained == part.trained
    assert part.learned == pytest.approx(4 * sum(p.numel() for p in lm.parameters() if p.requires_grad), rel=1e-3)
    assert part.sft < whole.sft and part.rl < whole.rl and part.play == whole.play


def test_settings_that_would_fit_are_ones_that_can_be_set(tiny_folder: Callable[[str], Path]) -> None:
    """Adapters and frozen layers exclude each other."""
    made = recipe(tiny_folder("llama"), frozen_layers=1)
    need = estimate(made)
    assert need is not None
    with pytest.raises(UserError) as refused:
        require_memory(made, need.least.peak - 1)
    ways = re.findall(r"model\.lora_rank=16(.*?) it needs", str(refused.value))
    assert ways and all("model.frozen_layers=0" in way for way in ways)


def test_two_adapters_on_one_backbone_count_it_once(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """As `--load` brings them: two folders of adapters, which share their backbone."""
    backbone, folders = tiny_folder("llama"), []
    for role in ("policy", "reflector"):
        folders.append(tmp_path / role)
        load_model(backbone, ModelConfig(lora_rank=2), role).save(folders[-1])
    loaded = estimate(recipe(folders[0], lora_rank=2, reflector=str(folders[1])))
    assert loaded is not None and loaded == estimate(recipe(backbone, lora_rank=2))


def test_the_larger_of_two_models_counts_wherever_either_learns(tiny_folder: Callable[[str], Path]) -> None:
    one, other = (str(tiny_folder(family)) for family in ("llama", "gpt2"))
    found = estimate(recipe(Path(one), reflector=other)), estimate(recipe(Path(other), reflector=one))
    assert found[0] is not None and found[1] is not None
    assert found[0].sft == found[1].sft and found[0].trained == max(found[0].weights)


def test_two_models_need_room_for_both(tiny_folder: Callable[[str], Path]) -> None:
    both = estimate(recipe(tiny_folder("llama"), lora_rank=2, reflector=str(tiny_folder("gpt2"))))
    assert both is not None and all(both.weights) and both.weights[0] != both.weights[1]


def test_what_cannot_fit_is_refused_with_what_each_setting_would_need(tiny_folder: Callable[[str], Path]) -> None:
    made = recipe(tiny_folder("llama"))
    need = estimate(made)
    assert need is not None
    require_memory(made, need.least.peak)
    with pytest.raises(
        UserError, match=r"needs about .* GiB before any text, and .* are free; with model\.lora_rank=16 "
    ):
        require_memory(made, need.least.peak - 1)
    with pytest.raises(UserError, match="take a smaller model"):
        require_memory(made, 1.0)


def test_processes_side_by_side_need_room_for_each(tiny_folder: Callable[[str], Path]) -> None:
    made = replace(recipe(tiny_folder("llama")), processes=2)
    need = estimate(made)
    assert need is not None
    require_memory(made, 2 * need.least.peak)
    with pytest.raises(UserError, match=r"GiB before any text in 2 processes, .*; with processes=1 it needs"):
        require_memory(made, 1.5 * need.least.peak)


def test_nothing_is_said_of_models_made_from_scratch_or_not_at_hand(tmp_path: Path) -> None:
    assert estimate(recipe(Path("scratch"))) is None
    assert estimate(recipe(tmp_path / "nowhere")) is None


def test_a_dry_run_shows_the_estimate(
    tiny_folder: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.toml").write_text('[env]\nname = "corridor"\n', encoding="utf-8")
    source = str(tiny_folder("llama"))
    assert main(["run", str(tmp_path / "r.toml"), "--dry-run", "--model.source", source]) == 0
    assert "# Memory: needs about " in capsys.readouterr().out
    assert main(["run", str(tmp_path / "r.toml"), "--dry-run", "--model.source", source, "--processes", "2"]) == 0
    assert ", in each of 2 processes; " in capsys.readouterr().out


def test_a_dry_run_names_settings_with_which_long_texts_would_fit(tiny_folder: Callable[[str], Path]) -> None:
    made = recipe(tiny_folder("llama"))
    need, thrifty = estimate(made), estimate(recipe(tiny_folder("llama"), gradient_checkpointing=True))
    assert need is not None and thrifty is not None and need.least.peak < thrifty.peak < need.peak
    assert "too little" not in note(made, need.peak)
    said = note(made, thrifty.peak)
    assert "too little for texts of that length; with model.gradient_checkpointing=true it needs" in said
    assert note(made, 1.0).endswith("too little for texts of that length; set a smaller model.context")


@pytest.fixture
def on_the_hub(tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The hub's name of a model that was fetched to this machine before."""
    cached = tmp_path / "hub" / "models--someone--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("0123abc")
    shutil.copytree(tiny_folder("llama"), cached / "snapshots" / "0123abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return "someone/tiny"


def test_a_model_of_the_hub_is_estimated_like_its_folder(
    on_the_hub: str, tiny_folder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    named, folder = estimate(recipe(Path(on_the_hub))), estimate(recipe(tiny_folder("llama")))
    assert named is not None and named == folder
    assert main(["run", "taxi", "--model.source", on_the_hub, "--dry-run"]) == 0
    assert "Memory: needs about " in capsys.readouterr().out


def test_a_model_of_the_hub_that_cannot_fit_is_refused(on_the_hub: str) -> None:
    with pytest.raises(UserError, match="model 'someone/tiny' does not fit: its weights need"):
        refuse_unless_fitting(on_the_hub, ModelConfig(), 1.0)


def test_nothing_is_told_of_a_model_that_is_not_here(on_the_hub: str) -> None:
    assert estimate(recipe(Path("someone/else"))) is None
