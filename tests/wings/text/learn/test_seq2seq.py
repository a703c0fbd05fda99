"""Encoder-decoder models in text tasks: the library's numbers, and learning with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BartConfig, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration

from reflectrl.cli import main
from reflectrl.core.config import ModelConfig
from reflectrl.core.types import Sampling, UserError
from reflectrl.learn.examples import Example, completion_logits
from reflectrl.methods.offline import train_offline
from reflectrl.methods.shared.offline.reference_cache import score_reference
from reflectrl.methods.shared.offline.reference_value import PromptValue, prompt_values
from reflectrl.models.lm import LanguageModel
from reflectrl.models.load import load_model
from reflectrl.models.players import sampler
from reflectrl.models.seq2seq import Seq2SeqBackend
from tests.methods.offline.test_learn import CONFIG, SAMPLES, iter_scores
from tests.methods.offline.texts import texts
from tests.wings.text.test_online_text import CONFIG as ONLINE
from tests.wings.text.test_online_text import same, train

ROWS = [Example((7, 8, 9, 11, 12), 3), Example((20, 21, 22, 23, 24, 25, 26), 5), Example((7, 8, 13), 2)]
SHAPES: dict[str, tuple[Any, Any]] = {
    "t5": (
        T5ForConditionalGeneration,
        partial(T5Config, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2),
    ),
    "bart": (
        BartForConditionalGeneration,
        partial(
            BartConfig, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, init_std=0.5,
            decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=256,
        ),
    ),
}  # fmt: skip

Load = Callable[..., LanguageModel]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, model_folder: Callable[[str], Path]) -> dict[str, Path]:
    """Folders of a tiny T5 and a tiny BART, with the tokenizer of the other tiny models."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder("gpt2"))
    end = tokenizer.eos_token_id
    made = {}
    for name, (kind, shape) in SHAPES.items():
        made[name] = tmp_path_factory.mktemp(name)
        tokens = {"pad_token_id": end, "eos_token_id": end, "decoder_start_token_id": end, "bos_token_id": end}
        torch.manual_seed(1)
        config = shape(vocab_size=len(tokenizer), dropout_rate=0.0, dropout=0.0, **tokens)
        config.forced_eos_token_id = None
        kind(config).save_pretrained(made[name])
        tokenizer.save_pretrained(made[name])
    return made


@pytest.fixture(params=list(SHAPES))
def load(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Load:
    """`load()`: a fresh copy of the tiny model; `load(lora_rank=2)`: an adapter on it."""

    def loaded(folder: Path | None = None, **settings: Any) -> LanguageModel:
        config = ModelConfig(mixed_precision="off", context=128, device="cpu", **settings)
        return load_model(folder or folders[request.param], config, "policy")

    return loaded


def logp_of(lm: LanguageModel, rows: list[Example]) -> list[torch.Tensor]:
    with torch.no_grad():
        logits_MV, _, targets_M = completion_logits(lm, rows)
    logp_M = logits_MV.log_softmax(-1).gather(1, targets_M[:, None])[:, 0]
    return list(logp_M.split([len(row.ids) - row.start for row in rows]))


def test_completions_are_scored_as_the_library_scores_them(load: Load) -> None:
    """The library's loss of one example is the mean negative log-probability of its labels; padding changes nothing."""
    lm = load()
    end = lm.tokenizer.eos_token_id
    for row, logp_T in zip(ROWS, logp_of(lm, ROWS), strict=True):
        prompt, answer = [*row.ids[: row.start], end], list(row.ids[row.start :])
        with torch.no_grad():
            output = lm.core(input_ids=torch.tensor([prompt]), labels=torch.tensor([answer]))  # type: ignore[operator]
        assert float(-logp_T.mean()) == pytest.approx(float(output.loss), rel=1e-5)
    assert isinstance(lm.backend, Seq2SeqBackend)


def test_it_writes_as_the_library_does(load: Load) -> None:
    lm, prompts = load(), [row.ids[: row.start] for row in ROWS]
    end = lm.tokenizer.eos_token_id
    generators = [np.random.default_rng(i) for i in range(3)]
    greedy = lm.backend.write(prompts, 6, sampler(Sampling(0.0)), generators)
    for prompt, (ids, _) in zip(prompts, greedy, strict=True):
        given = torch.tensor([[*prompt, end]])
        with torch.no_grad():
            usual = lm.core.generate(given, max_new_tokens=6, do_sample=False, num_beams=1)  # type: ignore[operator]
        assert [token for token in usual[0].tolist() if token != end] == list(ids)
    drawn = lm.backend.write(prompts, [6, 3, 1], sampler(Sampling(1.0)), generators)
    assert [len(ids) <= most for (ids, _), most in zip(drawn, (6, 3, 1), strict=True)] == [True] * 3
    rows = [Example((*prompt, *ids), len(prompt)) for prompt, (ids, _) in zip(prompts, drawn, strict=True) if ids]
    said = [logprobs for ids, logprobs in drawn if ids]
    assert rows
    for logp_T, logprobs in zip(logp_of(lm, rows), said, strict=True):
        torch.testing.assert_close(logp_T, torch.tensor(logprobs), atol=1e-5, rtol=0)


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 2}], ids=["weights", "adapter"])
def test_a_saved_model_is_the_same(load: Load, settings: dict[str, Any], tmp_path: Path) -> None:
    lm = load(**settings)
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter += 0.1
    lm.save(tmp_path / "saved")
    again = load(tmp_path / "saved")
    for before, after in zip(logp_of(lm, ROWS), logp_of(again, ROWS), strict=True):
        assert torch.equal(before, after)
    assert not torch.allclose(logp_of(lm, ROWS)[0], logp_of(load(**settings), ROWS)[0], atol=1e-3)


