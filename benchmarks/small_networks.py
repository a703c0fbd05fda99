"""Networks of `benchmarks.small_ppo`: observations become sets of features, which a table or an MLP reads."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator, Sequence

import torch
from torch import Tensor, nn

from reflectrl.core.types import Observation, UserError
from reflectrl.learn.losses import restricted_log_softmax

WORD = re.compile(r"\w+|\W")
SLOTS = {"tabular": 1 << 14, "mlp": 1 << 10}
"""Largest number of features. Features that were not seen yet only cost memory."""
ACTIONS = 16


class Encoder:
    """Encoder from observations to the features that are 1, numbered in the order in which they were first seen."""

    def __init__(self, policy: str, ignore: str) -> None:
        self.policy, self.ignore, self.slots = policy, ignore, SLOTS[policy]
        self.features: dict[Hashable, int] = {}
        self.actions: dict[str, int] = {}
        self._known: dict[Observation, tuple[Tensor, Tensor]] = {}

    def __call__(self, observation: Observation, learning: bool) -> tuple[Tensor, Tensor]:
        """Return the features, and a mask of legal actions (ACTIONS,). Features that training never saw are dropped."""
        if observation in self._known:
            return self._known[observation]
        found = list(self.parts(observation))
        if learning:
            for part in found:
                self.features.setdefault(part, len(self.features))
        listed = [self.actions.setdefault(action, len(self.actions)) for action in observation.actions]
        if len(self.features) > self.slots or len(self.actions) > ACTIONS:
            raise UserError(f"small_ppo: more than {self.slots} features or {ACTIONS} actions; take a smaller task")
        legal = torch.zeros(ACTIONS, dtype=torch.bool)
        legal[listed] = True
        encoded = torch.tensor([self.features[part] for part in found if part in self.features]).long(), legal
        if learning:
            self._known[observation] = encoded
        return encoded

    def parts(self, observation: Observation) -> Iterator[Hashable]:
        """Yield the features by name."""
        text = observation.history + observation.state
        lines = [line for line in text.splitlines() if not (self.ignore and line.startswith(self.ignore))]
        if self.policy == "tabular":
            yield (*lines, *observation.actions)
            return
        for i, line in enumerate(lines):
            yield from ((i, j, word) for j, word in enumerate(WORD.findall(line)))


class Network(nn.Module):
    """Logits and values from sets of features, by a table or by two small MLPs. At first, actions are nearly equal."""

    def __init__(self, policy: str, slots: int) -> None:
        super().__init__()
        self.actor, self.critic = (self._head(policy, slots, size, gain) for size, gain in ((ACTIONS, 0.01), (1, 1.0)))

    @staticmethod
    def _head(policy: str, slots: int, size: int, gain: float) -> nn.Sequential:
        first = nn.EmbeddingBag(slots, size if policy == "tabular" else 64, mode="sum")  # a linear layer on 0s and 1s
        if policy == "tabular":
            nn.init.zeros_(first.weight)
            return nn.Sequential(first)
        nn.init.normal_(first.weight, std=0.1)
        layers = nn.Linear(64, 64), nn.Linear(64, size)
        for layer, scale in zip(layers, (math.sqrt(2), gain), strict=True):
            nn.init.orthogonal_(layer.weight, scale)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(first, nn.Tanh(), layers[0], nn.Tanh(), layers[1])

    def forward(self, encoded: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (N, ACTIONS), -inf for illegal actions, and values (N,)."""
        index = torch.cat([features for features, _ in encoded])
        starts = torch.tensor([0, *(len(features) for features, _ in encoded)]).cumsum(0)[:-1]
        (table, *actor), (values, *critic) = self.actor, self.critic
        logits_NA, values_N1 = table(index, starts), values(index, starts)
        for layer in actor:
            logits_NA = layer(logits_NA)
        for layer in critic:
            values_N1 = layer(values_N1)
        return restricted_log_softmax(logits_NA, torch.stack([legal for _, legal in encoded])), values_N1[:, 0]
