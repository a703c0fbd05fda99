"""Whatever becomes of the environment: it keeps its promises, has tasks to play, and its rewards tell plays apart."""

from third_errands import ThirdErrands
from reflectrl.core.envs.base import SPLITS
from reflectrl.tools.workbench.check import check_text_env


def test_it_keeps_its_promises():
    check_text_env(ThirdErrands)


def test_there_are_tasks_to_learn_from_and_to_be_tested_on():
    assert all(ThirdErrands().tasks(split) for split in SPLITS)


def test_random_play_does_not_always_earn_the_same():
    env, returns = ThirdErrands(), set()
    tasks = env.tasks("train")
    for seed in range(1000):
        env.reset(seed=seed, options={"task": tasks[seed % len(tasks)]})
        total = 0.0
        while not env.done:
            total += env.step(env.np_random.integers(len(env.legal_actions())))[1]
        returns.add(total)
        if len(returns) > 1:
            return
    raise AssertionError("reward says nothing about how well random play went: pay for steps on the way")


# Beside these, test what is particular to your world: which actions win a task, and which do not.
