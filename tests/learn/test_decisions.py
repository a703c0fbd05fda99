"""Listwise training of a policy that scores options."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from reflectrl.core.config import SFTConfig, TeachConfig
from reflectrl.core.envs.teacher import Teacher
from reflectrl.core.episodes import ChoiceRow, from_line, sft, to_line
from reflectrl.core.players.base import LiveEpisode
from reflectrl.core.teach import demonstrations, teach
from reflectrl.core.types import AuxiliaryQuestion, Episode, Observation, Task, UserError
from reflectrl.learn.decisions import decision_nll, decision_of, decisions_loss
from reflectrl.learn.examples import choice_examples, evaluate_accuracy, evaluate_loss, summed_nll
from reflectrl.learn.sft import train_sft
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import Policy
from reflectrl.models.sharing import pack

Tiny = Callable[..., LanguageModel]
QUICK = SFTConfig(steps=40, batch_size=4, lr=1e-2, warmup=0.0, eval_every=20, patience=10)


def rows() -> list[ChoiceRow]:
    """Four states with other options each; in each the option that names the state's colour is right."""
    colours, found = ("red", "blue", "green", "black"), []
    for i, colour in enumerate(colours):
        options = [f"{one} room" for one in colours[: 2 + i % 3]]
        if f"{colour} room" not in options:
            options.append(f"{colour} room")
        seen = Observation("", f"A {colour} room, number {i}.\n", tuple(options))
        found.append(ChoiceRow(seen, None, options.index(f"{colour} room")))
    return found


def probabilities(policy: Policy, row: ChoiceRow) -> list[float]:
    policy.clear_cache()
    live = LiveEpisode(None, Task("", ""), 0, np.random.default_rng(0), row.observation)  # type: ignore[arg-type]
    return list(policy.turns([live])[0].probs)


@torch.no_grad()
def test_the_loss_is_the_cross_entropy_with_the_target(tiny: Tiny) -> None:
    policy = Policy(tiny(), scoring="options")
    policy.lm.ensure_option_head().copy_(torch.linspace(-2, 2, policy.lm.hidden_size))
    given = [
        replace(row, preferences=(0.0, *(1.0 + i for i in range(len(row.observation.actions) - 1)))) for row in rows()
    ]
    given[0] = replace(given[0], preferences=())
    examples = [decision_of(policy, row) for row in given]
    nll_N, _ = decision_nll(policy.lm, examples, pack([row.ids for row in examples]))
    for row, nll in zip(given, nll_N.tolist(), strict=True):
        probs, weights = probabilities(policy, row), row.preferences or [float(i == row.target) for i in range(2)]
        expected = -sum(w / sum(weights) * math.log(p) for w, p in zip(weights, probs, strict=True) if w)
        assert nll == pytest.approx(expected, abs=1e-4)
    assert float(summed_nll(policy.lm, examples, pack)) == pytest.approx(float(nll_N.sum()), abs=1e-5)
    mean = evaluate_loss(policy.lm, examples, 3)
    assert mean == pytest.approx(float(nll_N.mean()), abs=1e-5)
    assert mean == pytest.approx(evaluate_loss(policy.lm, examples, 1), abs=1e-5)


def test_a_choice_is_learned_from_states_and_texts(tiny: Tiny) -> None:
    policy = Policy(tiny(), scoring="options")
    examples, log = choice_examples(policy, rows(), 0), list[dict[str, float]]()
    before = evaluate_loss(policy.lm, examples, 4)
    assert before == pytest.approx(np.mean([math.log(len(row.observation.actions)) for row in rows()]), abs=1e-5)
    train_sft(policy.lm, examples, examples, replace(QUICK, steps=120, keep="accuracy", text_coef=0.1), 0, log.append)
    assert evaluate_loss(policy.lm, examples, 4) < before / 4
    assert evaluate_accuracy(policy.lm, examples, 4) == 1.0 and log[-1]["eval_accuracy"] == 1.0
    for row in rows():
        assert int(np.argmax(probabilities(policy, row))) == row.target


