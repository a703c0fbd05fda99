"""Byte-level BPE, trained on an environment's text. Counting tokens with it needs neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"

PIECES = Regex(r" ?[A-Za-z]+| ?[0-9]|-+|.|\n")
"""Pieces of text that may become tokens: words, single digits and runs of dashes. Every other character stays a token
of its own, so that each cell of a drawn map is one token, and the map keeps its shape."""


def train_byte_pairs(texts: Iterable[str], vocab: int, choices: int = 9) -> Tokenizer:
    """Train a byte-level BPE tokenizer on texts of the environment.

    Args:
        texts: text of the kind that the players will read and write.
        vocab: largest number of tokens, including the 256 bytes and end-of-text, which are always there.
        choices: largest number that must be a single token. The numbers from 1 on label actions. Numbers that training
            did not make tokens are added on top of `vocab`.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(PIECES, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    numbers = [f" {i}" for i in range(1, min(choices, 199) + 1)]  # with the space after "Choice:" or ";"
    missing = [number for number in numbers if len(tokenizer.encode(number).ids) > 1]
    tokenizer.add_tokens([AddedToken(number, single_word=True, normalized=False) for number in missing])
    return tokenizer
