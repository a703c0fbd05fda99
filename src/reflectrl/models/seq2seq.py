"""Backend of encoder-decoder models (T5, BART): the encoder reads a prompt, and the decoder writes its completion.

It serves text tasks. Agents choose among labels or texts at the end of one sequence that holds their whole history,
which such a model has no place for. Nothing is shared or kept between prompts, since an encoder's states depend on the
whole prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from reflectrl.core.prompts.tokens import beginning, ending
from reflectrl.core.types import UserError
from reflectrl.models.sharing import Ids, Packing

if TYPE_CHECKING:
    import numpy as np

    from reflectrl.models.backend import Candidates, Completion, Draw, Scoring
    from reflectrl.models.lm import LanguageModel

TEXTS_ONLY = "it is an encoder-decoder model, which serves text tasks only; agents need a causal language model"


def is_encoder_decoder(core: Any) -> bool:
    """Return whether a Hugging Face model has an encoder and a decoder."""
    return bool(getattr(core.config, "is_encoder_decoder", False))


class Seq2SeqBackend:
    """Part of `backend.Backend` that text tasks use, and `continuations` to learn from.

    Args:
        lm: the player's model.
    """

    def __init__(self, lm: LanguageModel) -> None:
        self.lm, self.core, self.ends = lm, lm.core, lm.ends
        config: Any = lm.core.config
        # Where the tokenizer begins a text with a token of its own, as BART's does, so does the decoder.
        self.start = (int(config.decoder_start_token_id), *beginning(lm.tokenizer))
        self.end = ending(lm.tokenizer)

    def read(
        self, prompts: Sequence[Ids], at: Sequence[int] | Literal["ends", "all"] = "ends", caches: object = None
    ) -> Tensor:
        """Return the encoder's states (M, D) at the tokens of prompts, each read by itself.

        Args:
            at: selected tokens: the last of each prompt ("ends"), or all of a `Packing` in which nothing is shared.
        """
        states = [self.encode([ids]).last_hidden_state[0, : len(ids)] for ids in prompts]
        if at == "ends":
            return torch.stack([hidden_TD[-1] for hidden_TD in states])
        assert at == "all" and isinstance(prompts, Packing) and len(prompts.blocks) == len(prompts)
        return torch.cat(states)

    def encode(self, prompts: Sequence[Ids]) -> Any:
        """Return the encoder's output for prompts, padded on the right. Each ends as the tokenizer ends a text."""
        if self.lm.adapter is not None:
            self.lm.activate()
        ids_PT, own_PT = self.padded([(*prompt, *self.end) for prompt in prompts])
        self.lm.counters.passes += 1
        self.lm.counters.encoded += int(own_PT.sum())
        encoder: Any = self.core.get_encoder()  # type: ignore[operator]
        return encoder(input_ids=ids_PT, attention_mask=own_PT)

    def continuations(self, prompts: Sequence[Ids], answers: Sequence[Ids]) -> tuple[Tensor, Tensor]:
        """Score given completions of prompts. Gradients flow.

        Returns:
            Logits (M, V) in float32 that predict the M tokens of the answers, one answer after the other, and the
            decoder's states (M, D) that they come from.
        """
        _, read_PT = self.padded([(*prompt, *self.end) for prompt in prompts])
        written_PU, _ = self.padded([(*self.start, *answer[:-1]) for answer in answers])
        logits_PUV, hidden_PUD, _ = self.decode(self.encode(prompts), read_PT, written_PU)
        first = len(self.start) - 1  # the position that predicts the first token
        spans = [slice(first, first + len(answer)) for answer in answers]
        logits = [logits_UV[span] for logits_UV, span in zip(logits_PUV, spans, strict=True)]
        hidden = [hidden_UD[span] for hidden_UD, span in zip(hidden_PUD, spans, strict=True)]
        return torch.cat(logits).float(), torch.cat(hidden)

    def decode(self, encoded: Any, read_PT: Tensor, written_PU: Tensor, **options: Any) -> tuple[Tensor, Tensor, Any]:
        """Run the decoder. Return logits (P, U, V), its states (P, U, D), and the library's output.

        Args:
            encoded: output of the encoder.
            read_PT: 1 at the prompts' tokens, 0 at padding.
            written_PU: tokens that the decoder has written, padded on the right.
            options: further arguments of the library's forward pass.
        """
        states: list[Tensor] = []
        decoder: Any = self.core.get_decoder()  # type: ignore[operator]
        hook = decoder.register_forward_hook(lambda module, inputs, output: states.append(output[0]))
        try:
            output = self.core(
                encoder_outputs=encoded,
                attention_mask=read_PT,
                decoder_input_ids=written_PU,
                **{"use_cache": False, **options},
            )
        finally:
            hook.remove()
        self.lm.counters.logits += output.logits.numel()
        return output.logits, states[-1], output

    @torch.no_grad()
    def write(
        self,
        prompts: Sequence[Ids],
        max_new_tokens: int | Sequence[int],
        draw: Draw,
        generators: Sequence[np.random.Generator],
        caches: object = None,
        draft_model: object = None,
    ) -> list[Completion]:
        """Write a completion of each prompt, one after the other (see `backend.Backend.write`)."""
        limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else max_new_tokens
        written: list[Completion] = []
        for prompt, limit, generator in zip(prompts, limits, generators, strict=True):
            ids, logprobs, cache, encoded = list[int](), list[float](), None, self.encode([prompt])
            read_1T = torch.ones(encoded.last_hidden_state.shape[:2], dtype=torch.long, device=self.lm.device)
            new_1U = torch.tensor([self.start], device=self.lm.device)
            while len(ids) < limit:
                logits_1UV, _, output = self.decode(encoded, read_1T, new_1U, use_cache=True, past_key_values=cache)
                cache = output.past_key_values
                token_1, logprob_1 = draw(logits_1UV[:, -1].float(), [generator])
                if int(token_1) in self.ends:
                    break
                ids.append(int(token_1))
                logprobs.append(float(logprob_1))
                new_1U = token_1.view(1, 1).to(self.lm.device)
            self.lm.counters.decoded += len(ids)
            written.append((tuple(ids), tuple(logprobs)))
        return written

    def padded(self, rows: Sequence[Ids]) -> tuple[Tensor, Tensor]:
        """Return token ids (P, T), padded on the right, and a mask with 1 at own tokens and 0 at padding."""
        device = self.lm.device
        ids_PT = pad_sequence([torch.tensor(ids) for ids in rows], batch_first=True)
        own_PT = pad_sequence([torch.ones(len(ids), dtype=torch.long) for ids in rows], batch_first=True)
        return ids_PT.to(device), own_PT.to(device)

    def score(
        self,
        prompts: Sequence[Ids],
        candidates: Sequence[Candidates],
        scoring: Scoring = "enumeration",
        caches: object = None,
        share: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Refuse to score actions: raise UserError."""
        raise UserError(f"model {self.lm.base!r}: {TEXTS_ONLY}")

    def logits(self, hidden_ND: Tensor, rows: Tensor | None = None) -> Tensor:
        """Refuse to compute logits of anything but completions: raise UserError."""
        about = "an encoder-decoder model learns from completions only; set sft.text_coef to 0"
        raise UserError(f"model {self.lm.base!r}: {about}")
