"""Players whose model is a chat model behind an OpenAI-compatible address."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from reflectrl.models.endpoint import Endpoint, Message
from reflectrl.players.base import LiveEpisode
from reflectrl.prompts.chat import act_request, again_request, read_choice, reflect_request, without_thinking
from reflectrl.types import Sampling, Turn


class EndpointPlayer:
    """Acts: shows the observation, the reflection and the numbered actions, and reads a number back.

    An answer that names no action is asked for once more. If the second one names none either, a legal action is
    drawn uniformly; `unreadable` counts those turns, and only they carry `probs` (uniform).

    Args:
        endpoint: the server and its model.
        instructions: the rules of the environment, put before every observation.
        temperature: sampling temperature that the server is asked for.
        max_new_tokens: longest answer; models that think aloud need hundreds.
        workers: requests under way at the same time.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        instructions: str = "",
        temperature: float = 0.0,
        max_new_tokens: int = 64,
        workers: int = 8,
    ) -> None:
        self.endpoint, self.instructions = endpoint, instructions
        self.sampling, self.max_new_tokens, self.workers = Sampling(temperature), max_new_tokens, workers
        self.asked = 0
        self.unreadable = 0

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        with ThreadPoolExecutor(self.workers) as pool:
            choices = list(pool.map(self._ask, episodes))
        self.asked += len(episodes)
        self.unreadable += choices.count(None)
        return [self._turn(episode, choice) for episode, choice in zip(episodes, choices, strict=True)]

    def _ask(self, episode: LiveEpisode) -> int | None:
        actions = episode.observation.actions
        request = act_request(episode.observation, episode.reflection, self.instructions)
        messages: list[Message] = [{"role": "user", "content": request}]
        answer = self._complete(messages)
        choice = read_choice(answer, actions)
        if choice is None:  # an empty assistant message is refused by some servers
            messages += [{"role": "assistant", "content": answer or "..."}]
            messages += [{"role": "user", "content": again_request(len(actions))}]
            choice = read_choice(self._complete(messages), actions)
        return choice

    def _complete(self, messages: Sequence[Message]) -> str:
        return self.endpoint.complete(messages, self.max_new_tokens, self.sampling.temperature)

    def _turn(self, episode: LiveEpisode, choice: int | None) -> Turn:
        actions = episode.observation.actions
        probs = (1 / len(actions),) * len(actions) if choice is None else ()
        choice = int(episode.rng.integers(len(actions))) if choice is None else choice
        return Turn("endpoint", actions[choice], choice=choice, probs=probs, sampling=self.sampling)


class EndpointReflector:
    """Reflects: what the last action did, whether it helped, what to do next; on one line.

    Args:
        endpoint: the server and its model.
        instructions: the rules of the environment, put before every observation.
        temperature: sampling temperature that the server is asked for.
        max_new_tokens: longest reflection, in the server's tokens.
        workers: requests under way at the same time.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        instructions: str = "",
        temperature: float = 0.0,
        max_new_tokens: int = 100,
        workers: int = 8,
    ) -> None:
        self.endpoint, self.instructions = endpoint, instructions
        self.sampling, self.max_new_tokens, self.workers = Sampling(temperature), max_new_tokens, workers

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        with ThreadPoolExecutor(self.workers) as pool:
            return list(pool.map(self._turn, episodes))

    def _turn(self, episode: LiveEpisode) -> Turn:
        request = reflect_request(episode.observation, self.instructions)
        messages: list[Message] = [{"role": "user", "content": request}]
        answer = self.endpoint.complete(messages, self.max_new_tokens, self.sampling.temperature)
        return Turn("endpoint-reflector", " ".join(without_thinking(answer).split()), sampling=self.sampling)
