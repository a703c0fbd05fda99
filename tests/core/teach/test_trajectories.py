"""Teaching episodes: whose words and targets they hold, what noise does, and what a negative is."""

from collections.abc import Sequence
from typing import Any

import pytest

from reflectrl.core.config import TeachConfig
from reflectrl.core.envs import make
from reflectrl.core.envs.base import Outcome, TextEnv
from reflectrl.core.envs.teacher import Teacher
from reflectrl.core.episodes import sft, sft_policy, sft_reflection, to_line
from reflectrl.core.teach import Demonstration, demonstrations, teach
from reflectrl.core.types import Episode, Step, Task, UserError, named_seed

SMALL = {
    "corridor": {"name": "corridor", "train": 12, "validation": 3, "test": 3},
    "hidden": {"name": "corridor", "length": 9, "train": 12, "impossible": "hidden"},
    "slippery": {"name": "corridor", "train": 12, "slippery": True, "horizon": 40},
}
CONFIG = TeachConfig(noise=(0.0, 0.5), negatives=2)


def taught(env: TextEnv, config: TeachConfig = CONFIG, seed: int = 0) -> list[Episode]:
    tasks = env.tasks("train")[:12]
    return [teach(env, demonstration, config.unsafe_noise) for demonstration in demonstrations(tasks, config, seed)]


@pytest.fixture(params=SMALL)
def env(request: Any) -> TextEnv:
    return make(SMALL[request.param])


def replayed(env: TextEnv, episode: Episode) -> list[tuple[int, str]]:
    """The expert's action and the analyst's words at each step, from playing the episode's actions again."""
    env.reset(seed=named_seed(episode.seed, "env") % 2**32, options={"task": episode.task})
    said = []
    for step in episode.steps:
        assert env.observe() == step.observation
        said.append((env.teacher.expert_action(env), env.teacher.analyse(env)))
        _, reward, _, _, info = env.step(step.action)
        assert (reward, tuple(info["events"])) == (step.reward, step.events)
    return said


def test_demonstrations_of_every_task_each_with_its_own_seed(env: TextEnv) -> None:
    tasks = env.tasks("train")[:3]
    planned = demonstrations(tasks, TeachConfig(noise=(0.0, 0.3, 1.0), negatives=2), seed=7)
    assert [demonstration.task for demonstration in planned] == [task for task in tasks for _ in range(5)]
    assert [(one.kind, one.noise) for one in planned[:5]] == [
        ("trajectory", 0.0), ("trajectory", 0.3), ("trajectory", 1.0), ("negative", 0.0), ("negative", 0.0),
    ]  # fmt: skip
    assert len({demonstration.seed for demonstration in planned}) == len(planned)
    assert {demonstration.seed for demonstration in planned}.isdisjoint(
        demonstration.seed for demonstration in demonstrations(tasks, TeachConfig(noise=(0.0, 0.3, 1.0)), seed=8)
    )


def test_the_seed_decides_everything(env: TextEnv) -> None:
    first, again, other = ([to_line(e) for e in taught(env, seed=seed)] for seed in (0, 0, 1))
    assert first == again != other


def test_a_demonstration_depends_on_no_other(env: TextEnv) -> None:
    planned = demonstrations(env.tasks("train")[:4], CONFIG, 0)
    in_order = {demonstration.seed: to_line(teach(env, demonstration)) for demonstration in planned}
    for demonstration in reversed(planned):
        assert to_line(teach(env, demonstration)) == in_order[demonstration.seed]


def test_targets_are_the_experts_and_reflections_the_analysts(env: TextEnv) -> None:
    for episode in taught(env):
        for step, (action, words) in zip(episode.steps, replayed(env, episode), strict=True):
            assert (step.target, step.reflection) == (action, words)
            assert step.choice is not None and step.choice.choice == step.action
            assert step.choice.player == ("expert" if step.action == step.target else "noise")


def test_without_noise_the_expert_wins() -> None:
    env = make(SMALL["corridor"])
    for episode in taught(env, TeachConfig(noise=(0.0,), negatives=0)):
        assert episode.success and not episode.truncated
        assert all(step.action == step.target and step.label == "positive" for step in episode.steps)


def test_noise_has_its_share_of_actions_and_survives() -> None:
    env = make({"name": "corridor", "length": 9, "train": 120})
    tasks = env.tasks("train")
    episodes = [teach(env, one) for one in demonstrations(tasks, TeachConfig(noise=(0.4,), negatives=0), 0)]
    steps = [step for episode in episodes for step in episode.steps]
    # A random action is the expert's by chance, once in the number of survivable actions (1 to 3 of them here).
    share = sum(step.action != step.target for step in steps) / len(steps)
    assert 0.4 * 1 / 3 < share < 0.4 * 2 / 3
    assert not any("illegal" in episode.events for episode in episodes)
    assert all(episode.success or (episode.truncated and len(episode.steps) == env.horizon) for episode in episodes)


def test_unsafe_noise_may_crash_and_a_crash_is_no_truncation() -> None:
    env = make(SMALL["corridor"])
    episodes = taught(env, TeachConfig(noise=(1.0,), negatives=0, unsafe_noise=True))
    crashed = [episode for episode in episodes if "illegal" in episode.events]
    assert crashed and not any(episode.truncated or episode.success for episode in crashed)


