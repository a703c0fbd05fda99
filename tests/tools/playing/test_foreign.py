"""Episodes that other programs wrote: read key by key, completed by the environment, refused by file, line and step."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.core.envs import make
from reflectrl.core.episodes import from_line, to_line
from reflectrl.core.teach import replayed, tasks_of, unreplayed
from reflectrl.core.types import Observation, Task, UserError
from reflectrl.tools.playing.foreign import foreign_line

STEP = {"observation": "A room.", "actions": ["on", "off"], "action": "on", "reward": 1}
WHOLE = {"task": {"id": "one", "env": "lamp"}, "steps": [STEP], "success": True}


def without(data: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in keys}


def expert_episode(number: int = 0, **more: Any) -> dict[str, Any]:
    """What a program would write of a walk through the corridor: the id of the task, and what was done."""
    env = make({"name": "corridor"})
    task = env.tasks("train")[number]
    env.reset(options={"task": task})
    steps = []
    while not env.done:
        action = env.teacher.expert_action(env)
        steps.append({"observation": env.render(), "action": env.legal_actions()[action]})
        env.step(action)
    return {"task": task.id, "steps": steps, "success": True, **more}


class TestTold:
    def test_what_is_told_is_taken(self) -> None:
        step = {**STEP, "action": 1, "reflection": "It is dark.", "events": ["click"]}
        line = {**WHOLE, "steps": [step, {**STEP, "mistake": True}, STEP], "seed": 4}
        episode = unreplayed(foreign_line(json.dumps(line))[0])
        assert episode.task == Task("one", "lamp") and (episode.success, episode.seed) == (True, 4)
        assert [one.action for one in episode.steps] == [1, 0, 0]
        assert [one.label for one in episode.steps] == ["positive", None, "negative"]
        assert episode.steps[0].observation == Observation("", "A room.", ("on", "off"))
        assert (episode.steps[0].reflection, episode.steps[0].events) == ("It is dark.", ("click",))

    def test_keys_that_mean_nothing_here_are_named(self) -> None:
        line = {**WHOLE, "user": 3, "steps": [{**STEP, "time": 1.5}]}
        assert foreign_line(json.dumps(line))[1] == {"user", "time"}

    def test_a_line_of_our_own_is_read_as_it_is(self) -> None:
        episode = unreplayed(foreign_line(json.dumps(WHOLE))[0])
        assert unreplayed(foreign_line(to_line(episode))[0]) == episode

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            ("{", "not JSON"),
            ("[1]", "an episode must be an object"),
            ('{"task": "a"}', "'steps' is missing"),
            ('{"task": "a", "steps": []}', "'steps' is empty"),
            (without(WHOLE, "task"), "'task' must be the id of a task or an object, not nothing"),
            ({**WHOLE, "task": {"env": "lamp"}}, "task: 'id' is missing"),
            ({**WHOLE, "task": {"id": "a", "pay": {}}}, "task: unknown key 'pay'"),
            ({**WHOLE, "sucess": True}, "unknown key 'sucess' (did you mean 'success'?)"),
            ({**WHOLE, "success": 1}, "'success' must be true or false, not 1"),
            ({**WHOLE, "seed": -1}, "'seed' must not be negative"),
            ({**WHOLE, "steps": [STEP, 3]}, "step 2: a step must be an object, not 3"),
            ({**WHOLE, "steps": [without(STEP, "action")]}, "step 1: 'action' must be an index or a text, not nothing"),
            ({**WHOLE, "steps": [{**STEP, "action": True}]}, "'action' must be an index or a text"),
            ({**WHOLE, "steps": [{**STEP, "action": 2}]}, "'action' is 2, and there are actions 0 to 1"),
            ({**WHOLE, "steps": [{**STEP, "action": "fly"}]}, "'action' 'fly' is not among 'actions'"),
            ({**WHOLE, "steps": [{**STEP, "actions": ["on", "on"]}]}, "'actions' lists an action twice"),
            ({**WHOLE, "steps": [{**STEP, "actions": "on"}]}, "'actions' must be a list"),
            ({**WHOLE, "steps": [{**STEP, "reward": "1"}]}, "'reward' must be a finite number"),
            (json.dumps({**WHOLE, "steps": [{**STEP, "reward": float("inf")}]}), "Infinity is not a valid JSON number"),
            ({**WHOLE, "steps": [{**STEP, "observation": 3}]}, "'observation' must be text"),
            ({**WHOLE, "steps": [{**STEP, "observation": "\ud800"}]}, "text that UTF-8 cannot hold"),
            (
                {**WHOLE, "steps": [{**STEP, "refleciton": "x"}]},
                "unknown key 'refleciton' (did you mean 'reflection'?)",
            ),
        ],
    )
    def test_mistakes_are_named(self, line: Any, problem: str) -> None:
        with pytest.raises(ValueError) as error:
            foreign_line(line if isinstance(line, str) else json.dumps(line))
        assert problem in str(error.value)

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            ({**WHOLE, "task": "one"}, "'task' names no environment"),
            (without(WHOLE, "success"), "'success' is missing"),
            ({**WHOLE, "steps": [without(STEP, "actions")]}, "step 1: 'actions' is missing"),
            ({**WHOLE, "steps": [without(STEP, "observation")]}, "step 1: 'observation' is missing"),
        ],
    )
    def test_without_an_environment_everything_has_to_be_told(self, line: Any, problem: str) -> None:
        with pytest.raises(ValueError, match=problem):
            unreplayed(foreign_line(json.dumps(line))[0])


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["id", "env", "state"]), inner),
    max_leaves=4,
)
step = st.dictionaries(st.sampled_from([*STEP, "reflection", "events", "mistake", "x"]), values).map(lambda d: STEP | d)
lines = st.dictionaries(st.sampled_from([*WHOLE, "seed", "truncated", "y"]), values).flatmap(
    lambda d: st.lists(step, max_size=3).map(lambda steps: WHOLE | {"steps": steps} | d)
)


@settings(max_examples=300)
@given(lines | values)
def test_any_line_is_read_or_refused_in_words(line: Any) -> None:
    """What is taken can be written, and read again as it is."""
    try:
        episode = unreplayed(foreign_line(json.dumps(line))[0])
        written = to_line(episode)
    except ValueError as error:
        assert str(error) and "\n" not in str(error)
        return
    assert from_line(written) == episode


@given(st.text())
def test_any_text_is_read_or_refused(line: str) -> None:
    with pytest.raises(ValueError):
        unreplayed(foreign_line(line)[0])


class TestReplay:
    def test_the_environment_adds_what_is_not_told(self) -> None:
        env = make({"name": "corridor"})
        bare = expert_episode()
        for told in (bare, {**bare, "steps": [without(step, "observation") for step in bare["steps"]]}):
            episode = replayed(env, foreign_line(json.dumps(without(told, "success")))[0], tasks_of(env))
            assert episode.success and episode.task == env.tasks("train")[0]
            assert [step.observation.text for step in episode.steps] == [step["observation"] for step in bare["steps"]]
            assert episode.total_reward > 1.5

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            (lambda e: e["steps"][1].update(observation="elsewhere"), "step 2: the environment shows"),
            (lambda e: e["steps"][1].update(action="fly"), "step 2: action 'fly' is not legal"),
            (lambda e: e["steps"][1].update(reward=7), "step 2: the environment pays"),
            (lambda e: e["steps"][1].update(actions=["left", "fly"], action="left"), "step 2: the legal actions are"),
            (lambda e: e["steps"].pop(), "'success' is true, but the environment says the opposite"),
            (lambda e: [e["steps"].pop(), e.pop("success")], "the episode is not over"),
            (lambda e: e["steps"].append({"action": 0}), "the episode is over after step"),
            (lambda e: e.update(task="corridor-9"), "has no task 'corridor-9'"),
        ],
    )
    def test_what_goes_differently_is_refused(self, change: Any, problem: str) -> None:
        env, told = make({"name": "corridor"}), expert_episode()
        change(told)
        with pytest.raises((ValueError, UserError), match=problem):
            replayed(env, foreign_line(json.dumps(told))[0], tasks_of(env))
