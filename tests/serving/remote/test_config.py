"""What a recipe may say of servers that play its rollouts, and what happens where they are not there."""

from pathlib import Path

import pytest

from reflectrl import runs as pipeline
from reflectrl.cli import main
from reflectrl.core.config import load_recipe
from reflectrl.core.types import UserError
from reflectrl.runs.graph import planned

RECIPE = """
name = "served"
arms = ["reflect-rl"]
env = {name = "corridor", train = 6, validation = 3, test = 3}
model = {layers = 1, width = 16, heads = 2, mixed_precision = "off", context = 128}
play.reflection_tokens = 8
teach = {tasks = 4, negatives = 1}
sft = {steps = 4, batch_size = 8, eval_every = 4, eval_rows = 8}
rl = {algorithm = "ppo", updates = 2, episodes = 4, eval_every = 2, eval_episodes = 2}
eval = {splits = ["test"], sampling = ["greedy"]}

[rollouts]
servers = ["http://127.0.0.1:9/v1"]
retries = 0
"""


def recipe_of(folder: Path, *overrides: str) -> Path:
    path = folder / "served.toml"
    path.write_text(RECIPE, encoding="utf-8")
    load_recipe(path, overrides, trust=True)
    return path


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ('rollouts.servers=["localhost:8000"]', "'servers' must hold addresses that begin with http://"),
        ('rollouts.servers=["http://user:secret@here/v1"]', "'servers' holds a user or a password"),
        ("rollouts.key_env=sk-123", "'key_env' must be the name of an environment variable"),
        ("rollouts.every=0", "rollouts.every"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_name(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(UserError) as found:
        recipe_of(tmp_path, override)
    assert message in str(found.value) and "secret" not in str(found.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rollouts.every=2", "rl.algorithm=reinforce"], "rollouts.every is above 1"),
        (["play.scoring=sum"], "play.scoring must be 'enumeration'"),
    ],
)
def test_settings_that_do_not_go_with_a_server_are_refused_before_anything_is_made(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    recipe = load_recipe(recipe_of(tmp_path), overrides)
    with pytest.raises(UserError, match=message):
        planned(recipe)
    local = load_recipe(recipe_of(tmp_path), [*overrides, "rollouts.servers=[]"])
    assert planned(local)


def test_a_training_is_another_one_with_lag_but_not_with_a_server(tmp_path: Path) -> None:
    def settings(*overrides: str) -> tuple[str, ...]:
        recipe = load_recipe(recipe_of(tmp_path), overrides)
        return planned(recipe)["rl reflect-rl (seed 0)"].settings

    assert settings() == settings("rollouts.servers=[]")
    assert settings("rollouts.every=2") == (*settings(), "rollouts.every")


def test_a_server_that_is_not_there_is_one_line_and_what_was_made_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openai")
    words = ["run", str(recipe_of(tmp_path)), "--folder", str(tmp_path / "run")]
    assert main(words) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert "server http://127.0.0.1:9/v1: cannot connect" in line
    assert (tmp_path / "run/checkpoints/seed0/policy/reflectrl.json").is_file()
    assert main([*words, "--rollouts.servers", "[]"]) == 0, "without a server, the same run goes on here"


def test_nothing_is_asked_where_no_server_is_named(tmp_path: Path) -> None:
    recipe = load_recipe(recipe_of(tmp_path), ["rollouts.servers=[]"])
    pipeline.run(recipe, tmp_path / "run")
    assert "requests_per_second" not in (tmp_path / "run/metrics.jsonl").read_text(encoding="utf-8")
