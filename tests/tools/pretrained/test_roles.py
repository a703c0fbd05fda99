"""Models of their own for each role, players of another run as a start, and two players on one backbone."""

from pathlib import Path

import pytest
import torch

from reflectrl.cli import main
from reflectrl.core.config import Recipe, from_dict, read_recipe
from reflectrl.core.types import UserError
from reflectrl.models.lm import LanguageModel
from reflectrl.runs.players import load_models
from reflectrl.runs.runner import run_recipe
from reflectrl.tools.pretrained.loading import players_in
from tests.tools.pretrained.conftest import Maker
from tests.tools.pretrained.test_arms import SMALL


def recipe(rank: int = 0, arms: tuple[str, ...] = ("reflect-rl",), **model: str) -> Recipe:
    return from_dict(
        Recipe, {**SMALL, "arms": list(arms), "model": {"context": 2048, "lora_rank": rank, **model}}, "test"
    )


def pair(made: Recipe, folder: Path, name: str) -> tuple[LanguageModel, LanguageModel]:
    policy, reflector = load_models(made, folder, 0, name)
    assert policy is not None and reflector is not None
    return policy, reflector


def same(first: LanguageModel, second: LanguageModel) -> bool:
    one, other = first.weights(), second.weights()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def adapted(instruct: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    """A run with two adapters on one backbone."""
    made, folder = recipe(4, source=str(instruct)), tmp_path_factory.mktemp("adapted") / "run"
    run_recipe(made, folder, "rl")
    return made, folder


def test_two_lora_players_stand_on_one_backbone(instruct: Path, tmp_path: Path) -> None:
    policy, reflector = pair(recipe(4, source=str(instruct)), tmp_path, "zero-shot")
    assert policy.core is reflector.core and policy.adapter != reflector.adapter
    shared = {p.data_ptr() for p in policy.model.parameters()}
    assert {p.data_ptr() for p in reflector.parameters()} < shared
    assert not {p.data_ptr() for p in policy.parameters()} & {p.data_ptr() for p in reflector.parameters()}


@pytest.mark.parametrize("rank", [0, 4])
def test_each_role_may_have_a_model_of_its_own(rank: int, chat_model: Maker, tmp_path: Path) -> None:
    first, second = chat_model(), chat_model(None)
    made = recipe(rank, source=str(first), reflector=str(second))
    policy, reflector = pair(made, tmp_path, "zero-shot")
    assert policy.core is not reflector.core
    assert policy.chat is not None and reflector.chat is None
    assert (policy.base, reflector.base) == (str(first), str(second))


def test_trained_players_of_another_run_are_started_from(
    adapted: tuple[Recipe, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, before = adapted
    policy_place, reflector_place = players_in(before)
    assert (policy_place.name, str(reflector_place)) == ("rl-reflect-rl", str(policy_place.parent / "reflector"))
    loaded = recipe(4, source=made.model.source, policy=str(policy_place), reflector=str(reflector_place))
    policy, reflector = pair(loaded, tmp_path, "zero-shot")
    assert policy.core is reflector.core, "their backbone is the same"
    trained, analyst = load_models(made, before, 0, "reflect-rl")
    assert trained is not None and analyst is not None
    assert same(policy, trained) and same(reflector, analyst) and not same(policy, reflector)


def test_the_command_line_goes_on_from_a_run(
    adapted: tuple[Recipe, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = '[env]\nname = "corridor"\n[model]\ncontext = 2048\n[sft]\npolicy_from = "reflector"\n'
    (tmp_path / "next.toml").write_text(text, encoding="utf-8")
    assert main(["run", "next.toml", "--dry-run", "--load", str(adapted[1])]) == 0
    shown = capsys.readouterr().out
    assert f'policy = "{adapted[1]}/checkpoints/seed0/rl-reflect-rl"' in shown
    assert f'reflector = "{adapted[1]}/checkpoints/seed0/reflector"' in shown
    assert "base model" not in shown, "nothing is made from scratch"
    assert 'policy_from = "base"' in shown, "the loaded policy learns on, not a copy of the reflector"
    assert main(["run", "next.toml", "--dry-run", "--load", str(tmp_path)]) == 2
    assert "is neither a run folder nor an exported agent" in capsys.readouterr().err
    assert main(["run", "next.toml", "--dry-run", "--load-arm", "sft"]) == 2
    assert "--load-arm needs --load RUN: it names an arm of that run" in capsys.readouterr().err


def test_an_arm_that_is_not_trained_is_named(adapted: tuple[Recipe, Path]) -> None:
    with pytest.raises(UserError, match="nothing is trained in .* for the arm 'no-reflection'"):
        players_in(adapted[1], "no-reflection")


def test_a_policy_of_its_own_cannot_start_from_the_reflector(instruct: Path, tmp_path: Path) -> None:
    data = {**SMALL, "sft": {**SMALL["sft"], "policy_from": "reflector"}}  # type: ignore[dict-item]
    made = from_dict(Recipe, {**data, "arms": ["sft"], "model": {"policy": str(instruct)}}, "test")
    with pytest.raises(UserError, match=r"sft\.policy_from is 'reflector'; with a model\.policy of its own"):
        run_recipe(made, tmp_path, "teach")


def test_pretrained_players_are_adapters_on_one_backbone_where_nothing_else_is_said(
    instruct: Path, tmp_path: Path
) -> None:
    (tmp_path / "r.toml").write_text(f'[env]\nname = "corridor"\n[model]\nsource = "{instruct}"\n', encoding="utf-8")
    said = read_recipe(tmp_path / "r.toml")
    assert said.model.lora_rank == 16
    policy, reflector = pair(said, tmp_path, "zero-shot")
    assert policy.core is reflector.core and (policy.adapter, reflector.adapter) == ("policy", "reflector")
    assert read_recipe(tmp_path / "r.toml", ["--model.lora-rank", "0"]).model.lora_rank == 0
    assert read_recipe(tmp_path / "r.toml", ["--model.source", "scratch"]).model.lora_rank == 0
