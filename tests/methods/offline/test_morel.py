"""MOReL: texts of effects, the world of a table, and the arm from log to policy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectrl import runs as pipeline
from reflectrl.core.episodes import read_episodes
from reflectrl.core.players import RandomPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Episode, Observation, Step, Task, UserError
from reflectrl.methods.morel import explore
from reflectrl.methods.shared.offline.effects import Effect, Scene, Table, effect_text, read_effect, transitions
from reflectrl.methods.shared.offline.world import UNKNOWN, World
from tests.runs.alone import of_methods, require_made_alone

Like = Callable[..., Any]
LINE = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=9)
SCENES = st.builds(Scene, st.lists(LINE, max_size=3).map("\n".join), st.lists(LINE, min_size=1, max_size=3).map(tuple))
REWARDS = st.integers(-2000, 2000).map(lambda number: number / 1000)
EFFECTS = st.builds(Effect, REWARDS, st.just("on"), SCENES) | st.builds(
    Effect, REWARDS, st.sampled_from(["won", "lost"]), st.none()
)
LEFT, MIDDLE = Scene("left", ("stay", "go")), Scene("middle\n", ("go",))


@given(EFFECTS)
def test_an_effect_reads_back(effect: Effect) -> None:
    assert read_effect(effect_text(effect)) == effect


@given(st.text(max_size=40))
def test_any_text_is_an_effect_or_none(text: str) -> None:
    effect = read_effect(text)
    assert effect is None or (effect.scene is None) == (effect.end != "on")


def test_texts_that_are_no_effects() -> None:
    for text in (
        "",
        "won",
        "+1 won\nmore",
        "+1 on",
        "+1 on\nstate",
        "one on\ns\nActions:\ngo",
        "+1 off\ns\nActions:\ngo",
    ):
        assert read_effect(text) is None


def corridor(scene: Scene, action: str) -> Effect:
    """Two places in a row; going on from the second wins."""
    if action == "stay":
        return Effect(-0.1, "on", scene)
    return Effect(0.0, "on", MIDDLE) if scene == LEFT else Effect(1.0, "won", None)


def told(*, wrong: Callable[[Scene, str], bool] = lambda scene, action: False) -> Callable[..., Any]:
    """A model that knows the corridor, except where it is wrong."""

    def predict(questions: Any) -> list[Effect | None]:
        return [None if wrong(*asked) else corridor(*asked) for asked in questions]

    return predict


def written(table: Table, path: Path) -> Path:
    path.write_text("".join(f"{line}\n" for line in table.lines()))
    return path


def play(world: World, *actions: str) -> list[tuple[float, bool, bool, dict[str, Any]]]:
    world.reset(options={"task": world.tasks("train")[0]}, seed=0)
    outcomes = []
    for action in actions:
        _, reward, terminated, _, info = world.step(list(world.legal_actions()).index(action))
        outcomes.append((float(reward), terminated, world.success, info))
    return outcomes


def test_models_that_agree_make_the_world_that_they_know(tmp_path: Path) -> None:
    seen: list[int] = []
    table = explore([LEFT], [told(), told()], 10, seen.append)
    assert list(table.effects) == [LEFT, MIDDLE] and seen == [1, 2]
    table.starts["train"] = [LEFT]
    world = World(written(table, tmp_path / "world.jsonl"), horizon=5, cost=-3.0)
    assert world.table.effects == table.effects
    outcomes = play(world, "stay", "go", "go")
    assert [outcome[:3] for outcome in outcomes] == [(-0.1, False, False), (0.0, False, False), (1.0, True, True)]
    assert not play(world, "stay", "stay")[-1][1]


def test_what_models_predict_differently_ends_the_episode_at_a_cost(tmp_path: Path) -> None:
    table = explore([LEFT], [told(), told(wrong=lambda scene, action: scene == MIDDLE)], 10, lambda scenes: None)
    assert table.effects == {LEFT: [corridor(LEFT, "stay"), corridor(LEFT, "go")], MIDDLE: [None]}
    table.starts["train"] = [LEFT]
    world = World(written(table, tmp_path / "world.jsonl"), horizon=5, cost=-3.0)
    reward, terminated, success, info = play(world, "go", "go")[-1]
    assert (reward, terminated, success) == (-3.0, True, False) and UNKNOWN in info["events"]


def test_states_beyond_the_limit_are_unknown(tmp_path: Path) -> None:
    table = explore([LEFT], [told()], 1, lambda scenes: None)
    table.starts["train"] = [LEFT]
    world = World(written(table, tmp_path / "world.jsonl"), horizon=5, cost=-3.0)
    assert [outcome[:2] for outcome in play(world, "go", "go")] == [(0.0, False), (-3.0, True)]


def test_a_cut_off_episode_says_nothing_of_its_last_action() -> None:
    steps = tuple(
        Step(Observation("", scene.state, scene.actions), (), len(scene.actions) - 1, 0.5) for scene in (LEFT, MIDDLE)
    )
    won = Episode(Task("t", "corridor"), steps, success=True, truncated=False, seed=0)
    assert [tuple(each) for each in transitions([won])] == [
        (LEFT, "go", Effect(0.5, "on", MIDDLE)),
        (MIDDLE, "go", Effect(0.5, "won", None)),
    ]
    cut = Episode(Task("t", "corridor"), steps, success=False, truncated=True, seed=0)
    assert [each.scene for each in transitions([cut])] == [LEFT]
    told_before = Episode(Task("t", "c"), (Step(Observation("before", "s", ("go",)), (), 0, 0.0),), False, False, 0)
    with pytest.raises(UserError, match="'t' has observations with a history"):
        list(transitions([told_before]))


SMALL = (
    "arms=offline-morel", "eval.sampling=greedy", "eval.splits=test", "offline.reference_steps=3",
    "offline.eval_every=2", "offline.batch_size=4", "offline.log_episodes=2", "offline.eval_episodes=2", "env.train=4",
    "env.test=2", "morel.models=2", "morel.steps=60", "sft.eval_every=20", "sft.optimizer=muon", "rl.updates=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory, like: Like) -> Path:
    folder = tmp_path_factory.mktemp("morel") / "run"
    pipeline.run(like(*SMALL), folder)
    return folder


def test_the_world_holds_the_log_and_the_policy_learns_in_it(learned: Path) -> None:
    table = Table.read(learned / "episodes/world-seed0.jsonl")
    log = list(read_episodes(learned / "episodes/offline-seed0.jsonl"))
    assert {step.scene for step in transitions(log)} <= set(table.effects)
    firsts = {Scene(episode.steps[0].observation.state, episode.steps[0].observation.actions) for episode in log}
    assert {*table.starts["train"], *table.starts["validation"]} == firsts
    lines = [json.loads(line) for line in (learned / "metrics.jsonl").read_text().splitlines()]
    assert {line["artifact"] for line in lines if line["kind"] == "dynamics"} == {"dynamics-1", "dynamics-2"}
    assert [line["step"] for line in lines if line["arm"] == "offline-morel" and "eval_success" in line] == [0, 1, 2]
    world = World(learned / "episodes/world-seed0.jsonl", horizon=6, cost=-1.0)
    [episode] = rollout([Job(world.tasks("train")[0], 0)], lambda: world, RandomPlayer())
    assert episode.steps


def test_each_artifact_is_made_from_its_inputs_alone(learned: Path, like: Like, tmp_path: Path) -> None:
    recipe = like(*SMALL)
    artifacts = of_methods(recipe)
    assert {key.split()[0] for key in artifacts} >= {"dynamics", "world", "morel"}
    require_made_alone(recipe, learned, artifacts, tmp_path)


def test_a_log_that_is_too_short_is_refused(like: Like, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a log of 3 episodes is too short; 10 are needed"):
        pipeline.run(like(*SMALL, "env.train=1", "offline.log_episodes=1"), tmp_path / "run")
