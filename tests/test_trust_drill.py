"""A stranger's recipe runs no program and spends no secret: every key, and every way that we could think of.

The drills of repositories and models stand beside the code that reads them; all take their cases from `hostile_files`.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import reflectrl
from reflectrl.cli import main
from reflectrl.core.config import Recipe, load_recipe
from reflectrl.core.config.files import to_toml_value
from reflectrl.core.config.recipe import installed_sections
from reflectrl.core.config.reference import keys
from reflectrl.core.config.rules import NeedsTrust
from reflectrl.core.config.trust import needing_trust
from reflectrl.core.plugins import BY_PATH
from reflectrl.core.types import UserError
from tests.serving.endpoints.scripted import ChatServer, serving
from tests.test_trust import Write, ran, refused, write
from tests.wings import hostile_files
from tests.wings.hostile_files import BIG, CODE, CORRIDOR, SECRET, SPENDING, VARIABLES

__all__ = ["write"]  # a fixture
PAGE = Path(__file__).parents[1] / "docs" / "trust.md"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    """A server that a stranger would like to hear from, and secrets that he would like to hear."""
    for name in VARIABLES:
        monkeypatch.setenv(name, SECRET)
    with serving() as server:
        server.reply = lambda request: "right"
        yield server


# ---- every key -------------------------------------------------------------------------------------------------------

MARKED = {
    "engine", "env", "model.trust_remote_code", "endpoint.base_url", "endpoint.key_env", "rollouts.servers",
    "rollouts.key_env", "watch.trackers", "players.base_url", "players.key_env",
}  # fmt: skip
"""Keys with fixed names that a file alone cannot set. A new one is declared by its type, and stands here too."""


def marked(kind: type, prefix: str = "") -> Iterator[str]:
    """The keys whose type says that they need trust, with those of sections within."""
    hints = typing.get_type_hints(kind, include_extras=True) | (installed_sections() if kind is Recipe else {})
    for name, hint in hints.items():
        if any(isinstance(rule, NeedsTrust) for rule in getattr(hint, "__metadata__", ())):
            yield f"{prefix}{name}"
        inner = getattr(hint, "tables", None) or hint
        if hasattr(inner, "__dataclass_fields__"):
            yield from marked(inner, f"{prefix}{name}.")


def test_these_keys_need_trust() -> None:
    assert set(marked(Recipe)) == MARKED


def test_import_paths_are_taken_for_these_kinds_only() -> None:
    """A name with a ":" is imported for kinds of `BY_PATH`; the keys that name those are the marked ones."""
    assert BY_PATH == ("envs", "rewards", "engines")
    with pytest.raises(UserError, match="unknown verb 'stranger:Mine'"):
        from reflectrl.core.plugins import resolve

        resolve("verbs", "stranger:Mine")
    asked = set()
    for path in Path(reflectrl.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("resolve_class", "resolve_engine"):
                asked.add(path.name)
    assert asked == {"__init__.py", "total.py", "pool.py", "workers.py", "cli.py"}  # cli.py: announced names only


VALUES = ("stranger:Mine", "URL", "AWS_SECRET_ACCESS_KEY", "$(touch called)", "../../theirs/recipe.toml")
"""What each key is set to: an import path, an address, the name of a secret, a command, a path that leads out."""


def test_no_key_with_a_hostile_value_does_anything(write: Write, server: ChatServer, capsys: Any) -> None:
    """A value is refused, or the run goes its way with it. Keys of numbers take none of them: one is tried."""
    tried = runs = 0
    for key in keys():
        takes_text = any(word in key.type for word in ("text", "table", "name"))
        for value in [text.replace("URL", server.url) for text in VALUES[: None if takes_text else 1]]:
            wanted = [value] if key.type.startswith("list") else value
            base: dict[str, Any] = {"arms": ["random"], "eval.splits": ["test"], "env.name": "corridor", "env.test": 1}
            lines = [f"{name} = {to_toml_value(item)}" for name, item in (base | {key.dotted: wanted}).items()]
            if key.dotted == "env":
                lines = [line for line in lines if not line.startswith("env.")]
            path = write("\n".join(lines))
            tried += 1
            try:
                load_recipe(path)
            except UserError as error:
                assert "\n" not in str(error)
            else:
                assert key.dotted not in MARKED - {"engine", "watch.trackers"} or value not in VALUES
                runs += 1
                assert main(["run", str(path), "--folder", f"run-{runs}"]) in (0, 2)
            assert not ran() and not server.keys, f"{key.dotted} = {wanted}"
    assert tried > len(keys()) + 60 and runs > 20
    assert SECRET not in capsys.readouterr().err


# ---- recipes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("toml", CODE.values(), ids=CODE)
def test_no_recipe_runs_code(write: Write, capsys: Any, toml: str) -> None:
    line = refused(capsys, "run", str(write(toml)), "--folder", "mine")
    assert "wants to run code: " in line and ("stranger" in line or "own code" in line)
    assert not Path("mine").exists()


@pytest.mark.parametrize("toml", SPENDING.values(), ids=SPENDING)
def test_no_recipe_spends_a_secret(write: Write, server: ChatServer, capsys: Any, toml: str) -> None:
    words = ["run", str(write(toml.replace("URL", server.url))), "--folder", "mine"]
    if "base_url" not in toml and "endpoint" in toml:
        words += ["--endpoint.base_url", server.url]
    line = refused(capsys, *words)
    assert re.search("wants to (contact an address|send the content|use an account)", line) and "--trust" in line
    assert not server.keys and SECRET not in line and not Path("mine").exists()


@pytest.mark.parametrize("verb", ["run", "teach", "sft", "rl", "eval", "report"])
def test_no_verb_of_a_run_folder_asks_its_server(write: Write, server: ChatServer, capsys: Any, verb: str) -> None:
    path = write(SPENDING["a player's address and key"].replace("URL", server.url))
    assert "players.big.key_env = AWS_SECRET_ACCESS_KEY" in refused(capsys, verb, str(path), "--folder", "theirs")
    assert not server.keys


@pytest.mark.parametrize(
    "words",
    [
        ("play", "corridor", "--player", "theirs:big"),
        ("export-agent", "theirs", "--arm", "big", "--out", "out"),
        ("export-browser", "theirs", "--arm", "big", "--out", "out"),
        ("serve", "theirs", "--arm", "big", "--port", "0"),
        ("sweep", "theirs/recipe.toml", "--over", "seeds=0,1"),
        ("run", "theirs/recipe.toml", "--load", "theirs", "--folder", "mine"),
        ("run", "theirs/recipe.toml", "--fork", "theirs", "--folder", "mine"),
    ],
    ids=" ".join,
)
def test_no_other_verb_asks_it_either(write: Write, server: ChatServer, capsys: Any, words: tuple[str, ...]) -> None:
    write(SPENDING["a player's address and key"].replace("URL", server.url))
    assert main(words) == 2 and capsys.readouterr().err.count("\n") == 1
    assert not server.keys and not ran()


@pytest.mark.parametrize(
    "words",
    [
        ("run", "theirs/recipe.toml", "--dry-run"),
        ("watch", "theirs", "--once"),
        ("compare", "theirs"),
        ("compare", "theirs", "theirs"),
        ("report", "theirs/recipe.toml", "--dry-run", "--folder", "theirs"),
        ("list", "all"),
    ],
    ids=" ".join,
)
def test_what_only_looks_does_nothing(write: Write, server: ChatServer, capsys: Any, words: tuple[str, ...]) -> None:
    hostile = f'engine = "stranger:Mine"\n{SPENDING["a teacher who walks"]}watch.trackers = ["wandb"]\n'
    folder = write(hostile.replace("URL", server.url).replace('"corridor"', '"stranger:Mine"')).parent
    for name in ("results.json", "state.json", "agent.json"):
        (folder / name).write_text(json.dumps({"kind": "stranger:Mine", "address": server.url, "arm": "stranger:Mine"}))
    main(words)
    assert not server.keys and not ran()


# ---- what is allowed -------------------------------------------------------------------------------------------------


class TestWaysToAllowIt:
    RECIPE = SPENDING["a player's address and key"]

    def test_naming_address_and_key_in_the_command(self, write: Write, server: ChatServer) -> None:
        path = write(f'{BIG}endpoint.model = "m"\n[players.big]\n')
        words = ["--endpoint.base-url", server.url, "--endpoint.key-env", "GITHUB_TOKEN"]
        assert main(["run", str(path), "--folder", "mine", *words]) == 0
        assert set(server.keys) == {f"Bearer {SECRET}"}

    def test_naming_the_address_alone_sends_no_key_that_the_file_names(
        self, write: Write, server: ChatServer, capsys: Any
    ) -> None:
        path = write(self.RECIPE.replace("URL", "http://127.0.0.1:9/v1"))
        line = refused(capsys, "run", str(path), "--folder", "mine", "--players.big.base_url", server.url)
        assert "key_env" in line and "base_url =" not in line and not server.keys

    def test_trust_is_said_once_for_a_file(self, write: Write, server: ChatServer) -> None:
        path = write(self.RECIPE.replace("URL", server.url))
        load_recipe(path, trust=True)
        assert main(["run", str(path), "--folder", "mine"]) == 0
        assert set(server.keys) == {f"Bearer {SECRET}"}
        assert main(["eval", "mine/recipe.toml", "--folder", "mine"]) == 0, "and for the run that one has begun"

    @pytest.mark.parametrize(
        "change", [("AWS_SECRET_ACCESS_KEY", "HF_TOKEN"), ("/v1", "/v2"), ("players.big", "players.bug")]
    )
    def test_a_file_that_changes_asks_again(self, write: Write, capsys: Any, change: tuple[str, str]) -> None:
        text = self.RECIPE.replace("URL", "http://127.0.0.1:9/v1")
        load_recipe(write(text), trust=True)
        assert "wants to" in refused(capsys, "run", str(write(text.replace(*change))), "--folder", "mine")

    def test_what_stays_on_this_machine_needs_no_trust(self, write: Write) -> None:
        load_recipe(write(f'arms = ["random"]\n{CORRIDOR}engine = "local"\nwatch.trackers = ["tensorboard"]\n'))
        assert not needing_trust(Recipe().plain())


class TestEngines:
    @pytest.mark.parametrize(
        ("name", "what"),
        [
            ("Stranger", "it has no submit()"),
            ("called", "it is a function"),
            ("", "it is a module"),
            ("No", "has no 'No'"),
        ],
    )
    @pytest.mark.parametrize("more", [(), ("--env-workers", "1"), ("--processes", "2")], ids=" ".join)
    def test_what_is_no_engine_is_one_line_and_is_not_called(
        self, write: Write, capsys: Any, name: str, what: str, more: tuple[str, ...]
    ) -> None:
        path = write(f'arms = ["random"]\n{CORRIDOR}')
        assert main(["run", str(path), "--folder", "mine", "--engine", f"stranger:{name}", *more]) == 2
        err = capsys.readouterr().err
        assert what in err and err.count("\n") == 1 and ran() == ["imported"]

    def test_one_that_fails_is_one_line(self, write: Write, capsys: Any) -> None:
        path = write(f'arms = ["random"]\n{CORRIDOR}')
        code = "class Odd:\n    submit = news = close = env_worker = print\n    def __init__(self, recipe): 1 / 0\n"
        Path("odd_engine.py").write_text(code)
        assert main(["run", str(path), "--folder", "mine", "--engine", "odd_engine:Odd"]) == 2
        err = capsys.readouterr().err
        assert "engine 'odd_engine:Odd' cannot be started: ZeroDivisionError" in err and err.count("\n") == 1
        sys.modules.pop("odd_engine", None)


# ---- the page --------------------------------------------------------------------------------------------------------


def test_the_page_counts_what_is_tried() -> None:
    """docs/trust.md: a row of the table "What was tried" names a table of `hostile_files` and how much it holds."""
    rows = re.findall(r"^\|[^|]*\| *(\d+) *\| `(\w+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    counts = {name: int(count) for count, name in rows}
    held: Mapping[str, int] = {name: len(getattr(hostile_files, name)) for name in counts}
    assert held == counts
    assert set(counts) == {"CODE", "SPENDING", "CONFIG", "PLACES", "ENVIRONMENT", "MODELS", "ADAPTERS", "VARIABLES"}
    assert sum(held.values()) >= 100
