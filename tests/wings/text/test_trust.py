"""A recipe from elsewhere names no rewards of a stranger's, and a classifier brings no code."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.core.types import UserError
from reflectrl.wings.text.rewards.classifiers import Classifier
from tests.test_trust import Write, ran, refused

NAMED = {
    'text.task = "orders"\nrewards.x.use = "stranger:Stranger"': "rewards.x.use = stranger:Stranger",
    'text.task = "orders"\nrewards."stranger:Stranger" = 1': "rewards.stranger:Stranger = stranger:Stranger",
    'text.task = "orders"\ntest_rewards."stranger:Stranger".weight = 1': "test_rewards.stranger:Stranger = ",
}
"""What a recipe may name, and how the refusal names it."""


@pytest.mark.parametrize("toml", NAMED, ids=NAMED.values())
def test_it_is_refused_before_anything_is_imported(write: Write, capsys: Any, toml: str) -> None:
    line = refused(capsys, "run", str(write(f'arms = ["random"]\n{toml}')))
    assert NAMED[toml] in line and "--trust" in line and "theirs/recipe.toml" in line
    assert not Path("runs").exists()


def test_what_is_no_reward_is_not_called(write: Write, capsys: Any) -> None:
    path = write('arms = ["data"]\ntext.task = "orders"\nrewards."stranger:Stranger" = 1')
    assert main(["run", str(path), "--trust"]) == 2
    assert "must be a class derived from Component; it is the class Stranger" in capsys.readouterr().err
    assert ran() == ["imported"]


def test_a_classifier_with_code_is_refused_without_asking(theirs: Path, command: Any) -> None:
    code = (
        "from reflectrl.wings.text.rewards.classifiers import Classifier\nfrom reflectrl.core.types import UserError\n"
        "try: Classifier('theirs/checkpoints/seed0/plain', 1, 'reward')\nexcept UserError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], input="y\n", capture_output=True, text=True, check=True)
    assert "cannot be loaded" in done.stdout and "[y/N]" not in done.stdout + done.stderr and not ran()


@pytest.mark.parametrize(
    "settings", [{"_attn_implementation": "a/kernel"}, {"text_config": {"attn_implementation": "a/b"}}]
)
def test_a_kernel_of_the_hub_is_refused(tiny_folder: Any, tmp_path: Path, settings: dict[str, Any]) -> None:
    shutil.copytree(tiny_folder("llama"), tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    with pytest.raises(UserError, match=r"it asks for the attention kernel .*, which is foreign code"):
        Classifier(str(path.parent), 1, "reward")
