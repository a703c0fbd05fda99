"""The policy: one forward pass over state, reflection and the numbered actions gives the probability of each action.

Single-prompt action enumeration (Reflect-RL, section on techniques), or the actions' own texts. Only legal actions are
scored, so an illegal one cannot be sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from reflectrl.models.choices import Scoring, Texts, action_texts, cached_text_logits, text_logits
from reflectrl.models.engine import choice_logits, last_hidden, tokenize
from reflectrl.models.labels import Labels, find_labels
from reflectrl.models.lm import LanguageModel
from reflectrl.models.packing import Ids, Packing, apart, pack, portions
from reflectrl.models.prefix import CACHE, Prefix, PrefixPool
from reflectrl.players.base import LiveEpisode
from reflectrl.prompts import Prompt, policy_prompt, words_prompt
from reflectrl.types import Observation, Sampling, Turn, UserError

CHUNK = 256
"""Prompts per forward pass."""

Actions = tuple[str, ...]
Asked = tuple[Ids, Actions]
"""A prompt, and the actions among which it asks to choose."""


class Policy:
    """Chooses among the legal actions.

    Args:
        sampling: temperature 0 takes the most probable action.
        shuffle_labels: list the actions in a random order at every step (enumeration only).
        memory: how many prompts' logits are kept; 0 computes even equal prompts of a batch one by one. Call
            `clear_cache` whenever the weights change.
        cache: most bytes of keys and values of histories that are kept between steps; 0 encodes all anew each time.
        scoring: "enumeration", or by the actions' texts ("sum", "token", "word", "trie"; see `models/choices.py`).
    """

    def __init__(
        self,
        lm: LanguageModel,
        sampling: Sampling = Sampling(),  # noqa: B008  (frozen)
        shuffle_labels: bool = False,
        memory: int = 50_000,
        cache: int = CACHE,
        scoring: Scoring = "enumeration",
    ) -> None:
        self.lm, self.sampling, self.memory, self.scoring = lm, sampling, memory, scoring
        self.shuffle_labels = shuffle_labels and scoring == "enumeration"
        self.pool = PrefixPool(lm.token_bytes, cache)
        self.asked = 0
        self.remembered = 0
        self._labels: Labels | None = None
        self._texts: dict[Actions, Texts] = {}
        self._known: dict[Asked, np.ndarray] = {}

    def with_sampling(self, sampling: Sampling) -> Policy:
        """The same player with another way of drawing, and memories of its own."""
        return Policy(self.lm, sampling, self.shuffle_labels, self.memory, self.pool.limit, self.scoring)

    def labels(self, count: int) -> Labels:
        """The tokenizer's choice labels for that many actions (UserError if it has too few)."""
        if self._labels is None or len(self._labels.texts) < count:
            self._labels = find_labels(self.lm.tokenizer, count)
        return self._labels

    def texts(self, actions: Actions) -> Texts:
        """The tokens of the actions' texts."""
        if actions not in self._texts:
            if len(self._texts) >= self.memory:
                self._texts.clear()
            self._texts[actions] = action_texts(self.lm, actions)
        return self._texts[actions]

    def prompt(self, observation: Observation, reflection: str | None, order: Sequence[int] = ()) -> Ids:
        """Token ids of the prompt that the choice follows."""
        if self.scoring != "enumeration":
            longest = max(map(len, self.texts(observation.actions).ids))
            return tokenize(self.lm, words_prompt(observation, reflection), reserve=longest)
        labels = self.labels(len(observation.actions))
        text = policy_prompt(observation, reflection, labels.texts, order)
        return tokenize(self.lm, Prompt(text.history, text.rest + labels.gap))

    def answer(self, actions: Actions, action: int, label: int) -> Ids:
        """The tokens that take an action, listed under the label of that number."""
        if self.scoring != "enumeration":
            return self.texts(actions).ids[action]
        return (self.labels(len(actions)).token_ids[label],)

    def clear_cache(self) -> None:
        """Drop all that was computed, because the weights have changed."""
        self._known.clear()
        self.pool.clear()

    def logits(self, packing: Packing, actions: Sequence[Actions]) -> tuple[Tensor, Tensor]:
        """Logits (P, A) of the actions of each packed prompt, and hidden states (P, D) after it; gradients flow.

        Rows with fewer than A actions end in arbitrary numbers.
        """
        if self.scoring != "enumeration":
            return text_logits(self.lm, packing, [self.texts(one) for one in actions], self.scoring)
        most = max(map(len, actions))
        hidden_PD = last_hidden(self.lm, packing)
        rows = torch.tensor(self.labels(most).token_ids[:most], device=self.lm.device)
        return self.lm.logits(hidden_PD, rows).float(), hidden_PD

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        orders = [self._order(episode) for episode in episodes]
        asked = [
            (self.prompt(episode.observation, episode.reflection, order), episode.observation.actions)
            for episode, order in zip(episodes, orders, strict=True)
        ]
        logits = self._logits(asked, episodes) if self.memory else self._scored(asked, episodes)
        return [self._turn(episode, order, row) for episode, order, row in zip(episodes, orders, logits, strict=True)]

    def _order(self, episode: LiveEpisode) -> tuple[int, ...]:
        count = len(episode.observation.actions)
        return tuple(int(i) for i in episode.rng.permutation(count)) if self.shuffle_labels else ()

    def _logits(self, asked: Sequence[Asked], episodes: Sequence[LiveEpisode]) -> list[np.ndarray]:
        """Logits of the listed actions; identical prompts are computed once."""
        found = {key: self._known[key] for key in asked if key in self._known}
        new = {key: episode for key, episode in zip(asked, episodes, strict=True) if key not in found}
        self.asked += len(asked)
        self.remembered += len(asked) - len(new)
        found.update(zip(new, self._scored(list(new), list(new.values())), strict=True))
        self.pool.share_equal(asked, episodes, new)
        if len(self._known) + len(new) <= self.memory:
            self._known.update((key, found[key]) for key in new)
        return [found[key] for key in asked]

    def _scored(self, asked: Sequence[Asked], episodes: Sequence[LiveEpisode]) -> list[np.ndarray]:
        starts = range(0, len(asked), CHUNK)
        return [row for i in starts for row in self._score(asked[i : i + CHUNK], episodes[i : i + CHUNK])]

    def _score(self, part: Sequence[Asked], episodes: Sequence[LiveEpisode]) -> list[np.ndarray]:
        prompts, actions = [ids for ids, _ in part], [listed for _, listed in part]
        growing = [self.pool.limit > 0 and bool(episode.observation.history) for episode in episodes]
        with self.lm.playing():
            if any(growing) or self.scoring != "enumeration":
                needed = [len(ids) + sum(map(len, self._spelled(one))) for ids, one in part]
                parts = self.pool.parts(episodes, needed, growing)
                found = [row for rows, prefixes in parts for row in self._read(prompts[rows], actions[rows], prefixes)]
            else:
                found = self._glance(prompts, actions)
        if not all(row[: len(one)].isfinite().all() for row, one in zip(found, actions, strict=True)):
            raise UserError("the policy's logits are not finite: its weights are broken (a learning rate too high?)")
        return [row[: len(one)].cpu().double().numpy() for row, one in zip(found, actions, strict=True)]

    def _glance(self, prompts: Sequence[Ids], actions: Sequence[Actions]) -> list[Tensor]:
        """Logits of prompts of which nothing is kept; what those of one pass have in common is encoded once."""
        order = sorted(range(len(prompts)), key=lambda i: prompts[i])
        found: dict[int, Tensor] = {}
        for rows in portions([len(prompts[i]) for i in order], self.lm.pass_tokens):
            together = [prompts[i] for i in order[rows]]
            packing = pack(together) if self.memory else apart(together)
            found.update(zip(order[rows], self.logits(packing, [actions[i] for i in order[rows]])[0], strict=True))
        return [found[i] for i in range(len(prompts))]

    def _spelled(self, actions: Actions) -> tuple[Ids, ...]:
        """What is encoded behind a prompt to score its actions."""
        return () if self.scoring == "enumeration" else self.texts(actions).ids

    def _read(self, prompts: Sequence[Ids], actions: Sequence[Actions], prefixes: Sequence[Prefix]) -> Tensor:
        """Logits (P, A) of prompts that continue what their prefixes hold."""
        if self.scoring != "enumeration":
            return cached_text_logits(self.lm, prompts, [self.texts(one) for one in actions], self.scoring, prefixes)
        most = max(map(len, actions))
        return choice_logits(self.lm, prompts, self.labels(most).token_ids[:most], prefixes)

    def _turn(self, episode: LiveEpisode, order: tuple[int, ...], logits: np.ndarray) -> Turn:
        """Draw a label; one number of the episode's generator is used even when greedy, so both replay alike."""
        scaled = logits / (self.sampling.temperature or 1.0)
        logp = scaled - np.logaddexp.reduce(scaled)
        probs = np.exp(logp)
        uniform = episode.rng.random() * probs.sum()
        sampled = int(np.searchsorted(np.cumsum(probs), uniform, side="right"))
        label = int(np.argmax(logp)) if self.sampling.greedy else min(sampled, len(probs) - 1)
        listed = np.asarray(order or range(len(probs)))
        aligned = np.empty_like(probs)
        aligned[listed] = probs
        choice = int(listed[label])
        return Turn(
            "policy",
            episode.observation.actions[choice],
            choice=choice,
            order=order,
            probs=tuple(round(float(p), 6) for p in aligned),
            token_ids=self.answer(episode.observation.actions, choice, label),
            logprobs=(float(logp[label]),),
            entropy=float(-(probs * logp).sum()),
            sampling=self.sampling,
        )
