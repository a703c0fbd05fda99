"""GGUF files: a tiny one, written here, becomes a folder that loads; others are refused in one line."""

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reflectrl.core.config import ModelConfig
from reflectrl.core.config.folders import data_folder
from reflectrl.core.types import UserError
from reflectrl.models.load import load_model
from reflectrl.models.sources import find_model
from tests.conftest import Command
from tests.tools.pretrained.conftest import CHATML

gguf = pytest.importorskip("gguf")

WIDTH, LAYERS, HEADS, HIDDEN, VOCAB = 32, 2, 4, 64, 260
END, START, STOP = 256, 257, 258


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFLECTRL_DATA", str(tmp_path / "cache"))


def byte_letters() -> list[str]:
    """The characters that stand for the 256 bytes in byte-level BPE."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    letter = {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    return [letter[byte] for byte in range(256)]


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * 0.3).astype(np.float32)

    found = {"token_embd.weight": matrix(VOCAB, WIDTH), "output_norm.weight": np.ones(WIDTH, np.float32)}
    for layer in range(LAYERS):
        shapes = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (WIDTH, WIDTH))
        shapes |= {"ffn_gate": (HIDDEN, WIDTH), "ffn_up": (HIDDEN, WIDTH), "ffn_down": (WIDTH, HIDDEN)}
        found |= {f"blk.{layer}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        found |= {f"blk.{layer}.{name}_norm.weight": np.ones(WIDTH, np.float32) for name in ("attn", "ffn")}
    return found


def write(path: Path, architecture: str = "llama", quantise: bool = False, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Write a model with a byte-level tokenizer and ChatML; returns its weights."""
    writer: Any = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCAB)
    letters = byte_letters()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*letters, "<|endoftext|>", "<|im_start|>", "<|im_end|>", letters[32] + "1"])
    writer.add_token_types([1] * 256 + [3] * 3 + [1])
    writer.add_token_merges([f"{letters[32]} 1"])
    writer.add_bos_token_id(START)
    writer.add_eos_token_id(STOP)
    writer.add_unk_token_id(END)
    writer.add_pad_token_id(END)
    writer.add_chat_template(CHATML)
    made = {name: array * np.float32(scale) for name, array in weights(np.random.default_rng(0)).items()}
    for name, array in made.items():
        if quantise and array.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made


@pytest.mark.parametrize(("quantise", "near"), [(False, 0.0), (True, 0.01)])
def test_a_file_becomes_a_model_with_tokenizer_and_template(tmp_path: Path, quantise: bool, near: float) -> None:
    made = write(tmp_path / "tiny.gguf", quantise=quantise)
    lm = load_model(tmp_path / "tiny.gguf", ModelConfig(context=256))
    read = lm.model.state_dict()
    for name, mine in {
        "model.embed_tokens.weight": "token_embd",
        "model.layers.1.mlp.down_proj.weight": "blk.1.ffn_down",
        "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v",
    }.items():
        np.testing.assert_allclose(read[name].float().numpy(), made[f"{mine}.weight"], atol=near)
    assert lm.tokenizer.decode(lm.encode("a 1 sea\n")) == "a 1 sea\n"
    assert lm.chat is not None and lm.end == STOP
    assert lm.chat.after == "<|im_end|>\n<|im_start|>assistant\n"


def test_a_file_is_converted_once_and_what_was_made_of_it_is_checked(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "tiny.gguf")
    capfd.readouterr()
    folder = Path(find_model(str(tmp_path / "tiny.gguf")))
    assert capfd.readouterr().err == "", "no bars of progress"
    assert folder.parent == data_folder("models")
    made = (folder / "config.json").stat().st_mtime_ns
    (tmp_path / "moved").mkdir()
    (tmp_path / "tiny.gguf").rename(tmp_path / "moved" / "other.gguf")
    assert Path(find_model(str(tmp_path / "moved" / "other.gguf"))) == folder
    assert (folder / "config.json").stat().st_mtime_ns == made
    assert not list(folder.parent.glob("*.part"))
    [weights_file] = folder.glob("*.safetensors")
    content = bytearray(weights_file.read_bytes())
    content[-1] ^= 1
    weights_file.write_bytes(content)
    with pytest.raises(UserError, match="has changed since it was written"):
        find_model(str(tmp_path / "moved" / "other.gguf"))


