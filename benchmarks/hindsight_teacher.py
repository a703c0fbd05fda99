"""The teacher of texts in hindsight, compared with the environment's expert, on states that the policy itself reaches.

    python -m benchmarks.hindsight_teacher runs/hindsight_alfworld --texts analyst outcome observation

Loads the SFT pair of a run. Its policy, from which the hindsight arms start, plays training tasks as it does in
learning, and each of its choices is scored without a text and with each form of text. Prints a row per form: how often
the most probable action is the expert's, with and without the text, split by whether the policy's own most probable
action was; the probability of the expert's actions; and KL(with text || without). `--by-kind` adds a row per first word
of the expert's action.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
import tyro
from torch import Tensor

from reflectrl.core.config import Recipe, load_recipe
from reflectrl.core.envs import make
from reflectrl.core.types import Episode, Sampling, named_seed
from reflectrl.learn.losses import categorical_kl
from reflectrl.learn.steps import Steps, flatten
from reflectrl.learn.validation import evenly
from reflectrl.methods.hindsight import (
    HindsightConfig,
    HindsightTexts,
    Writer,
    label_orders,
    reflector_texts,
    scored,
    with_texts,
)
from reflectrl.methods.offline import play_tasks
from reflectrl.models.players import Policy
from reflectrl.runs.calibration import best_actions
from reflectrl.runs.players import load_pair, make_policy, make_reflector

Form = Literal["analyst", "continuations", "outcome", "observation", "reflector"]

COLUMNS = ("states", "with a text", "expert's choice without", "with", "kept", "mended", "p without", "p with", "KL")
"""Columns of the table. "kept" is the share of right choices that stay right with the text, and "mended" the share of
wrong ones that become right. Shares are of the states with a text. p is the probability of the expert's actions."""


@dataclass(frozen=True)
class Settings:
    """Settings of the comparison."""

    run: tyro.conf.Positional[Path]
    """Folder of a run whose SFT is finished."""
    texts: tuple[Form, ...] = ("analyst",)
    """Forms of text."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of the run."""
    policy: str = "policy"
    """Checkpoint that plays and reads: "policy" is the SFT policy, "no-hindsight" that arm's after RL."""
    tasks: int = 64
    """Number of training tasks that the policy plays, once each."""
    by_kind: bool = False
    """Also print a row for each first word of the expert's action."""


@dataclass
class Choices:
    """Choices of a policy in N states, and what the environment's expert would have chosen.

    Attributes:
        kinds: first word of the expert's action in each state.
        expert_NA: 1 for the expert's best actions, else 0.
        without_NA, with_NA: log-probabilities of the actions without and with the text; -inf for illegal actions.
        written_N: True where there is a text.
    """

    kinds: list[str]
    expert_NA: Tensor
    without_NA: Tensor
    with_NA: Tensor
    written_N: Tensor

    def row(self, kind: str | None = None) -> list[str]:
        """Return the cells of `COLUMNS`, over all states or the states of a kind."""
        of_kind_N = torch.tensor([kind in (None, name) for name in self.kinds])
        among_N = of_kind_N & self.written_N
        right_N, taught_N = (self._is_right(logp_NA)[among_N] for logp_NA in (self.without_NA, self.with_NA))
        mass = [mean((logp_NA.exp() * self.expert_NA).sum(1)[among_N]) for logp_NA in (self.without_NA, self.with_NA)]
        divergence = float("nan")
        if among_N.any():
            divergence = float(categorical_kl(self.with_NA[among_N], self.without_NA[among_N]).mean())
        shares = (right_N, taught_N, taught_N[right_N], taught_N[~right_N])
        percent = [f"{100 * mean(share):.1f}" for share in shares]
        counts = [f"{int(of_kind_N.sum())}", f"{100 * mean(self.written_N[of_kind_N]):.0f} %"]
        return [*counts, *percent, *(f"{p:.2f}" for p in mass), f"{divergence:.2f}"]

    def _is_right(self, logp_NA: Tensor) -> Tensor:
        """Tell for each state whether the most probable action is one of the expert's."""
        return self.expert_NA.gather(1, logp_NA.argmax(1, keepdim=True))[:, 0] > 0


