"""Every family of models computes what its own forward pass computes, on whichever way the engine has found for it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.families import FAMILIES, PLAIN, POSITIONS, VARIANTS, VOCAB, Marks, tiny_model
from reflectrl.core.config import ModelConfig
from reflectrl.core.types import Episode, Sampling, UserError
from reflectrl.models import verification
from reflectrl.models.backend import Candidates
from reflectrl.models.lm import EngineOptions, LanguageModel
from reflectrl.models.load import load_model
from reflectrl.models.packed import PackedBackend
from reflectrl.models.players import sampler
from reflectrl.models.scratch import train_tokenizer
from reflectrl.models.sharing import Ids, KVCache, pack
from reflectrl.models.verification import logged, verify
from tests.device import DEVICE, ON_GPU
from tests.models.calls import cached_text_logits, choice_logits
from tests.models.test_load import rl_step, sft_steps

LABELS = [7, 3, 11, 20]
TEXTS = Candidates(((7, 1), (3, 9, 1)), (1, 2))


def proved(model: Any) -> LanguageModel:
    model = model.to(DEVICE)
    return verify(LanguageModel(model, Marks(), context=64, engine_options=EngineOptions(batched=ON_GPU)), "tiny")


def prompts() -> list[Ids]:
    """Two steps of one episode, and a short prompt."""
    rng = np.random.default_rng(1)
    history, now, then, other = (tuple(rng.integers(2, VOCAB, size=n).tolist()) for n in (24, 6, 9, 4))
    return [history + now, history + then + now, other]


def own_logits(core: Any, ids: Ids) -> Tensor:
    """(T, V) by the model's own forward pass, attention written out."""
    before = core.config._attn_implementation
    core.set_attn_implementation("eager")
    try:
        logits: Tensor = core(input_ids=torch.tensor([ids], device=core.device), use_cache=False).logits[0]
    finally:
        core.set_attn_implementation(before)
    return logits


def nats(core: Any, prompt: Ids, ids: Ids) -> Tensor:
    """Log-probability (T,) of each of the tokens that follow a prompt."""
    logp_TV = own_logits(core, (*prompt, *ids)).log_softmax(-1)[len(prompt) - 1 : -1]
    return logp_TV[torch.arange(len(ids)), list(ids)]


def gradients(core: Any, logits_PA: Tensor) -> Tensor:
    """Of the summed log-probabilities of each prompt's first label, all weights one behind another."""
    core.zero_grad()
    logits_PA.log_softmax(-1)[:, 0].sum().backward()
    found = torch.cat([p.grad.flatten() for p in core.parameters() if p.grad is not None])
    core.zero_grad()
    return found


def same(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found.cpu(), wanted.cpu(), atol=1e-4, rtol=1e-4)


def check_exact(lm: LanguageModel) -> None:
    """Choices, packed gradients, growing prompts, written texts and scored texts against the model's own numbers."""
    core: Any = lm.core
    asked, rows = prompts(), torch.tensor(LABELS, device=core.device)
    wanted_PA = torch.stack([own_logits(core, prompt)[-1] for prompt in asked])[:, rows]
    logits_PA = lm.backend.logits(lm.backend.read(pack(asked)), rows)
    same(logits_PA, wanted_PA)
    grads, wanted = gradients(core, logits_PA), gradients(core, wanted_PA)
    assert float((grads - wanted).norm() / wanted.norm()) < 1e-3
    with torch.inference_mode():
        caches = [KVCache() for _ in asked]
        lm.backend.read([prompt[:-2] for prompt in asked], caches=caches)
        same(choice_logits(lm, asked, LABELS, caches), wanted_PA.detach())
        generators = [np.random.default_rng(i) for i in range(len(asked))]
        for prompt, (ids, found) in zip(
            asked, lm.backend.write(asked, 5, sampler(Sampling(1.0)), generators), strict=True
        ):
            same(torch.tensor(found), nats(core, prompt, ids))
        sums_PA = torch.stack([nats(core, prompt, ids).sum() for prompt in asked for ids in TEXTS.ids]).view(-1, 2)
        same(lm.backend.score(pack(asked), [TEXTS] * len(asked), "sum")[0], sums_PA)
        same(cached_text_logits(lm, asked, [TEXTS] * len(asked), "sum", [KVCache() for _ in asked]), sums_PA)


@pytest.mark.families
@pytest.mark.parametrize("name", [*FAMILIES, *VARIANTS])
def test_the_numbers_of_every_family_are_the_models_own(name: str) -> None:
    lm = proved(tiny_model(name))
    check_exact(lm)
    assert lm.engine_options.packed == (name not in PLAIN)


@pytest.mark.parametrize("name", ["falcon_h1-multipliers", "gemma3_text-capped", "hyperclovax-multipliers", "nanochat"])
def test_a_head_of_its_own_kind_is_noticed_in_an_untrained_model(name: str) -> None:
    """Its logits are so small that a soft cap changes nothing yet, but it is going to be trained."""
    model, ids = tiny_model(name, large=False), torch.tensor([prompts()[0]], device=DEVICE)
    lm = proved(model)
    model.get_output_embeddings().weight.data.mul_(300)
    with torch.no_grad():
        hidden_ND = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0]
        same(lm.backend.logits(hidden_ND), model(input_ids=ids, use_cache=False).logits[0])


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2-windowed", "falcon_h1-multipliers", "mistral-windowed"])
def test_a_model_in_16_bits_takes_the_way_that_is_exact_in_32_and_keeps_its_bits(name: str) -> None:
    half = tiny_model(name).to(torch.bfloat16)
    before = [p.detach().clone() for p in half.parameters()]
    lm = proved(half)
    assert lm.engine_options == proved(tiny_model(name)).engine_options
    after = [p.detach().cpu() for p in half.parameters()]
    assert all(torch.equal(p, was) and p.dtype == was.dtype for p, was in zip(after, before, strict=True))


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3", "gemma3_text", "phi", "granite"])
def test_rounding_to_bfloat16_is_no_reason_for_doubt(name: str) -> None:
    lm = proved(tiny_model(name).to(torch.bfloat16))
    assert lm.engine_options.packed and lm.engine_options.rows


