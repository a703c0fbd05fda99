"""No verb imports a file of the current folder, which a stranger may have filled, unless the user has named it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import reflectrl
from reflectrl.cli.verbs import Verbs
from tests import decoys
from tests.decoys import ASKED, write_decoy

SCRIPT = "import sys; from reflectrl.cli import main; sys.exit(main())"
"""Content of the installed program `reflectrl`."""
Start = Callable[..., subprocess.CompletedProcess[str]]

RECIPE = """
name = "walk"
env = {name = "reflectrl.wings.taxi.env:TaxiEnv", train = 2, validation = 1, test = 1}
model = {layers = 1, width = 16, heads = 2}
play.reflection_tokens = 4
threads = 1
arms = ["random", "sft", "rl-only"]
teach = {tasks = 2, negatives = 1}
sft = {steps = 1, eval_every = 1}
rl = {updates = 1, episodes = 2, eval_every = 1, eval_episodes = 1, own_wins = 0, curriculum = "none"}
eval = {sampling = ["greedy"], splits = ["test"], episodes = 1, calibration = false}
watch.trackers = ["tensorboard"]
"""
"""A recipe that names one of our own environments by import path, which needs no trust."""
GYM = """
arms = ["random"]
eval = {splits = ["test"], episodes = 1}
[env]
name = "reflectrl.core.envs.adapter:GymTextEnv"
id = "FrozenLake-v1"
actions = ["left", "down", "right", "up"]
"""
TEXT = """
name = "words"
arms = ["data"]
text = {task = "orders", prompts = 4, validation_prompts = 2, eval_prompts = 2}
rewards = {order_politeness = 1}
offline = {reference_steps = 1, steps = 1}
model.source = "model"
"""

WALK = (
    "list all",
    "completion bash",
    "init parcels",
    "init lake --gym FrozenLake-v1",
    "check-env parcels",
    "certify corridor --episodes 2",
    "data alfworld",
    "data model",
    "run recipe.toml --folder run --dry-run",
    "teach recipe.toml --folder run",
    "run recipe.toml --folder others --arms random --processes 2 --env-workers 1",
    "sft recipe.toml --folder run",
    "rl recipe.toml --folder run",
    "eval recipe.toml --folder run",
    "report recipe.toml --folder run",
    "run run/recipe.toml --folder run",
    "run gym.toml --folder lake-run",
    "run words.toml --folder words",
    "score words --model model",
    "judge words --url http://127.0.0.1:9/v1 --model m",
    "offline --data samples.jsonl --model model --out offline --offline.steps 1 --offline.reference-steps 1",
    "sweep recipe.toml --rl.lr 1e-4,2e-4 --folder sweep --dry-run",
    "watch run --once",
    "compare run run",
    "estimate run --arm sft --log run/episodes/eval-sft-seed0-test-full-greedy.jsonl",
    "export-agent run --arm sft --out agent",
    "export-browser run --arm sft --out page",
    "play taxi --player agent --episodes 1",
    "play reflectrl.wings.taxi.env:TaxiEnv --player random --episodes 1",
    "import-episodes run/episodes/eval-sft-seed0-test-full-greedy.jsonl --out imported.jsonl --env taxi",
    "locate circle --repo repository",
    "session --repo repository --json",
    "mcp --repo repository",
    "serve agent --port 0",
    "serve-rollouts run --port 0",
    "bench nowhere",
)
"""Commands in a stranger's folder. Some are refused; none may import from it."""
EVERY_VERB = """
from reflectrl.core.start import leave_current_folder

leave_current_folder()

import os, signal, sys, threading, time

from reflectrl.cli import main

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

folder = os.path.realpath(".")
for line in sys.argv[1:]:
    timer = threading.Timer(4, interrupt)
    if line.startswith("serve"):
        timer.start()
    begun = time.perf_counter()
    try:
        code = main(line.split())
    except (SystemExit, KeyboardInterrupt) as error:
        code = repr(error)
    except Exception as error:
        code = f"bug: {error!r}"
    timer.cancel()
    print(f"walk: {code} {time.perf_counter() - begun:.1f} {line}", flush=True)
    on_path = [place for place in sys.path if os.path.realpath(place or ".").startswith(folder)]
    if on_path:
        print(f"walk: LEFT {line} leaves {on_path} on the path", flush=True)
"""
STARTS = {"the program": ("-P", "-c", SCRIPT), "python -m": ("-m", "reflectrl"), "python -c": ("-c", SCRIPT)}


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """A folder with a decoy for every module of the standard library and for a few that programs look for."""
    folder = tmp_path / "stranger"
    folder.mkdir()
    for name in (*sys.stdlib_module_names, "pip", "conftest", "usercustomize", "torch", "numpy", "yaml"):
        write_decoy(str(folder), str(tmp_path / "decoys.log"), name)
    return folder


