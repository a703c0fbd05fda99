"""The plain backend: Hugging Face's own forward pass, one sequence at a time, nothing shared and nothing kept.

It is slow, but correct for every architecture. The packed backend is compared with it when a model is loaded
(`verification.py`). A model runs on the plain backend if the two differ, or if `model.backend` is "plain".
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from reflectrl.models.sharing import Ids, Packing
from reflectrl.models.text_scoring import option_scores

if TYPE_CHECKING:
    from reflectrl.models.backend import Candidates, Completion, Draw, Scoring
    from reflectrl.models.lm import LanguageModel


def body_of(core: Any) -> nn.Module:
    """Return the submodule of a causal language model that computes hidden states from token ids."""
    embeddings = core.get_input_embeddings()
    for body in (core.get_decoder(), core.base_model):  # some families call other things a decoder, or a base
        if body is not core and any(module is embeddings for module in body.modules()):
            return body
    return core.model


def own_logits(core: Any, hidden_ND: Tensor) -> Tensor:
    """Compute logits (N, V) of hidden states by the model's own code: its forward pass with the layers left out.

    So everything that a family does besides the head's product (scaling, soft caps, transformations) is included.
    """
    ids_1N = torch.zeros(1, len(hidden_ND), dtype=torch.long, device=hidden_ND.device)
    body = body_of(core)
    before = vars(body).get("forward")
    body.forward = lambda *_, **__: Output(hidden_ND[None])
    try:
        logits: Tensor = core(input_ids=ids_1N, use_cache=False).logits[0]
    finally:
        if before is None:
            del body.forward
        else:
            body.forward = before
    return logits


class Output(SimpleNamespace):
    """Stand-in for the output of a model's body: hidden states, and None for any other attribute."""

    def __init__(self, hidden_1ND: Tensor) -> None:
        super().__init__(last_hidden_state=hidden_1ND)

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]


