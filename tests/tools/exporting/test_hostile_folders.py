"""Folders of models from a stranger: each is answered with one line, exit code 2, within seconds, and nothing runs on
with weights that were drawn at random.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from reflectrl.cli import main
from reflectrl.core.config import ModelConfig, Recipe, from_dict, to_toml
from reflectrl.models.load import load_model
from reflectrl.runs.card import Card, PlaySettings, write_card
from tests.command_line import refused

SECONDS = 30
"""How long one answer may take on a busy machine; what hangs takes for ever."""
WEIGHTS = "policy/model.safetensors"


class Hung(BaseException):
    """Nothing was answered in time."""


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise Hung

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def agent(tmp_path: Path, tiny_folder: Callable[[str], Path]) -> Path:
    """An agent of a stranger, without digests: a policy that needs nothing else."""
    folder = tmp_path / "agent"
    shutil.copytree(tiny_folder("gpt2"), folder / "policy")
    model = {"mixed_precision": "off", "context": 256}
    recipe = {"name": "tiny", "arms": ["sft"], "env": {"name": "corridor"}, "model": model}
    (folder / "recipe.toml").write_text(to_toml(from_dict(Recipe, recipe, "test")), encoding="utf-8")
    write_card(folder, Card("tiny", "sft", 0, "", "corridor", PlaySettings(context=256)))
    return folder


@pytest.fixture
def adapted(agent: Path) -> Path:
    """The same, with an adapter as its policy."""
    (agent / "policy").rename(agent / "base")
    lm = load_model(agent / "base", ModelConfig(lora_rank=2, mixed_precision="off"), "policy")
    lm.save(agent / "policy")
    return agent


def say(path: Path, **keys: Any) -> None:
    """Set keys of a file of JSON."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    path.write_text(json.dumps({**before, **keys}), encoding="utf-8")


def rename(path: Path, names: Mapping[str, str], extra: Mapping[str, torch.Tensor] | None = None) -> None:
    """Give tensors other names; "" drops them."""
    found = {names.get(name, name): tensor for name, tensor in load_file(path).items()} | dict(extra or {})
    save_file({name: tensor for name, tensor in found.items() if name}, path, {"format": "pt"})


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


def tokenizer(folder: Path, **keys: Any) -> None:
    say(folder / "policy" / "tokenizer.json", **keys)


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def only_x(folder: Path) -> None:
    save_file({"x": torch.zeros(1)}, folder / WEIGHTS, {"format": "pt"})


