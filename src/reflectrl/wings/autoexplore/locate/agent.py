"""An agent: trained players that answer a question about a repository by walking through it.

    agent = Agent.load("agents/mine")
    walked = agent.walk(Finder(Repository.open(".")), "where are retries configured?")
    walked.ranking[0]      # ("net/retry.py", 0.83)

Nothing leaves the machine. torch is imported when an agent is loaded, not before.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reflectrl.types import Episode, Sampling, UserError
from reflectrl.wings.autoexplore.finder import Finder
from reflectrl.wings.autoexplore.given import GivenEnv
from reflectrl.wings.autoexplore.locate.card import POLICY, REFLECTOR, Card, agent_folder, read_card
from reflectrl.wings.autoexplore.locate.walks import Ranking, Stride, ranking, retrace
from reflectrl.wings.autoexplore.search import check_question
from reflectrl.wings.autoexplore.texts import printable
from reflectrl.wings.autoexplore.view import View

if TYPE_CHECKING:
    from reflectrl.models.lm import LanguageModel
    from reflectrl.players.base import Player


@dataclass(frozen=True)
class Walked:
    """How a question was answered."""

    episode: Episode
    ranking: Ranking
    """(path, probability that the policy gave to identifying it in its last choice), best first; see `walks.py`."""
    strides: tuple[Stride, ...]
    """Each command, what was thought before it, and what it showed."""


class Agent:
    """Greedy players behind one question at a time; `Agent.load` makes one.

    Args:
        card: what they are.
        player: the policy.
        reflector: who speaks before it, or None.
        weights: how many numbers the policy's model consists of.
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
        from reflectrl.players import Policy, Reflector

        policy, reflector = _models(place, card.play.context)
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


def default_agent() -> Agent | None:
    """The agent that $REFLECTRL_AGENT names, else the one that ships in the package; None if there is neither."""
    folder = agent_folder()
    return None if folder is None else Agent.load(folder)


def _models(folder: Path, context: int) -> tuple[LanguageModel, LanguageModel | None]:
    """Policy and reflector; without the transformers library where that will do."""
    from reflectrl.wings.autoexplore.locate.light import load_light

    if not (folder / POLICY).is_dir():
        raise UserError(f"the agent in {folder} has no {POLICY}/")
    places = [place for place in (folder / POLICY, folder / REFLECTOR) if place.is_dir()]
    light = [lm for lm in (load_light(place, context) for place in places) if lm is not None]
    if len(light) == len(places):
        return light[0], light[1] if len(light) > 1 else None
    return _by_transformers(folder, context)


def _by_transformers(folder: Path, context: int) -> tuple[LanguageModel, LanguageModel | None]:
    """Policy and reflector: two models, or two adapters on one backbone."""
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
