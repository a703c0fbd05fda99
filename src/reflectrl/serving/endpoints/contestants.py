"""Players behind endpoints: contestants in four styles, a cascade, and a reflector for our policy, also in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl

from reflectrl.core import distributed
from reflectrl.core.config import Recipe
from reflectrl.core.config.values import Word, from_dict
from reflectrl.core.players import Player
from reflectrl.core.players.base import LiveEpisode
from reflectrl.core.prompts.messages import continued, conversation, follow_up
from reflectrl.core.types import Choice, Ending, Observation, Reflection, Sampling, Turn, UserError, named_seed
from reflectrl.models.players import Policy
from reflectrl.runs.players import Models, make_policy, make_reflector
from reflectrl.serving.endpoints.answers import Answer, without_thinking
from reflectrl.serving.endpoints.client import Ask, Endpoint, Message
from reflectrl.serving.endpoints.config import EndpointConfig, PlayerConfig, endpoint_settings, player_settings
from reflectrl.serving.endpoints.journal import Budget, Journal
from reflectrl.serving.endpoints.local import LocalModel
from reflectrl.serving.endpoints.parsing import read_action, read_reflection

ILLEGAL = "illegal"
"""Player's name in a turn with a random action, taken after an endpoint twice failed to name a legal action. If its
answer was not complete, the answer's end ("cut") is the name."""
SEAMS = 8
"""Tokens of a policy's context kept free when a reflection is cut. Tokens at the seam of joined texts may differ."""
JOURNAL = Path("endpoints", "journal.jsonl")
"""Path in a run folder of the answers of all its endpoints."""


def journal_of(recipe: Recipe, folder: Path) -> Journal:
    """Open the journal of a run, with the run's budget."""
    config = endpoint_settings(recipe)
    return Journal(folder / JOURNAL, Budget(config.max_requests, config.max_total_tokens, config.max_cost))


def players(
    recipe: Recipe, folder: Path, name: str, models: Models, temperature: float
) -> tuple[Player, Player | None]:
    """Return the player and the reflector of the arm [players.NAME]. Takes the arguments of `Arm.players`."""
    config = player_settings(recipe, name)
    if config.style == "reflect-rl" and distributed.current().size > 1:
        raise UserError(f"players.{name}: style 'reflect-rl' cannot be used when several processes train together")
    endpoint = asked_by(config, recipe, folder)
    if config.style in ("reflector", "reflect-rl"):
        assert models[0] is not None, "the arm has a policy"
        policy = make_policy(recipe, models[0], Sampling(temperature))
        speaker = EndpointReflector(name, endpoint, config, recipe.play.reflection_temperature, policy)
        speaker.carries = recipe.play.reflection == "carried"
        return policy, speaker
    player: Player = EndpointPlayer(name, endpoint, config, temperature)
    if config.style == "cascade":
        assert models[0] is not None, "the arm has a policy"
        player = CascadePlayer(make_policy(recipe, models[0], Sampling(temperature)), player, config.defer_below)
    return player, None if models[1] is None else make_reflector(recipe, models[1])


def asked_by(config: EndpointConfig, recipe: Recipe, folder: Path) -> Endpoint | LocalModel:
    """Return the model that a run's player or teacher asks: a server's, or a local one. The run keeps its answers."""
    if config.local:
        return LocalModel(config.local, config.concurrency, journal_of(recipe, folder), config.refused)
    return Endpoint(config, journal_of(recipe, folder))


def player_at(url: str) -> EndpointPlayer:
    """Return the player for `reflectrl play --player URL`. It takes the model's likeliest actions.

    Args:
        url: address of the API, with the model and further keys of [players.NAME] as its query:
            http://127.0.0.1:8000/v1?model=llama3:8b&style=react

    Raises:
        UserError: no model is named, a key is unknown, or its value does not fit.
    """
    base_url, _, query = url.partition("?")
    settings = {key: Word(value) for key, value in parse_qsl(query, keep_blank_values=True)}
    config = from_dict(PlayerConfig, {"base_url": base_url, **settings}, "--player")
    if not config.model:
        raise UserError(f"--player {url}: name the model, as in {base_url}?model=llama3:8b")
    if config.local:
        raise UserError("--player: 'local' works only in a recipe; an address names a server")
    if config.style in ("pair", "reflector", "reflect-rl", "cascade"):
        raise UserError(
            f"--player: style {config.style!r} needs a trained player beside it, so it works only as an arm of a run"
        )
    budget = Budget(config.max_requests, config.max_total_tokens, config.max_cost)
    return EndpointPlayer(config.model, Endpoint(config, Journal(budget=budget)), config, temperature=0.0)


