"""The plain implementation of play: two players the way most scripts write them, on Hugging Face only.

Every prompt is rendered, tokenized and encoded anew at each step, in padded batches. The language-model head computes
the whole vocabulary at every position of the prompt. Nothing here is slow on purpose: gradients are off unless needed,
decoding has its cache, and batches are as large as memory allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from reflectrl.core.prompts import policy_prompt, reflector_prompt
from reflectrl.core.prompts.tokens import beginning
from reflectrl.core.types import Observation
from reflectrl.learn.losses import restricted_log_softmax
from reflectrl.models.labels import Labels, find_labels
from reflectrl.models.lm import LanguageModel

LOGITS_BYTES = {"cpu": 2 * 2**30, "cuda": 4 * 2**30}
"""Largest size in bytes of the logits of a forward pass, by device. Larger batches are split."""


@dataclass
class Tokens:
    """Counts of the tokens that a model has computed.

    Attributes:
        encoded: prompt tokens that were read; `encoded_padded` includes the padding.
        decoded: tokens that were generated; `decoded_padded` includes tokens of rows that were already complete.
    """

    encoded: int = 0
    encoded_padded: int = 0
    decoded: int = 0
    decoded_padded: int = 0

    def read(self, mask_BT: Tensor) -> None:
        self.encoded += int(mask_BT.sum())
        self.encoded_padded += mask_BT.numel()

    def wrote(self, lengths: Sequence[int]) -> None:
        self.decoded += sum(lengths)
        self.decoded_padded += max(lengths) * len(lengths)


def tokenized(lm: LanguageModel, texts: Sequence[str], side: str, reserve: int = 0) -> tuple[Tensor, Tensor]:
    """Return ids and attention mask, both (B, T), padded on a side. Texts that are too long lose their beginning.

    Texts start with the same special tokens as the engine's prompts. Nothing is added at the end.
    """
    start = "".join(lm.tokenizer.convert_ids_to_tokens(list(beginning(lm.tokenizer))))
    lm.tokenizer.truncation_side = "left"
    batch = lm.tokenizer(
        [start + text for text in texts],
        add_special_tokens=False,
        return_tensors="pt",
        padding=True,
        padding_side=side,
        truncation=True,
        max_length=lm.context - reserve,
    ).to(lm.device)
    return batch["input_ids"], batch["attention_mask"]


# ---- play ----------------------------------------------------------------------------------------------------------


class RowLengths(StoppingCriteria):
    """Stop each row at its own number of new tokens."""

    def __init__(self, prompt_width: int, lengths_B: Tensor) -> None:
        self.prompt_width, self.lengths_B = prompt_width, lengths_B

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        return input_ids.shape[1] - self.prompt_width >= self.lengths_B


class PlainPair:
    """A policy that plays, and optionally a reflector.

    Args:
        reflector: None to play without reflections.

    Attributes:
        tokens: counts of both models since `tokens` was last replaced.
    """

    def __init__(self, policy: LanguageModel, reflector: LanguageModel | None = None) -> None:
        self.policy, self.reflector = policy, reflector
        self.tokens = Tokens()
        self._labels = Labels((), (), "")

    @torch.inference_mode()
    def reflect(self, observations: Sequence[Observation], lengths: Sequence[int]) -> list[str]:
        """Sample a reflection per observation at temperature 1. Reflection i has `lengths[i]` tokens and no
        end-of-text.

        As always with `generate`, complete rows stay in the batch until the longest row is complete.
        """
        lm = self.reflector
        assert lm is not None, "there is no reflector"
        lm.activate()
        texts = ["".join(reflector_prompt(observation)) for observation in observations]
        ids_BT, mask_BT = tokenized(lm, texts, "left", reserve=max(lengths))
        width = ids_BT.shape[1]
        out_BT = lm.model.generate(
            input_ids=ids_BT,
            attention_mask=mask_BT,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=max(lengths),
            eos_token_id=None,
            pad_token_id=lm.tokenizer.pad_token_id,
            stopping_criteria=StoppingCriteriaList([RowLengths(width, torch.tensor(lengths, device=lm.device))]),
        )
        self.tokens.read(mask_BT)
        self.tokens.wrote(lengths)
        new = [row[width : width + length] for row, length in zip(out_BT, lengths, strict=True)]
        return lm.tokenizer.batch_decode(new, skip_special_tokens=True)

    @torch.inference_mode()
    def act(self, observations: Sequence[Observation], reflections: Sequence[str | None]) -> list[int]:
        """Sample an action for each observation, and return its index.

        This is one forward pass with the logits of all positions. If the logits exceed `LOGITS_BYTES` (2 GiB on CPUs),
        the batch is split into as many parts as needed.
        """
        lm = self.policy
        labels = self.labels(max(len(observation.actions) for observation in observations))
        texts = policy_texts(labels, observations, reflections)
        ids_BT, mask_BT = tokenized(lm, texts, "right")
        self.tokens.read(mask_BT)
        scores_BA = torch.cat([label_scores(lm, labels, *part) for part in _parts(lm, ids_BT, mask_BT)])
        probs_BA = restricted_log_softmax(scores_BA, legal(lm, observations, scores_BA.shape[1])).exp()
        return torch.multinomial(probs_BA, 1)[:, 0].tolist()

    def labels(self, count: int) -> Labels:
        """Return the tokenizer's labels for `count` actions. They are searched once."""
        if len(self._labels.texts) < count:
            self._labels = find_labels(self.policy.tokenizer, count)
        return self._labels


