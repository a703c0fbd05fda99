"""The episode log and its views: nothing is lost, nothing wrong is read, rows hold exactly what they should."""

import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reflectrl.core.config import TeachConfig
from reflectrl.core.digests import unseal
from reflectrl.core.envs import make
from reflectrl.core.episodes import (
    ChoiceRow,
    EpisodeLog,
    ReflectionRow,
    check_disjoint,
    drop_half_line,
    drop_reflections,
    from_line,
    merge,
    read_episodes,
    sft,
    sft_policy,
    sft_reflection,
    to_line,
)
from reflectrl.core.prompts import reflector_prompt
from reflectrl.core.teach import demonstrations, teach
from reflectrl.core.types import Choice, Episode, Observation, Reflection, Sampling, Step, Task, UserError

# ---- episodes of every shape -----------------------------------------------------------------------------------------

numbers = st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
records = st.dictionaries(st.text(), plain, max_size=3)
samplings = st.none() | st.builds(Sampling, st.floats(0, 10), st.floats(0, 1), st.integers(0, 9))


@st.composite
def steps(draw: st.DrawFn) -> Step:
    actions = tuple(draw(st.lists(st.text(), min_size=1, max_size=4)))
    legal = st.integers(0, len(actions) - 1)
    reflection = st.builds(Reflection, player=st.text(), text=st.text(), token_ids=st.lists(st.integers()).map(tuple))
    choice = st.builds(
        Choice,
        player=st.text(),
        text=st.text(),
        choice=legal,
        order=st.just(()) | st.permutations(range(len(actions))).map(tuple),
        probs=st.just(()) | st.tuples(*[numbers] * len(actions)),
        logprobs=st.lists(numbers, max_size=2).map(tuple),
        entropy=st.none() | numbers,
        sampling=samplings,
        support=st.just(()) | st.just(tuple(range(len(actions)))),
    )
    return Step(
        observation=Observation(draw(st.text()), draw(st.text()), actions),
        turns=tuple(draw(st.lists(reflection | choice, max_size=3))),
        action=draw(legal),
        reward=draw(numbers),
        events=tuple(draw(st.lists(st.text(), max_size=2))),
        target=draw(st.none() | legal),
        label=draw(st.sampled_from([None, "positive", "negative"])),
    )


tasks = st.builds(Task, id=st.text(), env=st.text(), payload=records, split=st.text(), stage=st.text())
episodes = st.builds(
    Episode,
    task=tasks,
    steps=st.lists(steps(), max_size=3).map(tuple),
    success=st.booleans(),
    truncated=st.booleans(),
    seed=st.integers(0, 2**63),
    provenance=records,
)


def example(seed: int = 1, reward: float = -0.05, **provenance: Any) -> Episode:
    observation = Observation("past\n", "|T:\N{TAXI}|\n", ("south", "north"))
    reflected = Reflection("reflector", "Zurück!", token_ids=(1, 2), logprobs=(-0.5, -1.0), sampling=Sampling(0.0))
    chosen = Choice("policy", "north", 1, (1, 0), (0.25, 0.75), (7,), (-0.3,), 0.5, Sampling())
    taken = Step(observation, (reflected, chosen), 1, reward, ("pickup",), 0, "positive")
    return Episode(Task("a", "corridor", {"ride": [0, 1]}), (taken,), True, False, seed, provenance)


def write(path: Path, *written: Episode) -> None:
    with EpisodeLog(path) as log:
        for episode in written:
            log.append(episode)


def test_a_line_names_what_sampling_left_out_only_if_it_left_something_out() -> None:
    episode = example()
    assert '"support"' not in to_line(episode) and '"top_k"' not in to_line(episode)
    [step] = episode.steps
    cut = replace(step.choice, sampling=Sampling(top_k=1), support=(1,))
    line = to_line(replace(episode, steps=(replace(step, turns=(cut,)),)))
    assert '"support":[1]' in line and '"top_k":1' in line and from_line(line).steps[0].choice == cut
    for wrong in ("[0]", "[1,2]"):  # without the choice; not a legal action
        with pytest.raises(ValueError, match="the support is not a part of the 2 listed"):
            from_line(unseal(line).replace('"support":[1]', f'"support":{wrong}'))


