"""Reader of `locate --read`: its judgement by enumeration, its choice, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from reflectrl.cli import main
from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.locate.answers import Locator
from reflectrl.wings.autoexplore.locate.engine import Engine
from reflectrl.wings.autoexplore.locate.excerpts import Excerpt
from reflectrl.wings.autoexplore.locate.inquiry import Inquiry
from reflectrl.wings.autoexplore.locate.ranker import shipped_ranker
from reflectrl.wings.autoexplore.locate.reader import ASKED, SCALE, Reader
from tests.projects import make_project

QUESTION = "where are retries configured?"
LAYER = "model.layers.1.mlp.up_proj"
EXCERPTS = [
    Excerpt("net/retry.py", "RetryPolicy, delay", "net/client.py", "class RetryPolicy:\nretries = 3"),
    Excerpt("config.toml", lines="# everything is configured here\nretries = 3\nbackoff = 2"),
    Excerpt("empty.py"),
]


@pytest.fixture
def llama(tiny_folder: Callable[[str], Path]) -> Path:
    return tiny_folder("llama")


@pytest.fixture
def adapter(llama: Path, tmp_path: Path) -> Path:
    return write_adapter(llama, tmp_path / "reader.safetensors")


def write_adapter(llama: Path, file: Path, likelihood: float = 2.0) -> Path:
    """Write a random adapter of one layer, a random head, and the weights of search and likelihood."""
    weight = AutoModelForCausalLM.from_pretrained(llama).get_parameter(f"{LAYER}.weight")
    random = torch.Generator().manual_seed(0)
    outputs, inputs = weight.shape
    matrices = {
        f"{LAYER}.A": torch.randn(2, inputs, generator=random),
        f"{LAYER}.B": torch.randn(outputs, 2, generator=random),
        "head": torch.randn(inputs, generator=random),
        "shares": torch.tensor([0.5, likelihood]),
    }
    save_file(matrices, file)
    return file


def judged_alone(llama: Path, adapter: Path, excerpt: Excerpt) -> tuple[float, float]:
    """Judge one file without a batch: token by token, with the adapter beside the weight instead of added to it."""
    from safetensors.torch import load_file

    weights, model = load_file(adapter), AutoModelForCausalLM.from_pretrained(llama).eval()
    a, b = weights[f"{LAYER}.A"], weights[f"{LAYER}.B"]
    model.get_submodule(LAYER).register_forward_hook(lambda _, inputs, output: output + SCALE * inputs[0] @ a.T @ b.T)
    tokenizer = AutoTokenizer.from_pretrained(llama)
    parts = (f"File: {excerpt.path}\nDefines: ", excerpt.names, "\nNamed in: ", excerpt.naming, "\n```\n",
             excerpt.lines, "\n```\nQuestion that this file answers:")  # fmt: skip
    limits = (None, 40, None, 30, None, 180, None)
    ids = [
        token
        for part, limit in zip(parts, limits, strict=True)
        for token in tokenizer.encode(part, add_special_tokens=False)[:limit]
    ]
    asked = tokenizer.encode(f" {QUESTION}", add_special_tokens=False)
    total = 0.0
    with torch.inference_mode():
        for token in asked:
            total += float(model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)[token])
            ids.append(token)
        ids += tokenizer.encode(ASKED, add_special_tokens=False)
        last = model.model(torch.tensor([ids])).last_hidden_state[0, -1]
    return total / len(asked), float(last / last.pow(2).mean().sqrt() @ weights["head"])


def test_files_are_judged_as_each_alone_token_by_token(llama: Path, adapter: Path) -> None:
    likelihood, head = Reader.load(str(llama), adapter).judge(QUESTION, EXCERPTS)
    expected = [judged_alone(llama, adapter, excerpt) for excerpt in EXCERPTS]
    assert np.allclose(
        np.stack([likelihood, head], axis=1), expected, rtol=0.02, atol=0.02
    )  # bfloat16, on some machines
    assert len(set(likelihood.tolist())) == 3


def search_shares(root: Path) -> np.ndarray:
    """Return the shares of belief that the search alone gives to the files."""
    candidates = Engine(root, cached=False).candidates(Inquiry.of(QUESTION))
    ranker = shipped_ranker()
    return ranker.shares(ranker.scores(candidates.grounds))


def test_the_reader_divides_what_the_search_gave_to_the_first_files(llama: Path, tmp_path: Path) -> None:
    repo = make_project(tmp_path / "project")
    readers = [
        Reader.load(str(llama), write_adapter(llama, tmp_path / f"{weight}.safetensors", weight), unsure=1.0)
        for weight in (1000.0, -1000.0)
    ]
    chosen = [Locator(repo, cached=False, reader=reader).locate(QUESTION, 5) for reader in readers]
    paths = [[hit.path for hit in answer.files] for answer in chosen]
    assert paths[0] == paths[1][::-1] and len(paths[0]) == 2
    assert {answer.method for answer in chosen} == {"reader"}
    together = search_shares(repo).sum(keepdims=True)
    for answer in chosen:
        scores = [hit.score for hit in answer.files]
        assert scores == sorted(scores, reverse=True)
        shares = [hit.probability or 0.0 for hit in answer.files]
        assert shares == sorted(shares, reverse=True)
        # all but sure which
        assert shares[0] == pytest.approx(float(shipped_ranker().probabilities(together)[0]), abs=1e-5)


def test_files_that_were_not_read_stand_below(llama: Path, adapter: Path, tmp_path: Path) -> None:
    for i in range(12):
        (tmp_path / "many").mkdir(exist_ok=True)
        (tmp_path / "many" / f"part{i:02}.py").write_text(f"def retries_{i}():\n    'configured {i}'\n" + "x = 1\n" * i)
    searched = [hit.path for hit in Locator(tmp_path / "many", cached=False).locate(QUESTION, 12).files]
    read = [
        hit.path
        for hit in Locator(tmp_path / "many", cached=False, reader=Reader.load(str(llama), adapter, unsure=1.0))
        .locate(QUESTION, 12)
        .files
    ]
    assert set(read[:8]) == set(searched[:8]) and read[8:] == searched[8:]


def test_where_the_search_is_sure_nothing_is_read(llama: Path, tmp_path: Path) -> None:
    repo = make_project(tmp_path / "project")
    searched = Locator(repo, cached=False).locate(QUESTION, 5).files
    backwards = write_adapter(llama, tmp_path / "backwards.safetensors", -1000.0)
    forwards = write_adapter(llama, tmp_path / "forwards.safetensors", 1000.0)
    first = searched[0].probability or 0.0
    for adapter in (backwards, forwards):
        sure = Reader.load(str(llama), adapter, unsure=first)
        assert Locator(repo, cached=False, reader=sure).locate(QUESTION, 5).files == searched
    unsure = [Reader.load(str(llama), adapter, unsure=first + 0.001) for adapter in (backwards, forwards)]
    orders = [
        [hit.path for hit in Locator(repo, cached=False, reader=each).locate(QUESTION, 5).files] for each in unsure
    ]
    assert orders[0] != orders[1]


def test_an_adapter_of_another_model_is_refused(llama: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    matrices = {f"{LAYER}.A": torch.zeros(2, 3), f"{LAYER}.B": torch.zeros(5, 2)}
    save_file({**matrices, "head": torch.zeros(3), "shares": torch.ones(2)}, other)
    with pytest.raises(UserError, match="the reader's adapter was trained for smollm2-135m"):
        Reader.load(str(llama), other)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "smollm2-135m"),
        (("--names-only",), "--read chooses among files of the search"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.setenv("REFLECTRL_DATA", str(tmp_path / "no models"))
    repo = make_project(tmp_path / "project")
    assert main(["locate", QUESTION, "--repo", str(repo), "--read", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.count("\n") == 1
