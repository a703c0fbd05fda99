"""The environment keeps its promises, and can be won and lost."""

from first_errands import ROOMS, FirstErrands
from reflectrl.envs.check import check_text_env


def test_it_keeps_its_promises():
    check_text_env(FirstErrands)


def test_a_delivered_parcel_wins():
    env = FirstErrands()
    env.reset(seed=0, options={"task": env.tasks("test")[0]})
    parcel, goal = env.parcel, env.goal
    for action in (f"go to {parcel}", "take", f"go to {goal}", "drop"):
        _, reward, terminated, _, _ = env.step(env.legal_actions().index(action))
    assert env.success and terminated and reward == 1.0


def test_a_parcel_in_the_wrong_room_does_not():
    env = FirstErrands()
    env.reset(seed=0, options={"task": env.tasks("test")[0]})
    wrong = next(room for room in ROOMS if room != env.goal)
    for action in (f"go to {env.parcel}", "take", f"go to {wrong}", "drop"):
        env.step(env.legal_actions().index(action))
    assert not env.success
