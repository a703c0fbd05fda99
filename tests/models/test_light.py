"""Players in numpy play as those that torch computes; models that are out of the ordinary are left to the library."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reflectrl.core.calibration import Calibration
from reflectrl.core.config import ModelConfig
from reflectrl.core.players import LiveEpisode
from reflectrl.core.types import Observation, Sampling, Task, UserError
from reflectrl.models.cards import CARD
from reflectrl.models.light import LightModel, LightPolicy, LightReflector, load_light
from reflectrl.models.load import load_model
from reflectrl.models.players import Policy, Reflector
from reflectrl.models.scratch import save_scratch

SMALL = ModelConfig(family="llama", layers=2, width=32, heads=2, vocab=300, context=128)
TEXTS = ["go to the shelf 12", "Schlüssel: ключ, 鍵 \n\n end"]
ACTIONS = ("go to shelf 1", "go to shelf 12", "go back", "look", "look up", "end")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights are enlarged, so that outputs differ between tokens and places."""
    place = tmp_path_factory.mktemp("light") / "model"
    save_scratch(place, SMALL, TEXTS * 20, 9, 1)
    model: Any = load_model(place, SMALL).model
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.ndim)))
    model.save_pretrained(place)
    for digests in place.glob("digests.json"):
        digests.unlink()
    return place


def light(folder: Path) -> LightModel:
    found = load_light(folder, 128)
    assert found is not None
    return found


def asked(state: str, history: str = "", actions: tuple[str, ...] = ACTIONS) -> LiveEpisode:
    """An episode as players see it."""
    seen = Observation(history, state, actions)
    nowhere: Any = None  # players look at the observation alone
    return LiveEpisode(nowhere, Task("", ""), 0, np.random.default_rng(0), seen)


def test_it_reads_as_the_library_reads(folder: Path) -> None:
    model, full = light(folder), load_model(folder, SMALL)
    for text in TEXTS:
        ids = tuple(full.encode(text))
        assert tuple(model.tokenizer.encode(text)) == ids
        assert model.tokenizer.decode(ids) == full.tokenizer.decode(ids, skip_special_tokens=True)
        with torch.no_grad():
            wanted = full.core(torch.tensor([ids])).logits[0]
        hidden_D, cache = model.read(ids[:3])
        assert np.allclose(model.logits(hidden_D), wanted[2], atol=1e-4)
        hidden_D, _ = model.further(ids[3:], cache)
        assert np.allclose(model.logits(hidden_D), wanted[-1], atol=1e-4)
    assert model.context == full.context


def test_what_was_read_before_does_not_show(folder: Path) -> None:
    model = light(folder)
    first, second = (tuple(model.tokenizer.encode(f"{TEXTS[0]}{end}")) for end in (" go", " end"))
    alone = light(folder).read(second)[0]
    model.read(first)
    assert np.allclose(model.read(second)[0], alone, atol=1e-5)
    assert np.allclose(model.read(second)[0], alone, atol=1e-5)


def test_heads_that_share_keys_and_values(folder: Path, tmp_path: Path) -> None:
    full: Any = load_model(folder, SMALL)
    full.model.config.num_key_value_heads = 1
    shared = type(full.model)(full.model.config)
    shared.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    ids = tuple(full.encode(TEXTS[0]))
    with torch.no_grad():
        wanted = shared(torch.tensor([ids])).logits[0, -1]
    model = light(tmp_path)
    assert np.allclose(model.logits(model.read(ids)[0]), wanted, atol=1e-4)


def test_the_policy_chooses_as_the_policy_of_the_engine(folder: Path) -> None:
    theirs = Policy(load_model(folder, SMALL), Sampling(0.0), scoring="trie")
    ours = LightPolicy(light(folder))
    for state in ("shelf 3\n", "the end\n", "key, key\n"):
        for actions in (ACTIONS, ACTIONS[:1], ACTIONS[2:]):
            [mine], [other] = (player.turns([asked(state, actions=actions)]) for player in (ours, theirs))
            assert (mine.choice, mine.text, mine.token_ids) == (other.choice, other.text, other.token_ids)
            assert mine.probs == pytest.approx(other.probs, abs=1e-4)
            assert mine.entropy == pytest.approx(other.entropy, abs=1e-3)


def test_actions_that_begin_like_others_share_their_probability(folder: Path) -> None:
    [turn] = LightPolicy(light(folder)).turns([asked("shelf 3\n")])
    assert sum(turn.probs) == pytest.approx(1.0, abs=1e-5) and min(turn.probs) > 0


