"""The arms of an untrained model, beside those that learn: a whole run with a tiny instruct model."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from reflectrl.core.config import Recipe, from_dict
from reflectrl.core.episodes import read_episodes
from reflectrl.core.prompts import reflector_prompt
from reflectrl.core.prompts.chat import Chat
from reflectrl.core.types import UserError
from reflectrl.methods.prompted import shown_steps
from reflectrl.models.backend import Scoring
from reflectrl.models.load import load_model
from reflectrl.runs.folder import RunFolder
from reflectrl.runs.players import load_models, load_players, make_policy
from reflectrl.runs.runner import run_recipe
from tests.tools.pretrained.conftest import Maker

UNTRAINED = ("zero-shot", "zero-shot-no-reflection", "few-shot", "few-shot-no-reflection")
SMALL = {
    "name": "tiny",
    "env": {"name": "corridor", "train": 3, "validation": 2, "test": 3},
    "play": {"reflection_tokens": 6},
    "teach": {"noise": [0.0], "negatives": 0},
    "sft": {"steps": 2, "batch_size": 4, "eval_every": 2, "eval_rows": 4},
    "rl": {"updates": 1, "episodes": 2, "eval_episodes": 2, "eval_every": 1, "replay": 0, "curriculum": "none"},
    "eval": {"splits": ["test"]},
}


def recipe(source: Path, arms: tuple[str, ...], rank: int) -> Recipe:
    model = {"source": str(source), "context": 2048, "lora_rank": rank}
    return from_dict(Recipe, {**SMALL, "arms": list(arms), "model": model, "pretrained": {"shots": 3}}, "test")


@pytest.fixture(scope="module")
def ran(instruct: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    made = recipe(instruct, (*UNTRAINED, "sft", "reflect-rl"), rank=4)
    folder = tmp_path_factory.mktemp("run")
    run_recipe(made, folder, "report")
    return made, folder


def test_every_arm_has_its_row(ran: tuple[Recipe, Path]) -> None:
    rows = json.loads((ran[1] / "results.json").read_text())["rows"]
    assert {row["arm"] for row in rows} == set(ran[0].arms)


def test_zero_shot_is_told_the_rules_and_few_shot_sees_steps_as_well(ran: tuple[Recipe, Path]) -> None:
    made, folder = ran
    run = RunFolder(folder)
    taught = [step for episode in read_episodes(run.teach(0, "train")) for step in episode.steps]
    for name in UNTRAINED:
        policy, reflector = load_models(made, folder, 0, name)
        assert (reflector is None) == name.endswith("no-reflection")
        for lm in filter(None, (policy, reflector)):
            assert lm.chat is not None
            shown = [step for step in taught if step.observation.state in lm.chat.before]
            assert ("Examples:" in lm.chat.before) == bool(shown) == name.startswith("few")
        if name == "few-shot":
            assert policy.chat.before.count("\nChoice: ") == reflector.chat.before.count("\nReflection: ") == 3
            assert "Answer with the label" in policy.chat.before and "Answer with" not in reflector.chat.before


@pytest.mark.parametrize("scoring", ["enumeration", "sum"])
def test_what_few_shot_shows_is_what_players_will_read(
    instruct: Path, tmp_path: Path, scoring: Scoring, ran: tuple[Recipe, Path]
) -> None:
    made, run = replace(ran[0], play=replace(ran[0].play, scoring=scoring)), RunFolder(ran[1])
    lms = load_models(made, run.path, 0, "few-shot")
    policy = make_policy(made, lms[0])
    taught = [step for episode in read_episodes(run.teach(0, "train")) for step in episode.steps if step.reflection]
    read = set[str](), set[str]()
    for step in taught:
        target, decode = step.target or 0, policy.lm.tokenizer.decode
        asked = decode(policy.prompt(step.observation, step.reflection))
        taken = decode(policy.answer(step.observation.actions, target, target), skip_special_tokens=True)
        read[0].add(f"{between(asked, policy.lm.chat)} {taken.strip()}")
        read[1].add("".join(reflector_prompt(step.observation)) + f" {step.reflection}")
    for lm, texts in zip(lms, read, strict=True):
        examples = lm.chat.before.partition("Examples:\n\n")[2].partition("<|im_end|>")[0].strip().split("\n\n")
        assert set(examples) <= {text.strip() for text in texts} and len(examples) == 3


def between(text: str, chat: Chat) -> str:
    """What stands between the texts that a chat puts around it."""
    assert text.startswith(chat.before) and chat.after in text[len(chat.before) :]
    return text.removeprefix(chat.before).rpartition(chat.after)[0]


def test_another_seed_shows_other_steps(ran: tuple[Recipe, Path]) -> None:
    made, run = ran
    lm = load_model(made.model.source, made.model)
    shown = {shown_steps(made, RunFolder(run).teach(0, "train"), "reflector", lm, seed) for seed in range(4)}
    assert len(shown) > 1


def test_trained_players_are_told_the_same_when_they_play(ran: tuple[Recipe, Path]) -> None:
    policy, reflector = load_players(ran[1], "reflect-rl", 0)
    assert "Answer with the label" in policy.lm.chat.before
    assert "Say in one or two short sentences" in reflector.lm.chat.before
    assert "Examples" not in policy.lm.chat.before


def test_a_model_without_a_template_plays_zero_shot_and_is_shown_nothing(chat_model: Maker, tmp_path: Path) -> None:
    bare = recipe(chat_model(None), ("zero-shot",), rank=0)
    run_recipe(bare, tmp_path / "zero", "eval")
    assert len(list(read_episodes(next((tmp_path / "zero" / "episodes").glob("eval-zero-shot-*"))))) == 3
    with pytest.raises(UserError, match="has no chat template in which to show demonstrations"):
        run_recipe(replace(bare, arms=("few-shot",)), tmp_path / "few", "eval")
