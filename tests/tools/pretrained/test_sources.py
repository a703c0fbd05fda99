"""What is wrong with a model is said before anything is made: one line, exit code 2, by the command line itself."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from reflectrl.cli import main
from tests.tools.pretrained.conftest import Maker

TEMPLATES = {
    "{{ raise_exception('only poems, please') }}": r"fails \(TemplateError: only poems, please\)",
    "{{ persona.name }}": r"fails \(UndefinedError: 'persona' is undefined\)",
    "{% for message in messages %}": r"fails \(TemplateSyntaxError: ",
    "{# nothing #}": "does not keep a prompt as it is",
    "{{ messages[-1]['content'] | upper }}": "does not keep a prompt as it is",
}
"""Chat templates that cannot be used, and what is said of them."""

Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refused:
    """`refused(source)`: the one line with which a run is refused that would have begun by teaching."""
    monkeypatch.chdir(tmp_path)

    def run(source: object, *more: str) -> str:
        settings = ("--arms", "sft", "--teach.tasks", "2", "--name", "r", "--model.source", str(source), *more)
        assert main(["run", "taxi", *settings]) == 2
        said = capsys.readouterr().err.strip()
        assert re.fullmatch("reflectrl: .*", said) and not list(tmp_path.rglob("teach-*.jsonl")), said
        return said

    return run


@pytest.mark.parametrize("source", ["./not-there", "someone/nowhere"])
def test_a_model_that_is_not_there_is_refused_before_teaching(refused: Refused, source: str, tmp_path: Path) -> None:
    line = refused(source)
    assert f"model {source!r} is neither a folder nor the name of a model on this machine" in line
    assert "hf download NAME" in line


def test_a_misspelt_short_name_is_told_the_near_one(refused: Refused) -> None:
    assert refused("smollm2-135").endswith("(did you mean 'smollm2-135m'?)")


def test_a_role_of_its_own_is_looked_at_as_well(refused: Refused, instruct: Path, tmp_path: Path) -> None:
    assert "model './gone' is neither" in refused(instruct, "--model.reflector", "./gone")


@pytest.mark.parametrize("device", ["cuda:77", "nonsense"])
def test_a_device_that_is_not_there_is_named(refused: Refused, instruct: Path, device: str) -> None:
    assert device in refused(instruct, "--model.device", device)


def test_a_missing_bitsandbytes_is_noticed_before_teaching(
    refused: Refused, instruct: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)  # as if it were not installed
    settings = ("--model.quantisation", "nf4", "--model.lora-rank", "4")
    assert refused(instruct, *settings).endswith("(or make setup EXTRA=qlora)")


def test_a_folder_without_weights_is_named(refused: Refused, instruct: Path, tmp_path: Path) -> None:
    shutil.copytree(instruct, tmp_path / "empty", ignore=shutil.ignore_patterns("*.safetensors"))
    assert "no weights in empty" in refused("empty")


def test_damaged_weights_are_named(refused: Refused, instruct: Path, tmp_path: Path) -> None:
    shutil.copytree(instruct, tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"\xff" * 40)
    assert "broken/model.safetensors is not a safetensors file" in refused("broken")


def test_weights_that_do_not_fit_are_named_before_teaching(refused: Refused, instruct: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(instruct, tmp_path / "foreign"))
    save_file({"x": torch.zeros(1)}, folder / "model.safetensors", {"format": "pt"})
    line = refused("foreign", "--model.context", "128")
    assert re.search(r"model 'foreign': .* and \d+ more are missing; x is unexpected$", line)


def test_a_model_with_a_pipe_is_refused_before_teaching(refused: Refused, instruct: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(instruct, tmp_path / "piped"))
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    assert refused("piped").endswith("piped/model.safetensors is not a regular file")


@pytest.mark.parametrize(("template", "about"), TEMPLATES.items())
def test_a_chat_template_that_cannot_be_used_is_named_with_the_way_out(
    refused: Refused, chat_model: Maker, template: str, about: str
) -> None:
    assert re.search(f"its chat template {about}.*; set model.chat to off", refused(chat_model(template)))


def test_a_tokenizer_without_labels_is_named(
    refused: Refused, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its only token is the end of text: no label is a single token behind the prompt's end."""
    folder = tmp_path / "mute"
    shutil.copytree(tiny_folder("gpt2"), folder)
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": None,
        "post_processor": None, "decoder": None,
        "added_tokens": [{"id": 0, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True}],
        "model": {"type": "WordLevel", "vocab": {"<|endoftext|>": 0}, "unk_token": "<|endoftext|>"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    line = refused("mute")
    assert "model 'mute': the tokenizer has " in line and "single-token choice labels" in line
    assert "play.scoring" in line


def test_a_run_that_cannot_fit_is_refused_with_settings_that_would(
    refused: Refused, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """A model of 40 TB, of which the file holds the header alone: the disk takes no more than that."""
    folder = tmp_path / "giant"
    shutil.copytree(tiny_folder("llama"), folder)
    rows = 10**9
    tensor = {"dtype": "F32", "shape": [rows, 10_000], "data_offsets": [0, 4 * rows * 10_000]}
    header = json.dumps({"model.layers.0.self_attn.q_proj.weight": tensor}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    line = refused("giant")
    assert (
        "model 'giant' needs about " in line
        and " GiB before any text in 2 processes, and " in line
        and " are free; " in line
    )
    assert "take a smaller model" in line


def test_a_gguf_file_of_an_unknown_kind_is_named(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = pytest.importorskip("gguf")
    from tests.tools.pretrained.test_gguf import write

    assert gguf
    monkeypatch.setenv("REFLECTRL_DATA", str(tmp_path / "cache"))
    write(tmp_path / "odd.gguf", architecture="clip")
    line = refused("odd.gguf")
    assert "model 'odd.gguf': this GGUF file cannot be read: " in line
