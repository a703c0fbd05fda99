"""Rejection sampling of reflections: in each round, draw several per state, keep the best, and imitate it.

This is expert iteration (Anthony et al. 2017) on reflections, or STaR (Zelikman et al. 2022) with a policy as the judge
of rationales. A reflection can be scored without playing on from it, since its only effect is on the policy's next
choice. So a state's actions are tried once, and all of its reflections are scored with the results
(`core/teach/outcomes.py`). The score of a reflection is the sum over actions a of pi(a | s, reflection) Q(s, a),
without the variance of sampling an action.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from reflectrl.core.types import Episode, Turn, named_seed
from reflectrl.methods.shared.reflecting import (
    SETTINGS,
    ReflectingConfig,
    frozen_policy_settings,
    reflecting_settings,
    save,
    train_pair,
    trained_pair,
)
from reflectrl.runs.arms import Arm, policy
from reflectrl.runs.artifact import CHECKPOINT, Build, Source, artifact

if TYPE_CHECKING:  # these bring torch, which a dry run does without
    from torch import Tensor

    from reflectrl.core.config import RLConfig
    from reflectrl.core.envs.base import TextEnv
    from reflectrl.core.players.base import LiveEpisode, Player
    from reflectrl.core.teach.outcomes import Tried
    from reflectrl.learn.examples import Example
    from reflectrl.learn.trainer import Log
    from reflectrl.methods.shared.reflection_rollouts import ReflectionRollouts
    from reflectrl.models.players import Policy, Question

SECTIONS = {"reflecting": ReflectingConfig}


# ---- the loop --------------------------------------------------------------------------------------------------------


def train_rejection(
    rollouts: ReflectionRollouts,
    config: RLConfig,
    settings: ReflectingConfig,
    seed: int,
    log: Log,
    state_folder: Path | None = None,
    *,
    make_env: Callable[[], TextEnv],
    batch: int = 64,
) -> None:
    """Train the reflector of `rollouts` in place. It ends with the weights that did best on validation tasks.

    Args:
        rollouts: source of evaluations, and of episodes in which states are found.
        log: callback for metrics, which come once per round (see `Trainer.updates`).
        state_folder: folder of the state between rounds. A killed training repeats the round that it was in.
        make_env: makes the environments of this process, in which actions are tried.
        batch: number of these environments, and of reflections that are generated together.
    """
    import numpy as np
    import torch

    from reflectrl.learn.examples import shuffled_batches, summed_nll
    from reflectrl.learn.trainer import Trainer
    from reflectrl.models.sharing import pack

    lm = rollouts.speaker.lm
    optimizer = torch.optim.AdamW(lm.parameters(), lr=settings.lr, weight_decay=config.weight_decay, fused=True)
    trainer = Trainer(lm, [optimizer], config.max_grad_norm, state_folder)
    rounds = replace(config, updates=settings.rounds, eval_every=1)  # a round counts as an update
    with ExitStack() as stack:
        envs = [stack.enter_context(closing(make_env())) for _ in range(batch)]
        for metrics in trainer.updates(rollouts, rounds, log):
            round_seed = named_seed(seed, "round", trainer.step)
            rollouts.collect(trainer.step, None)
            episodes = rollouts.latest.learned
            drawn = draw_reflections(rollouts, draw_states(episodes, settings.states, round_seed), batch, round_seed)
            values = try_actions(rollouts, episodes, list(drawn), envs, round_seed)
            examples, gains = keep_best(rollouts, episodes, drawn, values)
            batches = shuffled_batches(
                [range(i, i + 1) for i in range(len(examples))], settings.batch_size, round_seed, 0
            )
            for _ in range(settings.steps if examples else 0):
                rows = [examples[i] for i in next(batches)]
                tokens = sum(len(row.ids) - row.start for row in rows)
                loss = summed_nll(lm, rows, pack) / tokens
                loss.backward()
                trainer.update({"reflection_loss": float(loss.detach())})
            metrics["judged"], metrics["kept"] = sum(map(len, drawn.values())), len(examples)
            metrics["gain"] = float(np.mean(gains or [0.0]))
            metrics |= trainer.means() if examples else {}


class State(NamedTuple):
    """State that was met: index of an episode, and index of a step in it."""

    episode: int
    step: int


def draw_states(episodes: Sequence[Episode], most: int, seed: int) -> list[State]:
    """Draw at most `most` steps with distinct observations from the episodes; return them in order."""
    import numpy as np

    from reflectrl.learn.curriculum import replayed

    first_met: dict[object, State] = {}
    for e, episode in enumerate(episodes):
        for i in range(replayed(episode), len(episode.steps)):
            first_met.setdefault(episode.steps[i].observation, State(e, i))
    states = list(first_met.values())
    indices = np.random.default_rng(seed).permutation(len(states))[:most]
    return [states[i] for i in sorted(indices.tolist())]


def draw_reflections(
    rollouts: ReflectionRollouts, states: Sequence[State], batch: int, seed: int
) -> dict[State, list[Turn]]:
    """Draw `settings.samples` reflections for each state, at the training temperature."""
    import numpy as np

    from reflectrl.core.players.base import LiveEpisode

    draws = [(state, k) for state in states for k in range(rollouts.settings.samples)]
    drawn: dict[State, list[Turn]] = defaultdict(list)
    for first in range(0, len(draws), batch):
        part = draws[first : first + batch]
        live_episodes = []
        for (e, i), k in part:
            episode, rng = rollouts.latest.learned[e], np.random.default_rng(named_seed(seed, "reflection", e, i, k))
            no_env = cast("TextEnv", None)  # a reflector reads only the observation
            live_episodes.append(LiveEpisode(no_env, episode.task, 0, rng, episode.steps[i].observation))
        for (state, _), turn in zip(part, rollouts.drawing.turns(live_episodes), strict=True):
            drawn[state].append(turn)
    return drawn


def try_actions(
    rollouts: ReflectionRollouts,
    episodes: Sequence[Episode],
    states: Sequence[State],
    envs: Sequence[TextEnv],
    seed: int,
) -> dict[State, list[Tried]]:
    """Try every action at these steps of episodes, and play on from there with the current reflector and policy."""
    from reflectrl.core.teach.outcomes import outcomes
    from reflectrl.methods.shared.sampled_reflector import forget

    forget(rollouts.speaker)
    player = Together(rollouts.speaker, rollouts.policy)
    steps_by_episode: dict[int, list[int]] = defaultdict(list)
    for e, i in states:
        steps_by_episode[e].append(i)
    tried: dict[State, list[Tried]] = {}
    count = rollouts.settings.continuations
    for e, steps in steps_by_episode.items():
        for i, outcome in outcomes(episodes[e], steps, envs, player, count, 0, named_seed(seed, "outcomes", e)).items():
            tried[State(e, i)] = outcome
    played = sum(action.played for action in chain.from_iterable(tried.values()))
    rollouts.totals["episodes"] += played
    rollouts.totals["env_steps"] += played + player.turns_taken
    return tried


@dataclass
class Together:
    """Reflector and policy as one player, for functions that take a single player."""

    reflector: Player
    policy: Policy
    turns_taken: int = 0

    @property
    def carries(self) -> bool:
        """True if the reflector reads its previous reflection again."""
        return bool(getattr(self.reflector, "carries", False))

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        """Reflect on each state, add the reflection to the episode's turns, and return the policy's choices."""
        for live, turn in zip(episodes, self.reflector.turns(episodes), strict=True):
            live.turns = [turn]
        self.turns_taken += len(episodes)
        return self.policy.turns(episodes)


def keep_best(
    rollouts: ReflectionRollouts,
    episodes: Sequence[Episode],
    drawn: dict[State, list[Turn]],
    values: dict[State, list[Tried]],
) -> tuple[list[Example], list[float]]:
    """Select the best reflection of each state if it scores above the mean of the state's reflections.

    Returns:
        The selected reflections as examples of supervised learning, and their gains over the mean.
    """
    import numpy as np

    from reflectrl.learn.examples import Example
    from reflectrl.methods.shared.features import choice_table
    from reflectrl.methods.shared.reflection_rollouts import reflector_prompts

    policy, settings = rollouts.policy, rollouts.settings
    steps = {state: episodes[state.episode].steps[state.step] for state in drawn}
    scored: list[State] = []
    questions: list[Question] = []
    for state, turns in drawn.items():
        observation = steps[state].observation
        for turn in turns:
            scored.append(state)
            questions.append((policy.prompt(observation, turn.text), observation.actions))
    logp_NA = choice_table(policy, questions, max(len(actions) for _, actions in questions)).double()
    scores: dict[State, list[float]] = defaultdict(list)
    for state, logp_A in zip(scored, logp_NA, strict=True):
        scores[state].append(judged(logp_A, values[state], settings.judge))
    prompts = dict(zip(steps, reflector_prompts(rollouts.drawing, list(steps.values())), strict=True))
    rows, gains = [], []
    for state, turns in drawn.items():
        best = int(np.argmax(scores[state]))
        gain = scores[state][best] - float(np.mean(scores[state]))
        if gain > 1e-6:
            rows.append(Example((*prompts[state], *turns[best].token_ids), len(prompts[state])))
            gains.append(gain)
    return rows, gains


def judged(logp_A: Tensor, tried: Sequence[Tried], judge: str) -> float:
    """Return the score of a reflection, from the policy's log-probabilities after reading it.

    Args:
        logp_A: log-probabilities of the state's actions; padding is -inf.
        tried: the continuations that were played from this state.
        judge: "value" or "choice".

    "value": the expected return, sum over actions of their probability times the mean return of their continuations.
    "choice": the log-probability of the action whose continuations won most.
    """
    from reflectrl.core.teach.outcomes import best_of

    if judge == "choice":
        return float(logp_A[best_of(tried)])
    return sum(float(logp_A[action.action].exp()) * action.mean_return for action in tried)


# ---- the arm ---------------------------------------------------------------------------------------------------------


@artifact("reflecting", "rl", CHECKPOINT, settings=SETTINGS)
def reflector_rejection(build: Build, *, reflector: Source, policy: Source) -> None:
    """Train a reflector by rejection sampling: it imitates the best of its own reflections."""
    from reflectrl.core.envs import make

    recipe = build.recipe
    config = frozen_policy_settings(recipe, reflecting_settings(recipe).rounds)
    train = partial(train_rejection, make_env=partial(make, recipe.env), batch=recipe.eval.batch)
    _, reflector_lm = train_pair(build, reflector, policy, config, train)
    save(build, reflector_lm)


ARMS = {
    "reflector-rejection": Arm(
        "SFT, then the reflector imitates its best reflections",
        policy,
        partial(trained_pair, reflector_rejection, "reflector-rejection"),
    ),
}
