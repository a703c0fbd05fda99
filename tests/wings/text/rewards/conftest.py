"""Tiny random classifiers on the disk, in the format of the hub."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TEXTS = [
    "knowledge of the sea and of ships",
    "Human: how are you? Assistant: fine, thank you",
    "bad words!",
    "it rains",
]

END = "<|endoftext|>"


def save_classifier(
    folder: Path, family: str, labels: int, seed: int = 0, pad: bool = True, positions: int = 64
) -> None:
    """A random classifier whose weights are large enough for texts to differ."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedTokenizerFast

    from reflectrl.wings.text.rewards.classifiers import register

    register()
    ends = [END, "<pad>"] if pad else [END]  # the padding of RoBERTa has a low number
    marks = ["<|prompter|>", "<|assistant|>"] if family == "gpt_neox_reward_model" else []
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens = Tokenizer(models.BPE())
    tokens.pre_tokenizer, tokens.decoder = bytes_, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=ends + marks, initial_alphabet=bytes_.alphabet(), show_progress=False
    )
    tokens.train_from_iterator(TEXTS, trainer)
    names = {"eos_token": END} | ({"pad_token": "<pad>"} if pad else {})
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, **names)
    shape: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2}
    shape |= {"intermediate_size": 32, "max_position_embeddings": positions, "num_labels": labels}
    if family == "gpt2":
        shape = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": positions, "num_labels": labels}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": 0, "bos_token_id": None}
        config = AutoConfig.for_model(family, vocab_size=len(tokenizer), **special, **shape)
        model = AutoModelForSequenceClassification.from_config(config)
        with torch.no_grad():
            for weight in model.parameters():
                weight.normal_(std=0.3) if weight.ndim == 2 else None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """`classifier("roberta", 2)`: the folder of a tiny random classifier with that many labels."""
    made: dict[tuple[Any, ...], str] = {}

    def folder_of(family: str, labels: int, **settings: Any) -> str:
        key = (family, labels, *settings.items())
        if key not in made:
            folder = tmp_path_factory.mktemp(family)
            save_classifier(folder, family, labels, **settings)
            made[key] = str(folder)
        return made[key]

    return folder_of
