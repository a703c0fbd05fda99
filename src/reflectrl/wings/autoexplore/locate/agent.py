"""Agent that answers a question about a repository by walking through it with trained players.

    agent = Agent.load("agents/mine")
    walked = agent.walk(Finder(Repository.open(".")), "where are retries configured?")
    walked.ranking[0]      # ("net/retry.py", 0.83)

Nothing leaves the machine. Small agents need no torch. For other agents, torch is imported when they are loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectrl.core.advice import install
from reflectrl.core.types import Episode, Sampling, Task, UserError, named_seed
from reflectrl.models.cards import HEADS
from reflectrl.runs.light import light_players
from reflectrl.runs.state import POLICY, REFLECTOR
from reflectrl.wings.autoexplore.env import AutoExploreEnv
from reflectrl.wings.autoexplore.finder import Finder
from reflectrl.wings.autoexplore.locate.card import Card, read_card
from reflectrl.wings.autoexplore.search import check_question
from reflectrl.wings.autoexplore.texts import printable
from reflectrl.wings.autoexplore.view import View

Ranking = tuple[tuple[str, float], ...]
"""(path, probability of identifying the file), best first."""


@dataclass(frozen=True)
class Stride:
    """Step of a walk."""

    action: str
    probability: float | None
    """Probability that the policy gave to the action; None if unknown."""
    reflection: str | None
    output: str
    """Output of the command."""
    offered: Mapping[str, float]
    """File that could be identified in this step → probability of identifying it."""
    identified: str | None = None
    """File that the action identified; None for other actions."""


def retrace(env: AutoExploreEnv, episode: Episode) -> list[Stride]:
    """Replay an episode and return its steps with the outputs of the commands.

    Args:
        env: environment with the same arguments as the one in which the episode was played.

    Raises:
        UserError: the legal actions differ from the episode's, for example because the repository has changed.
    """
    env.reset(seed=named_seed(episode.seed, "env") % 2**32, options={"task": episode.task})
    strides = []
    for step_index, step in enumerate(episode.steps):
        commands = env.walk.commands()
        if tuple(commands) != step.observation.actions:
            raise UserError(f"{episode.task.id}: step {step_index} cannot be replayed: the legal actions have changed")
        action, choice = step.observation.actions[step.action], step.choice
        probs = dict(zip(step.observation.actions, choice.probs if choice else (), strict=False))
        offered = {command.path: probs.get(name, 0.0) for name, command in commands.items() if command.verb == "id"}
        action_command = commands[action]
        identified = action_command.path if action_command.verb == "id" else None
        output = env.walk.do(action).text
        strides.append(Stride(action, probs.get(action), step.reflection, output, offered, identified))
    return strides


def ranking(last: Stride, rest: Iterable[str]) -> Ranking:
    """Rank the files by the last step of an episode.

    The identified file comes first. Then follow the other files that could have been identified in the last step, by
    the probability that the policy gave to `id F`, then the remaining files in the order of the search.

    Args:
        last: last step of a walk.
        rest: files that the search finds, best first.
    """
    by_probability = sorted(last.offered, key=lambda path: -last.offered[path])  # ties keep the order of the actions
    order = dict.fromkeys([*([last.identified] if last.identified else []), *by_probability, *rest])
    return tuple((path, last.offered.get(path, 0.0)) for path in order)


if TYPE_CHECKING:
    from reflectrl.core.players.base import Player
    from reflectrl.models.lm import LanguageModel


@dataclass(frozen=True)
class Walked:
    """Answer to a question, with the walk that led to it."""

    episode: Episode
    ranking: Ranking
    """(path, probability of identifying the file in the last step), best first; see `ranking`."""
    strides: tuple[Stride, ...]
    """Steps: each command with the reflection before it and its output."""


class Agent:
    """Agent of greedy players that answers one question at a time, made by `Agent.load`.

    Args:
        card: card of the agent.
        player: policy.
        reflector: player that writes the reflections, or None.
        weights: number of parameters of the policy's model if torch computes it; 0 if numpy does.
    """

    def __init__(self, card: Card, player: Player, reflector: Player | None, weights: int = 0) -> None:
        self.card, self.player, self.reflector, self.weights = card, player, reflector, weights

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Agent:
        """Load an agent that `reflectrl export-agent` wrote: `agent.json`, `policy/` and optionally `reflector/`.

        Raises:
            UserError: the folder holds no agent, or its models cannot be loaded.
        """
        path = Path(folder)
        card = read_card(path)
        _refuse_unplayable(path, card)
        light = light_players(path, card)
        if light is not None:
            return cls(card, *light)
        try:
            from reflectrl.models.players import Policy, Reflector

            policy, reflector = _models(path, card.play.context)
        except ModuleNotFoundError as error:
            raise UserError(f"the agent in {folder} needs {error.name}; {install()}") from error
        player = Policy(policy, Sampling(0.0), card.play.shuffle_labels, scoring=card.play.scoring)
        player.calibration = card.play.to_calibration()
        speaker = (
            None
            if reflector is None
            else Reflector(reflector, card.play.reflection_tokens, carries=card.play.reflection == "carried")
        )
        return cls(card, player, speaker, sum(weight.numel() for weight in policy.model.parameters()))

    def walk(self, finder: Finder, question: str) -> Walked:
        """Answer a question.

        Args:
            finder: search engine of the repository. Share it between questions, since it caches its index.

        Raises:
            UserError: the question has no word to search for.
        """
        check_question(question)
        from reflectrl.core.rollout import Job, rollout

        env = GivenEnv(finder, **asdict(self.card.env))
        job = Job(env.ask(question), 0, {"agent": self.card.name})
        [episode] = rollout([job], lambda: env, self.player, self.reflector, batch=1)
        strides = tuple(retrace(env, episode))
        paths = finder.ranked(printable(question), "", View(finder.repository))  # as in the environment
        return Walked(episode, ranking(strides[-1], paths), strides)


def _refuse_unplayable(folder: Path, card: Card) -> None:
    if not (folder / POLICY).is_dir():
        raise UserError(f"the agent in {folder} has no {POLICY}/")
    if (folder / POLICY / HEADS).is_file() and card.play.scoring != "options":
        raise UserError(f"the agent in {folder} needs its critic to play; `locate` supports only policies without one")


def _models(folder: Path, context: int) -> tuple[LanguageModel, LanguageModel | None]:
    """Load policy and reflector with transformers: two models, or two adapters on one backbone."""
    from transformers.utils.logging import disable_progress_bar

    from reflectrl.core.config import ModelConfig
    from reflectrl.models.load import load_model, second_player

    disable_progress_bar()
    config, reflector_folder = ModelConfig(context=context), folder / REFLECTOR
    policy = load_model(folder / POLICY, config, POLICY)
    if not reflector_folder.is_dir():
        return policy, None
    reflector = (
        load_model(reflector_folder, config)
        if policy.adapter is None
        else second_player(policy, REFLECTOR, reflector_folder)
    )
    return policy, reflector


class GivenEnv(AutoExploreEnv):
    """Environment around one given repository.

    Args:
        finder: search engine of the repository. Share it between environments.
        arguments: other arguments of `AutoExploreEnv`.
    """

    def __init__(self, finder: Finder, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._given = finder

    def ask(self, question: str) -> Task:
        """Make a task of a question. It has no right answer, and therefore neither an expert nor success."""
        repo = self._given.repository.root.name
        payload = {"question": question, "repo": repo, "gold": [], "source": "user"}
        return Task("question", "autoexplore", payload, split="test", stage="all")

    def finder_of(self, task: Task) -> Finder:
        return self._given
