"""Episodes as samples: prompts as the policy read them, rewards to go, log-probabilities as they were drawn."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from reflectrl.core.config import ModelConfig
from reflectrl.core.envs import make
from reflectrl.core.episodes import EpisodeLog
from reflectrl.core.prompts import policy_prompt, words_prompt
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.teach import demonstrations, teach
from reflectrl.core.types import Choice, Episode, Observation, Reflection, Sampling, Step, Task, UserError
from reflectrl.learn.losses import rewards_to_go as reference_rewards_to_go
from reflectrl.models.load import load_model
from reflectrl.models.players import Policy
from reflectrl.models.scratch import save_scratch
from reflectrl.wings.text.samples import Reading, StepReading, group_of, read_samples
from reflectrl.wings.text.samples.steps import from_episode, rewards_to_go

LABELS = ("1", "2", "3")


def step(reward: float = 0.0, action: int = 1, **turn: Any) -> Step:
    observation = Observation("So far. ", "Here. ", ("left", "right", "stay"))
    choice = Choice("policy", observation.actions[action], **{"choice": action, **turn})
    return Step(observation, (Reflection("reflector", "Hm."), choice), action, reward)


def episode(*steps: Step) -> Episode:
    return Episode(Task("t", "env", {"map": 3}), steps, True, False, 0)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Policy, list[Episode]]:
    """What a tiny policy did in taxi, its labels shuffled, at temperature 2."""
    folder = tmp_path_factory.mktemp("policy")
    env = make({"name": "taxi"})
    task = env.tasks("train")[0]
    text = "Actions: " + "; ".join(f"{i}: a" for i in range(1, 9)) + "\nChoice: 1"
    config = ModelConfig(family="llama", layers=1, width=16, heads=2, vocab=300, context=512)
    save_scratch(folder, config, [text, env.reset(seed=0, options={"task": task})[0]], 8, seed=2)
    policy = Policy(load_model(folder, config), Sampling(2.0), shuffle_labels=True)
    jobs = [Job(task, seed) for seed in range(8)]
    return policy, list(rollout(jobs, lambda: make({"name": "taxi"}), policy))


def test_a_log_gives_what_the_policy_read_and_what_it_drew(
    played: tuple[Policy, list[Episode]], tmp_path: Path
) -> None:
    policy, episodes = played
    with EpisodeLog(tmp_path / "log.jsonl") as log:
        for one in episodes:
            log.append(one)
    labels = policy.labels(6).texts
    samples = read_samples(tmp_path / "log.jsonl", reading=Reading(steps=StepReading(labels=labels)))
    steps = [step for one in episodes for step in one.steps]
    assert len(samples) == len(steps) > 4
    for sample, step in zip(samples, steps, strict=True):
        turn = step.choice
        assert turn is not None and turn.choice is not None and turn.order
        assert policy.lm.encode(sample.prompt + policy.labels(6).gap) == list(
            policy.prompt(step.observation, None, turn.order)
        )
        assert sample.completion == f" {labels[turn.order.index(turn.choice)]}"
        assert sample.logprob == turn.logprobs[0]
        assert math.exp(sample.logprob) == pytest.approx(turn.probs[turn.choice], abs=1e-5)
        assert sample.meta["options"] == [f" {label}" for label in labels]
        assert (sample.meta["temperature"], sample.meta["top_p"]) == (2.0, 1.0)
        assert sample.group == group_of(sample.prompt)
    assert [one.meta["step"] for one in samples] == [t for one in episodes for t in range(len(one.steps))]
    assert {one.meta["episode"] for one in samples} == {f"log:{k}" for k in range(1, 9)}
    assert len({one.meta["instance"] for one in samples}) == 1
    assert len({one.id for one in samples}) == len(samples)


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_rewards_to_go_are_those_of_online_learning(gamma: float) -> None:
    one = episode(step(1.0), step(-2.0), step(5.0))
    expected = reference_rewards_to_go(torch.tensor([1.0, -2.0, 5.0], dtype=torch.float64), gamma)
    assert rewards_to_go(one, gamma) == pytest.approx(expected.tolist())
    assert [s.reward for s in from_episode(one, "x", StepReading(gamma))] == rewards_to_go(one, gamma)


def test_an_episode_without_steps_gives_nothing() -> None:
    assert list(from_episode(episode(), "x")) == []


def test_prompts_hold_the_reflection() -> None:
    one = step(order=(2, 0, 1))
    (sample,) = from_episode(episode(one), "x")
    history, rest = policy_prompt(one.observation, "Hm.", LABELS, (2, 0, 1))
    assert (sample.prompt, sample.completion) == (history + rest, " 3")


def test_actions_in_words() -> None:
    one = step(order=(2, 0, 1))
    (sample,) = from_episode(episode(one), "x", StepReading(words=True))
    history, rest = words_prompt(one.observation, "Hm.")
    assert (sample.prompt, sample.completion) == (history + rest, " right")
    assert sample.meta["options"] == [" left", " right", " stay"]


@pytest.mark.parametrize(
    ("turn", "logprob"),
    [
        ({"logprobs": (-0.5,)}, -0.5),
        ({"probs": (0.25, 0.5, 0.25)}, math.log(0.5)),
        ({"probs": (1.0, 0.0, 0.0)}, None),
        ({}, None),
        ({"choice": 0, "order": (1, 0, 2), "logprobs": (-0.5,)}, None),  # something else was done than was chosen
    ],
)
def test_the_log_probability_is_known_or_said_to_be_unknown(turn: dict[str, Any], logprob: float | None) -> None:
    (sample,) = from_episode(episode(step(**turn)), "x")
    assert sample.logprob == (pytest.approx(logprob) if logprob is not None else None)
    assert sample.completion == " 2"


def test_a_step_that_nobody_chose(tmp_path: Path) -> None:
    one = dataclasses.replace(step(), turns=())
    (sample,) = from_episode(episode(one), "x")
    history, rest = policy_prompt(one.observation, None, LABELS)
    assert (sample.prompt, sample.completion, sample.logprob) == (history + rest, " 2", None)


def test_teaching_episodes_can_be_learned_from() -> None:
    from reflectrl.core.config import TeachConfig

    env = make({"name": "taxi"})
    demonstration = demonstrations(env.tasks("train")[:1], TeachConfig(noise=(0.5,), negatives=0), 0)[0]
    one = teach(env, demonstration)
    found = list(from_episode(one, "x"))
    assert [sample.completion for sample in found] == [f" {step.action + 1}" for step in one.steps]
    assert found[0].reward == pytest.approx(one.total_reward)


def test_labels_and_gamma_are_checked() -> None:
    with pytest.raises(UserError, match="2 choice labels were given, but 3 actions"):
        list(from_episode(episode(step()), "x", StepReading(labels=("1", "2"))))
    with pytest.raises(UserError, match="gamma must be from 0 to 1"):
        StepReading(gamma=1.5)


class TestBadLogs:
    def test_lines_are_named_or_skipped(self, tmp_path: Path) -> None:
        path = tmp_path / "log.jsonl"
        with EpisodeLog(path) as log:
            log.append(episode(step()))
            log.append(episode(step(1e308), step(1e308)))
        with path.open("a", encoding="utf-8") as file:
            file.write('{"schema":1,"task":{},"steps":[]}\n{"schema":1,"ta')
        with pytest.raises(UserError, match=r"log.jsonl:2: return is not finite"):
            read_samples(path)
        found = read_samples(path, skip_bad=True)
        assert {reason: one.first for reason, one in found.skipped.items()} == {
            "return is not finite": [f"{path}:2"],
            "corrupt episode": [f"{path}:3", f"{path}:4"],
        }
        assert len(found) == 1