def test_the_reflector_writes_what_the_reflector_of_the_engine_writes(folder: Path) -> None:
    theirs, ours = Reflector(load_model(folder, SMALL), 20), LightReflector(light(folder), 20)
    for state in ("shelf 3\n", "the end\n", "key, key\n"):
        [mine], [other] = (player.turns([asked(state, "it was there\n")]) for player in (ours, theirs))
        assert (mine.text, mine.token_ids) == (other.text, other.token_ids)
        assert mine.logprobs == pytest.approx(other.logprobs, abs=1e-3)


def test_half_precision_on_disk_is_single_in_memory(folder: Path, tmp_path: Path) -> None:
    load_model(folder, SMALL).model.half().save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert light(tmp_path).embeddings_VD.dtype == np.float32


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("config.json", "model_type", "mistral"),
        ("config.json", "attention_bias", True),
        ("config.json", "rope_parameters", {"rope_type": "linear", "factor": 2.0, "rope_theta": 1.0}),
        ("config.json", "hidden_size", 48),
        ("config.json", "intermediate_size", 48),
        ("tokenizer_config.json", "bos_token", "<s>"),
        (CARD, "chat", {"before": "x"}),
    ],
)
def test_what_is_out_of_the_ordinary_is_left_to_the_library(
    folder: Path, tmp_path: Path, file: str, key: str, value: object
) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    about = json.loads((tmp_path / file).read_text()) if (tmp_path / file).is_file() else {}
    (tmp_path / file).write_text(json.dumps({**about, key: value}))
    assert load_light(tmp_path, 128) is None


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_damaged_files_are_refused_by_name(folder: Path, tmp_path: Path, file: str) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / file).write_bytes(b"{")
    with pytest.raises(UserError, match=f"{file} cannot be read"):
        load_light(tmp_path, 128)


def test_damaged_weights_and_missing_folders_are_left_to_the_library(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"{")
    assert load_light(tmp_path, 128) is None
    assert load_light(tmp_path / "nowhere", 128) is None


def test_weights_of_another_tokenizer_are_refused(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / CARD).write_text(json.dumps({"tokenizer": "another"}))
    with pytest.raises(UserError, match="another tokenizer"):
        load_light(tmp_path, 128)


def test_neither_torch_nor_the_library_is_imported(folder: Path) -> None:
    program = (
        "import sys, pathlib; from reflectrl.models.light import load_light\n"
        "assert load_light(pathlib.Path(sys.argv[1]), 128)\n"
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.fixture(scope="module", params=["gpt2", "llama", "canon_llama"])
def scorer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of each family with a head that scores options."""
    place = tmp_path_factory.mktemp("scorer") / "model"
    save_scratch(place, replace(SMALL, family=request.param), TEXTS * 20, 9, 1)
    lm = load_model(place, SMALL)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in [*lm.parameters(), lm.ensure_option_head()]:
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    lm.save(place)
    for digests in place.glob("digests.json"):
        digests.unlink()
    return place


@pytest.mark.parametrize("scoring", ["options", "enumeration", "trie"])
def test_it_chooses_as_the_engine_does_however_actions_are_scored(scorer: Path, scoring: Any) -> None:
    """Also behind a beginning that was read before, and with more options than go through the model at once."""
    many = tuple(f"go to shelf {i}, then to the end of {i % 7}" for i in range(80))
    engine = Policy(load_model(scorer, SMALL), Sampling(0.0), memory=0, scoring=scoring)
    engine.calibration = Calibration(2.0, (1.3, 0.8, 0.5))
    ours = LightPolicy(light(scorer), scoring, engine.calibration)
    for state in ("shelf 3\n", "the end\n"):
        for actions in (ACTIONS, ACTIONS, ACTIONS[:1], *(() if scoring == "enumeration" else (many,))):
            [mine], [theirs] = (player.turns([asked(state, actions=actions)]) for player in (ours, engine))
            assert (mine.choice, mine.token_ids) == (theirs.choice, theirs.token_ids)
            assert mine.probs == pytest.approx(theirs.probs, abs=1e-5)
            assert mine.entropy == pytest.approx(theirs.entropy, abs=1e-3)


def test_a_model_without_a_head_scores_no_options(folder: Path) -> None:
    with pytest.raises(ValueError, match="options"):
        LightPolicy(light(folder), "options")
    with pytest.raises(ValueError, match="word"):
        LightPolicy(light(folder), "word")


def test_too_many_actions_for_the_labels_are_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="choice labels"):
        LightPolicy(light(folder), "enumeration").turns([asked("x\n", actions=tuple(f"go {i}" for i in range(900)))])