@pytest.fixture
def start(stranger: Path) -> Start:
    """`start("-m", "reflectrl", ...)`: a Python process in the stranger's folder; it and its children have decoys."""
    log = stranger.parent / "decoys.log"
    hooks = stranger.parent / "hooks"
    hooks.mkdir()
    shutil.copy(decoys.__file__, hooks / "sitecustomize.py")
    paths = [str(hooks), str(Path(reflectrl.__file__).parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    own = {"DECOYS": str(stranger), "DECOYS_LOG": str(log), "npm_config_offline": "true", "HF_HUB_OFFLINE": "1"}

    def run(*words: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
        env = os.environ | own | {"PYTHONPATH": os.pathsep.join(paths) if path is None else path}
        done = subprocess.run(
            [sys.executable, *words], cwd=stranger, env=env, text=True, capture_output=True, timeout=590, check=False
        )
        log.touch()
        return done

    return run


def found(folder: Path) -> list[str]:
    """The decoys that were imported, or that a finder would have found."""
    return sorted(set((folder.parent / "decoys.log").read_text(encoding="utf-8").splitlines()))


def test_no_verb_imports_a_file_of_the_current_folder(
    stranger: Path, start: Start, tiny_folder: Callable[[str], Path]
) -> None:
    """Every name that anything looks for in vain has a decoy in the folder, and so has every standard module."""
    (stranger / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    (stranger / "gym.toml").write_text(GYM, encoding="utf-8")
    (stranger / "words.toml").write_text(TEXT, encoding="utf-8")
    sample = {"prompt": "Say yes.", "completion": "yes", "reward": 1.0}
    (stranger / "samples.jsonl").write_text("".join(f"{json.dumps(sample)}\n" for _ in range(4)), encoding="utf-8")
    (stranger / "model").symlink_to(tiny_folder("llama"))
    (stranger / "repository").mkdir()
    (stranger / "repository" / "where.py").write_text("def circle(): pass\n", encoding="utf-8")
    done = start("-c", EVERY_VERB, *WALK)

    asked = (stranger.parent / ASKED).read_text(encoding="utf-8").split()
    assert {"hqq", "torch_xla"} <= set(asked) and len(set(asked)) > 50, "names that libraries look for"
    assert {line.split()[0] for line in WALK} == set(Verbs())
    assert [line for line in done.stdout.splitlines() if line.startswith(("walk: LEFT", "walk: bug"))] == []
    assert done.stdout.count("walk: 0 ") > 20 and not found(stranger), done.stderr


@pytest.mark.parametrize("words", [("-P", "-c", SCRIPT), ("-m", "reflectrl")], ids=["the program", "python -m"])
def test_no_way_to_start_imports_one(stranger: Path, start: Start, words: tuple[str, ...]) -> None:
    done = start(*words, "check-env", "frozenlake")
    assert done.returncode == 0 and not found(stranger), done.stderr


PATHS = "import os, sys; from reflectrl.cli import main; main(); print('PATHS', sys.path, os.environ['PYTHONPATH'])"


@pytest.mark.parametrize(("entry", "stays"), [("", False), (".", False), ("../stranger", False), ("{}", True)])
def test_a_relative_entry_of_the_path_is_left_out(tmp_path: Path, entry: str, stays: bool) -> None:
    """Python itself has read it before. A folder that is named in full is the user's decision."""
    folder = tmp_path / "stranger"
    folder.mkdir()
    path = os.pathsep.join([str(Path(reflectrl.__file__).parents[1]), entry.format(folder)])
    words = [sys.executable, "-P", "-c", PATHS, "completion", "bash"]
    env = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(words, cwd=folder, env=env, text=True, capture_output=True, check=False)
    last = done.stdout.partition("PATHS")[2]
    assert last.count(str(folder)) == 2 * stays
    assert done.returncode == 0 and (stays or not entry or entry not in last.split()[-1].split(os.pathsep))


# ---- what the user has named -----------------------------------------------------------------------------------------

MINE = {
    "mine": """
from helpers import Saved
from reflectrl.examples.key_door import KeyDoorEnv

class Mine(KeyDoorEnv):
    def begin(self, task):
        import later
        super().begin(task)

    def get_state(self):
        return Saved((self.cell, self.has_key))

    def set_state(self, state):
        self.cell, self.has_key = state.inner
""",
    "helpers": "import deeper\n\nclass Saved:\n    def __init__(self, inner):\n        self.inner = inner\n",
    "deeper": "",
    "later": "import importlib\nimportlib.import_module('latest')\n",
    "latest": "open('latest-was-imported', 'w').close()\n",
    "worlds": "import gymnasium\n\ngymnasium.register('Own-v0', 'own_grid:Grid')\n",
    "own_grid": "from gymnasium.envs.toy_text import FrozenLakeEnv\n\nclass Grid(FrozenLakeEnv):\n    pass\n",
}
"""An environment whose modules lie beside each other; some are imported late, or by gymnasium."""


@pytest.fixture
def mine(stranger: Path) -> Path:
    for name, text in MINE.items():
        (stranger / f"{name}.py").write_text(text, encoding="utf-8")
    return stranger


def test_what_the_user_names_is_found_with_the_modules_beside_it(mine: Path, start: Start) -> None:
    """In this process, in worker processes, and in those of a check; and nothing else is."""
    (mine / "recipe.toml").write_text('arms = ["random"]\nenv.name = "mine:Mine"\neval.splits = ["test"]\n')
    words = ("-m", "reflectrl", "run", "recipe.toml", "--folder", "run")
    assert "--trust" in start(*words).stderr and not (mine / "latest-was-imported").exists()
    done = start(*words, "--trust", "--processes", "2", "--env-workers", "1")
    assert done.returncode == 0 and (mine / "latest-was-imported").exists() and not found(mine), done.stderr
    done = start("-m", "reflectrl", "check-env", "mine:Mine")
    assert "can be played, but not learned by reward" in done.stderr and not found(mine), done.stderr


def test_classes_that_gymnasium_imports_are_found(mine: Path, start: Start) -> None:
    done = start("-m", "reflectrl", "init", "lake", "--gym", "worlds:Own-v0")
    assert done.returncode == 0 and not found(mine), done.stderr
    done = start("-m", "reflectrl", "check-env", "lake")
    assert done.returncode == 0 and not found(mine), done.stderr


def test_a_library_that_it_imports_finds_nothing_there(mine: Path, start: Start) -> None:
    with (mine / "mine.py").open("a", encoding="utf-8") as file:
        file.write("import transformers\n")
    done = start("-m", "reflectrl", "play", "mine:Mine", "--player", "random", "--episodes", "1")
    assert done.returncode == 0 and not found(mine), done.stderr
    assert "torchvision" in (mine.parent / ASKED).read_text(encoding="utf-8").split()
