"""Search for wins to imitate: it finds them where chance does not, and leaves out what was not needed."""

from functools import partial

import pytest

from reflectrl.core.rollout import Start, begin
from reflectrl.core.types import Episode, named_seed
from reflectrl.examples.key_door import KeyDoorEnv
from reflectrl.learn.own_wins import Search, find_wins
from reflectrl.learn.reward_check import luck_decides, random_play, signal_of
from tests.learn.test_exploration import Stairs

ROOMY = partial(KeyDoorEnv, 10)


def actions_of(episode: Episode) -> list[str]:
    return [step.observation.actions[step.action] for step in episode.steps]


def test_it_wins_every_task_where_random_play_of_as_many_steps_wins_hardly_any() -> None:
    tasks = ROOMY().tasks("train")
    found = list(find_wins(ROOMY, tasks, 50_000, seed=0))
    steps = sum(taken for _, taken in found)
    chance = signal_of([one for batch in random_play(tasks, ROOMY, 0, 16, steps) for one in batch])
    assert all(len(episodes) == 1 for episodes, _ in found)
    assert chance.won / chance.episodes < 0.2


def test_a_win_can_be_played_again_and_every_action_in_it_is_needed() -> None:
    task = ROOMY().tasks("train")[0]
    [([episode], _)] = find_wins(ROOMY, [task], 50_000, seed=0)
    assert all(step.target == step.action for step in episode.steps)
    actions = actions_of(episode)
    _, now = begin(ROOMY(), task, Start(episode.seed, tuple(actions)))
    assert now.success
    search = Search(ROOMY(), task, named_seed(0, "own wins", task.id))
    assert search.shorten(tuple(actions)) == tuple(actions)


def test_equal_seeds_find_equal_wins_and_a_search_that_is_too_short_finds_none() -> None:
    tasks = ROOMY().tasks("train")[:2]
    assert list(find_wins(ROOMY, tasks, 50_000, 3, 3)) == list(find_wins(ROOMY, tasks, 50_000, 3, 3))
    assert [episodes for episodes, _ in find_wins(ROOMY, tasks, 5, seed=0)] == [[], []]


def test_copies_of_a_win_stray_from_it_and_only_the_way_on_is_imitated() -> None:
    strayed = 0
    for [win, *copies], _ in find_wins(ROOMY, ROOMY().tasks("train"), 50_000, seed=0, detours=3):
        assert len(copies) <= 3
        for copy in copies:
            imitated = [step for step in copy.steps if step.label == "positive"]
            assert copy.success and [step.observation.actions[step.target] for step in imitated] == actions_of(win)
            assert all(step.target is None for step in copy.steps if step.label is None)
            assert copy.steps[-1].label == "positive"  # nothing is random once it could be won
            strayed += len(copy.steps) - len(imitated)
    assert strayed > 10


@pytest.mark.parametrize(("make_env", "lucky"), [(ROOMY, False), (Stairs, True)])
def test_luck_shows_in_the_same_actions_with_other_seeds(make_env: type, lucky: bool) -> None:
    assert luck_decides(make_env, make_env().tasks("train")) is lucky