def mean(values: Tensor) -> float:
    """Return the mean; NaN for no values."""
    return float(values.float().mean())


def main(settings: Settings) -> None:
    """Print the tables, one row per seed and form of text."""
    recipe = load_recipe(settings.run / "recipe.toml")
    print(f"| seed | text | {' | '.join(COLUMNS)} |")
    print("|---" * (2 + len(COLUMNS)) + "|")
    for seed in settings.seeds:
        policy, writer = load_players(recipe, settings.run / "checkpoints" / f"seed{seed}", seed, settings.policy)
        tasks = evenly(make(recipe.env).tasks("train"), settings.tasks)
        episodes = play_tasks(policy, partial(make, recipe.env), tasks, 1, named_seed(seed, "hindsight teacher"))
        for form in settings.texts:
            choices = choices_of(recipe, policy, episodes, form, seed, writer if form == "reflector" else None)
            print(f"| {seed} | {form} | {' | '.join(choices.row())} |", flush=True)
            if settings.by_kind:
                for kind in sorted(set(choices.kinds)):
                    print(f"| | {kind} | {' | '.join(choices.row(kind))} |", flush=True)


def load_players(recipe: Recipe, models: Path, seed: int, policy_name: str) -> tuple[Policy, Writer]:
    """Load a policy, which samples at the temperature of [rl], and the reflector after SFT.

    Args:
        models: folder of the checkpoints of a seed.
        policy_name: name of the policy's checkpoint.
    """
    lm, reflector_lm = load_pair(recipe, seed, models / policy_name, models / "reflector")
    assert lm is not None and reflector_lm is not None
    policy = make_policy(recipe, lm, Sampling(recipe.rl.temperature))
    return policy, partial(reflector_texts, make_reflector(recipe, reflector_lm))


def choices_of(
    recipe: Recipe, policy: Policy, episodes: Sequence[Episode], form: Form, seed: int, writer: Writer | None = None
) -> Choices:
    """Score the choices of episodes without and with a form of text.

    Args:
        writer: writes the texts "reflector".
    """
    settings = replace(recipe.sections.get("hindsight") or HindsightConfig(), text=form)
    with closing(HindsightTexts(partial(make, recipe.env), settings, seed, writer=writer)) as source:
        texts = source.texts(policy, episodes)
    steps = flatten(policy, episodes, recipe.rl.gamma)
    orders = label_orders(episodes)
    without_NA = scored(policy, steps, recipe.rl.minibatch)
    kinds, expert_NA = expert_choices(recipe, episodes, steps, orders, without_NA)
    return Choices(
        kinds=kinds,
        expert_NA=expert_NA,
        without_NA=without_NA,
        with_NA=scored(policy, with_texts(policy, steps, texts, orders), recipe.rl.minibatch),
        written_N=torch.tensor([text is not None for text in texts]),
    )


def expert_choices(
    recipe: Recipe, episodes: Sequence[Episode], steps: Steps, orders: Sequence[Sequence[int]], like_NA: Tensor
) -> tuple[list[str], Tensor]:
    """Return the first word of the expert's action in each state, and 1 for the expert's best actions [N, A].

    Args:
        orders: order in which the prompt of each state lists its actions; () for the environment's.
        like_NA: a tensor of the shape to return.
    """
    kinds, expert_NA = list[str](), torch.zeros_like(like_NA)
    for index, best in enumerate(experts(recipe, episodes)):
        order = list(orders[index])
        labels = [order.index(action) for action in best] if order else list(best)
        expert_NA[index, labels] = 1.0
        kinds.append(steps.actions[index][best[0]].split()[0])
    return kinds, expert_NA


def experts(recipe: Recipe, episodes: Sequence[Episode]) -> Iterator[tuple[int, ...]]:
    """Yield the expert's best actions in each state of some episodes."""
    with closing(make(recipe.env)) as env:
        for episode in episodes:
            yield from best_actions(env, episode)


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
