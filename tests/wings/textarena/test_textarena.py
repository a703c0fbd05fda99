"""TextArena's games for one player, through their messages and listed actions."""

import importlib.util
import pickle
import random
import sys
from itertools import pairwise

import numpy as np
import pytest

from reflectrl.core.types import UserError
from reflectrl.tools.workbench.check import check_text_env
from reflectrl.wings.textarena.env import TextArenaEnv
from reflectrl.wings.textarena.games import LISTED

if importlib.util.find_spec("textarena") is None:
    pytest.skip("the extra textarena", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("default")  # what the package and its own dependencies say when imported
SMALL = {"train": 6, "validation": 3, "test": 3}
HANOI = ["A C", "A B", "C B", "A C", "B A", "B C", "A C"]


def start(env, number=0, split="train"):
    env.reset(options={"task": env.tasks(split)[number]})
    return env


def say(env, action):
    return env.step(env.legal_actions().index(action))


@pytest.mark.parametrize("game", sorted(set(LISTED) - {"2048", "Sokoban"}))
def test_every_listed_game_keeps_every_promise(game):
    """(But for the two that take a second to begin.)"""
    assert check_text_env(lambda: TextArenaEnv(f"{game}-v0", horizon=6, **SMALL), episodes=1) == []


@pytest.mark.parametrize("game", sorted(set(LISTED) - {"Secretary", "ThreeCardMonte", "Blackjack"}))
def test_listed_actions_are_of_the_form_that_the_game_reads(game):
    """An action of the wrong form is refused with a word about it; each of ours is understood."""
    env = start(TextArenaEnv(f"{game}-v0", rules=False, **SMALL))
    for action in env.legal_actions()[:6]:
        start(env)
        say(env, action)
        said = env.render().lower()
        assert not any(word in said for word in ("invalid action", "move format", "did not respond", "must be in")), (
            said
        )


def test_a_game_is_won_by_the_right_actions_and_pays_then():
    env = start(TextArenaEnv("TowerOfHanoi-v0"))
    results = [say(env, action) for action in HANOI]
    assert [result[1] for result in results] == [0.0] * 6 + [1.0]
    assert env.success and env.done and results[-1][4]["events"] == ["won"]


@pytest.mark.parametrize(
    ("game", "settings", "flags"),
    [
        ("GuessTheNumber", {"max_turns": 2}, (False, True)),
        ("LightsOut", {"max_turns": 2}, (False, True)),
        ("Minesweeper", {"num_mines": 40}, (True, False)),
    ],
)
def test_a_game_whose_turns_are_used_up_is_truncated_and_not_lost(game, settings, flags):
    env = start(TextArenaEnv(f"{game}-v0", settings=settings, **SMALL))
    while not env.done:
        step = env.step(0)
    assert step[2:4] == flags and not env.success and env.elapsed < env.horizon


def test_a_setting_that_the_game_does_not_take_is_named():
    with pytest.raises(UserError, match=r"textarena: game 'FrozenLake-v0' takes no 'sise' \(did you mean 'size'\?\)"):
        TextArenaEnv("FrozenLake-v0", settings={"sise": 5})


def test_a_game_that_ends_otherwise_is_not_won():
    env = start(TextArenaEnv("FrozenLake-v0", settings={"size": 4, "num_holes": 10}))
    while not env.done:
        env.step(0)  # into the wall twice, or a hole: the game is over
    assert not env.success


def test_the_history_holds_rules_and_messages_and_the_state_the_board():
    env = start(TextArenaEnv("FrozenLake-v0"))
    before = env.observe()
    assert before.history.startswith("Welcome to Frozen Lake!") and "Current Board" in before.state
    say(env, "down")
    after = env.observe()
    assert after.history.startswith(before.history) and "> [down]\nYou moved down" in after.history
    assert after.state != before.state and "> [down]" not in after.state


def test_rules_and_messages_can_be_left_out():
    env = start(TextArenaEnv("FrozenLake-v0", rules=False, messages=False))
    say(env, "down")
    seen = env.observe()
    assert seen.history == "" and seen.state.startswith("> [down]\nYou moved down") and "Current Board" in seen.state
    say(env, "up")
    assert "moved down" not in env.render()


def test_games_leave_the_global_generators_alone_and_draw_the_same_whatever_others_draw():
    random.seed(5)
    np.random.seed(5)
    wanted = random.random(), np.random.random()
    random.seed(5)
    np.random.seed(5)
    one, two = (start(TextArenaEnv("2048-v0", **SMALL)) for _ in range(2))
    texts = []
    for env in (one, two):
        for step in range(12):
            if env is two:
                state = random.getstate()
                random.random()
                random.setstate(state)
            env.step((step // 2) % 4)
        texts.append(env.render())
    assert texts[0] == texts[1] and (random.random(), np.random.random()) == wanted


def test_seeds_are_tasks():
    env = TextArenaEnv("FrozenLake-v0-hardcore", train=20)
    texts = [start(env, number).render() for number in range(20)]
    assert any(one != other for one, other in pairwise(texts))
    assert texts[3] == start(TextArenaEnv("FrozenLake-v0-hardcore", train=20), 3).render()


def test_a_copy_goes_on_where_the_first_was():
    env = start(TextArenaEnv("Minesweeper-v0-small", **SMALL))
    env.step(4)
    other = pickle.loads(pickle.dumps(env))  # noqa: S301
    assert other.observe() == env.observe()
    assert other.step(3)[0] == env.step(3)[0]


def test_what_was_tried_is_not_listed_again():
    env = start(TextArenaEnv("GuessTheNumber-v0", **SMALL))
    number = env.legal_actions()[3]
    say(env, number)
    assert env.done or number not in env.legal_actions()


def test_candidates_are_given_as_texts_or_as_a_function_of_the_game():
    words = ["up", "down"]
    assert start(TextArenaEnv("FrozenLake-v0", candidates=words)).legal_actions() == ("up", "down")
    found = TextArenaEnv("Slitherlink-v0", candidates=lambda game: [f"h {r} 0" for r in range(game.R)])
    assert start(found).legal_actions()[:2] == ("h 0 0", "h 1 0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"game": "Wordle-v0"}, r"'Wordle-v0' lists no actions .* token by token .* arm ppo"),
        ({"game": "FrozenLake-v9"}, "unknown game 'FrozenLake-v9' .did you mean 'FrozenLake-v0"),
        ({"game": "Chess-v0", "candidates": ["e4"]}, "cannot play 'Chess-v0' alone"),
        ({"candidates": "up"}, "a list of texts"),
        ({"settings": {"width": 3}}, "game 'FrozenLake-v0' takes no 'width'"),
        ({"train": 0}, "at least 1"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(arguments, message):
    with pytest.raises(UserError, match=message) as caught:
        TextArenaEnv(**arguments)
    assert "\n" not in str(caught.value)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(UserError, match=r"pip install '\.\[textarena\]'"):
        TextArenaEnv()
