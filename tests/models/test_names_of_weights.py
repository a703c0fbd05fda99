"""Weights whose names do not fit are refused however a model is loaded; what belongs to it all the same loads."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from reflectrl.core.config import ModelConfig
from reflectrl.core.types import UserError
from reflectrl.models.load import load_model, second_player

Tensors = dict[str, torch.Tensor]
PLAIN = {"context": 64, "mixed_precision": "off", "device": "cpu"}
LORA = {**PLAIN, "lora_rank": 2}
NORM = "model.layers.0.input_layernorm.weight"


@pytest.fixture
def folder(tmp_path: Path, tiny_folder: Callable[[str], Path]) -> Path:
    """A tiny Llama of one's own; its head is its embedding."""
    return Path(shutil.copytree(tiny_folder("llama"), tmp_path / "model"))


def rewrite(folder: Path, change: Callable[[Tensors], Any], file: str = "model.safetensors") -> None:
    tensors = load_file(folder / file)
    change(tensors)
    save_file(tensors, folder / file, {"format": "pt"})


def shard(folder: Path) -> None:
    """The same weights in two files with an index."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    (folder / "model.safetensors").unlink()
    where = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(where.values()):
        save_file({name: tensors[name] for name in names if where[name] == file}, folder / file, {"format": "pt"})
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def pickled(folder: Path) -> None:
    """The same weights as a pickle."""
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("settings", "form"),
    [
        (PLAIN, None),
        ({**PLAIN, "dtype": "bfloat16"}, None),
        ({**LORA, "quantisation": "nf4"}, None),
        ({**LORA, "quantisation": "int8"}, None),
        (PLAIN, shard),
        (PLAIN, pickled),
    ],
    ids=["plain", "bfloat16", "nf4", "int8", "sharded", "pickled"],
)
@pytest.mark.parametrize(
    ("change", "about"),
    [
        (lambda tensors: tensors.pop(NORM), f"{NORM} is missing"),
        (lambda tensors: tensors.update(other=torch.ones(2)), "other is unexpected"),
    ],
)
def test_tensors_that_are_missing_or_unexpected_are_named(
    folder: Path, settings: Any, form: Callable[[Path], None] | None, change: Callable[[Tensors], Any], about: str
) -> None:
    rewrite(folder, change)
    if form is not None:
        form(folder)
    with pytest.raises(UserError, match=f"model .*do not fit its configuration: {re.escape(about)}") as error:
        load_model(folder, ModelConfig(**settings), "policy")
    assert "\n" not in str(error.value)


def test_many_tensors_are_counted(folder: Path) -> None:
    rewrite(folder, lambda tensors: [tensors.pop(name) for name in list(tensors) if ".layers.1." in name])
    with pytest.raises(UserError, match="and 6 more are missing"):
        load_model(folder, ModelConfig(**PLAIN))


def test_a_head_of_its_own_must_be_there(folder: Path) -> None:
    path = folder / "config.json"
    about = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**about, "tie_word_embeddings": False}), encoding="utf-8")
    with pytest.raises(UserError, match=r"lm_head\.weight is missing"):
        load_model(folder, ModelConfig(**PLAIN))


def test_what_old_checkpoints_hold_beside_weights_is_no_weight(folder: Path) -> None:
    wanted = load_model(folder, ModelConfig(**PLAIN)).weights()
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    old = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(8) for i in range(2)}
    rewrite(folder, lambda tensors: tensors.update(old))
    rewrite(folder, lambda tensors: tensors.update({"model.position_ids": torch.arange(4)[None]}))
    save_file({"critic": torch.ones(2)}, folder / "heads.safetensors")
    shard(folder)
    found = load_model(folder, ModelConfig(**PLAIN))
    assert all(torch.equal(found.weights()[name], tensor) for name, tensor in wanted.items())
    assert list(found.heads) == ["critic"]


def test_masks_of_old_checkpoints_are_no_weights(tmp_path: Path, tiny_folder: Callable[[str], Path]) -> None:
    folder = Path(shutil.copytree(tiny_folder("gpt2"), tmp_path / "model"))
    masks = {"transformer.h.0.attn.bias": torch.ones(1, 1, 4, 4), "transformer.h.0.attn.masked_bias": torch.ones(())}
    rewrite(folder, lambda tensors: tensors.update(masks))
    load_model(folder, ModelConfig(**PLAIN))


def test_a_head_that_was_saved_though_it_is_the_embedding_loads(folder: Path) -> None:
    rewrite(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    load_model(folder, ModelConfig(**PLAIN))


def test_what_the_library_saves_is_whole(tmp_path: Path, folder: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "half", max_shard_size="20KB")
    for path in folder.glob("tokenizer*"):
        shutil.copy(path, tmp_path / "half")
    assert (tmp_path / "half" / "model.safetensors.index.json").is_file()
    load_model(tmp_path / "half", ModelConfig(**PLAIN))


@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
@pytest.mark.parametrize(
    ("change", "about"),
    [
        (lambda t: t.pop(min(name for name in t if "lora_B" in name)), "lora_B.* is missing"),
        (lambda t: t.update({"base_model.model.model.layers.9.x.lora_A.weight": torch.ones(2, 4)}), "is unexpected"),
    ],
)
def test_an_adapter_with_other_tensors_is_refused(
    tmp_path: Path, folder: Path, second: bool, change: Callable[[Tensors], Any], about: str
) -> None:
    lm = load_model(folder, ModelConfig(**LORA), "policy")
    lm.save(tmp_path / "adapter")
    load_model(tmp_path / "adapter", ModelConfig(**LORA))
    second_player(lm, "same", tmp_path / "adapter")
    rewrite(tmp_path / "adapter", change, "adapter_model.safetensors")
    with pytest.raises(UserError, match=f"adapter .*{about}"):
        if second:
            second_player(lm, "other", tmp_path / "adapter")
        else:
            load_model(tmp_path / "adapter", ModelConfig(**LORA))
