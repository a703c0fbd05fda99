"""The documentation: every command of it is run, or at least read; what is made from the code is in step with it.

A page's commands (its blocks of `bash`) are run from top to bottom, in a folder of their own. Two markers, comments on
the line before a block, change that: after `<!-- slow -->` a line is run only if SMALL makes it quick, and after
`<!-- needs: ... -->` it is not run. What is not run is read: its verb, recipe, options and keys have to exist.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from reflectrl.cli import main
from reflectrl.cli.arguments import parse
from reflectrl.cli.run import Run
from reflectrl.cli.verbs import Verbs
from reflectrl.core.config.reference import keys, reference
from reflectrl.core.plugins import resolve
from reflectrl.core.types import UserError
from reflectrl.runs.projects import env_section
from reflectrl.tools.certify.gym_id import is_gym_id
from reflectrl.tools.certify.verb import Certify
from reflectrl.tools.playing.verbs import Play
from reflectrl.tools.workbench.check_env import CheckEnv

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"(?:<!-- (needs: [\w ,]+|slow) -->\n+)?```bash\n(.*?)```", re.DOTALL)
INLINE = re.compile(r"`(reflectrl [a-z][^`]*)`")
FILE = re.compile(r"```toml\n# (\S+\.toml)\n(.*?)```", re.DOTALL)

TINY = shlex.split(
    "--processes 1 --seeds 0 --model.layers 1 --model.width 16 --model.heads 2 --model.mixed_precision off "
    "--play.reflection_tokens 4 --teach.tasks 4 --teach.negatives 1 --sft.steps 2 --sft.policy_steps 1 "
    "--sft.batch_size 4 --sft.eval_rows 4 --rl.updates 3 --rl.episodes 2 --rl.eval_episodes 2 "
    "--rl.own_wins_steps 400 --rl.own_wins_updates 2 "
    "--eval.splits test --eval.episodes 2"
)
OFFLINE = shlex.split(
    "--offline.steps 2 --offline.reference_steps 2 --offline.eval_episodes 2 --offline.log_episodes 1 "
    "--offline.value_episodes 1 --offline.value_epochs 1"
)
VALUES = shlex.split("--values.critic_steps 2 --values.critic_batch 4 --values.actor_steps 1 --values.actor_batch 4")
SMALL = {
    "run taxi": TINY,
    "run taxi-demo": TINY,
    "run taxi-demo --arms sft,distilled-sft,reflect-rl,distilled": [
        *TINY,
        *shlex.split("--sft.policy-steps 1 --distill.steps 2 --distill.episodes 1 --distill.eval_episodes 2"),
    ],
    "run taxi-paper": [*TINY, "--arms", "no-reflection", "--eval.repeats", "1"],
    "data sft": [],
    "run portals": [*TINY, "--env.train", "8", "--env.validation", "4", "--env.test", "4"],
    "run guess.toml": TINY,
    "run my_env": TINY,
    "play my_env": [],
    "run my_doorkey": [*TINY, "--no-check", "--eval.batch", "8"],
    "play my_doorkey": [],
    "run demos.toml": [*TINY, "--teach.outcome_episodes", "1", "--teach.outcome_actions", "2"],
    "teach taxi": TINY,
    "run taxi --env.name reflectrl.examples.guess_number:GuessEnv": [
        *TINY,
        "--env.train",
        "8",
        "--env.validation",
        "2",
    ],
    "run taxi --arms sft,reflect-rl,archer,linvit": [*TINY, *VALUES],
    "run offline-taxi": [*TINY, *OFFLINE, "--arms", "offline-a_lol"],
    "offline": ["--offline.steps", "2", "--offline.value_epochs", "1", "--offline.eval_every", "1"],
    "run babyai-goto": [*TINY, "--arms", "random,rl-only", "--env.horizon", "5"],
    "run textarena-lake": [*TINY, "--env.horizon", "5"],
    "run reasoning-gym": [*TINY, *OFFLINE, "--rl.group", "2", "--text.prompts", "12"],
    "run orders": [*TINY, *OFFLINE, "--arms", "a_lol", "--text.prompts", "12", "--text.eval_prompts", "2"],
}
"""What makes commands quick that begin so; the longest beginning counts."""


class Command(NamedTuple):
    """A line of a block, its words, and the marker of the block."""

    line: str
    words: list[str]
    marker: str


def commands(page: Path) -> list[Command]:
    """Every command in the blocks of a page."""
    found = []
    for marker, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                found.append(Command(" ".join(line.split()), words, marker))
    return found


def small(words: Sequence[str]) -> list[str] | None:
    """What makes a command quick, the words being those after `reflectrl`; None where nothing does."""
    line = f"{' '.join(words)} "
    return next((SMALL[start] for start in sorted(SMALL, key=len, reverse=True) if line.startswith(f"{start} ")), None)


def is_run(command: Command) -> bool:
    """Whether a command is run, not only read."""
    if command.words[0] != "reflectrl" or command.marker.startswith("needs"):
        return False
    return command.marker != "slow" or small(command.words[1:]) is not None


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


REQUESTS = DOCS / "decision-models.md"
RUN = [page for page in PAGES if page != REQUESTS and any(map(is_run, commands(page)))]
"""The pages whose commands are run; those of `REQUESTS` are run, and its server asked, by a test of its own."""


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_folder: Callable[[str], Path]) -> Path:
    """A folder with what the pages speak of: a model, a file of answers with rewards."""
    shutil.copytree(tiny_folder("llama"), tmp_path / "my-model")
    rows = [
        {"prompt": f"Go to place {n}.\n", "completion": f" {answer}", "reward": reward}
        for n in range(12)
        for answer, reward in (("went to see", 1.0), ("no", 0.0))
    ]
    (tmp_path / "answers.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for project in ("my_env", "my_doorkey"):
        monkeypatch.delitem(sys.modules, project, raising=False)  # of another test or page
    monkeypatch.setenv("REFLECTRL_DATA", str(tmp_path / "data"))
    return tmp_path


def write_recipes(page: Path, folder: Path) -> None:
    """The recipes that a page shows under a name, as files."""
    for name, text in FILE.findall(page.read_text(encoding="utf-8")):
        (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_commands_of_a_page_run_from_its_top_to_its_bottom(
    page: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_recipes(page, workplace)
    for command in filter(is_run, commands(page)):
        words = command.words[1:]
        code = main([*words, *(small(words) or [])])
        said = capsys.readouterr()
        assert code == 0, f"{name_of(page)}: {command.line}: {said.err}"


def test_requests_to_a_decision_model_are_answered_as_the_page_shows(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's own agent, but a tiny one, asked by the page's commands: its numbers differ, the form does not."""
    page, text = REQUESTS, REQUESTS.read_text(encoding="utf-8")
    for name, request in re.findall(r"`(\w+\.json)`:\n\n```json\n(.*?)```", text, re.DOTALL):
        (workplace / name).write_text(request, encoding="utf-8")
    for command in filter(is_run, commands(page)):
        assert main([*command.words[1:], *(small(command.words[1:]) or [])]) == 0, capsys.readouterr().err
    words = [sys.executable, "-m", "reflectrl", "serve", "runs/my_env", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split()[3]
        try:
            asked = re.findall(r"```bash\n(curl .*?)\n```\n+```json\n(.*?)```", text, re.DOTALL)
            assert len(asked) == 3
            for line, shown in asked:
                words = shlex.split(line.replace("http://127.0.0.1:8000/v1", address))
                found = json.loads(subprocess.run(words, capture_output=True, check=True, timeout=60).stdout)
                assert form(found) == form(json.loads(shown)), line
        finally:
            server.send_signal(signal.SIGINT)


def form(value: object) -> object:
    """What an answer looks like: its names, and the kind of each value, where whole numbers are numbers."""
    if isinstance(value, dict):
        return {name: form(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [form(inner) for inner in value]
    return float if type(value) is int else type(value)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_of_a_page_can_be_read(page: Path, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_recipes(page, workplace)
    for command in commands(page):
        if command.words[:2] == ["reflectrl", "init"]:
            assert main(command.words[1:]) == 0
        if not is_run(command):
            assert command.marker, f"neither run nor marked: {command.line}"
            require_readable(command.words, command.line)
    for line in INLINE.findall(page.read_text(encoding="utf-8")):
        if not re.search(r"\.\.\.|\||my_|\b[A-Z]{3,}\b", line):
            require_readable(shlex.split(line), line)


def require_readable(words: Sequence[str], line: str) -> None:
    """What a command names exists: verb, recipe, options and keys; a target of make; a module; an extra."""
    match [Path(words[0]).name, *words[1:]]:
        case ["reflectrl", *rest] if rest not in (["--version"], ["--help"]) and rest[1:] not in (["--help"], []):
            require_verb(rest, line)
        case ["reflectrl", verb, *_]:
            assert verb in (*Verbs(), "--version", "--help"), line
        case ["make", target, *given]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), line
            require_extras([word.removeprefix("EXTRA=") for word in given if word.startswith("EXTRA=")], line)
        case ["python", "-m", "pytest", *paths]:
            assert all((ROOT / path).exists() for path in paths), line
        case ["python", script, *_] if script.startswith("scripts/"):
            assert (ROOT / script).is_file(), line
        case ["python", "-m", module, *rest]:
            require_program(module, rest, line)
        case ["pip", "install", *packages]:
            require_extras([name for word in packages for name in re.findall(r"^\.\[(.+)\]$", word)], line)
        case [program, *rest] if "reflectrl" in rest and "--" in rest:  # an assistant that starts the server
            require_readable(rest[rest.index("--") + 1 :], f"{program}: {line}")
        case [script, "prepare" | "run", *_] if (ROOT / "scripts" / script).is_file():  # gpu_day.sh
            return
        case ["torchrun" | "accelerate", *rest] if "reflectrl" in rest:
            require_readable(rest[rest.index("reflectrl") :], line)
        case [variable, *rest] if "=" in variable:
            require_readable(rest, line)
        case [program, *_]:
            assert program in (
                "git",
                "docker",
                "ray",
                "vllm",
                "curl",
                "hf",
                "pre-commit",
                "source",
                "uvx",
                "beelinebench",
            ), f"nothing is known of: {line}"


def require_verb(words: Sequence[str], line: str) -> None:
    """The verb reads its words, and every setting is a key, or an argument of the environment."""
    verb, settings = parse(words, Verbs(), "reflectrl", "")
    given = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in settings if word.startswith("--")}
    if isinstance(verb, Run):
        try:
            dataclasses.replace(verb, dry_run=True)(settings)
        except UserError as error:
            assert str(error).startswith(("--load: ", "--fork: ")), error  # a run that the page's reader has
    elif isinstance(verb, Certify) and is_gym_id(verb.env):
        assert not given, line
    elif isinstance(verb, Play | CheckEnv | Certify):
        name = env_section(verb.env, [])["name"]  # of a class, or of one that a project's recipe names
        given = {key.removeprefix("env.") for key in given}
        assert given <= set(inspect.signature(resolve("envs", name)).parameters), line
    else:
        assert given <= {key.dotted for key in keys()}, line


def require_program(module: str, words: Sequence[str], line: str) -> None:
    """The module exists, and each option is somewhere in it, or a key of recipes, which some programs pass on."""
    inside = ("src", ".") if module.startswith("reflectrl") else (".", Path.cwd())  # a project that the page has begun
    [path] = [found for base in inside if (found := ROOT / base / f"{module.replace('.', '/')}.py").exists()]
    text, recipe_keys = path.read_text(encoding="utf-8"), {key.dotted for key in keys()}
    for option in (word.lstrip("-") for word in words if word.startswith("--")):
        if "." in option and "parse_known_args" in text:
            assert option.replace("-", "_") in recipe_keys, f"{option}: {line}"
            continue
        assert re.search(option.replace("-", "[-_]"), text), f"{option}: {line}"


def require_extras(lists: Sequence[str], line: str) -> None:
    """Each of the lists, such as "text,mcp", names extras that exist."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for names in lists:
        assert set(names.split(",")) <= set(project["optional-dependencies"]), line


def test_pages_that_are_made_from_the_code_are_in_step_with_it() -> None:
    verbs = subprocess.run(
        [sys.executable, DOCS / "make_verbs.py"], text=True, capture_output=True, check=True, cwd=ROOT
    ).stdout
    assert (DOCS / "recipes.md").read_text(encoding="utf-8") == reference(), "make docs"
    assert (DOCS / "verbs.md").read_text(encoding="utf-8") == verbs, "make docs"


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [name for page in DOCS.rglob("*.md") if (name := page.relative_to(DOCS).as_posix()) not in listed]
    assert not missing


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 80
