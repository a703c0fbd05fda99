"""Whatever becomes of the environment: it keeps its promises, has tasks to play, and its rewards tell plays apart."""

from second_errands import SecondErrands
from reflectrl.envs.base import SPLITS
from reflectrl.workbench.check import check_text_env


def test_it_keeps_its_promises():
    check_text_env(SecondErrands)


def test_there_are_tasks_to_learn_from_and_to_be_tested_on():
    assert all(SecondErrands().tasks(split) for split in SPLITS)


def test_random_play_does_not_always_earn_the_same():
    env, returns = SecondErrands(), set()
    for seed, task in enumerate(env.tasks("train")[:50]):
        env.reset(seed=seed, options={"task": task})
        total = 0.0
        while not env.done:
            total += env.step(env.np_random.integers(len(env.legal_actions())))[1]
        returns.add(total)
    assert len(returns) > 1


# Beside these, test what is particular to your world: which actions win a task, and which do not.
