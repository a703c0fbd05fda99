"""Models loaded without the transformers library compute what those that it loads do; others are left to it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from reflectrl.config import ModelConfig
from reflectrl.models.labels import find_labels
from reflectrl.models.lm import CARD, LanguageModel
from reflectrl.models.load import load_model
from reflectrl.models.scratch import save_scratch
from reflectrl.models.sharing import pack
from reflectrl.players.policy import sampler
from reflectrl.prompts import Prompt, tokenize
from reflectrl.types import Sampling, UserError
from reflectrl.wings.autoexplore.locate.light import load_light

SMALL = ModelConfig(family="llama", layers=2, width=32, heads=2, vocab=300, context=128)
TEXTS = ["go to the shelf 12", "Schlüssel: ключ, 鍵 \n\n end"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("light") / "model"
    save_scratch(place, SMALL, TEXTS * 20, 9, 1)
    return place


def both(folder: Path) -> tuple[LanguageModel, LanguageModel]:
    light = load_light(folder, 128)
    assert light is not None
    return light, load_model(folder, SMALL)


def test_it_computes_what_the_library_computes(folder: Path) -> None:
    logits, written = [], []
    for lm in both(folder):
        prompts = [tokenize(lm, Prompt(text, " and then")) for text in TEXTS]
        with lm.playing():
            logits.append(lm.backend.logits(lm.backend.read(pack(prompts), "all")))
            written.append(
                lm.backend.write(prompts, 20, sampler(Sampling(1.0)), [np.random.default_rng(n) for n in range(2)])
            )
    assert torch.allclose(*logits, atol=1e-5)
    assert [ids for ids, _ in written[0]] == [ids for ids, _ in written[1]]


def test_it_writes_the_same_and_reads_the_same(folder: Path) -> None:
    light, full = both(folder)
    for text in TEXTS:
        ids = full.encode(text)
        assert light.encode(text) == ids
        assert light.tokenizer.decode(ids) == full.tokenizer.decode(ids, skip_special_tokens=True)
    assert find_labels(light.tokenizer, 9) == find_labels(full.tokenizer, 9)
    assert (light.context, light.token_bytes, light.hidden_size) == (full.context, full.token_bytes, full.hidden_size)


def test_half_precision_on_disk_is_single_in_memory(folder: Path, tmp_path: Path) -> None:
    load_model(folder, SMALL).model.half().save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    light = load_light(tmp_path, 128)
    assert light is not None and light.dtype == torch.float32


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("config.json", "model_type", "mistral"),
        ("config.json", "attention_bias", True),
        ("config.json", "rope_parameters", {"rope_type": "linear", "factor": 2.0, "rope_theta": 1.0}),
        ("config.json", "hidden_size", 48),
        ("tokenizer_config.json", "bos_token", "<s>"),
    ],
)
def test_what_is_out_of_the_ordinary_is_left_to_the_library(
    folder: Path, tmp_path: Path, file: str, key: str, value: object
) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    about = json.loads((tmp_path / file).read_text())
    (tmp_path / file).write_text(json.dumps({**about, key: value}))
    assert load_light(tmp_path, 128) is None


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_damaged_files_are_left_to_the_library(folder: Path, tmp_path: Path, file: str) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / file).write_bytes(b"{")
    assert load_light(tmp_path, 128) is None
    assert load_light(tmp_path / "nowhere", 128) is None


def test_weights_of_another_tokenizer_are_refused(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / CARD).write_text(json.dumps({"tokenizer": "another"}))
    with pytest.raises(UserError, match="another tokenizer"):
        load_light(tmp_path, 128)


def test_the_library_is_not_imported(folder: Path) -> None:
    program = (
        "import sys, pathlib; from reflectrl.wings.autoexplore.locate.light import load_light\n"
        "import reflectrl.players.policy\n"
        "assert load_light(pathlib.Path(sys.argv[1]), 128); print('transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
