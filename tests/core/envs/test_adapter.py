"""Any discrete gymnasium environment as text; the examples."""

import io
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[1;31mX\x1b[m..", "[X].."),
        ("\x1b[1m\x1b[31mX\x1b[39m\x1b[22my", "[X]y"),
        ("\x1b[31mA\x1b[32mB\x1b[0m", "[A][B]"),
        ("\x1b[38;5;0mA\x1b[0;39mB", "[A]B"),
        ("\x1b[31mend", "[end]"),
        ("\x1b[2J\x1b[Hclear\x1b]0;title\x07\x1b[31m", "clear"),
    ],
)
def test_every_end_of_a_highlight_closes_its_bracket(text, expected):
    assert plain(text) == expected


class Drawn(gym.Env):
    """Says that it can be drawn as text, and gives whatever `rendered` is. Notes what is made and closed."""

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 -- as gymnasium has it
    action_space, observation_space = gym.spaces.Discrete(2), gym.spaces.Discrete(6)
    alive = 0

    def __init__(self, rendered=None, render_mode=None, actions=2):
        self.rendered, self.render_mode = rendered, render_mode
        self.action_space = gym.spaces.Discrete(actions)
        Drawn.alive += 1

    def close(self):
        Drawn.alive -= 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 0, 0.0, False, False, {}

    def render(self):
        return self.rendered


@pytest.fixture
def drawn():
    """Make an adapted `Drawn`; afterwards, none of those that were made is left open."""
    gym.register("Drawn-v0", entry_point=Drawn)
    gym.register("Function-v0", entry_point=lambda **settings: Drawn(**settings))
    Drawn.alive = 0
    made = []

    def make(rendered, id="Drawn-v0", **settings):
        made.append(GymTextEnv(id, ("left", "right"), settings={"rendered": rendered, **settings}))
        return made[-1]

    yield make
    for env in made:
        env.close()
    del gym.registry["Drawn-v0"], gym.registry["Function-v0"]
    assert Drawn.alive == 0


@pytest.mark.parametrize("rendered", [None, ["a"], b"a", 3, ("a", "b")])
def test_a_rendering_that_is_no_text_is_refused(drawn, rendered):
    env = drawn(rendered)
    with pytest.raises(UserError, match="'ansi' rendering is .*, and not text; make a subclass") as caught:
        env.reset(seed=0)
    assert "\n" not in str(caught.value)


def test_a_stream_of_text_is_read(drawn):
    assert drawn(io.StringIO("abc")).reset(seed=0)[0].startswith("abc")


def test_an_environment_is_made_once_and_closed_when_it_is_refused(drawn):
    drawn("a")
    assert Drawn.alive == 1
    drawn("a", "Function-v0")
    assert Drawn.alive == 2, "that it can be drawn shows only after it was made; the first one is closed"
    with pytest.raises(UserError, match="has 3 actions"):
        drawn("a", actions=3)
    assert Drawn.alive == 2


def test_a_copy_is_closed_where_it_cannot_go_on(drawn):
    env = drawn("a")
    env.reset(seed=0)
    state = env.__getstate__() | {"_actions": ["no such action"]}
    copy = GymTextEnv.__new__(GymTextEnv)
    with pytest.raises(ValueError):
        copy.__setstate__(state)
    assert Drawn.alive == 1


def test_a_description_that_is_no_text_is_refused(drawn):
    class Silent(GymTextEnv):
        def describe(self, observation, info):
            return None

    env = Silent("Drawn-v0", ("left", "right"))
    with pytest.raises(UserError, match=r"describe\(\) gives text, not None"):
        env.reset(seed=0)
    env.close()


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
