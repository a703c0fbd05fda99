"""Every rule of `check_text_env` catches an environment that breaks it, and a good environment passes."""

import random
from typing import Any

import gymnasium as gym
import pytest
from corridor import CorridorEnv

from reflectrl.core.envs.base import SPLITS, Outcome, TextEnv, require_known
from reflectrl.core.envs.teacher import Teacher
from reflectrl.core.types import Task
from reflectrl.tools.workbench.check import EnvCheckError, check_text_env


class Guide(Teacher):
    def expert_action(self, env):
        return 0

    def analyse(self, env):
        return "Next right."


class Corridor(TextEnv):
    """Walk to the end of a windy corridor; going left is possible only away from the wall."""

    teacher = Guide()

    def __init__(self) -> None:
        super().__init__(horizon=40)

    def tasks(self, split, stage=None):
        require_known("corridor", "split", split, SPLITS)
        require_known("corridor", "stage", stage or "full", self.stages)
        first = 3 + 4 * SPLITS.index(split)
        return [Task(f"corridor-{n}", "corridor", {"length": n}, split) for n in range(first, first + 4)]

    def begin(self, task):
        self.length, self.place, self.log = task.payload["length"], 0, ["Go right.\n"]

    def apply(self, action):
        wind = int(self.np_random.integers(2))
        self.place = min(self.length, self.place + 1 + wind) if action == "right" else self.place - 1
        self.log = [*self.log, f"> {action}\n"]
        return Outcome(-0.1, terminated=self.place == self.length, success=self.place == self.length)

    def history(self):
        return "".join(self.log)

    def state(self):
        return f"place {self.place} of {self.length}\n"

    def legal_actions(self):
        return ("right", "left") if self.place > 0 else ("right",)

    def get_state(self):
        return (self.length, self.place, self.log)

    def set_state(self, state):
        self.length, self.place, self.log = state


def test_a_good_environment_passes_as_class_and_as_instance():
    check_text_env(Corridor)
    check_text_env(Corridor(), episodes=5, seed=3)


class GlobalLuck(Corridor):
    def apply(self, action):
        outcome = super().apply(action)
        return Outcome(random.random(), outcome.terminated, outcome.success)


class ForgetfulHistory(Corridor):
    def history(self):
        return "".join(self.log[-2:])


class NoActions(Corridor):
    def legal_actions(self):
        return () if self.place == 2 else super().legal_actions()


class SameAction(Corridor):
    def legal_actions(self):
        return ("right", "left", "left") if self.place > 0 else ("right",)


class TwoLineAction(Corridor):
    def apply(self, action):
        return super().apply(action.strip())

    def legal_actions(self):
        return ("right\n",)


class SharedState(Corridor):
    """The saved log is the one that later steps extend."""

    def apply(self, action):
        log = self.log
        outcome = super().apply(action)
        log.append(f"> {action}\n")
        self.log = log
        return outcome


class HalfSaved(Corridor):
    """The log is not saved, so another instance does not have it."""

    def get_state(self):
        return (self.length, self.place)

    def set_state(self, state):
        self.length, self.place = state


class WorldNotSaved(Corridor):
    """An instance that has played the task knows its length; a fresh one does not."""

    def get_state(self):
        return (self.place, self.log)

    def set_state(self, state):
        self.place, self.log = state
        self.length = getattr(self, "length", 99)


class LuckNotSaved(Corridor):
    def restore(self, snapshot):
        rng = self.np_random.bit_generator.state
        super().restore(snapshot)
        self.np_random.bit_generator.state = rng


class UnstableTasks(Corridor):
    def tasks(self, split, stage=None):
        tasks = list(super().tasks(split, stage))
        random.shuffle(tasks)
        self.calls = getattr(self, "calls", 0) + 1
        return tasks[self.calls % 2 :]


class OwnTasks(Corridor):
    made = 0

    def __init__(self):
        super().__init__()
        OwnTasks.made += 1
        self.number = OwnTasks.made

    def tasks(self, split, stage=None):
        return list(super().tasks(split, stage))[: 1 + self.number % 3]


