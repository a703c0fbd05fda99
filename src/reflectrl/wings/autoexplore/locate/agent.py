"""An agent: trained players that answer a question about a repository by walking through it.

    agent = Agent.load("agents/mine")
    walked = agent.walk(Finder(Repository.open(".")), "where are retries configured?")
    walked.ranking[0]      # ("net/retry.py", 0.83)

Nothing leaves the machine. Small agents need no torch; for others it is imported when they are loaded, not before.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectrl.advice import install
from reflectrl.pipeline.artifacts import POLICY, REFLECTOR
from reflectrl.types import Episode, Sampling, Task, UserError, named_seed
from reflectrl.wings.autoexplore.env import AutoExploreEnv
from reflectrl.wings.autoexplore.finder import Finder
from reflectrl.wings.autoexplore.locate.card import Card, read_card
from reflectrl.wings.autoexplore.search import check_question
from reflectrl.wings.autoexplore.texts import printable
from reflectrl.wings.autoexplore.view import View

Ranking = tuple[tuple[str, float], ...]
"""(path, probability of identifying it), best first."""


@dataclass(frozen=True)
class Stride:
    """One step of a walk."""

    action: str
    probability: float | None
    """That the player gave to the action, if it told."""
    reflection: str | None
    output: str
    """What the command showed."""
    offered: Mapping[str, float]
    """Files that could be identified before it → the probability of that."""
    identified: str | None = None
    """The file, if the action identified one."""


def retrace(env: AutoExploreEnv, episode: Episode) -> list[Stride]:
    """Walk an episode again, and tell what was seen on the way.

    Args:
        env: one with the arguments of the environment in which it was played.

    Raises:
        UserError: its actions are not those of the episode, because the repository has changed since, say.
    """
    env.reset(seed=named_seed(episode.seed, "env") % 2**32, options={"task": episode.task})
    strides = []
    for number, step in enumerate(episode.steps):
        commands = env.walk.commands()
        if tuple(commands) != step.observation.actions:
            raise UserError(
                f"{episode.task.id}: step {number} cannot be walked again: other actions are legal there now"
            )
        action, choice = step.observation.actions[step.action], step.choice
        probs = dict(zip(step.observation.actions, choice.probs if choice else (), strict=False))
        offered = {one.path: probs.get(name, 0.0) for name, one in commands.items() if one.verb == "id"}
        command = commands[action]
        identified = command.path if command.verb == "id" else None
        shown = env.walk.do(action).text
        strides.append(Stride(action, probs.get(action), step.reflection, shown, offered, identified))
    return strides


def ranking(last: Stride, rest: Iterable[str]) -> Ranking:
    """How an episode ranks the files.

    When the last action was chosen, some files could be identified. They come first: the identified one, then the
    others by the probability that the player gave to `id F` in its last choice. The other files follow in the order of
    the search.

    Args:
        last: the last step of a walk.
        rest: all files that a search finds, best first.
    """
    by_probability = sorted(last.offered, key=lambda path: -last.offered[path])  # equal ones in the order of the offer
    order = dict.fromkeys([*([last.identified] if last.identified else []), *by_probability, *rest])
    return tuple((path, last.offered.get(path, 0.0)) for path in order)


if TYPE_CHECKING:
    from reflectrl.models.lm import LanguageModel
    from reflectrl.players.base import Player


@dataclass(frozen=True)
class Walked:
    """How a question was answered."""

    episode: Episode
    ranking: Ranking
    """(path, probability that the policy gave to identifying it in its last choice), best first; see `ranking`."""
    strides: tuple[Stride, ...]
    """Each command, what was thought before it, and what it showed."""


class Agent:
    """Greedy players behind one question at a time; `Agent.load` makes one.

    Args:
        card: what they are.
        player: the policy.
        reflector: who speaks before it, or None.
        weights: how many numbers the policy's model consists of, where torch computes; 0 where numpy does.
    """

    def __init__(self, card: Card, player: Player, reflector: Player | None, weights: int = 0) -> None:
        self.card, self.player, self.reflector, self.weights = card, player, reflector, weights

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Agent:
        """Load an agent: `policy/`, perhaps `reflector/`, and `agent.json`, as `reflectrl export-agent` writes them.

        Raises:
            UserError: the folder holds no agent, or its models cannot be loaded.
        """
        place = Path(folder)
        card = read_card(place)
        _refuse_unplayable(place)
        light = _light_players(place, card)
        if light is not None:
            return cls(card, *light)
        try:
            from reflectrl.players import Policy, Reflector

            policy, reflector = _models(place, card.play.context)
        except ModuleNotFoundError as error:
            raise UserError(f"the agent in {folder} needs {error.name}; {install()}") from error
        player = Policy(policy, Sampling(0.0), card.play.shuffle_labels, scoring=card.play.scoring)
        speaker = None if reflector is None else Reflector(reflector, card.play.reflection_tokens)
        return cls(card, player, speaker, sum(weight.numel() for weight in policy.model.parameters()))

    def walk(self, finder: Finder, question: str) -> Walked:
        """Answer a question.

        Args:
            finder: the search of the repository; share it between questions.

        Raises:
            UserError: there is no word to search for in the question.
        """
        check_question(question)
        from reflectrl.rollout import Job, rollout

        env = GivenEnv(finder, **asdict(self.card.env))
        job = Job(env.ask(question), 0, {"agent": self.card.name})
        [episode] = rollout([job], lambda: env, self.player, self.reflector, batch=1)
        strides = tuple(retrace(env, episode))
        found = finder.ranked(printable(question), "", View(finder.repository))  # as the environment asks
        return Walked(episode, ranking(strides[-1], found), strides)


def _refuse_unplayable(folder: Path) -> None:
    if not (folder / POLICY).is_dir():
        raise UserError(f"the agent in {folder} has no {POLICY}/")
    if (folder / POLICY / "heads.safetensors").is_file():
        raise UserError(f"the agent in {folder} needs its critic to play; `locate` takes policies that need none")


def _light_players(folder: Path, card: Card) -> tuple[Player, Player | None] | None:
    """Policy and reflector in numpy; None where they need torch."""
    if card.play.scoring != "trie":
        return None
    from reflectrl.wings.autoexplore.locate.light import LightPolicy, LightReflector, load_light

    policy = load_light(folder / POLICY, card.play.context)
    if policy is None:
        return None
    if not (folder / REFLECTOR).is_dir():
        return LightPolicy(policy), None
    reflector = load_light(folder / REFLECTOR, card.play.context)
    if reflector is None:
        return None
    return LightPolicy(policy), LightReflector(reflector, card.play.reflection_tokens)


def _models(folder: Path, context: int) -> tuple[LanguageModel, LanguageModel | None]:
    """Policy and reflector by transformers: two models, or two adapters on one backbone."""
    from transformers.utils.logging import disable_progress_bar

    from reflectrl.config import ModelConfig
    from reflectrl.models.load import load_model, second_player

    disable_progress_bar()
    config, place = ModelConfig(context=context), folder / REFLECTOR
    policy = load_model(folder / POLICY, config, POLICY)
    if not place.is_dir():
        return policy, None
    second = load_model(place, config) if policy.adapter is None else second_player(policy, REFLECTOR, place)
    return policy, second


class GivenEnv(AutoExploreEnv):
    """The environment around one repository.

    Args:
        finder: the search of the repository; share it between environments.
        arguments: the others of `AutoExploreEnv`.
    """

    def __init__(self, finder: Finder, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._given = finder

    def ask(self, question: str) -> Task:
        """A question as a task, without a right answer: there is neither an expert nor success."""
        repo = self._given.repository.root.name
        payload = {"question": question, "repo": repo, "gold": [], "source": "user"}
        return Task("question", "autoexplore", payload, split="test", stage="all")

    def finder_of(self, task: Task) -> Finder:
        return self._given
