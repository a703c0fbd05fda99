"""From hidden states to logits: of the whole vocabulary, of some tokens, of one token each."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from reflectrl.models.forward import product


def logits(core: Any, hidden_ND: Tensor, rows: Tensor | None = None) -> Tensor:
    """Logits (N, V), or only those of the tokens `rows` (A,), (N, A): the rest of the head is never computed."""
    head = core.get_output_embeddings()
    if rows is not None:
        bias = None if getattr(head, "bias", None) is None else head.bias[rows]
        return _finished(core, functional.linear(hidden_ND, head.weight[rows], bias))
    plain = type(head) is nn.Linear
    return _finished(core, product(hidden_ND, head.weight, head.bias) if plain else head(hidden_ND))


def token_logits(core: Any, hidden_ED: Tensor, tokens_E: Tensor) -> Tensor:
    """The logit (E,), in float32, of one token behind each hidden state."""
    head = core.get_output_embeddings()
    logits_E = (hidden_ED.float() * head.weight[tokens_E].float()).sum(-1)
    bias = getattr(head, "bias", None)
    return _finished(core, logits_E if bias is None else logits_E + bias[tokens_E].float())


def _finished(core: Any, logits: Tensor) -> Tensor:
    """What some families do to the head's output: multiply (Cohere), divide (Granite), cap softly (Gemma 2)."""
    scale = (getattr(core.config, "logit_scale", None) or 1.0) / (getattr(core.config, "logits_scaling", None) or 1.0)
    if scale != 1:
        logits = logits * scale
    cap = getattr(core.config, "final_logit_softcapping", None)
    return logits if cap is None else cap * (logits / cap).tanh()
