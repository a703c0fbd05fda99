"""A recipe or run folder from elsewhere runs no code that is not named in this command or trusted: every door tried."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.core.config import load_recipe
from reflectrl.core.types import UserError
from tests.hostile import CODE

ADAPTER = {"peft_type": "LORA", "r": 2, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """`write(toml)`: a recipe in a folder of a stranger's, below the current folder, which holds code of his, too."""
    (tmp_path / "stranger.py").write_text(CODE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def recipe(text: str) -> Path:
        path = Path("theirs/recipe.toml")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    yield recipe
    sys.modules.pop("stranger", None)


def refused(capsys: Any, *words: str) -> str:
    """The line with which words are refused, nothing having run."""
    assert main(words) == 2
    err = str(capsys.readouterr().err)
    assert err.count("\n") == 1 and not ran(), err
    return err


def ran() -> list[str]:
    """What of the stranger's code has run."""
    return [name for name in ("imported", "called") if Path(name).exists()]


ENV = 'arms = ["random"]\neval.splits = ["test"]\nenv = {name = "stranger:Mine", train = 2, validation = 1, test = 2}\n'
NAMED = {
    'env.name = "stranger:Mine"': "env.name = stranger:Mine",
    'env.name = "stranger:called"': "env.name = stranger:called",
    'env = {name = "reflectrl.core.envs.adapter:GymTextEnv", id = "stranger:Mine-v0", actions = ["a"]}': "env.id",
    'env = {name = "corridor", opponents = [{player = "stranger:Mine"}]}': "env.opponents[0].player = stranger:Mine",
    'model = {source = "hers", trust_remote_code = true}': "the own code of model 'hers'",
}
"""What a recipe may name, and how the refusal names it."""


class TestCodeNamedByAFile:
    @pytest.mark.parametrize("toml", NAMED, ids=NAMED.values())
    def test_it_is_refused_before_anything_is_imported(self, write: Write, capsys: Any, toml: str) -> None:
        line = refused(capsys, "run", str(write(f'arms = ["random"]\n{toml}')))
        assert NAMED[toml] in line and "--trust" in line and "theirs/recipe.toml" in line
        assert not Path("runs").exists()

    @pytest.mark.parametrize("verb", ["run", "teach", "sft", "rl", "eval", "report"])
    def test_no_verb_runs_what_a_run_folder_names(self, write: Write, capsys: Any, verb: str) -> None:
        assert "stranger:Mine" in refused(capsys, verb, str(write(ENV)), "--folder", "theirs")

    def test_the_same_in_python(self, write: Write) -> None:
        with pytest.raises(UserError, match="env.name = stranger:Mine"):
            load_recipe(write(ENV))
        assert load_recipe(write(ENV), trust=True).env["name"] == "stranger:Mine"

    def test_a_dry_run_shows_it_and_imports_nothing(self, write: Write, capsys: Any) -> None:
        assert main(["run", str(write('env.name = "stranger:called"')), "--dry-run"]) == 0
        assert 'name = "stranger:called"' in capsys.readouterr().out and not ran()

    @pytest.mark.parametrize(
        "toml",
        [
            'env = {name = "reflectrl.core.envs.adapter:GymTextEnv", id = "Taxi-v4", actions = ["a"], rules = "A: b"}',
            'env = {name = "corridor", address = "http://127.0.0.1:8000", folder = "C:\\\\games"}',
        ],
    )
    def test_what_is_no_foreign_code_needs_no_trust(self, write: Write, toml: str) -> None:
        load_recipe(write(toml))


class TestWaysToAllowIt:
    def test_naming_it_in_the_command(self, write: Write) -> None:
        words = ["run", str(write(ENV)), "--folder", "mine"]
        assert main([*words, "--env.name", "stranger:Mine"]) == 0
        assert "imported" in ran()

    def test_naming_something_else_does_not_help(self, write: Write, capsys: Any) -> None:
        line = refused(capsys, "run", str(write(ENV)), "--env.test", "1", "--model.trust_remote_code", "true")
        assert "stranger:Mine" in line and "trust_remote_code" not in line

    def test_a_recipe_may_be_run_with_another_environment_in_its_place(self, write: Write) -> None:
        assert load_recipe(write(ENV), ["env.name=corridor"]).env["name"] == "corridor"

    def test_trust_is_said_once_for_a_file(self, write: Write, capsys: Any) -> None:
        path = write(ENV)
        assert main(["eval", str(path), "--folder", "mine", "--trust"]) == 0
        assert main(["run", str(path), "--folder", "mine"]) == 0
        assert "imported" in ran()

    def test_a_file_that_changes_asks_again(self, write: Write) -> None:
        load_recipe(write(ENV), trust=True)
        load_recipe(write(ENV + "threads = 1\n"))
        with pytest.raises(UserError, match="stranger:Other"):
            load_recipe(write(ENV.replace("Mine", "Other")))

    def test_a_copy_of_a_trusted_folder_is_not_trusted(self, write: Write) -> None:
        path = write(ENV)
        load_recipe(path, trust=True)
        shutil.copytree(path.parent, "copy")
        with pytest.raises(UserError, match="copy/recipe.toml wants to run code"):
            load_recipe(Path("copy/recipe.toml"))

    def test_without_a_home_folder_nothing_is_noted(self, write: Write, monkeypatch: Any) -> None:
        monkeypatch.delenv("XDG_CONFIG_HOME")
        monkeypatch.setenv("HOME", "nowhere")  # a relative one, which is none
        load_recipe(write(ENV), trust=True)
        with pytest.raises(UserError, match="wants to run code"):
            load_recipe(write(ENV))
        assert not Path("nowhere").exists()

    @pytest.mark.parametrize("notes", ["", "[]", '{"x": 3}', "{"])
    def test_damaged_notes_trust_nothing(self, write: Write, notes: str, monkeypatch: Any) -> None:
        folder = Path("config").resolve()
        monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
        (folder / "reflectrl").mkdir(parents=True)
        (folder / "reflectrl/trusted.json").write_text(notes, encoding="utf-8")
        with pytest.raises(UserError, match="wants to run code"):
            load_recipe(write(ENV))

    def test_a_run_that_one_has_started_oneself_is_trusted(self, write: Write) -> None:
        write("")
        words = ["eval", "theirs/recipe.toml", "--arms=random", "--env.name", "stranger:Mine", "--folder", "mine"]
        assert main([*words, "--env.test=2", "--env.train=2", "--env.validation=1", "--eval.splits=test"]) == 0
        assert load_recipe(Path("mine/recipe.toml")).env["name"] == "stranger:Mine"

    @pytest.mark.parametrize("workers", ["--env-workers=1", "--processes=2"])
    def test_worker_processes_have_the_permission_of_their_parent(self, write: Write, workers: str) -> None:
        words = ["eval", str(write(ENV)), "--seeds=0,1", workers, "--env.name", "stranger:Mine", "--folder", "mine"]
        assert subprocess.run([sys.executable, "-P", "-m", "reflectrl", *words], check=False).returncode == 0
        assert len(list(Path("mine/episodes").iterdir())) == 2


class TestPlugIns:
    @pytest.mark.parametrize(("name", "what"), [("called", "a function"), ("Stranger", "the class Stranger")])
    def test_what_is_no_environment_is_not_called(self, write: Write, capsys: Any, name: str, what: str) -> None:
        assert main(["run", str(write("")), "--env.name", f"stranger:{name}"]) == 2
        assert f"must be a class derived from TextEnv; it is {what}" in capsys.readouterr().err
        assert ran() == ["imported"]

    def test_the_current_folder_stands_in_for_no_library(self, tmp_path: Path) -> None:
        code = "import sys; from reflectrl.cli import main; main(['list', 'envs']); sys.exit('' in sys.path)"
        assert subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, check=False).returncode == 0


