"""The thread that owns the model. It answers all waiting questions in one call."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np

from reflectrl.api import Agent
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.players.base import LiveEpisode, Player, carries
from reflectrl.core.prompts import tokenize, words_prompt
from reflectrl.core.types import Choice, Observation, Sampling, Step, Task, Turn, UserError, named_seed
from reflectrl.models.players import LanguagePlayer, Policy

MEMORY = 4096
"""Largest number of results that a served player caches. A server runs long, and its questions may all differ."""


class Asked:
    """A question that waits for its turns.

    Args:
        rewards: rewards of the steps so far.
        is_trained: True if the agent was trained for the question. Otherwise the actions are scored by their texts.

    Attributes:
        read: tokens that the policy read, of the prompt and of actions that it scores by their texts; 0 until then.
        is_cut: True if the beginning of the history did not fit the context. Known for untrained questions only.
    """

    def __init__(self, observation: Observation, rewards: Sequence[float] = (), is_trained: bool = True) -> None:
        nowhere = cast("TextEnv", None)  # trained players read only the observation
        self.live = LiveEpisode(nowhere, Task("", ""), 0, self.fresh(), observation)
        self.live.steps = [Step(observation, (), 0, reward) for reward in rewards]
        self.loop, self.told = asyncio.get_running_loop(), asyncio.Queue[Turn | Exception]()
        self.is_trained, self.is_cut, self.is_dropped, self.read = is_trained, False, False, 0

    def fresh(self) -> np.random.Generator:
        """Return the question's random generator. It is always the same, so equal questions have equal answers."""
        return np.random.default_rng(named_seed(0, "players"))

    def tell(self, news: Turn | Exception) -> None:
        """Hand over a turn, or an error, from the thread of the model."""
        if isinstance(news, Turn):
            self.live.turns.append(news)
        with suppress(RuntimeError):  # the server has ended
            self.loop.call_soon_threadsafe(self.told.put_nowait, news)

    async def turns(self) -> AsyncIterator[Turn]:
        """Yield the reflection, if there is a reflector, and then the choice, each as soon as it is there.

        Raises:
            UserError: the observation does not fit the model.
        """
        try:
            while True:
                news = await self.told.get()
                if isinstance(news, Exception):
                    raise news
                yield news
                if isinstance(news, Choice):
                    return
        finally:
            self.is_dropped = True


class Batcher:
    """Let an agent answer questions that arrive at any time.

    Questions gather while the model computes. Then up to `most` waiting questions are computed in one call.

    Attributes:
        calls, answered: number of calls of the model, and of questions in them.
        by_text: player of questions that the agent was never trained for: the policy's language model scores texts.
            None if the agent's player is no language model.
    """

    def __init__(self, agent: Agent, most: int) -> None:
        self.agent, self.most = agent, most
        self.calls = self.answered = 0
        self.by_text: Policy | None = None
        if isinstance(agent.player, Policy):
            self.by_text = Policy(agent.player.lm, Sampling(temperature=0.0), memory=MEMORY, cache=0, scoring="token")
        for player in (agent.player, agent.reflector):
            if isinstance(player, LanguagePlayer):
                player.memory, player.pool.limit = min(player.memory, MEMORY), 0  # no request continues an episode
        self._waiting: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()

    def ask(self, observation: Observation, rewards: Sequence[float] = (), is_trained: bool = True) -> Asked:
        """Queue a question. Its turns arrive as soon as they are computed."""
        if observation.carried and not carries(self.agent.reflector):
            observation = replace(observation, carried="")
        question = Asked(observation, rewards, is_trained)
        self._waiting.put(question)
        return question

    def close(self) -> None:
        """End the thread after its current computation."""
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        while True:
            batch = [self._waiting.get()]
            with suppress(queue.Empty):
                while len(batch) < self.most:
                    batch.append(self._waiting.get_nowait())
            wanted = [question for question in batch if question is not None and not question.is_dropped]
            self._answer([question for question in wanted if question.is_trained])
            self._answer([question for question in wanted if not question.is_trained])
            if None in batch:
                return

    def _answer(self, batch: list[Asked]) -> None:
        """Answer all questions in one call. If a question cannot be answered, try each by itself."""
        if not batch:
            return
        self.calls, self.answered = self.calls + 1, self.answered + len(batch)
        try:
            self._reflect([question for question in batch if question.is_trained and not question.live.turns])
            player = self._player(batch[0])
            for question, turn in zip(batch, player.turns([question.live for question in batch]), strict=True):
                if isinstance(player, Policy):  # here, since tokenizers belong to this thread
                    seen = question.live.observation
                    prompt = player.prompt(seen, question.live.reflection)
                    question.read = len(prompt) + len(player.action_tokens(seen.actions))
                    question.is_cut = not question.is_trained and len(prompt) < _uncut(player, seen)
                question.tell(turn)
        except Exception as error:
            if len(batch) == 1 or not isinstance(error, UserError):
                for question in batch:
                    question.tell(error)
                return
            for question in batch:
                question.live.rng = question.fresh()
                self._answer([question])

    def _reflect(self, silent: list[Asked]) -> None:
        """Let the agent's reflector, if there is one, write for questions that have no reflection yet."""
        if self.agent.reflector and silent:
            for question, turn in zip(
                silent, self.agent.reflector.turns([question.live for question in silent]), strict=True
            ):
                question.tell(turn)

    def _player(self, asked: Asked) -> Player:
        """Return the player that answers a question."""
        if asked.is_trained:
            return self.agent.player
        if self.by_text is None:
            raise UserError("this agent answers only questions that it was trained for")
        return self.by_text


def _uncut(player: Policy, observation: Observation) -> int:
    """Return the number of tokens of a prompt in an unlimited context."""
    reader = SimpleNamespace(tokenizer=player.lm.tokenizer, chat=player.lm.chat, context=2**62)
    return len(tokenize(reader, words_prompt(observation, None)))