def test_what_a_killed_conversion_left_goes_with_the_next(tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf")
    left = [data_folder("models") / name for name in ("gguf-0123.old.part", "gguf-4567.new.part")]
    for part in left:
        part.mkdir(parents=True)
    os.utime(left[0], (0, 0))
    find_model(str(tmp_path / "tiny.gguf"))
    assert [part.exists() for part in left] == [False, True]


def test_what_an_interrupted_conversion_left_is_no_model(tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf")
    folder = Path(find_model(str(tmp_path / "tiny.gguf")))
    (folder / "config.json").unlink()  # as if it had been killed half-way
    lm = load_model(tmp_path / "tiny.gguf", ModelConfig(context=256))
    assert (folder / "config.json").is_file() and lm.model.dtype == torch.float32


def text(word: str) -> bytes:
    """A text as a GGUF file holds it."""
    return struct.pack("<Q", len(word)) + word.encode()


def header(tensors: int, pairs: int, *content: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, pairs) + b"".join(content)


ARCHITECTURE = text("general.architecture")
LLAMA = ARCHITECTURE + struct.pack("<I", 8) + text("llama")


@pytest.mark.parametrize(
    ("content", "about"),
    [
        (header(0, 1, LLAMA), "describes a far larger model than its weights"),
        (header(0, 2, LLAMA, text("llama.block_count"), struct.pack("<II", 4, 2**31)), "no model has so many"),
        (header(0, 1, ARCHITECTURE, struct.pack("<IIQ", 9, 4, 2**60)), "the file ends within its header"),
        (header(0, 1, ARCHITECTURE, struct.pack("<IIQ", 9, 9, 2**60)), "the file ends within its header"),
        (header(2**62, 2**62), "the file ends within its header"),
        (
            header(1, 1, LLAMA, text("output.weight"), struct.pack("<IQQIQ", 2, 2**31, 2**20, 0, 0)),
            "its tensors are larger than the file",
        ),
    ],
    ids=["7B by default", "layers", "numbers", "arrays", "pairs", "tensors"],
)
def test_a_few_bytes_never_become_a_large_model(tmp_path: Path, content: bytes, about: str) -> None:
    (tmp_path / "few.gguf").write_bytes(content)
    with pytest.raises(UserError, match=f"few.gguf'.*{about}"):
        load_model(tmp_path / "few.gguf", ModelConfig())
    assert not list(data_folder("models").glob("*"))


def test_a_file_without_one_of_its_tensors_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = weights
    monkeypatch.setitem(globals(), "weights", lambda rng: {k: v for k, v in whole(rng).items() if "1.ffn_up" not in k})
    write(tmp_path / "lacking.gguf")
    with pytest.raises(UserError, match=r"lacking.gguf'.*layers\.1\.mlp\.up_proj\.weight is missing"):
        load_model(tmp_path / "lacking.gguf", ModelConfig())


def test_what_is_made_of_a_file_has_the_modes_of_new_files(tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf")
    folder = Path(find_model(str(tmp_path / "tiny.gguf")))
    (tmp_path / "new").touch()
    assert {path.stat().st_mode for path in folder.iterdir()} == {(tmp_path / "new").stat().st_mode}


def test_other_files_are_refused_in_one_line(tmp_path: Path, command: Command) -> None:
    write(tmp_path / "odd.gguf", architecture="mamba3")
    (tmp_path / "text.gguf").write_text("a model")
    (tmp_path / "short.gguf").write_bytes((tmp_path / "odd.gguf").read_bytes()[:200])
    write(tmp_path / "spoilt.gguf", scale=np.nan)
    write(tmp_path / "cut.gguf")
    with (tmp_path / "cut.gguf").open("r+b") as file:
        file.truncate((tmp_path / "cut.gguf").stat().st_size - 2000)
    for name, about in (
        ("cut.gguf", "this GGUF file cannot be read"),
        ("odd.gguf", "this GGUF file cannot be read: .*mamba3"),
        ("short.gguf", "this GGUF file cannot be read"),
        ("text.gguf", "is not a GGUF file"),
        ("none.gguf", "there is no such GGUF file"),
        ("spoilt.gguf", "this GGUF file cannot be read: .*not finite numbers"),
    ):
        with pytest.raises(UserError, match=f"{name}'.*{about}") as error:
            load_model(tmp_path / name, ModelConfig())
        assert "\n" not in str(error.value)
    assert not list(data_folder("models").glob("*"))
    (tmp_path / "mine.toml").write_text('[env]\nname = "corridor"\n')
    said = command("run", "mine.toml", "--arms", "zero-shot", "--model.source", "none.gguf")
    assert (said.returncode, said.stderr.count("there is no such GGUF file")) == (2, 1)