class EndpointPlayer:
    """Choose actions by asking a model behind an endpoint. Its thoughts become a reflection in the episode.

    If an answer names no legal action, the model is asked once more. After that a random action is taken, in a turn of
    the player "illegal", so that results can report how often this happened. An episode ends where the server refuses
    the question.

    Args:
        name: the player's name in its turns.
        temperature: 0 asks for likeliest answers; equal questions are then asked once.
    """

    def __init__(self, name: str, endpoint: Endpoint | LocalModel, config: PlayerConfig, temperature: float) -> None:
        self.name, self.endpoint, self.config, self.temperature = name, endpoint, config, temperature

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        """Return the actions, one per episode, all asked for side by side."""
        talks = [self._begun(episode) for episode in episodes]
        if self.config.style == "react":
            reflections = self._asked(episodes, talks)
            for i, (episode, answer) in enumerate(zip(episodes, reflections, strict=True)):
                episode.turns.append(Reflection(self.name, read_reflection(answer), ended=answer.ending))
                talks[i] = continued(talks[i], without_thinking(answer), follow_up("now_act"))
        answers = self._asked(episodes, talks)
        choices = [self._choice(episode, answer) for episode, answer in zip(episodes, answers, strict=True)]
        unclear = [i for i, choice in enumerate(choices) if choice is None and answers[i].ending != "refused"]
        for i in unclear:
            question = follow_up("repair", episodes[i].observation.actions)
            talks[i] = continued(talks[i], without_thinking(answers[i]), question)
        repaired = dict(
            zip(unclear, self._asked([episodes[i] for i in unclear], [talks[i] for i in unclear]), strict=True)
        )
        turns = list[Turn]()
        for i, (episode, answer) in enumerate(zip(episodes, answers, strict=True)):
            latest = repaired.get(i, answer)
            choice = choices[i] if latest is answer else self._choice(episode, latest)
            ending = "refused" if latest.ending == "refused" else answer.ending or latest.ending
            turns.append(self._turn(episode, answer, choice, ending))
        return turns

    def _choice(self, episode: LiveEpisode, answer: Answer) -> int | None:
        """Return the index of the action that an answer means, or None."""
        return read_action(answer, episode.observation.actions, cut=answer.ending == "cut")

    def _begun(self, episode: LiveEpisode) -> list[Message]:
        """Return the first messages to the model."""
        kind = {"reason": "reason", "react": "reflect"}.get(self.config.style, "act")
        more = (episode.reflection or "",) if kind == "act" else ()
        return conversation("role", kind, episode.observation, self.config.history, *more)

    def _asked(self, episodes: Sequence[LiveEpisode], talks: Sequence[Sequence[Message]]) -> list[Answer]:
        asks = [
            Ask(talk, self.config.max_tokens, self.temperature, sample_of(episode, self.temperature))
            for episode, talk in zip(episodes, talks, strict=True)
        ]
        return self.endpoint.complete_all(asks)

    def _turn(self, episode: LiveEpisode, answer: Answer, choice: int | None, ending: Ending) -> Turn:
        actions = episode.observation.actions
        if self.config.style == "reason" and (thought := read_reflection(answer)):
            episode.turns.append(Reflection(self.name, thought))
        if choice is None:
            choice = int(episode.rng.integers(len(actions)))
            if ending == "refused" and self.config.refused == "unread":
                ending = "unread"
            return Choice(ending or ILLEGAL, actions[choice], choice=choice, ended=ending)
        return Choice(self.name, actions[choice], choice=choice, sampling=Sampling(self.temperature), ended=ending)


class CascadePlayer:
    """Let our policy choose where it is sure, and otherwise ask a model behind an endpoint.

    Turns of the endpoint bear its player's name, so a log shows how often it was asked.

    Args:
        policy: our policy. Its probabilities are compared with the threshold.
        other: the player that is asked.
        defer_below: probability of the policy's choice below which the other is asked.
    """

    def __init__(self, policy: Policy, other: Player, defer_below: float) -> None:
        self.policy, self.other, self.defer_below = policy, other, defer_below
        self.lm, self.pool = policy.lm, policy.pool

    @property
    def lookups(self) -> int:
        """Number of the policy's prompts so far."""
        return self.policy.lookups

    @property
    def hits(self) -> int:
        """Number of the policy's prompts that were answered from memory."""
        return self.policy.hits

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        """Return the actions, one per episode. All unsure ones are asked for side by side."""
        turns = self.policy.turns(episodes)
        unsure = [i for i, turn in enumerate(turns) if turn.probs[turn.choice or 0] < self.defer_below]
        if unsure:
            for i, turn in zip(unsure, self.other.turns([episodes[i] for i in unsure]), strict=True):
                turns[i] = turn
        return turns


class EndpointReflector:
    """Write reflections for a policy by asking a model behind an endpoint.

    The policy's tokenizer may need many tokens for unknown words. A reflection that does not fit the policy's context
    beside the state is cut.

    Attributes:
        carries: show the model its previous reflection.
    """

    carries = False

    def __init__(
        self, name: str, endpoint: Endpoint | LocalModel, config: PlayerConfig, temperature: float, policy: Policy
    ) -> None:
        self.name, self.endpoint, self.config, self.temperature = name, endpoint, config, temperature
        self.policy = policy

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        """Return the reflections, one per episode."""
        asks = [
            Ask(
                conversation("role", "reflect", episode.observation, self.config.history, episode.observation.carried),
                self.config.max_tokens,
                self.temperature,
                sample_of(episode, self.temperature),
            )
            for episode in episodes
        ]
        answers = self.endpoint.complete_all(asks)
        turns = list[Turn]()
        for episode, answer in zip(episodes, answers, strict=True):
            reflection = fitting(self.policy, episode.observation, read_reflection(answer))
            turns.append(Reflection(self.name, reflection, ended=answer.ending))
        return turns


def fitting(policy: Policy, observation: Observation, reflection: str) -> str:
    """Return a reflection, cut to what a policy's context holds beside the state."""
    observation = replace(observation, history="")  # the history is cut before the reflection is
    answer = max(map(len, policy.candidates(observation.actions).ids))
    room = policy.lm.context - len(policy.prompt(observation, "")) - answer - SEAMS
    ids = policy.lm.encode(reflection)
    return reflection if len(ids) <= room else str(policy.lm.tokenizer.decode(ids[: max(0, room)]))


def sample_of(episode: LiveEpisode, temperature: float) -> int:
    """Return the sample number of an episode's question: 0 if greedy, since then equal questions have equal answers."""
    return named_seed("sample", episode.seed, len(episode.steps)) if temperature else 0
