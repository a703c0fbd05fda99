"""The players that are language models: the policy, which chooses actions, and the reflector, which writes.

The policy reads the state and the reflection, and a single forward pass gives the probability of each action. It scores
the labels of actions that the prompt lists (single-prompt action enumeration, Reflect-RL, section on techniques), or
the actions' texts. Only legal actions are scored, so an illegal action cannot be sampled. The reflector writes a short
analysis of the state.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from functools import partial
from itertools import chain
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from reflectrl.core.calibration import Calibration
from reflectrl.core.players.base import LiveEpisode
from reflectrl.core.prompts import Prompt, policy_prompt, question_prompt, reflector_prompt, tokenize, words_prompt
from reflectrl.core.types import Choice, Observation, Reflection, Sampling, Turn, UserError
from reflectrl.models.backend import Candidates, Completion, Draw, Scoring
from reflectrl.models.generation import DraftModel
from reflectrl.models.labels import Labels, find_labels
from reflectrl.models.lm import LanguageModel
from reflectrl.models.machine import is_mixed
from reflectrl.models.sharing import CACHE, REUSE, WORKING, Ids, KVCache, KVCachePool, shared_length

Actions = tuple[str, ...]
Question = tuple[Ids, Actions]
"""A prompt, and the actions to choose from."""

IN_WORDS = "Action:"
"""Last word of the prompt before an action's text."""

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


def sampler(sampling: Sampling) -> Draw:
    """Return a function for `backend.write` that draws tokens: greedily at temperature 0, else with top-k and top-p."""
    return partial(draw, sampling=sampling)


COLDEST = 1e-30
"""Lowest temperature by which logits are divided. Below it, the quotients overflow float32."""


def draw(logits_BV: Tensor, generators: Sequence[np.random.Generator], sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Draw a token per row (B,), with its log-probability (B,). Sampled rows take one number from their generator."""
    if sampling.temperature == 0:
        logp_BV = logits_BV.log_softmax(-1)
        tokens = logp_BV.argmax(-1)
        return tokens, logp_BV.gather(-1, tokens[:, None])[:, 0]
    logp_BV = truncated(logits_BV / max(sampling.temperature, COLDEST), sampling).log_softmax(-1)
    precise = torch.float64
    if logits_BV.device.type == "mps":  # Apple's GPUs have no float64
        precise = torch.float32
    uniform = torch.tensor([g.random() for g in generators], dtype=precise).to(logits_BV.device, non_blocking=True)
    cumulative_BV = logp_BV.to(precise).exp().cumsum(-1)
    tokens = torch.searchsorted(cumulative_BV, (uniform * cumulative_BV[:, -1])[:, None], right=True)[:, 0]
    tokens = tokens.clamp(max=logits_BV.shape[-1] - 1)
    return tokens, logp_BV.gather(-1, tokens[:, None])[:, 0]


def truncated(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Keep the `top_k` largest logits, and of these the nucleus of `top_p`. Set others to -inf.

    Logits that are equal to the smallest of the `top_k` are kept, too.
    """
    if 0 < sampling.top_k < logits_BV.shape[-1]:
        smallest_B1 = logits_BV.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < smallest_B1, -torch.inf)
    return nucleus(logits_BV, sampling.top_p)


def nucleus(logits_BV: Tensor, top_p: float) -> Tensor:
    """Keep the smallest set of tokens whose probability reaches `top_p` (Holtzman et al. 2020). Set others to -inf."""
    if top_p >= 1:
        return logits_BV
    ordered, index = logits_BV.sort(-1, descending=True)
    probability = ordered.softmax(-1)
    ordered = ordered.masked_fill(probability.cumsum(-1) - probability >= top_p, -torch.inf)
    return torch.empty_like(logits_BV).scatter_(-1, index, ordered)


