"""Adapters made elsewhere: all their weights belong to the player, and their folder's tokenizer is theirs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from reflectrl.core.config import ModelConfig
from reflectrl.core.types import UserError
from reflectrl.models.checking import require_usable
from reflectrl.models.lm import LanguageModel
from reflectrl.models.load import load_model, second_player
from tests.foreign_models import CHATML, KINDS, save_model

pytestmark = [  # what PEFT says to the maker of an adapter
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`"),
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`"),
]
SETTINGS = ModelConfig(mixed_precision="off")
TEXT = "Choice: take apple. Go to table"
ADAPTERS: dict[str, dict[str, Any]] = {
    "embeddings": {"target_modules": ["q_proj", "embed_tokens"]},
    "some tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [5, 6, 300]},
    "whole embeddings": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    "dora": {"target_modules": ["q_proj", "up_proj"], "use_dora": True},
}
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("backbone"), KINDS["with a bos"]())


def save_adapter(
    folder: Path, backbone: Path, tokenizer: PreTrainedTokenizerFast | None = None, rows: int = 0, **settings: Any
) -> Path:
    """An adapter by PEFT alone, trained a little, with embeddings for `rows` tokens."""
    model = AutoModelForCausalLM.from_pretrained(backbone)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        if rows:
            model.resize_token_embeddings(rows)
        peft = get_peft_model(model, LoraConfig(r=4, task_type="CAUSAL_LM", init_lora_weights=False, **settings))
        with torch.no_grad():
            for parameter in peft.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.05 * torch.randn_like(parameter))
    peft.save_pretrained(folder, save_embedding_layers=True if rows else "auto")
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return folder


def plain_logits(folder: Path, backbone: Path, ids: list[int], rows: int = 0) -> Tensor:
    """Log-probabilities of the next token, by PEFT alone."""
    model = AutoModelForCausalLM.from_pretrained(backbone)
    if rows:
        model.resize_token_embeddings(rows)
    peft = PeftModel.from_pretrained(model, str(folder)).eval()
    with torch.no_grad():
        return peft(torch.tensor([ids])).logits[0, -1].log_softmax(-1)


def logits(lm: LanguageModel, ids: list[int]) -> Tensor:
    lm.activate()
    with lm.playing():
        return lm.backend.logits(lm.backend.read([tuple(ids)]))[0].log_softmax(-1)


def step(lm: LanguageModel) -> None:
    """Change everything that learns."""
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.add_(0.1 * torch.ones_like(parameter))


def learnable(folder: Path, backbone: Path) -> int:
    """The number of parameters that PEFT trains."""
    model = AutoModelForCausalLM.from_pretrained(backbone)
    return PeftModel.from_pretrained(model, str(folder), is_trainable=True).get_nb_trainable_parameters()[0]


@pytest.mark.parametrize("kind", ADAPTERS)
def test_a_reference_stays_while_all_of_the_policy_learns(kind: str, backbone: Path, tmp_path: Path) -> None:
    folder = save_adapter(tmp_path / "adapter", backbone, **ADAPTERS[kind])
    policy = load_model(folder, SETTINGS, "policy")
    ids = policy.encode(TEXT)
    wanted = plain_logits(folder, backbone, ids)
    assert sum(p.numel() for p in policy.parameters()) == learnable(folder, backbone)
    reference, kept = policy.frozen_copy(), policy.weights()
    for lm in (reference, policy):
        torch.testing.assert_close(logits(lm, ids), wanted, atol=1e-4, rtol=0)
    step(policy)
    assert float((logits(policy, ids) - wanted).abs().max()) > 0.01
    torch.testing.assert_close(logits(reference, ids), wanted, atol=1e-4, rtol=0)
    moved = policy.weights()
    assert all(not torch.equal(moved[name], kept[name]) for name in kept), "all of it learns"
    policy.load_weights(kept)
    torch.testing.assert_close(logits(policy, ids), wanted, atol=1e-4, rtol=0)
    policy.save(tmp_path / "again")
    again = load_model(tmp_path / "again", SETTINGS, "policy")
    torch.testing.assert_close(logits(again, ids), wanted, atol=1e-4, rtol=0)


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_cannot_share_a_backbone_is_refused_in_one_line(backbone: Path, tmp_path: Path) -> None:
    biased = save_adapter(tmp_path / "biased", backbone, target_modules=["q_proj"], bias="lora_only")
    model = AutoModelForCausalLM.from_pretrained(backbone)
    get_peft_model(model, PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")).save_pretrained(
        tmp_path / "virtual"
    )
    policy = load_model(backbone, ModelConfig(mixed_precision="off", lora_rank=2), "policy")
    for folder, words in ((biased, "biases (bias = 'lora_only')"), (tmp_path / "virtual", "PROMPT_TUNING")):
        for act in (
            lambda: load_model(folder, SETTINGS, "policy"),  # noqa: B023
            lambda: second_player(policy, "reflector", folder),  # noqa: B023
            lambda: require_usable(str(folder), SETTINGS, True),  # noqa: B023
        ):
            assert words in refusal(act)


# ---- the folder's own tokenizer ------------------------------------------------------------------------------------


def own_tokenizer(backbone: Path, tokens: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """The backbone's with a chat template, another end of text and further tokens."""
    tokenizer = AutoTokenizer.from_pretrained(backbone)
    tokenizer.add_tokens(list(tokens))
    tokenizer.chat_template, tokenizer.eos_token = CHATML, "<|im_end|>"
    return tokenizer


