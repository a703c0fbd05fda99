"""Frozen layers: what is below stays as it is, what is above learns with the gradients that it had."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from reflectrl.core.config import ModelConfig, SFTConfig, read_recipe
from reflectrl.core.digests import damage
from reflectrl.core.types import UserError
from reflectrl.learn.checkpoint import load_tensors, write_folder
from reflectrl.learn.examples import Example
from reflectrl.learn.sft import train_sft
from reflectrl.models.lm import LanguageModel
from reflectrl.models.load import load_model
from reflectrl.models.shards import FROZEN, LEARNED
from reflectrl.models.sharing import pack
from tests.device import DEVICE

PROMPTS = [(*range(20, 60), 7, 8, 9), (*range(20, 60), 11, 12), (5, 6, 7)]


def loaded(folder: Path, frozen: int, **more: str) -> LanguageModel:
    return load_model(folder, ModelConfig(context=128, device=DEVICE, frozen_layers=frozen, **more))  # type: ignore[arg-type]


def gradients(lm: LanguageModel) -> dict[str, Tensor]:
    logits = lm.backend.logits(lm.backend.read(pack(PROMPTS)), torch.tensor([7, 3, 11], device=lm.device))
    logits.log_softmax(-1)[:, 0].sum().backward()
    return {name: p.grad for name, p in lm.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral", "canon_llama"])
@pytest.mark.parametrize("backend", ["packed", "plain"])
def test_what_learns_has_the_same_gradients(family: str, backend: str, tiny_folder: Callable[[str], Path]) -> None:
    whole, part = (gradients(loaded(tiny_folder(family), frozen, backend=backend)) for frozen in (0, 1))
    assert part and len(part) < len(whole)
    assert not any("emb" in name or "wte" in name or "wpe" in name or ".0." in name for name in part)
    for name, gradient in part.items():
        torch.testing.assert_close(gradient, whole[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gpt2", "canon_llama"])
def test_training_changes_nothing_below(family: str, tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """And a training that is interrupted goes on to the same weights."""
    rows = [Example((*ids, 3, 4), len(ids)) for ids in PROMPTS]

    def trained(killed: bool, folder: Path | None = None) -> tuple[LanguageModel, dict[str, Tensor]]:
        def log(metrics: dict[str, Any]) -> None:
            if killed and metrics["step"] == 4:  # after the state of step 2 was saved
                raise KeyboardInterrupt

        lm = loaded(tiny_folder(family), 1)
        before = {name: p.detach().clone() for name, p in lm.model.named_parameters()}
        config = SFTConfig(steps=4, batch_size=2, lr=1e-2, warmup=0.0, eval_every=2)
        train_sft(lm, rows, rows, config, 0, log, folder)
        return lm, before

    lm, before = trained(killed=False)
    moved = {name for name, p in lm.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved and moved == {name for name, p in lm.model.named_parameters() if p.requires_grad}
    assert len(moved) < len(before)
    with pytest.raises(KeyboardInterrupt):
        trained(killed=True, folder=tmp_path / "state")
    kept = load_tensors(tmp_path / "state")
    for group in ("weights", "best"):  # what nothing changes need not be kept
        assert kept[group].keys() == moved
    resumed, _ = trained(killed=False, folder=tmp_path / "state")
    assert all(torch.equal(p, lm.weights()[name]) for name, p in resumed.weights().items())


def test_some_layers_must_be_left(tiny_folder: Callable[[str], Path]) -> None:
    layers = loaded(tiny_folder("llama"), 0).layers
    with pytest.raises(UserError, match=f"has {layers} layers; model.frozen_layers must be less, not {layers}"):
        loaded(tiny_folder("llama"), layers)


def test_a_family_whose_layers_are_not_known_is_refused() -> None:
    from reflectrl.models.freezing import freeze

    model = torch.nn.Linear(2, 2)
    model.config = type("Config", (), {"model_type": "other"})()  # type: ignore[assignment]
    with pytest.raises(UserError, match="'mine' \\(other\\) cannot learn with model.frozen_layers"):
        freeze(model, 1, "mine")


@pytest.mark.parametrize("lines", ['source = "scratch"', 'source = "x"\nlora_rank = 4', 'source = "x"'])
def test_it_is_for_whole_pretrained_models(lines: str, tmp_path: Path) -> None:
    """A hub model is trained by adapters where nothing else is said."""
    path = tmp_path / "recipe.toml"
    path.write_text(f'[env]\nname = "corridor"\n[model]\n{lines}\nfrozen_layers = 2\n')
    with pytest.raises(UserError, match="'frozen_layers' is for pretrained models that learn without adapters"):
        read_recipe(path)


@pytest.mark.parametrize("family", ["llama", "gpt2", "canon_llama"])
def test_checkpoints_share_the_frozen_weights_on_disk(
    family: str, tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are two files, the usual form of a sharded model, and neighbours have the frozen one in common."""
    monkeypatch.setattr("reflectrl.core.digests.WORTH_LINKING", 1)
    lm = loaded(tiny_folder(family), 1)
    write_folder(tmp_path / "first", lm.saver())
    top = next(p for p in reversed(list(lm.model.parameters())) if p.requires_grad)
    with torch.no_grad():
        top.add_(1.0)
    for name in ("second", "third"):
        write_folder(tmp_path / name, lm.saver())
    paths = {name: sorted((tmp_path / name).glob("*.safetensors")) for name in ("first", "second", "third")}
    assert [path.name for path in paths["first"]] == [FROZEN, LEARNED]
    shared = [first.samefile(second) for first, second in zip(paths["first"], paths["second"], strict=True)]
    assert shared == [True, False]
    assert all(second.samefile(third) for second, third in zip(paths["second"], paths["third"], strict=True))
    for load in (loaded(tmp_path / "third", 0), loaded(tmp_path / "third", 1)):
        assert load.weights().keys() <= lm.model.state_dict().keys()
        assert all(torch.equal(p, lm.model.state_dict()[name]) for name, p in load.model.state_dict().items())
    whole = loaded(tiny_folder(family), 0)
    write_folder(tmp_path / "whole", whole.saver())
    assert [path.name for path in (tmp_path / "whole").glob("*.safetensors")] == ["model.safetensors"]


def test_neither_damaged_weights_nor_those_of_an_export_are_shared(
    tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reflectrl.core.digests.WORTH_LINKING", 1)
    lm = loaded(tiny_folder("llama"), 1)
    write_folder(tmp_path / "first", lm.saver())
    damaged = bytearray((tmp_path / "first" / FROZEN).read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "first" / FROZEN).write_bytes(damaged)
    write_folder(tmp_path / "second", lm.saver())
    assert not (tmp_path / "first" / FROZEN).samefile(tmp_path / "second" / FROZEN)
    write_folder(tmp_path / "own", lm.saver(), share=False)
    assert not (tmp_path / "own" / FROZEN).samefile(tmp_path / "second" / FROZEN)
    assert damage(tmp_path / "second") is None and FROZEN in (damage(tmp_path / "first") or "")
