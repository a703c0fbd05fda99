"""Players without a model."""

import numpy as np
import pytest
from corridor import CorridorEnv
from scipy.stats import chisquare

from reflectrl.core.envs import make
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.players import (
    AnalystPlayer,
    ExpertPlayer,
    LiveEpisode,
    OraclePlayer,
    Player,
    RandomPlayer,
    ScriptedPlayer,
)
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Observation, UserError


def corridor() -> TextEnv:
    return make({"name": "corridor"})


def live(seed: int = 0, actions: tuple[str, ...] | None = None) -> LiveEpisode:
    env = corridor()
    task = env.tasks("train")[seed]
    env.reset(options={"task": task})
    observation = env.observe() if actions is None else Observation("", "", actions)
    return LiveEpisode(env, task, seed, np.random.default_rng(seed), observation)


def test_the_expert_takes_the_best_action_with_certainty() -> None:
    for one in (live(0), live(1)):
        [turn] = ExpertPlayer().turns([one])
        assert turn.choice == one.env.teacher.expert_action(one.env)
        assert turn.text == one.observation.actions[turn.choice]
        assert turn.probs == tuple(float(i == turn.choice) for i in range(4))


def test_the_expert_wins() -> None:
    jobs = [Job(task, 0) for task in corridor().tasks("test")[:20]]
    assert all(episode.success for episode in rollout(jobs, corridor, ExpertPlayer()))


def test_the_analyst_says_what_the_environment_knows_and_does_not_act() -> None:
    one = live()
    [turn] = AnalystPlayer().turns([one])
    assert (turn.text, turn.choice) == (one.env.teacher.analyse(one.env), None)


@pytest.mark.parametrize("count", [1, 2, 6])
def test_random_is_uniform_over_the_legal_actions(count: int) -> None:
    one = live(actions=tuple("abcdef"[:count]))
    turns = [RandomPlayer().turns([one])[0] for _ in range(3000)]
    assert all(turn.probs == (1 / count,) * count for turn in turns)
    counts = np.bincount([turn.choice or 0 for turn in turns], minlength=count)
    assert len(counts) == count
    assert count == 1 or chisquare(counts).pvalue > 1e-3


def test_random_draws_from_the_live_episode_alone() -> None:
    first, second = ([turn.choice for turn in RandomPlayer().turns([live(s) for s in (3, 4, 5)])] for _ in range(2))
    assert first == second
    assert RandomPlayer().turns([live(4)])[0].choice == first[1]


def test_a_script_is_played_by_text() -> None:
    task = corridor().tasks("train")[0]
    script = [
        step.observation.actions[step.action] for step in next(rollout([Job(task, 0)], corridor, ExpertPlayer())).steps
    ]
    [episode] = rollout([Job(task, 0)], corridor, ScriptedPlayer(script))
    assert episode.success
    assert [step.turns[0].text for step in episode.steps] == script


def test_a_script_that_is_too_short_or_illegal_is_refused() -> None:
    jobs = [Job(corridor().tasks("train")[0], 0)]
    with pytest.raises(UserError, match="has 0 actions, but the episode goes on"):
        list(rollout(jobs, corridor, ScriptedPlayer([])))
    with pytest.raises(UserError, match=r"'fly' is not legal at step 0 \(legal: left, "):
        list(rollout(jobs, corridor, ScriptedPlayer(["fly"])))


@pytest.mark.parametrize(("player", "lacks"), [(ExpertPlayer(), "no expert"), (AnalystPlayer(), "no analyst")])
def test_an_environment_without_the_hook_is_answered_in_one_line(player: Player, lacks: str) -> None:
    class Unaided(CorridorEnv):
        teacher = TextEnv.teacher  # type: ignore[assignment]

    env = Unaided()
    with pytest.raises(UserError, match=f"Unaided has {lacks}"):
        list(rollout([Job(env.tasks("test")[0], 0)], Unaided, player))


def test_the_oracle_is_the_expert_where_nothing_is_hidden() -> None:
    tasks = corridor().tasks("test")[:5]
    played = [
        [[step.action for step in episode.steps] for episode in rollout([Job(t, 0) for t in tasks], corridor, player)]
        for player in (ExpertPlayer(), OraclePlayer())
    ]
    assert played[0] == played[1]
