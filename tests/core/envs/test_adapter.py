"""Any discrete gymnasium environment as text; the examples."""

from pathlib import Path

import gymnasium as gym
import pytest

from reflectrl.core.envs.adapter import GymTextEnv, plain
from reflectrl.core.types import UserError

ROOT = Path(__file__).parents[3]
TAXI = ("south", "north", "east", "west", "pickup", "dropoff")
LAKE = ("left", "down", "right", "up")


def test_it_plays_what_gymnasium_plays():
    env = GymTextEnv("FrozenLake-v1", LAKE)
    raw = gym.make("FrozenLake-v1", render_mode="ansi")
    for task in env.tasks("test")[:20]:
        env.reset(options={"task": task})
        raw.reset(seed=task.payload["seed"])
        while not env.done:
            index = int(env.np_random.integers(4))
            _, reward, terminated, _, info = env.step(index)
            _, their_reward, their_end, _, _ = raw.step(index)
            assert (reward, terminated, env.success) == (their_reward, their_end, their_reward > 0)
            assert env.state() == f"{plain(raw.render()).rstrip()}\nLast: {LAKE[index]}\n"
            assert info["events"] == (["won"] if their_reward > 0 else [])


def test_highlights_become_brackets():
    assert plain("\x1b[41mS\x1b[0mFF\n\x1b[1;32mG\x1b[0m") == "[S]FF\n[G]"


def test_the_action_mask_decides_what_is_legal():
    env = GymTextEnv("Taxi-v4", TAXI)
    for task in env.tasks("train")[:30]:
        _, info = env.reset(options={"task": task})
        raw = env.wrapped
        assert info["actions"] == [name for name, legal in zip(TAXI, raw.action_mask(raw.s), strict=True) if legal]


def test_rewards_are_scaled_and_past_texts_kept():
    env = GymTextEnv("Taxi-v4", TAXI, scale=20, rules="Drive.\n", history=True)
    env.reset(options={"task": env.tasks("train")[0]})
    first = env.state().split("Last")[0].rstrip()
    action = env.legal_actions()[0]
    assert env.step(0)[1] == -1 / 20
    assert env.observe().history == f"Drive.\n{first}\n> {action}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Nowhere-v0", ("a",)), "gymnasium cannot make 'Nowhere-v0'"),
        (("Blackjack-v1", ("stick", "hit")), "Blackjack-v1: has no text rendering"),
        (("Taxi-v4", ("a", "b")), "Taxi-v4: has 6 actions, and needs as many different names"),
        (("FrozenLake-v1", ("a", "b", "a", "c")), "needs as many different names"),
    ],
)
def test_what_cannot_be_adapted_is_named_in_one_line(arguments, message):
    with pytest.raises(UserError, match=message) as caught:
        GymTextEnv(*arguments)
    assert "\n" not in str(caught.value)