class LanguagePlayer(Generic[Key, Result]):
    """Base of policy and reflector. It caches results, so that equal prompts are computed once, and KV caches.

    Args:
        memory: largest number of cached results (the least recently used are dropped first). 0 computes even equal
            prompts of a batch one by one. Call `clear_cache` whenever the weights change.
        cache: largest number of bytes of KV caches kept between steps. 0 reads every prompt in full.

    Attributes:
        lookups: number of prompts so far.
        hits: number of prompts answered from memory, or by an equal prompt of the same batch.
        activation_bytes: bytes that a learner's pass keeps per token.
        pool: KV caches of the packed backend (the plain backend keeps none).
    """

    packs = False
    """True if prompts without a history are packed together. Otherwise each is read with its own KV cache."""

    keeps = True
    """Keep KV caches between steps. False when another process computes."""

    def __init__(self, lm: LanguageModel, sampling: Sampling, memory: int, cache: int) -> None:
        self.lm, self.sampling, self.memory = lm, sampling, memory
        working = WORKING
        if lm.engine_options.batched:
            working //= 3  # on GPUs, caches are copied into padded batches, which takes memory too
        self.activation_bytes = lm.activation_bytes
        self.backend, self.pool = lm.backend, KVCachePool(lm.token_bytes, cache, working)
        self.lookups = self.hits = 0
        self._mixed = is_mixed(lm.device, lm.mixed_play)
        self._results: OrderedDict[Key, Result] = OrderedDict()
        self._shared_prefix = KVCache()

    def clear_cache(self) -> None:
        """Drop all cached results and KV caches. Call this when the weights have changed."""
        self._results.clear()
        self.pool.clear()
        self._shared_prefix = KVCache()

    def cached_results(
        self, keys: Sequence[Key], episodes: Sequence[LiveEpisode], tokens: Sequence[int], remember: bool
    ) -> list[Result]:
        """Return the result of each key: from the cache if it is there, else computed.

        Args:
            tokens: for each key, the largest number of tokens that its KV cache may come to hold.
            remember: True if equal keys have equal results. Otherwise each key is computed for its own episode.
        """
        self.lookups += len(keys)
        if not remember:
            return self._compute_all(keys, episodes, tokens)
        results = {key: self._results[key] for key in keys if key in self._results}
        missing: dict[Key, int] = {}  # equal keys of several episodes are computed once, for the last of them
        for i, key in enumerate(keys):
            if key not in results:
                missing[key] = i
        self.hits += len(keys) - len(missing)
        rows = list(missing.values())
        computed = self._compute_all(list(missing), [episodes[i] for i in rows], [tokens[i] for i in rows])
        results.update(zip(missing, computed, strict=True))
        for key, result in results.items():
            self._results[key] = result
            self._results.move_to_end(key)
        while len(self._results) > self.memory:
            self._results.popitem(last=False)
        return [results[key] for key in keys]

    def _compute_all(self, keys: Sequence[Key], episodes: Sequence[LiveEpisode], tokens: Sequence[int]) -> list[Result]:
        """Compute results, in several calls if the KV caches would not fit into memory together."""
        if not keys:
            return []
        packed = self.keeps and self.lm.engine_options.packed
        # A cache pays if the next prompt of the episode begins like this one, which a history makes likely.
        keeping = packed and self.pool.limit > 0
        growing = [keeping and bool(episode.observation.history) for episode in episodes]
        with torch.inference_mode(), torch.autocast(self.lm.device.type, torch.bfloat16, enabled=self._mixed):
            if not packed or (self.packs and not any(growing) and self.lm.chat is None):
                return self._compute(keys, episodes, None)
            results: list[Result] = []
            for rows, caches in self.pool.lend(episodes, tokens, growing):
                if self.lm.chat is not None:
                    self._copy_shared_prefix([self.prompt_in(key) for key in keys[rows]], caches)
                results += self._compute(keys[rows], episodes[rows], caches)
            return results

    def _copy_shared_prefix(self, prompts: Sequence[Ids], caches: Sequence[KVCache]) -> None:
        """Warm empty caches: encode the first prompt once, and copy the prefix that each prompt shares with it.

        All prompts of a chat begin with the same instructions, and often with more, such as a map.
        """
        if not self._shared_prefix.ids:
            self.backend.read(prompts[:1], caches=[self._shared_prefix])
        for prompt, cache in zip(prompts, caches, strict=True):
            # Caches that hold tokens already belong to episodes in progress, and share more with their own past.
            if not cache.ids and (shared := shared_length(prompt, self._shared_prefix.ids)) >= REUSE:
                cache.copy(self._shared_prefix, shared)

    def prompt_in(self, key: Key) -> Ids:
        """Return the tokens of a key's prompt."""
        raise NotImplementedError

    def _compute(
        self, keys: Sequence[Key], episodes: Sequence[LiveEpisode], caches: Sequence[KVCache] | None
    ) -> list[Result]:
        """Run the model on prompts whose results are not cached. Return one result per key."""
        raise NotImplementedError