def test_several_best_options_are_all_learned(tiny: Tiny) -> None:
    policy = Policy(tiny(), scoring="options")
    given = [
        replace(row, preferences=tuple(1.0 if i < 2 else 0.0 for i in range(len(row.observation.actions))))
        for row in rows()
    ]
    examples = choice_examples(policy, given, 0)
    train_sft(policy.lm, examples, examples, replace(QUICK, steps=80), 0, lambda _: None)
    assert evaluate_loss(policy.lm, examples, 4) == pytest.approx(math.log(2), abs=0.1)
    assert evaluate_accuracy(policy.lm, examples, 4) == 1.0
    for row in given:
        assert probabilities(policy, row)[:2] == pytest.approx([0.5, 0.5], abs=0.25)


@torch.no_grad()
def test_further_questions_add_to_the_loss_by_their_weight(tiny: Tiny) -> None:
    policy = Policy(tiny(), scoring="options")
    policy.lm.ensure_option_head().copy_(torch.linspace(-2, 2, policy.lm.hidden_size))
    questions = (AuxiliaryQuestion("Is it red?", correct=1), AuxiliaryQuestion("Which number?", ("0", "1", "2"), 1))
    row = replace(rows()[1], questions=questions)
    plain, asked = (decision_of(policy, row, coef) for coef in (0.0, 0.5))
    assert not plain.further and [len(one.target) for one in asked.further] == [2, 3]
    alone, both = (float(decisions_loss(policy.lm, [one])) for one in (plain, asked))
    nll_N, _ = decision_nll(policy.lm, asked.further, pack([one.ids for one in asked.further]))
    assert both == pytest.approx(alone + 0.5 * float(nll_N.mean()), abs=1e-5)
    assert evaluate_loss(policy.lm, [asked], 1) == pytest.approx(alone, abs=1e-5), "evaluated without them"


class Colours(Teacher):
    """A teacher that finds two actions equally good and asks for the colour."""

    def expert_action(self, env: Any) -> int:
        return 1

    def preferences(self, env: Any) -> list[float]:
        return [0.0, 1.0, *([1.0] * (len(env.legal_actions()) - 2))]

    def questions(self, env: Any) -> list[AuxiliaryQuestion]:
        colour = env.task.payload["colour"]
        return [AuxiliaryQuestion("Is the room red?", correct=0 if colour == "red" else 1)]


def test_a_teachers_preferences_and_questions_reach_the_rows(tiny: Tiny, make_rooms: Any) -> None:
    env = make_rooms()
    env.teacher = Colours()
    episodes = [teach(env, one) for one in demonstrations(env.tasks("train"), TeachConfig(negatives=0), 0)]
    again: list[Episode] = [from_line(to_line(episode)) for episode in episodes]
    assert again == episodes
    made = sft(again)
    assert {row.preferences for row in made} == {(0.0, 1.0, 1.0), (0.0, 1.0)}
    assert {step.best for episode in again for step in episode.steps} == {(1, 2), (1,)}
    policy = Policy(tiny(), scoring="options")
    examples = choice_examples(policy, made, 0, auxiliary_coef=1.0)
    assert all(len(one.further) == 1 for one in examples)
    assert examples[0].target in ((0.0, 0.5, 0.5), (0.0, 1.0))


@pytest.mark.parametrize(
    ("hook", "answer", "words"),
    [
        ("preferences", [1.0], "one number for each of 3"),
        ("preferences", [0.0, 0.0, 0.0], "at least one above 0"),
        ("preferences", [1.0, -1.0, 0.0], "at least 0"),
        ("preferences", "abc", "sequence of numbers"),
        ("questions", ["why?"], "AuxiliaryQuestion"),
        ("questions", [AuxiliaryQuestion("q", ("yes", "yes"))], "different answers"),
        ("questions", [AuxiliaryQuestion("q", correct=2)], "the index of one of its answers"),
    ],
)
def test_what_a_teacher_may_not_say(make_rooms: Any, hook: str, answer: Any, words: str) -> None:
    env = make_rooms()
    env.teacher = type("Wrong", (Colours,), {hook: lambda self, env: answer})()
    with pytest.raises(UserError, match=words):
        teach(env, demonstrations(env.tasks("train"), TeachConfig(negatives=0), 0)[0])
