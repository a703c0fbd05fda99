"""The tokenizer of a GGUF file, with what `transformers` leaves out: how it splits a text, and how a text begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reflectrl.tools.pretrained.gguf_header import Header

GPT2 = {
    *("", "default", "gpt-2", "phi-2", "jina-es", "jina-de", "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code"),
    *("gigachat", "roberta-bpe", "mpt", "olmo", "jais", "trillion", "granite-docling", "a.x-4.0", "mellum"),
}
"""Pre-tokenizers that split a text as GPT-2's does, which is what `transformers` does if it knows no other."""
DIGITS = {"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"}
"""Pre-tokenizers that take each digit by itself, and split the rest as GPT-2's does."""
WHOLE_WORDS = {
    *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
    "tekken",
}
"""Pre-tokenizers with which llama.cpp begins each text with a token of its own, unless the file says otherwise, and
takes a word of the vocabulary as it is, even if no merges lead to it."""


def require_known_split(header: Header) -> None:
    """Refuse a byte-level tokenizer if nothing here splits a text as its file says, so that other tokens would result.

    Raises:
        ValueError: names the file's pre-tokenizer.
    """
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    name = str(header.settings.get("tokenizer.ggml.pre", ""))
    if header.settings.get("tokenizer.ggml.model") == "gpt2" and name not in GPT2 | DIGITS | {
        *GGUF_PRE_TOKENIZER_SPLITS
    }:
        raise ValueError(f"its tokenizer splits a text as {name[:100]!r} does, which is not supported here")


def read_tokenizer(header: Header, location: Mapping[str, Any]) -> Any:
    """Read the tokenizer of a GGUF file.

    Args:
        location: options of `from_pretrained` for finding the file.
    """
    from tokenizers import decoders, normalizers, pre_tokenizers
    from transformers import AutoTokenizer

    kind, split = (header.settings.get(f"tokenizer.ggml.{name}", "") for name in ("model", "pre"))
    whole_words = kind == "gpt2" and split in WHOLE_WORDS
    begins = whole_words and "tokenizer.ggml.add_bos_token" not in header.settings
    tokenizer: Any = AutoTokenizer.from_pretrained(**location, **({"add_bos_token": True} if begins else {}))
    backend = tokenizer.backend_tokenizer
    if whole_words:
        backend.model.ignore_merges = True
    elif kind == "gpt2" and split in DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    elif kind == "llama" and _lacks_prefix(header):
        backend.pre_tokenizer = None
        backend.normalizer = normalizers.Replace(" ", "\N{LOWER ONE EIGHTH BLOCK}")
        spaces = decoders.Replace("\N{LOWER ONE EIGHTH BLOCK}", " ")
        backend.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _lacks_prefix(header: Header) -> bool:
    """Return True if SentencePiece was trained without a space before every text. The library knows Gemma's case."""
    explicit = header.settings.get("tokenizer.ggml.add_space_prefix") is False
    return explicit and not header.architecture.startswith("gemma")