class Policy(LanguagePlayer[Question, np.ndarray]):
    """Player that chooses among the legal actions.

    Args:
        sampling: temperature 0 takes the most probable action.
        shuffle_labels: list the actions in a random order at every step (enumeration only).
        memory, cache: see `LanguagePlayer`.
        scoring: "enumeration"; or by the actions' texts ("sum", "token", "word", "trie"; see `text_scoring.py`); or by
            a learned head that reads each text ("options"; see `options.py`).

    Attributes:
        calibration: calibration of the probabilities that greedy turns report. It changes no choice.
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
        super().__init__(lm, sampling, memory, cache)
        self.calibration = Calibration()
        self.scoring, self.packs = scoring, scoring == "enumeration"
        self.shuffle_labels = shuffle_labels and self.packs
        self._opening, self._labels = "", Labels((), (), "")
        if lm.chat is not None:
            self._opening = lm.chat.after
        if self.packs:
            self._labels = self.labels()
        self._candidates: dict[Actions | int, Candidates] = {}
        if scoring == "options":
            lm.ensure_option_head()

    def with_sampling(self, sampling: Sampling) -> Policy:
        """Return the same player with other sampling settings, and its own caches."""
        twin = Policy(self.lm, sampling, self.shuffle_labels, self.memory, self.pool.limit, self.scoring)
        twin.calibration = self.calibration
        return twin

    def labels(self, count: int | None = None) -> Labels:
        """Return the tokenizer's labels for `count` actions, or all labels. Raise UserError if it has too few."""
        return find_labels(self.lm.tokenizer, count, self._opening)

    def candidates(self, actions: Actions) -> Candidates:
        """Return the tokens of each action's answer: its label, in the order of listing, or its text."""
        key: Actions | int = actions
        if self.packs:  # labels depend only on the number of actions, so most steps share an entry
            key = len(actions)
        if key not in self._candidates:
            if len(self._candidates) >= max(1, self.memory):
                self._candidates.clear()
            if self.packs:
                self._candidates[key] = self._labelled(len(actions))
            else:
                self._candidates[key] = self._in_words(actions)
        return self._candidates[key]

    def _labelled(self, count: int) -> Candidates:
        """Return the tokens of the first `count` labels."""
        labels = self._labels
        if count > len(labels.token_ids):
            labels = self.labels(count)  # raises an error that says why there are too few
        return Candidates(tuple((token,) for token in labels.token_ids[:count]), (1,) * count)

    def _in_words(self, actions: Actions) -> Candidates:
        """Return the tokens of the actions' texts, each with its end."""
        space, before = " ", IN_WORDS
        if self._opening:  # a chat template ends with a line break, so no space has to separate the answer
            space, before = "", self._opening
        ids, words = list[Ids](), list[int]()
        for action in actions:
            text = self.lm.encode(space + action, before)
            if self.scoring == "options" and not self.lm.taps:
                # Nothing is written, so a text needs no end token. But an empty text needs a token to be scored.
                ids.append(tuple(text) or (self.lm.end,))
            else:
                ids.append((*text, self.lm.end))
            words.append(max(1, len(action.split())))
        return Candidates(tuple(ids), tuple(words))

    def action_tokens(self, actions: Actions) -> Ids:
        """Return the tokens read after a prompt to score the actions: none for labels, else the tokens of all texts."""
        if self.packs:
            return ()
        return tuple(chain.from_iterable(self.candidates(actions).ids))

    def prompt(self, observation: Observation, reflection: str | None, order: Sequence[int] = ()) -> Ids:
        """Return the token ids of the prompt for a choice.

        Args:
            order: for each label, the index of its action; empty for the environment's order.
        """
        candidates = self.candidates(observation.actions)
        if not self.packs:
            return tokenize(self.lm, words_prompt(observation, reflection), reserve=max(map(len, candidates.ids)))
        history, rest = policy_prompt(observation, reflection, self._labels.texts, order)
        return tokenize(self.lm, Prompt(history, rest + self._labels.gap))

    def question_prompt(self, observation: Observation, reflection: str | None, question: str, answers: Actions) -> Ids:
        """Return the token ids of the prompt for a question about the state, if the policy scores options."""
        longest = max(map(len, self.candidates(answers).ids))
        return tokenize(self.lm, question_prompt(observation, reflection, question), reserve=longest)

    def answer(self, actions: Actions, action: int, label: int) -> Ids:
        """Return the tokens that choose an action that is listed under label number `label`."""
        candidates = self.candidates(actions)
        if self.packs:
            return candidates.ids[label]
        return candidates.ids[action]

    def logits(self, prompts: Sequence[Ids], actions: Sequence[Actions]) -> tuple[Tensor, Tensor]:
        """Compute logits (P, A) of each prompt's actions, and hidden states (P, D) after it. Gradients flow.

        They are computed in the precision of play, so that learning starts from the probabilities of play. Rows of
        prompts with fewer than A actions end in arbitrary numbers.
        """
        with torch.autocast(self.lm.device.type, torch.bfloat16, enabled=self._mixed):
            return self.backend.score(prompts, [self.candidates(listed) for listed in actions], self.scoring)

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        """Choose an action in each episode.

        Greedy choices also take a number from the episode's generator, so that later random numbers do not depend on
        the sampling settings.
        """
        orders, questions, tokens = [], list[Question](), []
        for episode in episodes:
            actions, order = episode.observation.actions, tuple[int, ...]()
            if self.shuffle_labels:
                order = tuple(episode.rng.permutation(len(actions)).tolist())
            ids = self.prompt(episode.observation, episode.reflection, order)
            orders.append(order)
            questions.append((ids, actions))
            tokens.append(len(ids) + len(self.action_tokens(actions)))
        logits = self.cached_results(questions, episodes, tokens, remember=self.memory > 0)
        turns = list[Turn]()
        for question, order, logits_A, episode in zip(questions, orders, logits, episodes, strict=True):
            turns.append(self._choose(question, order, logits_A, episode.rng))
        return turns

    def _choose(
        self, question: Question, order: tuple[int, ...], logits_A: np.ndarray, rng: np.random.Generator
    ) -> Turn:
        """Draw an action from the logits of a prompt's actions, which are in the order of listing."""
        prompt_ids, actions = question
        temperature = self.sampling.temperature
        if temperature:
            scaled_A = logits_A / temperature
            if self.sampling.truncated:
                scaled_A = truncated(torch.from_numpy(scaled_A)[None], self.sampling)[0].numpy()
            logp_A = scaled_A - np.logaddexp.reduce(scaled_A)
        else:
            logp_A = self.calibration.logp(logits_A)
        probs_A = np.exp(logp_A)
        # The sum may differ from 1 by rounding, and the drawn label must not be one past the last possible one.
        uniform, possible = rng.random() * probs_A.sum(), np.flatnonzero(probs_A)
        label = min(int(np.searchsorted(np.cumsum(probs_A), uniform, side="right")), int(possible[-1]))
        if temperature == 0:
            label = int(np.argmax(logits_A))
        choice, probs_of_actions = label, probs_A
        if order:
            choice, probs_of_actions = order[label], np.empty_like(probs_A)
            probs_of_actions[list(order)] = probs_A
        support = tuple[int, ...]()
        left_out_A = np.isneginf(logp_A)
        if left_out_A.any():
            labels = np.flatnonzero(~left_out_A).tolist()
            support = tuple(sorted(order[label] for label in labels)) if order else tuple(labels)
        return Choice(
            "policy",
            actions[choice],
            choice=choice,
            order=order,
            probs=tuple(round(float(p), 6) for p in probs_of_actions),
            token_ids=self.answer(actions, choice, label),
            logprobs=(float(logp_A[label]),),
            entropy=float(-(probs_A * np.where(probs_A > 0, logp_A, 0.0)).sum()),
            sampling=self.sampling,
            support=support,
            prompt_ids=prompt_ids,
        )

    def prompt_in(self, key: Question) -> Ids:
        """Return the prompt without the actions."""
        return key[0]

    def _compute(
        self, keys: Sequence[Question], episodes: Sequence[LiveEpisode], caches: Sequence[KVCache] | None
    ) -> list[np.ndarray]:
        """Compute logits of the listed actions."""
        prompts, candidates = list[Ids](), list[Candidates]()
        for ids, actions in keys:
            prompts.append(ids)
            candidates.append(self.candidates(actions))
        logits_PA, _ = self.backend.score(prompts, candidates, self.scoring, caches, share=self.memory > 0)
        rows = []
        for row_A, (_, actions) in zip(logits_PA.cpu(), keys, strict=True):
            listed_A = row_A[: len(actions)]
            if not listed_A.isfinite().all():
                about = "its weights are broken (a learning rate too high?)"
                raise UserError(f"the policy's logits are not finite: {about}")
            rows.append(listed_A.double().numpy())
        return rows


