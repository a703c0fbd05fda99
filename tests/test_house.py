"""Rules of the house that a machine can check: order of the rooms, quick import, no network, nothing unpickled."""

import ast
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

import pytest

import reflectrl
from reflectrl.core.plugins import announced

PACKAGE = Path(reflectrl.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
ROOMS = ("core", "models", "learn", "runs", "api", "cli", "serving", "methods", "tools", "examples", "wings")
"""Rooms, and the two files between them; each imports only from itself and from those before it."""
ORDER = {
    "core": (
        "types", "start", "advice", "distributed", "terminal", "local_modules", "moved", "plugins",
        "regular_files", "file_kinds", "archives", "json_lines", "digests", "source_code", "open_environments",
        "process_state", "git",
        "policy_losses", "calibration", "config",
        "statistics", "prompts", "envs", "players", "rollout", "episodes", "teach", "evaluation",
    ),
    "serving": ("endpoints", "remote", "server", "parts"),
    "methods": (
        "shared", "archer", "distilled", "hindsight", "linvit", "offline", "expert_iteration", "morel", "prompted",
        "teams_rl", "reflector_rejection", "reflector_rl",
    ),
    "tools": (
        "pretrained", "downloads", "fitting", "playing", "workbench", "certify", "exporting", "watching", "sweeps",
        "browser", "parts",
    ),
}  # fmt: skip
"""Parts of a room; each imports only from itself and from those before it."""
BRIDGES = ("envs", "plugins", "teach", "types", "workbench")
"""Names of modules in earlier versions. Each stands for the present module, for environments that were written then."""
REMOVABLE = ("serving", "methods", "tools", "examples", "wings")
"""Rooms without which a run still works."""
BESIDE = tuple(f"reflectrl.{room}" for room in REMOVABLE)
WINGS = tuple(sorted(path.parent.name for path in PACKAGE.glob("wings/*/__init__.py")))
"""Each imports from the rooms before and from itself, and nothing imports from it."""
HEAVY = ("torch", "numpy", "gymnasium", "transformers", "matplotlib", "scipy", "tyro")


def parts_of(path: Path) -> tuple[str, str]:
    """Return the room in which a file lives and the part of that room; `__main__` is the command line's."""
    parts = [part.removesuffix(".py") for part in path.relative_to(PACKAGE).parts]
    return {"__main__": "cli"}.get(parts[0], parts[0]), parts[1] if len(parts) > 1 else ""


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module", autouse=True)
def _drop_trees() -> Iterator[None]:
    """Drop the trees after the last test: garbage collection in later tests would visit their millions of nodes."""
    yield
    tree_of.cache_clear()


def imports_of(path: Path) -> Iterator[str]:
    """Dotted names of ours that a file imports, anywhere in it."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "reflectrl")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports of ours are absolute"
            if node.module == "reflectrl":
                yield from (f"reflectrl.{alias.name}" for alias in node.names)
            elif node.module and node.module.startswith("reflectrl."):
                yield node.module


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_only_from_rooms_before_its_own(path: Path) -> None:
    room, part = parts_of(path)
    if room == "__init__":  # for type checkers only: the test of quick imports sees that nothing is imported
        assert set(imports_of(path)) == set(reflectrl._HOMES)
        return
    if room in BRIDGES:
        assert set(imports_of(path)) == {"reflectrl.core.moved"}
        return
    assert room in ROOMS, f"{room} has no place in the order of rooms"
    for name in imports_of(path):
        other, other_part = [*name.split(".")[1:], "", ""][:2]
        if other in ("", "__version__"):
            continue
        assert ROOMS.index(other) <= ROOMS.index(room), f"{room} imports {name}, of a later room"
        if other != room or not other_part or not part or part == "__init__":
            continue
        if room == "wings":
            assert other_part == part, f"{part} imports {name}, of another wing"
        elif room in ORDER:
            order = ORDER[room]
            assert order.index(other_part) <= order.index(part), f"{room}.{part} imports {name}, of a later part"


def is_dump(node: ast.AST) -> TypeGuard[ast.Assign]:
    """Whether this is `data = pickle.dumps(...)`: reading those bytes again is a copy, and safe."""
    return isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("pickle.dumps(")


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_is_unpickled_or_evaluated(path: Path) -> None:
    tree = tree_of(path)
    own_bytes = {ast.unparse(node.targets[0]) for node in ast.walk(tree) if is_dump(node)}
    for name, call in calls(tree):
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        assert name not in ("pickle.load", "eval", "exec", "joblib.load", "dill.load", "dill.loads"), name
        assert name != "pickle.loads" or ast.unparse(call.args[0]) in own_bytes, "bytes that came from elsewhere"
        assert name != "torch.load" or given.get("weights_only") == "True", "torch.load without weights_only=True"
        assert given.get("allow_pickle", "False") == "False", f"{name} with allow_pickle"
        assert given.get("trust_remote_code") != "True", f"{name} always trusts remote code"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_is_printed_past_the_guard_of_the_terminal(path: Path) -> None:
    """Consoles read markup unless `reflectrl.core.terminal` made them; a column reads it unless told not to."""
    for name, call in calls(tree_of(path)):
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        assert path.name == "terminal.py" or name.rpartition(".")[2] != "Console", "use reflectrl.core.terminal.console"
        assert name.rpartition(".")[2] != "TextColumn" or given.get("markup") == "False", "a column that reads markup"
        assert not name.startswith(("sys.__stdout__", "sys.__stderr__")), name


def test_importing_is_quick_quiet_and_leaves_nothing_behind(tmp_path: Path) -> None:
    code = f"import sys, reflectrl; sys.exit(' '.join(set({HEAVY!r}) & set(sys.modules)) or 0)"
    done = subprocess.run(
        [sys.executable, "-B", "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_importing_brings_in_no_more_than_a_handful_of_modules() -> None:
    code = "import sys; before = set(sys.modules); import reflectrl; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"reflectrl"}


@pytest.mark.parametrize("address", [("192.0.2.1", 80), ("example.invalid", 443)])
def test_the_tests_cannot_reach_another_machine(address: tuple[str, int]) -> None:
    with pytest.raises(RuntimeError, match="without a network"):
        socket.create_connection(address, timeout=1)


def test_the_tests_can_reach_this_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()


def test_the_witness_of_sockets_sees_one(witnessed: dict[str, str]) -> None:
    code = "import socket; socket.socket().close()"
    subprocess.run([sys.executable, "-c", code], env=os.environ | witnessed, check=True)
    assert "socket.__new__" in Path(witnessed["SOCKET_LOG"]).read_text(encoding="utf-8")


def test_looking_opens_no_socket(command: Any, witnessed: dict[str, str]) -> None:
    done = command("list", "envs", env=witnessed)
    assert done.returncode == 0, done.stderr
    assert not Path(witnessed["SOCKET_LOG"]).exists()


TINY = """
arms = ["random", "reflect-rl"]
env.name = "corridor"
model = {layers = 1, width = 16, heads = 2}
play.reflection_tokens = 4
teach.negatives = 1
sft = {steps = 2, batch_size = 4, eval_every = 2}
rl = {updates = 2, episodes = 2, eval_every = 1, eval_episodes = 2, replay_episodes = 1}
"""


def test_a_whole_run_opens_no_socket(command: Any, witnessed: dict[str, str], tmp_path: Path) -> None:
    """Training, play, evaluation and report: nothing leaves the machine, and nothing even asks to."""
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
    done = command("run", "tiny.toml", env=witnessed)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "tiny" / "report.html").exists()
    assert not Path(witnessed["SOCKET_LOG"]).exists()


# ---- the core without its wings --------------------------------------------------------------------------------------

TESTS = Path(__file__).parent
CORE_TESTS = [
    path for path in sorted(TESTS.rglob("*.py")) if path.relative_to(TESTS).parts[0] not in (*REMOVABLE, "benchmarks")
]


@cache
def naming_a_wing() -> re.Pattern[str]:
    """Text that names the environment of a wing, as a command, a recipe or a section does."""
    homes = {name: point.module for name, point in announced("envs").items()}
    names = "|".join(name for name, home in homes.items() if home.startswith("reflectrl.wings."))
    return re.compile(rf"(?:{names})|(?s:.*\bname ?= ?[\"']?(?:{names})\b.*)")


@pytest.mark.parametrize("path", CORE_TESTS, ids=lambda path: str(path.relative_to(TESTS)))
def test_the_cores_tests_need_no_wing(path: Path) -> None:
    """None imports from one, and no text names the environment of one as a command, a recipe or a section does."""
    tree = tree_of(path)
    assert not [name for name in imports_of(path) if name.startswith(BESIDE)]
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert not [text for text in texts if naming_a_wing().fullmatch(text)], "plays a wing: let it play the corridor"
    assert path == Path(__file__) or not any("from reflectrl.wings" in text for text in texts)


def without(folder: Path, *wings: str) -> dict[str, str]:
    """Copy the package without some wings, or without all rooms that can go; return the variables that find it."""
    gone = {str(PACKAGE / "wings" / wing) for wing in wings} or {str(PACKAGE / name) for name in REMOVABLE}

    def ignored(path: str, names: list[str]) -> set[str]:
        return {name for name in names if str(Path(path, name)) in gone}

    shutil.copytree(PACKAGE, folder / "reflectrl", ignore=ignored)
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(TESTS / "stranger")])}


IMPORTS = """
import importlib, pkgutil, reflectrl
for module in pkgutil.walk_packages(reflectrl.__path__, "reflectrl."):
    importlib.import_module(module.name) if not module.name.endswith("__main__") else None
"""
PLAYS = """
import reflectrl
assert reflectrl.evaluate("expert", "corridor", episodes=2)[-1]["success"] == 1
"""
LISTS = """
from reflectrl.cli import main
for what in ("envs", "recipes", "keys"):
    assert main(["list", what]) == 0
    print("that was", what)
"""
RUNS = """
assert main(["run", "tiny.toml"]) == 0
"""


@pytest.mark.parametrize("wing", WINGS)
def test_without_one_wing_the_others_are_listed(wing: str, tmp_path: Path) -> None:
    env = os.environ | without(tmp_path / "alone", wing)
    done = subprocess.run([sys.executable, "-c", LISTS], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    homes = {name: point.module for name, point in announced("envs").items()}
    there = [name for name, home in homes.items() if not home.startswith(f"reflectrl.wings.{wing}.")]
    assert done.stdout.partition("that was envs")[0].split() == there


def test_without_any_wing_the_core_imports_lists_plays_and_runs(tmp_path: Path) -> None:
    """All in one process, which imports everything only at its end: before, each part has what it imports itself."""
    env = os.environ | without(tmp_path / "alone")
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
    code = LISTS + PLAYS + RUNS + IMPORTS
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.partition("that was envs")[0].split() == ["corridor"]
    assert (tmp_path / "runs" / "tiny" / "report.html").exists()