class TestModelsWithCodeOfTheirOwn:
    @pytest.mark.parametrize(
        "settings", [{"_attn_implementation": "a/kernel"}, {"text_config": {"attn_implementation": "a/b"}}]
    )
    def test_a_kernel_of_the_hub_is_refused(self, tiny_folder: Any, tmp_path: Path, settings: dict[str, Any]) -> None:
        from reflectrl.core.config import ModelConfig
        from reflectrl.models.load import load_model

        shutil.copytree(tiny_folder("llama"), tmp_path / "model")
        path = tmp_path / "model" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | settings))
        with pytest.raises(UserError, match=r"it asks for the attention kernel .*, which is foreign code"):
            load_model(path.parent, ModelConfig())

    @pytest.mark.parametrize("place", ["policy", "reflector"])
    def test_an_adapter_imports_no_module(self, write: Write, tiny_folder: Any, place: str) -> None:
        from reflectrl.core.config import ModelConfig
        from reflectrl.models.load import load_model, second_player

        write("")
        config, folder = ModelConfig(lora_rank=2, device="cpu"), Path("adapter")
        first = load_model(tiny_folder("llama"), config, "policy")
        first.save(folder)
        path = folder / "adapter_config.json"
        own = {"megatron_config": {"tensor_model_parallel_size": 1}, "megatron_core": "stranger"}
        path.write_text(json.dumps(json.loads(path.read_text()) | own))
        with pytest.raises(UserError, match="names a module to be imported"):
            load_model(folder, config) if place == "policy" else second_player(first, "reflector", folder)
        assert not ran()