def test_values_of_prompts_with_a_common_beginning_do_not_depend_on_each_other(load: Load) -> None:
    lm = load()
    torch.manual_seed(0)
    head, prompts = PromptValue(16, 1.0), [(7, 8, 9), (7, 8, 10, 11), (7, 8)]
    together = prompt_values(lm, head, prompts)
    alone = torch.cat([prompt_values(lm, head, [prompt]) for prompt in prompts])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=0)
    assert len(set(together.tolist())) == 3


@pytest.mark.parametrize("algorithm", ["nll", "a_lol", "a_lol_seq", "dpo"])
def test_it_learns_which_completion_is_better(load: Load, algorithm: Any) -> None:
    lm = load()
    data = texts(lm, SAMPLES)
    cache = score_reference(data, torch.full((len(data),), 0.25))
    config = replace(CONFIG, algorithm=algorithm, steps=30, lr=1e-2, eval_every=30)
    train_offline(data, cache, config, 0, lambda _: None, evaluate=iter_scores())
    with torch.no_grad():
        gain_N = data.completions.logprobs(range(len(data))).sum(1) - cache.ref_logp_NT.sum(1)
    better, worse = ([i for i, s in enumerate(SAMPLES) if s.reward == r] for r in (1.0, 0.0))
    assert float(gain_N[better].mean()) > 0
    if algorithm != "nll":
        assert float(gain_N[better].mean()) > float(gain_N[worse].mean())


def test_online_ppo_goes_on_after_a_kill(load: Load, tmp_path: Path) -> None:
    whole, killed, resumed = load(), load(), load()
    expected = train(whole, ONLINE)

    def until(line: dict[str, float]) -> None:
        if line["step"] == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(killed, ONLINE, log=until, state_folder=tmp_path)
    rest = train(resumed, ONLINE, state_folder=tmp_path)
    assert [line["return"] for line in rest[:-1]] == [line["return"] for line in expected[2:-1]]
    same(resumed.weights(), whole.weights())


def test_a_recipe_runs_from_data_to_results(folders: dict[str, Path], tmp_path: Path) -> None:
    words = [
        "--arms=data,reference,nll,a_lol,ppo", f"--model.source={folders['t5']}", "--model.context=128",
        "--model.mixed_precision=off", "--sft.optimizer=adamw", "--sft.text_coef=0", "--offline.reference_steps=2",
        "--offline.steps=2", "--offline.eval_every=2", "--offline.value_epochs=1", "--offline.completion_tokens=6",
        "--rl.updates=1", "--rl.episodes=4", "--text.prompts=12", "--text.validation_prompts=6", "--eval.episodes=4",
        "--text.eval_prompts=3", "--seeds=0", "--model.device=cpu",
    ]  # fmt: skip
    assert main(["run", "orders", "--folder", str(tmp_path), *words]) == 0
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert {row["arm"] for row in rows} == {"data", "reference", "nll", "a_lol", "ppo"}


def test_what_it_cannot_do_is_said(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folders["t5"]
    words = ["--arms=no-reflection", f"--model.source={folder}", "--model.device=cpu", "--teach.tasks=2"]
    assert main(["run", "taxi", "--folder", str(tmp_path / "taxi"), *words]) == 2
    assert "encoder-decoder model, which serves text tasks only" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"set model\.backend to auto or plain"):
        load_model(folder, ModelConfig(backend="packed"))