def test_an_adapter_has_the_tokenizer_of_its_folder(backbone: Path, tmp_path: Path) -> None:
    """With its end of text and its chat template; a check before a run sees the same."""
    folder = save_adapter(tmp_path / "a", backbone, own_tokenizer(backbone), target_modules=["q_proj"])
    bare = save_adapter(tmp_path / "b", backbone, target_modules=["q_proj"])
    lm, without = load_model(folder, SETTINGS, "policy"), load_model(bare, SETTINGS, "policy")
    assert without.tokenizer.eos_token == "</s>" and without.chat is None
    assert lm.tokenizer.eos_token == "<|im_end|>" and lm.chat is not None
    assert lm.chat.after == "<|im_end|>\n<|im_start|>assistant\n"
    assert lm.end == lm.tokenizer.convert_tokens_to_ids("<|im_end|>")
    require_usable(str(folder), ModelConfig(chat="on"), labelled=True)
    second = second_player(without, "reflector", folder)
    assert second.chat == lm.chat and second.tokenizer.eos_token == "<|im_end|>"
    lm.save(tmp_path / "again")
    again = load_model(tmp_path / "again", SETTINGS, "policy")
    assert again.chat == lm.chat and again.tokenizer.eos_token == "<|im_end|>"


GROWN: dict[str, dict[str, Any]] = {
    "saved beside the adapter": {"target_modules": ["q_proj"]},
    "adapted": {"target_modules": ["q_proj", "embed_tokens"]},
    "instead of the backbone's": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
}


@pytest.mark.parametrize("kind", GROWN)
def test_added_tokens_have_the_embeddings_that_came_with_the_adapter(kind: str, backbone: Path, tmp_path: Path) -> None:
    tokenizer = own_tokenizer(backbone, ("<room>", "<door>"))
    rows = len(tokenizer) + 2  # rounded up, as many do
    folder = save_adapter(tmp_path / "grown", backbone, tokenizer, rows, **GROWN[kind])
    policy = load_model(folder, SETTINGS, "policy")
    ids = policy.tokenizer.encode("<room> take <door>", add_special_tokens=False)
    assert len(ids) < len(load_model(backbone, SETTINGS).encode("<room> take <door>"))
    wanted = plain_logits(folder, backbone, ids, rows)
    policy.save(tmp_path / "again")
    again = load_model(tmp_path / "again", SETTINGS, "policy")
    for lm in (policy, policy.frozen_copy(), again):
        torch.testing.assert_close(logits(lm, ids), wanted, atol=1e-4, rtol=0)
    step(again)
    again.save(tmp_path / "third")
    third = load_model(tmp_path / "third", SETTINGS, "policy")
    torch.testing.assert_close(logits(third, ids), logits(again, ids), atol=1e-4, rtol=0)


def test_added_tokens_may_be_all_that_learns(backbone: Path, tmp_path: Path) -> None:
    tokenizer = own_tokenizer(backbone, ("<room>",))
    rows, new = len(tokenizer), len(tokenizer) - 1
    folder = save_adapter(
        tmp_path / "grown", backbone, tokenizer, rows, target_modules=["q_proj"], trainable_token_indices=[new]
    )
    policy = load_model(folder, SETTINGS, "policy")
    ids = [new, *policy.encode(TEXT)]
    torch.testing.assert_close(logits(policy, ids), plain_logits(folder, backbone, ids, rows), atol=1e-4, rtol=0)


def test_tokens_without_embeddings_are_refused(backbone: Path, tmp_path: Path) -> None:
    tokenizer = own_tokenizer(backbone, ("<room>",))
    folder = save_adapter(tmp_path / "bare", backbone, tokenizer, target_modules=["q_proj"])
    assert "brings none for the others" in refusal(lambda: load_model(folder, SETTINGS, "policy"))
    first = load_model(backbone, ModelConfig(mixed_precision="off", lora_rank=2), "policy")
    assert "different embeddings from the player" in refusal(lambda: second_player(first, "reflector", folder))


def test_a_second_adapter_does_not_change_the_embeddings_of_the_first(backbone: Path, tmp_path: Path) -> None:
    rows = len(AutoTokenizer.from_pretrained(backbone))
    folder = save_adapter(tmp_path / "second", backbone, rows=rows, target_modules=["q_proj"])
    first = load_model(backbone, ModelConfig(mixed_precision="off", lora_rank=2), "policy")
    before = first.core.get_input_embeddings().weight.clone()  # type: ignore[operator]
    second_player(first, "reflector", folder)  # the same embeddings once more
    own = AutoModelForCausalLM.from_pretrained(backbone)
    with torch.no_grad():
        own.get_input_embeddings().weight.add_(1.0)
    other = shutil.copytree(backbone, tmp_path / "other")
    own.save_pretrained(other)
    folder = save_adapter(tmp_path / "third", other, rows=rows, target_modules=["q_proj"])
    assert "different embeddings from the player" in refusal(lambda: second_player(first, "another", folder))
    assert torch.equal(first.core.get_input_embeddings().weight, before)  # type: ignore[operator]


def test_an_adapter_is_refused_on_a_backbone_with_another_tokenizer(backbone: Path, tmp_path: Path) -> None:
    tokenizer = own_tokenizer(backbone, ("<room>",))
    folder = save_adapter(tmp_path / "a", backbone, tokenizer, len(tokenizer), target_modules=["q_proj"])
    load_model(folder, SETTINGS, "policy").save(tmp_path / "mine")
    other = save_model(tmp_path / "other", KINDS["metaspace"]())
    path = tmp_path / "mine" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": str(other)}))
    assert "belongs to another tokenizer" in refusal(lambda: load_model(tmp_path / "mine", SETTINGS, "policy"))