def sharded(folder: Path, shard: str) -> None:
    """Weights whose index names one file, wherever it lies."""
    weights = folder / WEIGHTS
    names = list(load_file(weights))
    weights.rename(folder.parent / "outside.safetensors")
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, shard)}
    (folder / "policy/model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


DOUBLE = {"type": "Replace", "pattern": {"String": " "}, "content": "  "}
HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights of one foreign tensor": (only_x, "lm_head|transformer.*missing; x is unexpected"),
    "one tensor missing": (
        lambda d: rename(d / WEIGHTS, {"transformer.h.0.ln_1.weight": ""}),
        r"transformer\.h\.0\.ln_1\.weight is missing",
    ),
    "one tensor too many": (
        lambda d: rename(d / WEIGHTS, {}, {"transformer.h.7.ln_1.weight": torch.ones(32)}),
        r"transformer\.h\.7\.ln_1\.weight is unexpected",
    ),
    "a layer fewer in the configuration": (lambda d: say(d / "policy/config.json", n_layer=1), "are unexpected"),
    "an index outside": (lambda d: sharded(d, "../../outside.safetensors"), "names a file outside its folder"),
    "an index with a full path": (
        lambda d: sharded(d, str(d.parent / "outside.safetensors")),
        "names a file outside its folder",
    ),
    "an index of numbers": (lambda d: sharded(d, 5), "names a file outside its folder"),  # type: ignore[arg-type]
    "weights that are a pipe": (lambda d: pipe(d / WEIGHTS), "is not a regular file"),
    "weights that are a device": (lambda d: link(d / WEIGHTS, "/dev/zero"), "is not a regular file"),
    "a configuration that is a pipe": (lambda d: pipe(d / "policy/config.json"), "is not a regular file"),
    "a configuration that is a device": (
        lambda d: link(d / "policy/config.json", "/dev/zero"),
        "is not a regular file",
    ),
    "a tokenizer that is a pipe": (lambda d: pipe(d / "policy/tokenizer.json"), "is not a regular file"),
    "settings of a tokenizer that are a pipe": (
        lambda d: pipe(d / "policy/tokenizer_config.json"),
        "is not a regular file",
    ),
    "a card that is a pipe": (lambda d: pipe(d / "agent.json"), "agent.json cannot be read: it is not a regular file"),
    "a card of another schema": (lambda d: say(d / "agent.json", schema=9), "is not of schema 1"),
    "a card with a negative context": (
        lambda d: say(d / "agent.json", play={"context": -5}),
        "'play.context' is -5; it must be at least 0",
    ),
    "a card of another arm": (lambda d: say(d / "agent.json", arm="no-reflection"), "is an agent of the arm"),
    "a card nested too deeply": (
        lambda d: (d / "agent.json").write_text("[" * 100_000, encoding="utf-8"),
        "agent.json cannot be read",
    ),
    "a recipe with a key of 100,000 parts": (
        lambda d: (d / "recipe.toml").write_text(".".join(["a"] * 100_000) + " = 1", encoding="utf-8"),
        "a key has more than 100 parts",
    ),
    "the same, quoted and in a table": (
        lambda d: (d / "recipe.toml").write_text("[" + " . ".join(['"a b"'] * 50_000) + "]\nx = 1", encoding="utf-8"),
        "a key has more than 100 parts",
    ),
    "a recipe of a million keys": (
        lambda d: (d / "recipe.toml").write_text("".join(f"k{i} = 1\n" for i in range(10**6)), encoding="utf-8"),
        "it has more than 1,048,576 characters",
    ),
    "a configuration nested too deeply": (
        lambda d: (d / "policy/config.json").write_text("[" * 100_000, encoding="utf-8"),
        "config.json cannot be read",
    ),
    "ten million layers": (lambda d: say(d / "policy/config.json", n_layer=10**7), "'n_layer' is 10000000"),
    "ten million layers under another name": (
        lambda d: say(d / "policy/config.json", num_hidden_layers=10**7),
        "'num_hidden_layers' is 10000000",
    ),
    "fifty thousand layers": (lambda d: say(d / "policy/config.json", n_layer=50_000), "a far larger model"),
    "a vocabulary of a billion": (lambda d: say(d / "policy/config.json", vocab_size=10**9), "a far larger model"),
    "code of its own": (
        lambda d: say(d / "policy/config.json", model_type="evil", auto_map={"AutoConfig": "evil.C"}),
        "contains custom code",
    ),
    "a legacy pickle": (
        lambda d: ((d / WEIGHTS).unlink(), (d / "policy/pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")),
        "cannot be loaded",
    ),
    "heads that lie about their size": (
        lambda d: (d / "policy/heads.safetensors").write_bytes(
            struct.pack("<Q", 65) + b'{"x": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}   '
        ),
        "heads.safetensors cannot be read",
    ),
    "a chat of other types": (
        lambda d: say(d / "policy/reflectrl.json", chat={"before": 5, "after": [], "end": "x"}),
        "'chat' must have 'before', 'after'",
    ),
    "a tokenizer that tries for ever": (
        lambda d: tokenizer(d, pre_tokenizer=split(r"(.|.|.|[^x])*(.|\n)*y$")),
        "may take for ever to match",
    ),
    "the same while it normalises": (
        lambda d: tokenizer(d, normalizer={"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "a"}),
        "may take for ever to match",
    ),
    "a tokenizer that doubles a text sixty times": (
        lambda d: tokenizer(d, normalizer={"type": "Sequence", "normalizers": [DOUBLE] * 60}),
        "more than 1000 times as long",
    ),
}
ADAPTERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "an adapter without half of its weights": (
        lambda d: rename(
            d / "policy/adapter_model.safetensors",
            {"base_model.model.transformer.h.0.attn.c_attn.lora_B.weight": ""},
        ),
        r"c_attn\.lora_B.*is missing",
    ),
    "an adapter of more layers": (
        lambda d: rename(
            d / "policy/adapter_model.safetensors",
            {},
            {"base_model.model.transformer.h.9.attn.c_attn.lora_A.weight": torch.ones(2, 32)},
        ),
        r"h\.9\.attn.*is unexpected",
    ),
    "an adapter whose weights are a pipe": (
        lambda d: pipe(d / "policy/adapter_model.safetensors"),
        "is not a regular file",
    ),
    "an adapter that says so of itself through a pipe": (
        lambda d: pipe(d / "policy/adapter_config.json"),
        "is not a regular file",
    ),
    "an adapter on weights of one foreign tensor": (
        lambda d: save_file({"x": torch.zeros(1)}, d / "base/model.safetensors", {"format": "pt"}),
        "x is unexpected",
    ),
    "an adapter without weights": (
        lambda d: (d / "policy/adapter_model.safetensors").unlink(),
        "has no weights",
    ),
    "an adapter of a huge rank": (
        lambda d: say(d / "policy/adapter_config.json", r=10**7),
        "does not fit.*a far larger model",
    ),
    **{
        f"an adapter whose {key} are tried for ever": (
            lambda d, key=key, value=value: say(d / "policy/adapter_config.json", **{key: value}),  # type: ignore[misc]
            "take for ever to match",
        )
        for key, value in {
            "target_modules": "(a|a|[a-z.0-9_]|.)*$!",
            "rank_pattern": {"(a|a|[a-z.0-9_]|.)*!": 2},
        }.items()
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_folder_is_refused_in_one_line(agent: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    spoil, about = HOSTILE[name]
    spoil(agent)
    capfd.readouterr()
    assert_one_line(capfd, about, "play", "corridor", "--player", str(agent))


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_hostile_adapter_is_refused_in_one_line(adapted: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    spoil, about = ADAPTERS[name]
    spoil(adapted)
    capfd.readouterr()
    assert_one_line(capfd, about, "play", "corridor", "--player", str(adapted))


def assert_one_line(capfd: pytest.CaptureFixture[str], about: str, *words: str) -> None:
    """The command is refused, in one line that says so; not even a library writes another."""
    import re

    line = refused(capfd, *words)
    assert re.search(about, line), line


def test_the_folders_play_before_they_are_spoilt(agent: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "corridor", "--player", str(agent)]) == 0
    assert "after" in capfd.readouterr().out


def test_an_adapter_plays_and_its_patterns_may_be_patterns(adapted: Path) -> None:
    say(adapted / "policy/adapter_config.json", target_modules=r".*\.(c_attn|c_proj|c_fc)")
    assert main(["play", "corridor", "--player", str(adapted)]) == 0