# ---- writing and reading ---------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(episodes, max_size=3))
def test_what_is_written_is_read_back_equal(tmp_path: Path, written: list[Episode]) -> None:
    path = tmp_path / "log.jsonl"
    path.unlink(missing_ok=True)
    write(path, *written)
    assert list(read_episodes(path)) == written
    assert path.read_bytes().count(b"\n") == len(written)


def test_a_log_is_continued_and_each_line_is_there_once_it_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, example(1))
    with EpisodeLog(path) as log:
        log.append(example(2))
        assert [e.seed for e in read_episodes(path)] == [1, 2]


def test_what_was_taught_is_read_back_as_it_was() -> None:
    env = make({"name": "corridor"})
    for demonstration in demonstrations(env.tasks("train")[:3], TeachConfig(), 0):
        episode = teach(env, demonstration)
        assert from_line(to_line(episode)) == episode


@pytest.mark.parametrize("cut", [1, 40, -1])
def test_a_half_written_line_is_named_and_dropped_on_reopening(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "log.jsonl"
    write(path, example(1), example(2))
    whole = path.read_bytes()
    path.write_bytes(whole + to_line(example(3)).encode()[:cut])
    with pytest.raises(UserError, match=r"log\.jsonl:3: half-written line"):
        list(read_episodes(path))
    write(path, example(4))
    assert [e.seed for e in read_episodes(path)] == [1, 2, 4]


@given(st.binary(max_size=300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_dropping_a_half_line_keeps_every_whole_one(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "data"
    path.write_bytes(data)
    drop_half_line(path)
    assert path.read_bytes() == data[: data.rfind(b"\n") + 1]


def test_lines_of_the_older_schema_are_read_their_lessons_as_labels() -> None:
    taught = example()
    taught = dataclasses.replace(taught, steps=(dataclasses.replace(taught.steps[0], label="negative"),))
    data = json.loads(unseal(to_line(taught)))
    for step in data["steps"]:
        step["lesson"] = step.pop("label")
    assert from_line(json.dumps(data | {"schema": 1})) == taught
    with pytest.raises(ValueError, match="unknown key 'lesson'"):
        from_line(json.dumps(data))


def test_a_missing_log_has_no_half_line(tmp_path: Path) -> None:
    drop_half_line(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_number_that_json_does_not_know_is_not_written() -> None:
    with pytest.raises(ValueError):
        to_line(example(reward=math.nan))


# ---- what is refused -------------------------------------------------------------------------------------------------


def refusal(path: Path, line: bytes | str) -> str:
    """What is said about a log whose second line this is."""
    data = line if isinstance(line, bytes) else line.encode()
    path.write_bytes(to_line(example()).encode() + b"\n" + data + b"\n")
    with pytest.raises(UserError) as caught:
        list(read_episodes(path))
    message = str(caught.value)
    assert message.startswith(f"{path}:2: ")
    assert "\n" not in message and len(message) < 400
    return message


def changed(*keys: str | int, value: Any) -> str:
    """The example's line with one value replaced."""
    data = json.loads(to_line(example()))
    place = data
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return json.dumps(data)


STEP = ("steps", 0)
VALID = unseal(to_line(example()))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"\xff\xfe", "utf-8"),
        ("", "Expecting value"),
        ("{", "corrupt episode"),
        ("[" * 100_000, "too deeply nested"),
        ("[]", "not an episode of schema 2"),
        ("{}", "not an episode of schema 2"),
        (changed("schema", value=3), "not an episode of schema 2"),
        ('{"schema":1}', "task"),
        (changed("task", value="a"), "task: must be an object, not 'a'"),
        (changed("task", "id", value=3), "task: id: must be text, not 3"),
        (changed("task", "sdage", value="full"), "task: unknown key 'sdage' (did you mean 'stage'?)"),
        (changed("steps", value={}), "steps: must be a list, not {}"),
        (changed("seed", value=1.5), "seed: must be a whole number, not 1.5"),
        (changed("seed", value=True), "seed: must be a whole number, not True"),
        (changed("success", value=1), "success: must be true or false, not 1"),
        (changed("success", value=None), "success: must be true or false, not None"),
        (changed("provenance", value=[]), "provenance: must be an object"),
        (changed(*STEP, "reward", value="1"), "steps: 0: reward: must be a finite number, not '1'"),
        (changed(*STEP, "reward", value=True), "reward: must be a finite number"),
        (changed(*STEP, "reward", value=math.nan), "NaN is not a valid JSON number"),
        (changed("task", "payload", value={"x": -math.inf}), "-Infinity is not a valid JSON number"),
        (VALID.replace('"reward":-0.05', '"reward":1e999'), "reward: must be a finite number, not inf"),
        (changed(*STEP, "reward", value=10**400), "reward: must be a finite number, not 1000"),
        (changed(*STEP, "action", value="1"), "steps: 0: action: must be a whole number, not '1'"),
        (changed(*STEP, "action", value=2), "steps: 0: an action is not among the 2 listed"),
        (changed(*STEP, "action", value=-1), "an action is not among the 2 listed"),
        (changed(*STEP, "target", value=2), "an action is not among the 2 listed"),
        (changed(*STEP, "label", value="good"), "label: must be one of positive, negative, not 'good'"),
        (changed(*STEP, "events", value="pickup"), "events: must be a list, not 'pickup'"),
        (changed(*STEP, "turns", value={}), "turns: must be a list"),
        (changed(*STEP, "turns", 1, "choice", value=9), "an action is not among the 2 listed"),
        (changed(*STEP, "turns", 1, "order", value=[0, 0]), "an order does not list each of the 2 actions once"),
        (changed(*STEP, "turns", 1, "probs", value=[1.0]), "not one probability for each of the 2 actions"),
        (changed(*STEP, "turns", 1, "sampling", value=1), "turns: 1: sampling: must be an object, not 1"),
        (changed(*STEP, "observation", "actions", value="go"), "observation: actions: must be a list, not 'go'"),
        (changed(*STEP, "observation", "state", value=None), "observation: state: must be text, not None"),
        (changed(*STEP, "observation", value={"history": "", "state": ""}), "observation: missing 1 required"),
    ],
)
def test_a_corrupt_line_is_named_with_what_is_wrong(tmp_path: Path, line: bytes | str, said: str) -> None:
    assert said in refusal(tmp_path / "log.jsonl", line)


def test_what_has_a_default_may_be_left_out() -> None:
    data = json.loads(to_line(example()))
    del data["provenance"], data["task"]["stage"], data["steps"][0]["target"], data["steps"][0]["turns"][0]["probs"]
    [step] = from_line(json.dumps(data)).steps
    assert (step.target, step.turns[0].probs) == (None, ())


def test_a_log_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        list(read_episodes(tmp_path / "none.jsonl"))
    with pytest.raises(UserError, match="directory"):
        list(read_episodes(tmp_path))
    with pytest.raises(UserError, match="No such file"):
        EpisodeLog(tmp_path / "none" / "log.jsonl")


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A valid line with some characters replaced, or with some value of it replaced by another."""
    if draw(st.booleans()):
        start = draw(st.integers(0, len(VALID)))
        end = draw(st.integers(start, min(len(VALID), start + 10)))
        return VALID[:start] + draw(st.text(max_size=10)) + VALID[end:]
    data = json.loads(VALID)
    place: Any = data
    while True:
        key = draw(st.sampled_from(sorted(place)) if isinstance(place, dict) else st.integers(0, len(place) - 1))
        if not isinstance(place[key], dict | list) or not place[key] or draw(st.integers(0, 3)) == 0:
            break
        place = place[key]
    if draw(st.booleans()) and isinstance(place, dict):
        del place[key]
    else:
        place[key] = draw(plain | st.just(math.inf))
    return json.dumps(data)


@settings(max_examples=400, deadline=None)
@given(mutated())
def test_a_mutated_line_is_read_as_an_episode_or_refused(line: str) -> None:
    try:
        episode = from_line(line)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert from_line(to_line(episode)) == episode
        assert all(0 <= step.action < len(step.observation.actions) for step in episode.steps)
        assert math.isfinite(episode.total_reward)


# ---- merging ---------------------------------------------------------------------------------------------------------


def test_merging_keeps_the_first_of_each_instance_seed_and_arm(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    write(first, example(1, arm="sft"), example(2, arm="sft"))
    other = dataclasses.replace(example(1, arm="sft"), task=Task("a", "corridor", {"ride": [0, 2]}))
    write(second, example(1, reward=9.0, arm="sft"), example(1, arm="random"), other, example(3, arm="sft"))
    merged = list(merge(read_episodes(first), read_episodes(second)))
    assert merged == [
        example(1, arm="sft"),
        example(2, arm="sft"),
        example(1, arm="random"),
        other,
        example(3, arm="sft"),
    ]
    assert list(merge()) == []


# ---- views -----------------------------------------------------------------------------------------------------------


def step(name: str, label: Any, reflection: str | None, target: int | None) -> Step:
    turns = () if reflection is None else (Reflection("analyst", reflection),)
    choice = Choice("expert", "b", choice=1)
    return Step(Observation("past\n", f"{name}\n", ("a", "b")), (*turns, choice), 1, 0.0, (), target, label)


STEPS = (
    step("context", None, "said", 0),
    step("good", "positive", "fine", 1),
    step("silent", "positive", None, 0),
    step("aimless", "positive", "hm", None),
    step("mistake", "negative", "sorry", 0),
)
TAUGHT = [Episode(Task("t", "e"), STEPS, True, False, 0)]


def states(rows: list[Any]) -> list[str]:
    return [(row.observation.state if isinstance(row, ChoiceRow) else row.prompt.rest).split("\n")[0] for row in rows]


def test_reflections_are_taught_on_every_labelled_step_that_has_one() -> None:
    assert states(sft_reflection(TAUGHT)) == ["good", "aimless", "mistake"]
    assert states(sft_reflection(TAUGHT, negatives=False)) == ["good", "aimless"]
    assert sft_reflection(TAUGHT)[0] == ReflectionRow(reflector_prompt(STEPS[1].observation), " fine")


def test_choices_after_a_reflection_are_taught_where_both_are_known() -> None:
    assert sft_policy(TAUGHT) == [
        ChoiceRow(STEPS[1].observation, "fine", 1),
        ChoiceRow(STEPS[4].observation, "sorry", 0),
    ]
    assert states(sft_policy(TAUGHT, negatives=False)) == ["good"]


def test_a_share_of_the_reflections_is_dropped_and_nothing_else():
    rows = sft_policy(TAUGHT) * 200
    dropped = drop_reflections(rows, 0.3, seed=1)
    assert [replace(row, reflection=None) for row in dropped] == [replace(row, reflection=None) for row in rows]
    kept = [row for row, before in zip(dropped, rows, strict=True) if row == before]
    assert 0.6 < len(kept) / len(rows) < 0.8 and all(row.reflection is None for row in dropped if row not in kept)
    assert drop_reflections(rows, 0.3, seed=1) == dropped != drop_reflections(rows, 0.3, seed=2)
    assert drop_reflections(rows, 0.0, seed=1) == rows


def test_choices_without_a_reflection_are_taught_on_every_labelled_step_with_a_target() -> None:
    assert sft(TAUGHT) == [ChoiceRow(STEPS[i].observation, None, STEPS[i].target or 0) for i in (1, 2, 4)]
    assert states(sft(TAUGHT, negatives=False)) == ["good", "silent"]


def test_rows_of_reflections_are_prompt_and_completion_as_the_reflector_reads_them() -> None:
    row = sft_reflection(TAUGHT)[0]
    assert (row.prompt.history + row.prompt.rest, row.completion) == ("past\ngood\nReflection:", " fine")
    assert row.prompt == reflector_prompt(STEPS[1].observation)


# ---- held-out tasks --------------------------------------------------------------------------------------------------


def test_a_held_out_task_in_training_is_found_by_its_payload() -> None:
    training = [Episode(Task("one", "corridor", {"ride": [1], "map": 2}), (), False, False, 0)]
    check_disjoint(
        training, [Task("one", "corridor", {"ride": [2], "map": 2}), Task("x", "lake", {"ride": [1], "map": 2})]
    )
    with pytest.raises(UserError, match="task 'one' of the held-out splits"):
        check_disjoint(training, [Task("another name", "corridor", {"map": 2, "ride": [1]}, "test")])