class PlainBackend:
    """Reference implementation of `backend.Backend`. KV caches and draft models are accepted and ignored.

    Args:
        lm: the player's model. With `lm.engine_options.cache`, the library's own KV cache is used while writing.
    """

    def __init__(self, lm: LanguageModel) -> None:
        self.lm, self.core, self.ends = lm, lm.core, lm.ends
        self.body = body_of(lm.core)

    def forward(self, ids: Sequence[int], **options: Any) -> tuple[Tensor, Tensor, Any]:
        """Run one sequence. Return hidden states (T, D) before the head, logits (T, V), and the library's output."""
        if self.lm.adapter is not None:
            self.lm.activate()
        hidden_states: list[Tensor] = []
        # Both players of a pair may be adapters of one model, so the hook stays for a single pass only.
        hook = self.body.register_forward_hook(lambda module, inputs, output: hidden_states.append(output[0]))
        device = self.core.get_input_embeddings().weight.device  # type: ignore[operator]
        try:
            output = self.core(input_ids=torch.tensor([ids], device=device), **{"use_cache": False, **options})
        finally:
            hook.remove()
        self.lm.counters.passes += 1
        self.lm.counters.logits += output.logits.numel()
        return hidden_states[-1][0], output.logits[0], output

    def read(
        self,
        prompts: Sequence[Ids],
        at: Sequence[int] | Literal["ends", "all"] = "ends",
        caches: object = None,
    ) -> Tensor:
        """Read each prompt in its own pass. For a `Packing`, tokens are then put in the order of its blocks."""
        states = [self.forward(ids)[0] for ids in prompts]
        self.lm.counters.encoded += sum(map(len, states))
        if at == "ends":
            return torch.stack([hidden_TD[-1] for hidden_TD in states])
        assert isinstance(prompts, Packing), "tokens other than the last are selected by their indices in a packing"
        # Prompts share tokens in a packing, so several rows here belong to one of its tokens. Any of them will do.
        indices = np.concatenate([prompts.token_indices(i) for i in range(len(prompts))])
        row_of = np.empty(indices.max() + 1, dtype=np.int64)
        row_of[indices] = np.arange(len(indices))
        if at != "all":
            row_of = row_of[list(at)]
        hidden_ND = torch.cat(states)
        return hidden_ND[torch.from_numpy(row_of).to(hidden_ND.device)]

    def score(
        self,
        prompts: Sequence[Ids],
        candidates: Sequence[Candidates],
        scoring: Scoring = "enumeration",
        caches: object = None,
        share: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Score actions in one pass per prompt (labels), or one pass per action (texts)."""
        rows, ends = [], []
        for prompt, listed in zip(prompts, candidates, strict=True):
            self.lm.counters.encoded += len(prompt)
            if scoring == "enumeration":
                hidden_TD, logits_TV, _ = self.forward(prompt)
                labels_A = [ids[0] for ids in listed.ids]
                row_A, end_D = logits_TV[-1, labels_A].float(), hidden_TD[-1]
            elif scoring == "options" and self.lm.taps:
                row_A, end_D = self._score_texts(prompt, listed, "trie", self.lm.ensure_option_head())
            elif scoring == "options":
                row_A, end_D = self._score_options(prompt, listed)
            else:
                row_A, end_D = self._score_texts(prompt, listed, scoring)
            rows.append(row_A)
            ends.append(end_D)
        return pad_sequence(rows, batch_first=True, padding_value=-torch.inf), torch.stack(ends)

    def _score_texts(
        self, prompt: Ids, candidates: Candidates, scoring: Scoring, head_D: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (A,) of the actions' texts by `scoring`, and the hidden state (D,) of the prompt.

        Args:
            head_D: weight of a head whose scores of the texts are added.
        """
        scores = []
        for ids, words in zip(candidates.ids, candidates.words, strict=True):
            hidden_TD, logits_TV, _ = self.forward((*prompt, *ids[:-1]))
            logits_SV = logits_TV[len(prompt) - 1 :].float()
            total_S = logits_SV.logsumexp(-1)
            if scoring == "trie":  # at each position, only tokens that lead to some action's text compete
                totals = list[Tensor]()
                for t in range(len(ids)):
                    competing = _next_tokens(candidates.ids, ids[:t])
                    totals.append(logits_SV[t, competing].logsumexp(-1))
                total_S = torch.stack(totals)
            logp = (logits_SV[range(len(ids)), ids] - total_S).sum()
            score = logp / {"token": len(ids), "word": words}.get(scoring, 1)
            if head_D is not None:
                score = score + option_scores(hidden_TD[-1], head_D)
            scores.append(score)
        return torch.stack(scores), hidden_TD[len(prompt) - 1]

    def _score_options(self, prompt: Ids, candidates: Candidates) -> tuple[Tensor, Tensor]:
        """Return scores (A,) of the options by the learned head, and the hidden state (D,) of the prompt."""
        states = [self.forward((*prompt, *ids))[0] for ids in candidates.ids]
        ends_AD = torch.stack([hidden_TD[-1] for hidden_TD in states])
        return option_scores(ends_AD, self.lm.ensure_option_head()), states[0][len(prompt) - 1]

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
        """Continue one prompt after another, token by token."""
        limits = max_new_tokens
        if isinstance(limits, int):
            limits = [limits] * len(prompts)
        written: list[Completion] = []
        for prompt, limit, generator in zip(prompts, limits, generators, strict=True):
            ids, logprobs, cache = list[int](), list[float](), None
            while len(ids) < limit:
                if self.lm.engine_options.cache:
                    _, logits_TV, output = self.forward(ids[-1:] or prompt, use_cache=True, past_key_values=cache)
                    cache = output.past_key_values
                else:
                    _, logits_TV, _ = self.forward((*prompt, *ids))
                token_1, logprob_1 = draw(logits_TV[-1:].float(), [generator])
                if int(token_1) in self.ends:
                    break
                ids.append(int(token_1))
                logprobs.append(float(logprob_1))
            self.lm.counters.encoded += len(prompt)
            self.lm.counters.decoded += max(0, len(ids) - 1)
            written.append((tuple(ids), tuple(logprobs)))
        return written

    def logits(self, hidden_ND: Tensor, rows: Tensor | None = None) -> Tensor:
        """Compute logits by the model's own code (`own_logits`)."""
        if self.lm.adapter is not None:
            self.lm.activate()
        logits_NV = own_logits(self.core, hidden_ND)
        self.lm.counters.logits += logits_NV.numel()
        if rows is None:
            return logits_NV
        return logits_NV[:, rows]


def _next_tokens(texts: Sequence[Ids], prefix: Ids) -> list[int]:
    """Return the tokens that come after a prefix in some of these texts."""
    count = len(prefix)
    return sorted({ids[count] for ids in texts if len(ids) > count and ids[:count] == prefix})
