"""Byte-level BPE, trained on an environment's text. Counting tokens with it needs neither torch nor transformers.

A model can only see that two words are the same if they consist of the same tokens. So for models that read, a word has
the same tokens wherever it stands: at the beginning of a line, after a space, behind a bracket, or with a capital
letter. Models of the other families keep the tokens that their tables were measured with.
"""

from __future__ import annotations

import string
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

END = "<|endoftext|>"

READS = "canon_llama"
"""The family of models (`model.family`) whose tokenizers give a word the same tokens wherever it stands."""

CAPITAL, TIGHT = "\x0e", "\x0f"
"""Marks in normalised text: "the next word begins with a capital letter", and "no space follows". These control
characters do not occur in the texts of environments. If one does, it is read, but not written back."""

LINE_STARTS = Regex(r"(?<=\n)(?=[\p{L}0-9 ])")
"""Places that get a space: before the first word of a line. Indented lines get one too, so that it can be removed."""

NEEDLESS_SPACE = Regex(r"(?<![\s\S]) (?![\p{L}0-9])")
"""The space before a text that does not begin with a word. (Inserting at the very beginning ends the library's own code
with an error, so every text gets a space there, and some lose it again.)"""

TIGHT_STARTS = Regex(r"(?<=[^\s\p{L}0-9])(?=[\p{L}0-9])")
"""Places that get `TIGHT` and a space: before words that directly follow punctuation."""

CAPITALISED = Regex(r" (?=[A-Z][a-z])")
"""Spaces before words with a single capital letter. Words in capitals are left alone, since maps are drawn in them."""

MARKED_PIECES = Regex(rf" ?\p{{L}}+| ?[0-9]|-+{TIGHT}?|.{TIGHT}?|\n")
"""`PIECES` of normalised text: a mark belongs to the character before it."""

PIECES = Regex(r" ?[A-Za-z]+| ?[0-9]|-+|.|\n")
"""Pieces of text that may become tokens: words, single digits and runs of dashes. Every other character stays a token
of its own, so that each cell of a drawn map is one token, and the map keeps its shape."""


def train_byte_pairs(texts: Iterable[str], vocab: int, choices: int = 9, same_words: bool = False) -> Tokenizer:
    """Train a byte-level BPE tokenizer on texts of the environment.

    Args:
        texts: text of the kind that the players will read and write.
        vocab: largest number of tokens, including the 256 bytes and end-of-text, which are always there.
        choices: largest number that must be a single token. The numbers from 1 on label actions. Numbers that training
            did not make tokens are added on top of `vocab`.
        same_words: give a word the same tokens wherever it stands.
    """
    tokenizer, pieces = Tokenizer(models.BPE()), PIECES
    tokenizer.decoder = decoders.ByteLevel()
    if same_words:
        tokenizer.normalizer, tokenizer.decoder, pieces = _normalizer(), _decoder(), MARKED_PIECES
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pieces, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    numbers = [f" {i}" for i in range(1, min(choices, 199) + 1)]  # with the space after "Choice:" or ";"
    missing = [number for number in numbers if len(tokenizer.encode(number).ids) > 1]
    tokenizer.add_tokens([AddedToken(number, single_word=True, normalized=same_words) for number in missing])
    return tokenizer


def marks_words(tokenizer: Tokenizer) -> bool:
    """Return whether `train_byte_pairs` made a tokenizer with `same_words`, as this version has it."""
    pairs = ((tokenizer.normalizer, _normalizer()), (tokenizer.decoder, _decoder()))
    return all(own is not None and own.__getstate__() == made.__getstate__() for own, made in pairs)


def _normalizer() -> normalizers.Normalizer:
    """Return the normaliser that puts a space before every word, in lower case, and marks what it has changed."""
    return normalizers.Sequence(
        [
            normalizers.Prepend(" "),
            normalizers.Replace(NEEDLESS_SPACE, ""),
            normalizers.Replace(LINE_STARTS, " "),
            normalizers.Replace(TIGHT_STARTS, f"{TIGHT} "),
            normalizers.Replace(CAPITALISED, f"{CAPITAL} "),
            *[normalizers.Replace(f"{CAPITAL} {x}", f"{CAPITAL} {x.lower()}") for x in string.ascii_uppercase],
        ]
    )


def _decoder() -> decoders.Decoder:
    """Return the decoder that undoes `_normalizer`. A text's own space at its very beginning is lost."""
    return decoders.Sequence(
        [
            decoders.ByteLevel(),
            *[decoders.Replace(f"{CAPITAL} {x.lower()}", f" {x}") for x in string.ascii_uppercase],
            decoders.Replace(f"{TIGHT} ", ""),
            decoders.Replace("\n ", "\n"),
            *[decoders.Replace(mark, "") for mark in (CAPITAL, TIGHT)],  # that a player has written out of place
            decoders.Strip(" ", 1, 0),
        ]
    )