class SameIds(Corridor):
    def tasks(self, split, stage=None):
        return [Task(f"corridor-{split}", t.env, t.payload, split) for t in super().tasks(split, stage)]


class LeakingIds(Corridor):
    def tasks(self, split, stage=None):
        return [Task(f"corridor-{i}", t.env, t.payload, split) for i, t in enumerate(super().tasks(split, stage))]


class LeakingPayloads(Corridor):
    def tasks(self, split, stage=None):
        super().tasks(split, stage)
        return [Task(f"corridor-{split}-{n}", "corridor", {"length": n}, split) for n in (3, 4, 5)]


class TuplePayload(Corridor):
    def tasks(self, split, stage=None):
        tasks = super().tasks(split, stage)
        return [Task(t.id, t.env, {"length": t.payload["length"], "wall": (1, 2)}, split) for t in tasks]


class WrongSplit(Corridor):
    def tasks(self, split, stage=None):
        return [Task(t.id, t.env, t.payload) for t in super().tasks(split, stage)]


class NoTasks(Corridor):
    def tasks(self, split, stage=None):
        return super().tasks(split, stage)[:0]


class AnySplit(Corridor):
    def tasks(self, split, stage=None):
        return super().tasks(split, stage) if split in SPLITS else []


class GoesOn(Corridor):
    def step(self, action):
        if self.done:
            return self.observe().text, 0.0, True, False, {}
        return super().step(action)


class Clips(Corridor):
    def step(self, action):
        return super().step(action if self.done else max(0, min(int(action), len(self.legal_actions()) - 1)))


class OtherText(Corridor):
    def reset(self, *, seed=None, options=None):
        text, info = super().reset(seed=seed, options=options)
        return text.upper(), info


class InfiniteReward(Corridor):
    def apply(self, action):
        outcome = super().apply(action)
        return Outcome(float("inf"), outcome.terminated, outcome.success)


class NoisyText(Corridor):
    def state(self):
        return f"{super().state()}{random.random()}\n"


class NeverEnds(Corridor):
    def apply(self, action):
        super().apply("right")
        self.elapsed -= 1
        return Outcome(0.0)


class Lost(Guide):
    def expert_action(self, env):
        return len(env.legal_actions()) - 1


class LostExpert(Corridor):
    teacher = Lost()

    def apply(self, action):
        outcome = super().apply(action)
        return Outcome(outcome.reward, outcome.terminated or action == "left", outcome.success)


class Illegal(Guide):
    def expert_action(self, env):
        return 2


class IllegalExpert(Corridor):
    teacher = Illegal()


class Meddling(Guide):
    def expert_action(self, env):
        env.place += 1
        return 0


class MeddlingExpert(Corridor):
    teacher = Meddling()


class Silent(Guide):
    def analyse(self, env):
        return " "


class SilentAnalyst(Corridor):
    teacher = Silent()


class Long(Guide):
    def analyse(self, env):
        return "Place known.\nNext right."


class LongAnalyst(Corridor):
    teacher = Long()


class OwnExpert(Corridor):
    def expert_action(self):
        return 0


class NoTeacher(Corridor):
    teacher = Guide


class Unpicklable(Corridor):
    def __init__(self):
        super().__init__()
        self.rule = lambda place: place


class NotATuple(Corridor):
    def reset(self, *, seed=None, options=None):
        text, info = super().reset(seed=seed, options=options)
        return text if options is None else (text, info)


