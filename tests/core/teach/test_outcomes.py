"""Outcomes: what is tried in a state, what is written about it, and what a lost step teaches then."""

from __future__ import annotations

from typing import Any

import pytest

from reflectrl.core.envs import make
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.players import RandomPlayer
from reflectrl.core.players.simple import ExpertPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.teach.outcomes import Tried, best_of, outcome_text, outcomes, with_outcomes
from reflectrl.core.teach.recorded import labelled
from reflectrl.core.types import Episode


def worlds(count: int = 4, **section: Any) -> list[TextEnv]:
    return [make({"name": "corridor", "train": 12, **section}) for _ in range(count)]


def played(player: Any, count: int = 4, **section: Any) -> list[Episode]:
    [env] = worlds(1, **section)
    jobs = [Job(task, n) for n, task in enumerate(env.tasks("train")[:count])]
    return [labelled(episode) for episode in rollout(jobs, lambda: env, player, batch=1)]


def survives(state: str, action: str) -> bool:
    """Whether an action does not end the walk, read off the drawn corridor."""
    cells = state.splitlines()[0].split()
    place = next(i for i, cell in enumerate(cells) if cell in "Aa")
    return {"left": place > 0, "right": place < len(cells) - 1}.get(action, False)


def test_the_template_says_what_won_and_what_is_best() -> None:
    tried = [Tried(0, 3, 4, 0.5), Tried(2, 0, 4, -1.0)]
    assert outcome_text(["left", "right", "take"], tried, 0) == "left: won 3 of 4; take: won 0 of 4; best: left"


@pytest.mark.parametrize(
    ("tried", "preferred", "best"),
    [
        ([Tried(0, 1, 4, 2.0), Tried(1, 2, 4, 0.0)], None, 1),  # wins come first
        ([Tried(0, 2, 4, 0.0), Tried(1, 2, 4, 1.0)], None, 1),  # then the return
        ([Tried(0, 2, 4, 0.0), Tried(1, 2, 4, 1.0)], 0, 0),  # but the demonstrator's word counts more
        ([Tried(0, 2, 4, 0.0), Tried(1, 3, 4, 1.0)], 0, 1),
        ([Tried(0, 0, 4, 0.0), Tried(1, 0, 4, 0.0)], None, 0),
    ],
)
def test_the_best_action(tried: list[Tried], preferred: int | None, best: int) -> None:
    assert best_of(tried, preferred) == best


def test_an_expert_that_plays_on_wins_wherever_the_action_does_not_end_it() -> None:
    """Checked by hand: in the corridor the expert always arrives, so an action wins if it survives, or is the last."""
    for episode in played(ExpertPlayer()):
        found = outcomes(episode, range(len(episode.steps)), worlds(), ExpertPlayer(), count=2, actions=0, seed=0)
        for i, step in enumerate(episode.steps):
            for one in found[i]:
                action = step.observation.actions[one.action]
                right = action == step.observation.actions[step.action]
                expected = survives(step.observation.state, action) or right
                assert (one.won, one.played) == (2 * expected, 2), (step.observation.state, action)


def test_returns_count_from_the_action_on() -> None:
    [episode] = played(ExpertPlayer(), count=1)
    found = outcomes(episode, [0], worlds(), ExpertPlayer(), count=3, actions=0, seed=0)
    by_action = {one.action: one for one in found[0]}
    assert by_action[episode.steps[0].action].mean_return == pytest.approx(episode.total_reward)
    assert by_action[3].mean_return == pytest.approx(-0.5)  # "open" ends it at once


@pytest.mark.parametrize("section", [{}, {"slippery": True, "horizon": 40}])
def test_the_seed_decides_everything_and_not_how_many_play_side_by_side(section: dict[str, Any]) -> None:
    [episode] = played(ExpertPlayer(), count=1, **section)
    first, other, alone = (
        with_outcomes(episode, worlds(count, **section), RandomPlayer(), 8, seed=seed)
        for count, seed in ((4, 0), (4, 1), (1, 0))
    )
    assert first == alone != other


def test_in_an_environment_with_chance_continuations_differ() -> None:
    """Under one luck all of them would end alike."""
    [episode] = played(ExpertPlayer(), count=1, slippery=True, horizon=9)
    found = outcomes(episode, [0], worlds(slippery=True, horizon=9), ExpertPlayer(), 20, 0, 0)
    assert any(0 < one.won < 20 for one in found[0])


def test_steps_of_a_demonstration_keep_what_was_demonstrated_where_it_wins_as_often() -> None:
    for episode in played(ExpertPlayer()):
        made = with_outcomes(episode, worlds(), ExpertPlayer(), 1)
        for before, after in zip(episode.steps, made.steps, strict=True):
            assert (after.target, after.label, after.action) == (before.action, "positive", before.action)
            assert after.reflection is not None
            assert after.reflection.endswith(f"best: {before.observation.actions[before.action]}")


def test_lost_steps_become_negative_examples_of_what_would_have_won() -> None:
    lost = [episode for episode in played(RandomPlayer(), count=12) if not episode.success]
    assert lost
    for episode in lost:
        for step in with_outcomes(episode, worlds(), ExpertPlayer(), 1).steps:
            assert step.label == "negative" and step.target is not None and step.reflection is not None
            action = step.observation.actions[step.target]
            assert f"{action}: won 1 of 1" in step.reflection
            assert step.reflection.endswith(f"; best: {action}")


def test_a_lost_step_from_which_nothing_won_teaches_nothing() -> None:
    """Two steps are too few to fetch a key and open the door."""
    for episode in played(RandomPlayer(), horizon=2):
        assert with_outcomes(episode, worlds(horizon=2), ExpertPlayer(), 2) == episode


def test_a_few_actions_are_tried_among_them_the_one_that_was_taken() -> None:
    [episode] = played(ExpertPlayer(), count=1)
    found = outcomes(episode, range(len(episode.steps)), worlds(), ExpertPlayer(), 1, actions=2, seed=0)
    for i, step in enumerate(episode.steps):
        assert len(found[i]) == 2 and step.action in [one.action for one in found[i]]
