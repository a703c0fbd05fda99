"""Making a small language model from scratch: a tokenizer trained on the environment's text, and random weights.

The result is an ordinary Hugging Face folder, which is loaded by the same code as any other model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from reflectrl.core.config import ModelConfig
from reflectrl.models import canon  # noqa: F401  (registers the family canon_llama)
from reflectrl.models.byte_pairs import END, READS, train_byte_pairs


def train_tokenizer(
    texts: Iterable[str], vocab: int, choices: int = 9, same_words: bool = False
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer (`train_byte_pairs`), wrapped for transformers."""
    tokenizer = train_byte_pairs(texts, vocab, choices, same_words)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END, bos_token=None)


def make_model(config: ModelConfig, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """Make a randomly initialised model of the configured family and size, without dropout."""
    shared = {"vocab_size": len(tokenizer), "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    if config.family == "gpt2":
        shape: dict[str, Any] = {"n_layer": config.layers, "n_embd": config.width, "n_head": config.heads}
        shape |= {"n_positions": config.context, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        shape["activation_function"] = "gelu_pytorch_tanh"  # the same function as GPT-2's, fused
    else:
        shape = {"num_hidden_layers": config.layers, "hidden_size": config.width, "num_attention_heads": config.heads}
        shape |= {"num_key_value_heads": config.heads, "intermediate_size": max(8, 8 * config.width // 3 // 8 * 8)}
        shape |= {"max_position_embeddings": config.context, "tie_word_embeddings": True, "attention_dropout": 0.0}
    with torch.random.fork_rng():
        torch.manual_seed(seed % 2**63)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config.family, **shared, **shape))
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def draw_weights(model: PreTrainedModel, seed: int) -> None:
    """Replace a model's weights with new random ones, in place."""
    with torch.random.fork_rng():
        torch.manual_seed(seed % 2**63)
        model.load_state_dict(AutoModelForCausalLM.from_config(model.config).state_dict())


def save_scratch(
    folder: Path, config: ModelConfig, texts: Iterable[str], choices: int, seed: int, written: int = 0
) -> int:
    """Train a tokenizer, make a model, and write both as a Hugging Face folder.

    Args:
        written: number of tokens that the model may write after a prompt.

    Returns:
        The model's longest sequence in tokens: the recipe's context, or the length that these texts need if it is 0.
    """
    texts = list(texts)
    tokenizer = train_tokenizer(texts, config.vocab, choices, config.family == READS)
    context = config.context or needed_context(max(map(len, tokenizer(texts)["input_ids"])), written)
    make_model(replace(config, context=context), tokenizer, seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return context


def needed_context(longest: int, written: int) -> int:
    """Return the context in tokens for prompts of at most `longest` tokens in a sample of play, plus `written` tokens.

    Prompts get half as much room again, since trained players get further than the sample. The result is a multiple of
    64.
    """
    return -(-(longest * 3 // 2 + written) // 64) * 64
