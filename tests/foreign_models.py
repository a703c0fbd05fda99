"""Tiny models and tokenizers as others make them: one of each kind, whose conventions differ."""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from reflectrl.core.config import ModelConfig
from reflectrl.models.lm import LanguageModel
from reflectrl.models.load import load_model

Load = Callable[[str], LanguageModel]

TEXTS = [
    "You stand in a kitchen. Actions: open fridge, go to table, take apple. Choice: 1 2 3 4 5 6 7 8 9\n"
    "Human: Can I freeze soup? Unable, able.\n\nAssistant: Yes, let it cool first. Reflection: Go on.\n"
] * 20
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PAIRS = [
    ("Human: Can I freeze soup?\n\nAssistant:", " Yes, let it cool first."),
    ("Human: Can I freeze soup?\n\nAssistant:", "Yes, let it cool first."),
    ("Human: Can I freeze soup?\nAssistant: ", "Yes"),
    ("un", "able"),
    ("You stand in a", " kitchen.\n"),
    ("Choice:", " 1"),
    ("Go on: é", "é, 界!"),
]
"""Prompts and completions, with seams of all kinds."""
LETTERS = [*string.ascii_letters, *string.digits, *" .,:?!'\n|<>/_-"]


def named(tokenizer: Tokenizer, **names: str) -> PreTrainedTokenizerFast:
    """The library's tokenizer around one, with the names of its special tokens."""
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **({"bos_token": "<s>", "eos_token": "</s>"} | names))


def surrounded(tokenizer: Tokenizer, single: str) -> Tokenizer:
    """The same with tokens put around a text ("<s> $A")."""
    words = [word for word in single.split() if word != "$A"]
    special = [(word, tokenizer.token_to_id(word)) for word in words]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
    return tokenizer


def byte_level(prefix_space: bool = False) -> Tokenizer:
    """Byte-level BPE, as GPT-2 and most newer models have it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def sentencepiece(legacy: bool = False, scheme: str = "first") -> Tokenizer:
    """BPE as SentencePiece does it, with bytes for unknown characters; a space is put before a text.

    Args:
        legacy: by a normaliser (Llama 2), instead of while words are split (Llama 2 as converted anew, Gemma).
    """
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=True)
    back = decoders.Replace("▁", " ")
    tokenizer.decoder = decoders.Sequence([back, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL + bytes_, initial_alphabet=[*LETTERS, "▁"], show_progress=False
    )
    tokenizer.train_from_iterator((line for text in TEXTS for line in text.splitlines()), trainer)  # no "\n" in a word
    if legacy:
        tokenizer.pre_tokenizer = None
        replace = normalizers.Replace(" ", "▁")
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace])
    return tokenizer


def unigram() -> Tokenizer:
    """Unigram, as T5 and XLNet have it: its model knows the special tokens by their spelling."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=160, special_tokens=SPECIAL, unk_token="<unk>", initial_alphabet=LETTERS, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def wordpiece() -> Tokenizer:
    """WordPiece, as BERT has it: what goes on within a word begins with ##, and blanks are lost."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return surrounded(tokenizer, "<s> $A </s>")


def smollm() -> PreTrainedTokenizerFast:
    """In the style of SmolLM2: there is a token for beginnings, which is never put before a text."""
    return named(byte_level(), bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|im_end|>")


KINDS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "gpt2": lambda: named(byte_level(), bos_token="</s>"),
    "smollm": smollm,
    "with a bos": lambda: named(surrounded(byte_level(), "<s> $A")),
    "with a bos that it never adds": lambda: named(byte_level()),
    "opt": lambda: named(surrounded(byte_level(), "</s> $A"), bos_token="</s>"),
    "with both ends": lambda: named(surrounded(byte_level(), "<s> $A </s>")),
    "byte-level with a space": lambda: named(byte_level(prefix_space=True)),
    "llama 2": lambda: named(surrounded(sentencepiece(legacy=True), "<s> $A"), unk_token="<unk>"),
    "metaspace": lambda: named(surrounded(sentencepiece(), "<s> $A"), unk_token="<unk>"),
    "metaspace, always": lambda: named(sentencepiece(scheme="always"), unk_token="<unk>"),
    "metaspace, never": lambda: named(surrounded(sentencepiece(scheme="never"), "<s> $A"), unk_token="<unk>"),
    "unigram": lambda: named(unigram(), unk_token="<unk>"),
    "wordpiece": lambda: named(wordpiece(), unk_token="<unk>"),
}
"""One of each kind."""


def save_model(folder: Path, tokenizer: PreTrainedTokenizerFast, tied: bool = True) -> Path:
    """A random Llama with a tokenizer, whose outputs differ between tokens and places."""
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(
        vocab_size=len(tokenizer), max_position_embeddings=512, tie_word_embeddings=tied, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, initializer_range=0.3, **shape,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """`load("opt")`: the model with that tokenizer of `KINDS`."""
    made: dict[str, LanguageModel] = {}

    def loaded(kind: str) -> LanguageModel:
        if kind not in made:
            folder = save_model(tmp_path_factory.mktemp("foreign"), KINDS[kind]())
            made[kind] = load_model(folder, ModelConfig(mixed_precision="off"))
        return made[kind]

    return loaded