def test_a_deep_model_may_round_as_much_as_its_own_forward_pass_does(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama", num_hidden_layers=8)
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.data.mul_(100)  # attention so sharp that it doubles rounding in each layer
    before = [p.detach().clone() for p in model.parameters()]
    lm = proved(model)
    assert lm.engine_options.packed
    lm.backend.read(pack(prompts())).sum().backward()  # it learns as before
    after = [p.detach().cpu() for p in model.parameters()]
    assert all(torch.equal(p, was) and p.dtype == was.dtype for p, was in zip(after, before, strict=True))
    monkeypatch.setattr(verification, "WIDEST", 0.0)
    if not ON_GPU:  # where the library's own layers round as the packed ones do
        assert not proved(model).engine_options.packed


def test_a_mistake_of_the_size_of_rounding_elsewhere_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    read = PackedBackend.read
    monkeypatch.setattr(PackedBackend, "read", lambda self, *args, **known: read(self, *args, **known) * 1.0005)
    assert not proved(tiny_model("llama")).engine_options.packed


def test_one_line_says_what_runs_step_by_step(caplog: pytest.LogCaptureFixture) -> None:
    logged.clear()
    for name in ("llama", "gemma2", "gemma2", "falcon_h1-multipliers"):  # layers and head of the last are both its own
        proved(tiny_model(name))
    gemma, falcon = [record.getMessage() for record in caplog.records if record.name == "reflectrl"]
    assert gemma.startswith("reflectrl: model tiny (gemma2): it runs step by step through its own forward pass")
    assert "their own attention" in gemma and "\n" not in gemma
    assert falcon.startswith("reflectrl: model tiny (falcon_h1): choices compute all rows of its own head")


def test_a_model_that_reads_ahead_is_refused() -> None:
    with pytest.raises(UserError, match="'tiny' reads ahead: it is not a causal language model"):
        proved(tiny_model("bert", is_decoder=False))


def test_a_model_whose_own_forward_pass_fails_is_refused() -> None:
    model = tiny_model("llama")
    model.model.layers[1] = torch.nn.Linear(5, 5)
    with pytest.raises(UserError, match="'tiny': its own forward pass fails: "):
        proved(model)
    spoilt = tiny_model("llama")
    spoilt.model.norm.weight.data[0] = torch.nan
    with pytest.raises(UserError, match="'tiny': its own forward pass gives NaN"):
        proved(spoilt)


# ---- as players use it -----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(taught: list[Episode], tmp_path: Path) -> Callable[..., Path]:
    """A model of some family in a folder, with a tokenizer for what is taught."""

    def save(name: str, **options: Any) -> Path:
        texts = [f"{step.observation.text}{step.reflection}" for episode in taught for step in episode.steps]
        tokenizer = train_tokenizer(texts, 400)
        tiny_model(name, vocab_size=len(tokenizer), **options).save_pretrained(tmp_path / "model")
        tokenizer.save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return save


@pytest.mark.parametrize("name", ["gpt_neo", "mamba", "gemma2"])
def test_whoever_runs_step_by_step_plays_and_learns_like_the_others(
    name: str, folder: Callable[..., Path], taught: list[Episode]
) -> None:
    source = folder(name, max_position_embeddings=512, large=False)
    lm = load_model(source, ModelConfig(context=256, mixed_precision="off"), "policy")
    assert not lm.engine_options.packed
    for kind in ("reflector", "policy"):
        before, after = sft_steps(lm, taught, kind)
        assert after < before, kind
    rl_step(lm)


def test_windows_bound_the_context_of_the_engine_alone(
    folder: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    config = ModelConfig(context=256)
    logged.clear()
    assert load_model(folder("mistral", sliding_window=24), config).context == 24
    [line] = [record.getMessage() for record in caplog.records if record.name == "reflectrl"]
    assert "it reads at most 24 tokens, its window; with model.backend=plain it reads 96" in line
    assert load_model(folder("llama4_text", attention_chunk_size=32), config).context == 32
    assert load_model(folder("gemma2", sliding_window=8), config).context == POSITIONS
    rope = {"rope_theta": 1e4, "rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    long = folder("phi3", rope_parameters=rope, original_max_position_embeddings=40)
    assert load_model(long, config).context == 40


@pytest.mark.parametrize("target", ["lm_head", "q_proj"])
def test_an_adapter_is_computed_wherever_it_stands(target: str, folder: Callable[..., Path], tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    base = load_model(folder("llama", max_position_embeddings=256), ModelConfig(context=128))
    lora = LoraConfig(r=2, target_modules=[target], init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(base.model, lora).save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    base.tokenizer.save_pretrained(tmp_path / "adapter")
    lm = load_model(tmp_path / "adapter", ModelConfig(context=128, lora_rank=2), "policy")
    ids = (5, 9, 33, 7, 4)
    with torch.inference_mode():
        found = lm.backend.logits(lm.backend.read(pack([ids]), "all"), torch.tensor(LABELS, device=lm.device))
        same(found, lm.model(input_ids=torch.tensor([ids], device=lm.device)).logits[0][:, LABELS])
