"""`model.compile`: the layers of known families by torch.compile, with the numbers that they have without it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectrl.core.config import ModelConfig, from_dict
from reflectrl.core.types import UserError
from reflectrl.models import forward
from reflectrl.models.load import load_model
from reflectrl.models.sharing import pack
from reflectrl.models.verification import logged
from tests.models.test_forward import arguments, close, gradients, model_of, prompts_of

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")


@needs_compiler
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # which torch's own tracing looks at
@pytest.mark.parametrize("family", ["gpt2", "qwen3"])
def test_compiled_layers_have_the_same_hidden_states_and_gradients(family: str) -> None:
    core = model_of(family)
    usual, compiled = forward.walk_of(core), forward.walk_of(core, compiled=True)
    assert usual is not None and compiled is not None
    for lengths in ([20, 18, 5, 1, 30], [7, 9]):  # any number of tokens
        packing = pack(prompts_of(lengths))
        asked = torch.tensor(packing.ends()).unique()
        wanted, found = (walk(core.base_model, *arguments(packing), asked) for walk in (usual, compiled))
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
        assert close(gradients(core, found), gradients(core, wanted))


@needs_compiler
def test_a_model_is_compiled_if_the_recipe_says_so(tiny_folder: Callable[[str], Path]) -> None:
    source = tiny_folder("llama")
    assert not load_model(source, ModelConfig(context=64)).engine_options.compiled
    assert load_model(source, ModelConfig(context=64, compile=True)).engine_options.compiled


def test_without_a_compiler_one_line_says_that_it_runs_as_usual(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(part: Any) -> Any:
        def called(*_: Any) -> Any:
            raise RuntimeError("no working C++ compiler")

        return called

    logged.clear()
    monkeypatch.setattr(forward, "compile_once", fails)
    lm = load_model(tiny_folder("llama"), ModelConfig(context=64, compile=True))
    assert lm.engine_options.blocks and not lm.engine_options.compiled
    [line] = [record.getMessage() for record in caplog.records if record.name == "reflectrl"]
    assert line.endswith("(llama): its layers are not compiled (RuntimeError: no working C++ compiler)")


def test_layers_that_the_engine_does_not_walk_through_are_not_compiled(
    tiny_folder: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    logged.clear()
    lm = load_model(tiny_folder("phi"), ModelConfig(context=64, compile=True))
    assert lm.engine_options.packed and not lm.engine_options.compiled
    assert "(phi): its layers are not compiled" in caplog.text


def test_what_is_not_packed_cannot_be_compiled() -> None:
    with pytest.raises(UserError, match="'compile' is for the packed engine"):
        from_dict(ModelConfig, {"compile": True, "backend": "plain"}, "[model]")
