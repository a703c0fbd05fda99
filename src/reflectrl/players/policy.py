"""The policy: one forward pass over state, reflection and the numbered actions gives the probability of each action.

Single-prompt action enumeration (Reflect-RL, section on techniques). Only the labels of legal actions are scored, so an
illegal action cannot be sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from reflectrl.models.engine import Ids, choice_logits, tokenize
from reflectrl.models.labels import Labels, find_labels
from reflectrl.models.lm import LanguageModel
from reflectrl.players.base import Seat
from reflectrl.prompts import Prompt, policy_prompt
from reflectrl.types import Observation, Sampling, Turn, UserError

CHUNK = 256
"""Prompts per forward pass."""


class Policy:
    """Chooses among the legal actions.

    Args:
        sampling: temperature 0 takes the most probable action.
        shuffle_labels: list the actions in a random order at every step.
        memory: how many prompts' logits are kept. Call `forget` whenever the weights change.
    """

    def __init__(
        self,
        lm: LanguageModel,
        sampling: Sampling = Sampling(),  # noqa: B008  (frozen)
        shuffle_labels: bool = False,
        memory: int = 50_000,
    ) -> None:
        self.lm, self.sampling, self.shuffle_labels, self.memory = lm, sampling, shuffle_labels, memory
        self._labels: Labels | None = None
        self._known: dict[tuple[Ids, int], np.ndarray] = {}

    def labels(self, count: int) -> Labels:
        """The tokenizer's choice labels for that many actions (UserError if it has too few)."""
        if self._labels is None or len(self._labels.texts) < count:
            self._labels = find_labels(self.lm.tokenizer, count)
        return self._labels

    def prompt(self, observation: Observation, reflection: str | None, order: Sequence[int] = ()) -> Ids:
        """Token ids of the prompt whose next token is the choice."""
        labels = self.labels(len(observation.actions))
        text = policy_prompt(observation, reflection, labels.texts, order)
        return tokenize(self.lm, Prompt(text.history, text.rest + labels.gap))

    def forget(self) -> None:
        """Drop remembered logits, because the weights have changed."""
        self._known.clear()

    def turns(self, seats: Sequence[Seat]) -> list[Turn]:
        orders = [self._order(seat) for seat in seats]
        asked = [
            (self.prompt(seat.observation, seat.reflection, order), len(seat.observation.actions))
            for seat, order in zip(seats, orders, strict=True)
        ]
        logits = self._logits(asked)
        return [self._turn(seat, order, logits[key]) for seat, order, key in zip(seats, orders, asked, strict=True)]

    def _order(self, seat: Seat) -> tuple[int, ...]:
        count = len(seat.observation.actions)
        return tuple(int(i) for i in seat.rng.permutation(count)) if self.shuffle_labels else ()

    def _logits(self, asked: Sequence[tuple[Ids, int]]) -> dict[tuple[Ids, int], np.ndarray]:
        """Logits of the listed actions; identical prompts are computed once."""
        found = {key: self._known[key] for key in asked if key in self._known}
        new = [key for key in dict.fromkeys(asked) if key not in found]
        for start in range(0, len(new), CHUNK):
            part = new[start : start + CHUNK]
            found.update(zip(part, self._score(part), strict=True))
        if len(self._known) + len(new) <= self.memory:
            self._known.update((key, found[key]) for key in new)
        return found

    @torch.no_grad()
    def _score(self, part: Sequence[tuple[Ids, int]]) -> list[np.ndarray]:
        most = max(count for _, count in part)
        logits_NA = choice_logits(self.lm, [ids for ids, _ in part], self.labels(most).token_ids[:most])
        if not logits_NA.isfinite().all():
            raise UserError("the policy's logits are not finite: its weights are broken (a learning rate too high?)")
        return [row[:count] for row, (_, count) in zip(logits_NA.cpu().double().numpy(), part, strict=True)]

    def _turn(self, seat: Seat, order: tuple[int, ...], logits: np.ndarray) -> Turn:
        """Draw a label; one number of the episode's generator is used even when greedy, so both replay alike."""
        scaled = logits / (self.sampling.temperature or 1.0)
        logp = scaled - np.logaddexp.reduce(scaled)
        probs = np.exp(logp)
        uniform = seat.rng.random() * probs.sum()
        sampled = int(np.searchsorted(np.cumsum(probs), uniform, side="right"))
        label = int(np.argmax(logp)) if self.sampling.greedy else min(sampled, len(probs) - 1)
        listed = np.asarray(order or range(len(probs)))
        aligned = np.empty_like(probs)
        aligned[listed] = probs
        choice = int(listed[label])
        return Turn(
            "policy",
            seat.observation.actions[choice],
            choice=choice,
            order=order,
            probs=tuple(round(float(p), 6) for p in aligned),
            token_ids=(self.labels(len(probs)).token_ids[label],),
            logprobs=(float(logp[label]),),
            entropy=float(-(probs * logp).sum()),
            sampling=self.sampling,
        )
