"""Carried reflections: each reads the one before it, wherever an episode is played, begun, stored or learned from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import reflectrl
from reflectrl.core.config import RLConfig, from_dict
from reflectrl.core.episodes import from_line, sft_reflection, to_line, with_carried, without_reflections
from reflectrl.core.players import AnalystPlayer, ExpertPlayer, LiveEpisode
from reflectrl.core.prompts import reflector_prompt, tokenize
from reflectrl.core.rollout import Job, Start, rollout
from reflectrl.core.teach import demonstrations, teach
from reflectrl.core.teach.outcomes import outcomes
from reflectrl.core.types import Episode, Observation, Reflection, Sampling, Turn, UserError
from reflectrl.examples.lights import LightsEnv
from reflectrl.learn.curriculum import Win
from reflectrl.learn.online import train_online
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.methods.reflector_rejection import Together
from reflectrl.methods.shared.reflecting import ReflectingConfig
from reflectrl.methods.shared.reflection_rollouts import ReflectionRollouts
from reflectrl.models.players import Policy, Reflector
from reflectrl.runs.card import read_card
from reflectrl.runs.light import light_players
from reflectrl.runs.players import load_players
from reflectrl.serving.server.batching import Batcher
from reflectrl.serving.server.observations import observation_of
from reflectrl.serving.server.protocol import read_request
from reflectrl.tools.exporting.agents import export_agent
from reflectrl.tools.playing.session import Session

SETTINGS: dict[str, Any] = {
    "model": {"family": "llama", "layers": 2, "width": 64, "heads": 4, "vocab": 300},
    "play": {"scoring": "trie", "reflection_tokens": 16, "reflection": "carried"},
    "teach": {"noise": [0.0], "negatives": 0},
    "sft": {
        "optimizer": "muon",
        "steps": 160,
        "policy_steps": 40,
        "policy_from": "reflector",
        "batch_size": 32,
        "eval_every": 40,
    },
    "eval": {"splits": ["test"], "sampling": ["greedy"]},
    "arms": ["sft"],
    "threads": 1,
}


class Counter:
    """A reflector without a model that counts on from what it carries."""

    carries = True

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        return [Reflection("reflector", f"{episode.observation.carried}+") for episode in episodes]


def counted(episode: Episode) -> list[tuple[str, str | None]]:
    """Return what was carried to each step, and what was written there."""
    return [(step.observation.carried, step.reflection) for step in episode.steps]


def make_lights() -> LightsEnv:
    return LightsEnv(3)


def jobs(count: int = 3) -> list[Job]:
    return [Job(task, seed) for seed, task in enumerate(make_lights().tasks("test")[:count])]


# ---- without a model -------------------------------------------------------------------------------------------------


def test_each_reflection_reads_the_one_before_it() -> None:
    for episode in rollout(jobs(), make_lights, ExpertPlayer(), Counter(), batch=2):
        assert counted(episode) == [("+" * i, "+" * (i + 1)) for i in range(6)]


def test_a_text_is_carried_over_steps_at_which_nothing_was_written() -> None:
    [episode] = rollout(jobs(1), make_lights, ExpertPlayer(), Counter(), reflect_probability=0.5)
    carried, written = zip(*counted(episode), strict=True)
    assert None in written and any(written)
    for before, text, after in zip(carried, written, carried[1:], strict=False):
        assert after == (before if text is None else text)


def test_other_reflectors_read_the_observation_alone() -> None:
    [episode] = rollout(jobs(1), make_lights, ExpertPlayer(), AnalystPlayer())
    assert {step.observation.carried for step in episode.steps} == {""}
    assert "carried" not in to_line(episode)


def test_a_log_holds_what_was_read() -> None:
    [episode] = rollout(jobs(1), make_lights, ExpertPlayer(), Counter())
    assert from_line(to_line(episode)) == replace(episode, cut_off=None)
    [acted] = without_reflections([episode])
    assert {step.observation.carried for step in acted.steps} == {""}


def test_where_an_episode_is_cut_off_the_text_is_carried_too() -> None:
    [episode] = rollout(
        [replace(jobs(1)[0], horizon=2)], make_lights, ExpertPlayer(), Counter(), reflect_on_cut_off=True
    )
    assert episode.cut_off is not None
    assert (episode.cut_off.observation.carried, episode.cut_off.reflection) == ("++", "+++")


@pytest.mark.parametrize("distance", [1, 4, 6])
def test_an_episode_that_begins_near_a_win_goes_on_from_its_text(distance: int) -> None:
    [won] = rollout(jobs(1), make_lights, ExpertPlayer(), Counter())
    start = Win.of(won).start(distance)
    job = Job(won.task, 7, {"started_from": start.seed}, start)
    [again] = rollout([job], make_lights, ExpertPlayer(), Counter())
    assert [carried for carried, _ in counted(again)] == [carried for carried, _ in counted(won)]
    assert again.success and Win.of(again) == Win.of(won)  # so a later start may lie before this one


def test_a_win_of_an_earlier_version_carries_nothing() -> None:
    [won] = rollout(jobs(1), make_lights, ExpertPlayer(), AnalystPlayer())
    assert Win.of(won).start(2) == Start(won.seed, Win.of(won).actions[:-2])


def test_a_person_at_the_terminal_carries_on_what_they_typed_and_undo_goes_back() -> None:
    lines = iter(["1", "1", "/undo", "/reflect mine", "1", "1", "/drop"])
    session = Session(make_lights(), jobs(1)[0].task, 0, {}, Counter(), ask=lambda _: next(lines), say=lambda _: None)
    assert session.play() is None
    carried = [(step.observation.carried, step.reflection) for step in session.recording.steps]
    assert carried == [("", "+"), ("+", "mine"), ("mine", "mine+")]


def test_rows_hold_the_teachers_text_of_the_step_before() -> None:
    env = make_lights()
    plan = demonstrations(env.tasks("train")[:1], from_dict(reflectrl.core.config.TeachConfig, {}, ""), seed=0)[0]
    [episode] = with_carried([teach(env, plan)])
    rows = sft_reflection([episode])
    assert "Before:" not in rows[0].prompt.rest
    for before, row in pairwise(rows):
        assert row.prompt.rest.endswith(f"Before:{before.completion}\nReflection:")
    assert list(with_carried([episode])) == [episode]


def test_texts_that_a_carrying_reflector_read_are_kept() -> None:
    [episode] = rollout(jobs(1), make_lights, ExpertPlayer(), Counter())
    told = replace(episode.steps[0], turns=(Reflection("teacher", "otherwise"), *episode.steps[0].turns[1:]))
    corrected = replace(episode, steps=(told, *episode.steps[1:]))
    assert list(with_carried([corrected])) == [corrected]


def test_a_wrong_value_is_one_line() -> None:
    with pytest.raises(UserError, match="'play.reflection' is 'kept'; it must be one of fresh, carried"):
        from_dict(reflectrl.core.config.Recipe, {"play": {"reflection": "kept"}}, "here")


def test_the_example_refuses_a_length_that_it_does_not_have() -> None:
    with pytest.raises(UserError, match="length must be 2 to 5, not 9"):
        LightsEnv(9)


# ---- with a trained pair ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> reflectrl.Run:
    """A pair that is taught to remember three lights."""
    folder = tmp_path_factory.mktemp("carried") / "run"
    env = {"name": "reflectrl.examples.lights:LightsEnv", "length": 3}
    return reflectrl.train(env, folder, until="eval", **SETTINGS)


@pytest.fixture(scope="module")
def agent_folder(run: reflectrl.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "agent"
    export_agent(run.folder, "sft", 0, folder)
    return folder


def pair(run: reflectrl.Run) -> tuple[Policy, Reflector]:
    policy, reflector = load_players(run.folder, "sft", 0)
    assert isinstance(policy, Policy) and isinstance(reflector, Reflector)
    return policy, reflector


def moves(episode: Episode) -> list[Any]:
    return [(step.observation, step.reflection, step.action) for step in episode.steps]


def test_a_pair_that_carries_its_notes_wins_and_the_same_pair_without_them_does_not(run: reflectrl.Run) -> None:
    [row] = run.results["rows"]
    policy, reflector = pair(run)
    assert row["success"] >= 0.9 and reflector.carries
    reflector.carries = False
    forgetful = list(rollout(jobs(18), make_lights, policy, reflector))
    assert sum(episode.success for episode in forgetful) <= 6


def test_equal_states_with_other_notes_are_computed_anew(run: reflectrl.Run) -> None:
    policy, reflector = pair(run)
    episodes = list(rollout(jobs(18), make_lights, policy, reflector))
    states = {}
    for episode in episodes:
        for step in episode.steps[3:]:
            states.setdefault(step.observation.state, set()).add(step.reflection)
    assert all(len(texts) > 1 for texts in states.values())
    uncached = Reflector(reflector.lm, 16, memory=0, cache=0, speculative=False, carries=True)
    assert [moves(one) for one in rollout(jobs(18), make_lights, policy, uncached)] == [moves(one) for one in episodes]


def test_an_agent_plays_step_by_step_what_a_rollout_plays(run: reflectrl.Run, agent_folder: Path) -> None:
    [expected] = rollout(jobs(1), make_lights, *pair(run))
    assert json.loads((agent_folder / "agent.json").read_text())["play"]["reflection"] == "carried"
    for folder in (run.folder, agent_folder):
        agent, env = reflectrl.load_agent(folder, "sft"), make_lights()
        env.reset(options={"task": expected.task})
        written = []
        while not env.done:
            env.step(agent.act(env.observe()))
            written.append(agent.reflection)
        assert written == [step.reflection for step in expected.steps] and env.success == expected.success


def test_an_agent_that_decides_by_state_is_given_the_text(run: reflectrl.Run) -> None:
    [expected] = rollout(jobs(1), make_lights, *pair(run))
    agent, carried = reflectrl.load_agent(run), ""
    for step in expected.steps:
        decision = agent.decide(replace(step.observation, carried=carried))
        assert decision is not None and decision.reflection is not None
        assert (decision.reflection, decision.index) == (step.reflection, step.action)
        carried = decision.reflection


def test_an_agent_in_numpy_carries_too(run: reflectrl.Run, agent_folder: Path) -> None:
    expected = list(rollout(jobs(2), make_lights, *pair(run)))
    players = light_players(agent_folder, read_card(agent_folder))
    assert players is not None
    assert [moves(one) for one in rollout(jobs(2), make_lights, *players)] == [moves(one) for one in expected]


def test_an_agent_of_an_earlier_version_reads_the_observation_alone(agent_folder: Path, tmp_path: Path) -> None:
    card = json.loads((agent_folder / "agent.json").read_text())
    del card["play"]["reflection"]
    for path in agent_folder.iterdir():
        (tmp_path / path.name).symlink_to(path) if path.name != "agent.json" else None
    (tmp_path / "agent.json").write_text(json.dumps(card))
    _, reflector = load_players(tmp_path, "sft", 0)
    assert isinstance(reflector, Reflector) and not reflector.carries


def chat(messages: list[dict[str, Any]], **more: Any) -> Observation:
    return observation_of(read_request(json.dumps({"model": "agent", "messages": messages, **more}).encode()))


def test_a_chat_sends_the_reflection_back_with_the_answer() -> None:
    asked = {"role": "user", "content": "Press button 2 of 3.\nActions:\n- red\n- blue\n"}
    answers = [
        {"role": "assistant", "content": "red", "reasoning_content": text} for text in ("red blue", "blue", None)
    ]
    assert chat([asked]).carried == ""
    assert chat([asked, answers[0], asked, answers[1], asked]).carried == "blue"
    assert chat([asked, answers[0], asked, answers[2], asked]).carried == "red blue"
    seen = {"state": "Press.\n", "actions": ["red"], "carried": "red"}
    assert chat([asked], reflectrl=seen) == Observation("", "Press.\n", ("red",), "red")


def test_a_server_reads_what_a_client_carries_only_if_its_agent_does(run: reflectrl.Run) -> None:
    policy, reflector = pair(run)
    expected = next(rollout(jobs(1), make_lights, policy, reflector)).steps[4]

    async def written(carries: bool) -> str:
        reflector.carries = carries
        batcher = Batcher(reflectrl.api.Agent(policy, reflector), 4)
        try:
            return (await anext(batcher.ask(expected.observation).turns())).text
        finally:
            batcher.close()

    import asyncio

    assert asyncio.run(written(True)) == expected.reflection
    assert (
        asyncio.run(written(False))
        == reflector.turns(
            [LiveEpisode(LightsEnv(), jobs(1)[0].task, 0, None, replace(expected.observation, carried=""))]  # type: ignore[arg-type]
        )[0].text
    )


def test_a_sampled_reflection_is_learned_from_with_what_it_read(run: reflectrl.Run) -> None:
    policy, reflector = pair(run)
    config = RLConfig(episodes=4, curriculum="none", baseline="mean")
    rollouts = ReflectionRollouts(policy, reflector, make_lights, config, ReflectingConfig(temperature=1.0), seed=5)
    rollouts.collect(0, None)
    drawn = rollouts.reflections(None)
    steps = [step for episode in rollouts.latest.learned for step in episode.steps]
    assert len(drawn.rows) == len(steps) > 12
    for row, step in zip(drawn.rows, steps, strict=True):
        assert row.ids[: row.start] == tokenize(reflector.lm, reflector_prompt(step.observation), reserve=16)
        assert bool(step.observation.carried) == ("Before:" in reflector.lm.tokenizer.decode(list(row.ids)))


def test_actions_are_tried_with_the_notes_of_their_state(run: reflectrl.Run) -> None:
    policy, reflector = pair(run)
    won = next(episode for episode in rollout(jobs(18), make_lights, policy, reflector) if episode.success)
    tried = outcomes(won, [3], [make_lights()], Together(reflector, policy.with_sampling(Sampling(0.0))), 1, 0, seed=1)
    # Only the pair's own choice wins, and only if the notes are handed over from state to state.
    assert [trial.won for trial in tried[3]] == [int(trial.action == won.steps[3].action) for trial in tried[3]]


def test_rl_from_the_middle_of_episodes_resumes_to_the_same_weights(run: reflectrl.Run, tmp_path: Path) -> None:
    shown = list(rollout(jobs(6), make_lights, ExpertPlayer(), AnalystPlayer()))
    config = RLConfig(
        updates=4,
        episodes=6,
        eval_every=2,
        eval_episodes=4,
        curriculum="none",
        reverse=0.5,
        replay=8,
        replay_episodes=2,
    )

    def trained(state: Path | None, kill: int = 9) -> tuple[Policy, list[Episode]]:
        policy, reflector = pair(run)
        rollouts = EpisodeRollouts(policy, reflector, make_lights, config, 3, shown=list(with_carried(shown)))
        latest: list[Episode] = []

        def log(line: dict[str, Any]) -> None:
            latest[:] = rollouts.latest.played
            if line["step"] == kill:
                raise InterruptedError

        train_online(rollouts, config, 3, log, state)
        return policy, latest

    whole, played = trained(None)
    near = [episode for episode in played if "started_from" in episode.provenance]
    assert near and all(step.observation.carried for episode in near for step in episode.steps[1:])
    with pytest.raises(InterruptedError):
        trained(tmp_path / "learner", kill=1)
    resumed, _ = trained(tmp_path / "learner")
    for expected, found in zip(whole.lm.parameters(), resumed.lm.parameters(), strict=True):
        assert torch.equal(expected, found)