BROKEN = {
    GlobalLuck: "the same seed, task and actions give the same episode: reward differs",
    ForgetfulHistory: "history only grows",
    NoActions: "legal actions are not empty",
    SameAction: "legal actions are unique",
    TwoLineAction: "legal actions hold no newline",
    SharedState: "replays identically ",
    HalfSaved: "replays identically .*a fresh instance.*has no attribute 'log'",
    WorldNotSaved: "replays identically .*a fresh instance.*differs",
    LuckNotSaved: "replays identically",
    UnstableTasks: "tasks are stable: a second call",
    OwnTasks: "tasks are stable: a second instance",
    SameIds: "task ids are unique: train/full has 'corridor-train' twice",
    LeakingIds: "splits are disjoint: id of corridor-0 is also in train",
    LeakingPayloads: "splits are disjoint: payload of corridor-validation-3 is also in train",
    TuplePayload: "payload holds JSON values only",
    WrongSplit: "knows its split",
    NoTasks: "at least one training task",
    AnySplit: "unknown split or stage raises an exception",
    GoesOn: "step after the end raises RuntimeError",
    Clips: "out of range raises ValueError",
    OtherText: r"history \+ state",
    InfiniteReward: "rewards are finite",
    NoisyText: "observing changes nothing",
    NeverEnds: "horizon ends an episode",
    LostExpert: "expert wins most tasks: 0 of 4",
    IllegalExpert: "expert's index is legal: it said 2 of 1",
    MeddlingExpert: "change nothing",
    OwnExpert: r"expert_action\(\) belongs to the environment's teacher",
    NoTeacher: "a teacher is a Teacher, not <class",
    SilentAnalyst: "analyse",
    LongAnalyst: "analyse",
    Unpicklable: "can be pickled",
    NotATuple: "check_env",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_each_rule_catches_the_environment_that_breaks_it(broken):
    with pytest.raises(EnvCheckError, match=BROKEN[broken]) as caught:
        check_text_env(broken)
    assert "\n" not in str(caught.value)


def test_something_that_is_no_text_environment_is_refused():
    with pytest.raises(EnvCheckError, match="is a TextEnv, not"):
        check_text_env(lambda: gym.make("FrozenLake-v1"))


class NoFrameRate(Corridor):
    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012


def test_a_real_warning_of_gymnasium_is_passed_on():
    with pytest.warns(UserWarning, match="No render fps"):
        check_text_env(NoFrameRate)


class AlwaysTheSame(Corridor):
    def begin(self, task):
        super().begin(Task("", "", {"length": 3}))


def test_tasks_that_cannot_be_told_apart_give_a_warning():
    with pytest.warns(UserWarning, match="begin with the same text"):
        check_text_env(AlwaysTheSame)


class Untaught(Corridor):
    teacher = TextEnv.teacher


class ExpertAlone(Teacher):
    def expert_action(self, env):
        return 0


class Demonstrated(Corridor):
    teacher = ExpertAlone()


def test_expert_and_analyst_are_optional_and_the_checker_says_which_there_are():
    assert check_text_env(Corridor) == ["expert", "analyst"]
    assert check_text_env(Demonstrated) == ["expert"]
    assert check_text_env(Untaught) == []


# ---- saving by replaying -------------------------------------------------------------------------------------------


class Replayed(Corridor):
    """Saves nothing of its own: the actions since the start are played again, and the wind blows as it did."""

    get_state, set_state = TextEnv.get_state, TextEnv.set_state


def test_saving_is_optional_since_the_actions_can_be_played_again():
    check_text_env(Replayed, episodes=5)


def test_a_replayed_point_is_the_saved_one_in_another_instance_too():
    env, other = Replayed(), Replayed()
    env.reset(seed=3)
    for _ in range(2):
        env.step(0)
    point, seen = env.save(), env.observe()
    rest = [env.step(0) for _ in range(2) if not env.done]
    for one in (env, other):
        one.restore(point)
        assert (one.observe(), one.elapsed, one.done, one.success) == (seen, 2, False, False)
        assert [one.step(0) for _ in rest] == rest


def test_an_environment_without_a_required_hook_is_refused_by_name():
    with pytest.raises(TypeError, match=r"Stateless.*state"):
        type("Stateless", (Corridor,), {"state": TextEnv.state})()


class Wordy(CorridorEnv):
    def apply(self, action: str) -> Any:
        return vars(super().apply(action))


def test_the_checker_names_the_promise() -> None:
    with pytest.raises(EnvCheckError, match=r"^apply\(\) gives an Outcome, not .* \(task 'corridor-"):
        check_text_env(Wordy())