class Reflector(LanguagePlayer[Ids, Completion]):
    """Player that writes an analysis of the state, until end-of-text.

    Args:
        max_new_tokens: longest reflection, in tokens.
        sampling: sampling settings. Greedy reflections are cached, since the model is frozen.
        memory, cache: see `LanguagePlayer`.
        speculative: decode speculatively, with guesses from earlier texts (faster, with the same result).
        carries: read the previous reflection again. Every observation must then contain it.
    """

    def __init__(
        self,
        lm: LanguageModel,
        max_new_tokens: int = 100,
        sampling: Sampling = Sampling(temperature=0.0),  # noqa: B008  (frozen)
        memory: int = 50_000,
        cache: int = CACHE,
        speculative: bool = True,
        carries: bool = False,
    ) -> None:
        super().__init__(lm, sampling, memory, cache)
        self.max_new_tokens, self.draw, self.carries = max_new_tokens, sampler(sampling), carries
        self.draft_model = DraftModel() if speculative else None

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        longest = self.max_new_tokens
        prompts, room = list[Ids](), list[int]()
        for episode in episodes:
            prompt = self.prompt(episode.observation)
            prompts.append(prompt)
            room.append(2 * (len(prompt) + longest))  # for the text, and for rejected guesses
        # Only greedy texts are the same every time.
        remember = self.memory > 0 and self.sampling.temperature == 0
        written = self.cached_results(prompts, episodes, room, remember)
        turns, texts = list[Turn](), dict[Ids, str]()
        for prompt, (ids, logp) in zip(prompts, written, strict=True):
            if ids not in texts:  # many parallel episodes get the same reflection
                texts[ids] = self.lm.tokenizer.decode(ids, skip_special_tokens=True).strip()
            text, sampling = texts[ids], self.sampling
            turns.append(
                Reflection("reflector", text, token_ids=ids, logprobs=logp, sampling=sampling, prompt_ids=prompt)
            )
        return turns

    def prompt(self, observation: Observation) -> Ids:
        """Return the token ids of the prompt for a reflection, which leaves room for the longest one."""
        return tokenize(self.lm, reflector_prompt(observation), reserve=self.max_new_tokens)

    def prompt_in(self, key: Ids) -> Ids:
        """Return the key, which is the whole prompt."""
        return key

    def _compute(
        self, keys: Sequence[Ids], episodes: Sequence[LiveEpisode], caches: Sequence[KVCache] | None
    ) -> list[Completion]:
        """Continue each prompt with its episode's own generator, from which greedy decoding takes no numbers."""
        generators = [episode.rng for episode in episodes]
        return self.backend.write(keys, self.max_new_tokens, self.draw, generators, caches, self.draft_model)