def play_tick(
    pair: PlainPair, observations: Sequence[Observation], reflections: Sequence[str], lengths: Sequence[int]
) -> list[int]:
    """Play a step of a batch with both players. Return the indices of the chosen actions.

    The reflector decodes `lengths[i]` tokens, whose content is ignored. The policy reads the recorded reflections, so
    that every implementation encodes the same text. Without a reflector the policy acts on the observations alone.
    """
    if pair.reflector is None:
        return pair.act(observations, [None] * len(observations))
    pair.reflect(observations, lengths)
    return pair.act(observations, reflections)


def policy_texts(labels: Labels, observations: Sequence[Observation], reflections: Sequence[str | None]) -> list[str]:
    """Return the policy's prompts, each ready for the label's token."""
    pairs = zip(observations, reflections, strict=True)
    return ["".join(policy_prompt(seen, reflection, labels.texts)) + labels.gap for seen, reflection in pairs]


def _parts(lm: LanguageModel, ids_BT: Tensor, mask_BT: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Split a batch into parts whose logits fit `LOGITS_BYTES`; a part has at least one row."""
    vocabulary = lm.core.get_output_embeddings().weight.shape[0]  # type: ignore[operator]
    rows = max(1, LOGITS_BYTES[lm.device.type] // (4 * ids_BT.shape[1] * vocabulary))
    return zip(ids_BT.split(rows), mask_BT.split(rows), strict=True)


def label_scores(lm: LanguageModel, labels: Labels, ids_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the labels' logits (B, A) after each right-padded prompt, taken from logits of the whole vocabulary."""
    lm.activate()
    logits_BTV = lm.model(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False).logits
    last_B = mask_BT.sum(1) - 1
    return logits_BTV[torch.arange(len(ids_BT), device=lm.device), last_B][:, list(labels.token_ids)]


def legal(lm: LanguageModel, observations: Sequence[Observation], most: int) -> Tensor:
    """Return a mask (B, most) of the labels that name an action."""
    counts_B = torch.tensor([len(observation.actions) for observation in observations], device=lm.device)
    return torch.arange(most, device=lm.device)[None] < counts_B[:, None]


# ---- choice scoring ------------------------------------------------------------------------------------------------


@torch.inference_mode()
def score_actions(lm: LanguageModel, prompt_ids: Sequence[int], action_ids: Sequence[Sequence[int]]) -> Tensor:
    """Return the log-probability of each action's text after the prompt, (A,): the sum over its tokens, in nats.

    There is one forward pass per action over prompt and action, with the logits of all positions. It encodes A ·
    len(prompt) + the tokens of all actions. Dividing by the tokens or words of each action gives the normalised scores
    (SayCan, Ahn et al. 2022; TWOSOME, Tan et al. 2024).
    """
    lm.activate()
    scores = []
    for action in action_ids:
        ids_1T = torch.tensor([[*prompt_ids, *action]], device=lm.device)
        logits_1TV = lm.model(input_ids=ids_1T, use_cache=False).logits
        logp_NV = logits_1TV[0, len(prompt_ids) - 1 : -1].float().log_softmax(-1)
        scores.append(logp_NV.gather(1, ids_1T[0, len(prompt_ids) :, None]).sum())
    return torch.stack(scores)