@pytest.fixture
def negatives(env: TextEnv) -> list[Episode]:
    config = TeachConfig(noise=(), negatives=2)
    return taught(env, config)


def test_a_negative_teaches_the_one_step_after_the_error(negatives: list[Episode]) -> None:
    for episode in negatives:
        *path, error, correction = episode.steps
        assert [step.label for step in episode.steps] == [None] * (len(path) + 1) + ["negative"]
        assert all(step.action == step.target for step in path) and error.action != error.target
        assert correction.action == correction.target


@pytest.mark.parametrize("env", ["corridor", "hidden"], indirect=True)
def test_every_action_of_the_experts_path_may_be_perturbed(env: TextEnv) -> None:
    """A random environment may take a shorter path, which then has fewer errors."""
    config, tasks = TeachConfig(noise=(0.0,), negatives="all"), env.tasks("train")[:3]
    planned = demonstrations(tasks, config, 0, env)
    for task in tasks:
        places = [one.place for one in planned if one.task == task and one.kind == "negative"]
        assert places == list(range(len(places))) and places
    plans = [one for one in planned if one.kind == "negative"]
    made = [teach(env, one) for one in plans]
    taught = [(plan.place, len(episode.steps)) for plan, episode in zip(plans, made, strict=True)
              if [step.label for step in episode.steps if step.label] == ["negative"]]  # fmt: skip
    assert taught and all(steps == place + 2 for place, steps in taught)  # the error, and the step that explains it
    assert len({episode.seed for episode in made}) == len(made)


@pytest.mark.parametrize("env", ["corridor", "hidden"], indirect=True)
def test_the_error_costs_the_expert_steps(env: TextEnv, negatives: list[Episode]) -> None:
    for episode in negatives:
        before, after = (left(env, episode, count) for count in (len(episode.steps) - 2, len(episode.steps) - 1))
        assert after >= before


def left(env: TextEnv, episode: Episode, count: int) -> int:
    """Steps that the expert needs after the episode's first `count` actions."""
    env.reset(seed=0, options={"task": episode.task})
    for step in episode.steps[:count]:
        env.step(step.action)
    steps = 0
    while not env.done:
        env.step(env.teacher.expert_action(env))
        steps += 1
    assert env.success
    return steps


def test_views_leave_the_error_out(negatives: list[Episode]) -> None:
    for view in (sft_reflection, sft_policy, sft):
        assert len(view(negatives)) == len(negatives) and view(negatives, negatives=False) == []  # type: ignore[operator]
    assert [row.target for row in sft(negatives)] == [episode.steps[-1].target for episode in negatives]


class Guide(Teacher):
    def expert_action(self, env: Any) -> int:
        if env.fault == "expert":
            return super().expert_action(env)
        return len(env.legal_actions()) - 1

    def analyse(self, env: Any) -> str:
        return super().analyse(env) if env.fault == "analyst" else f"At {env.cell}, go right."


class Line(TextEnv):
    """Walk right along a line of cells; `teach` can fail here in every way."""

    teacher = Guide()

    def __init__(self, fault: str = "", length: int = 3, only: bool = False) -> None:
        super().__init__(horizon=6)
        self.fault, self.length, self.only = fault, length, only

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        return [Task(f"line-{split}", "line", {"split": split}, split)]

    def begin(self, task: Task) -> None:
        self.cell = 0

    def apply(self, action: str) -> Outcome:
        if self.fault == "step":
            raise RuntimeError("broken\nbelt")
        self.cell += 1 if action == "right" else -1
        won = self.cell == self.length
        return Outcome(0.0, terminated=won or self.cell < 0, success=won)

    def history(self) -> str:
        return ""

    def state(self) -> str:
        return f"Cell {self.cell}.\n"

    def legal_actions(self) -> Sequence[str]:
        return ["right"] if self.only else ["left", "right"]

    def get_state(self) -> Any:
        return self.cell

    def set_state(self, state: Any) -> None:
        self.cell = state


def negative(env: TextEnv, seed: int) -> tuple[Step, ...]:
    return teach(env, Demonstration(env.tasks("train")[0], seed, "negative")).steps


def test_where_the_drawn_step_allows_no_error_another_one_is_perturbed() -> None:
    """On the first cell every error falls off the line, and so it is never there."""
    for seed in range(20):
        *_, error, correction = negative(Line(), seed)
        assert error.observation.state != "Cell 0.\n" and error.action == 0 and correction.label == "negative"


def test_a_path_without_any_possible_error_teaches_nothing() -> None:
    assert all(step.label is None for step in negative(Line(only=True), 0))


@pytest.mark.parametrize("kind", ["trajectory", "negative"])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("expert", "cannot teach in this environment: Line has no expert"),
        ("analyst", "cannot teach in this environment: Line has no analyst"),
        ("step", "environment Line raised on task 'line-train': RuntimeError: broken belt"),
    ],
)
def test_what_the_environment_cannot_do_is_said(fault: str, message: str, kind: Any) -> None:
    env = Line(fault)
    with pytest.raises(UserError) as caught:
        teach(env, Demonstration(env.tasks("train")[0], 0, kind))
    assert str(caught.value) == message
