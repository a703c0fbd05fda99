"""Speed of AutoExplore's sandbox: open and read repositories, beside walking and copying them, and environment steps.

    python -m benchmarks.autoexplore --repetitions 5

Two repositories are generated. The first has 10,000 source files in 1,000 folders, and a .gitignore as in a usual
Python project. The second is one folder of 100,000 files. All files are in the system's cache. `os.walk` only lists
names. A copy is what the released code of the method makes for every episode. Memory is the size of an open repository
without texts.

Steps are counted in random legal walks through the first repository, resets included, with each of the two action sets.
Each set plays new questions and then the same questions again. For a new question, the extended set searches, and
compares the files found with the question. "index" is built by the very first search, once per repository. The extended
set parses a file when a question finds it for the first time, and keeps the result. So the first new questions find
files that were never parsed; for the later ones, all files that they find were parsed beforehand. The memory of
episodes is measured for 1,000 environments in the middle of a walk, without the repository that they share.

Seconds are wall-clock time, CPU seconds are those of this process. On a busy machine, trust the CPU seconds.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectrl.wings.autoexplore.finder import DEEPEST, Finder
from reflectrl.wings.autoexplore.locate.agent import GivenEnv
from reflectrl.wings.autoexplore.repository import Repository

if TYPE_CHECKING:  # brings torch
    from .settings import Settings

FILES = 10_000
ENTRIES = 100_000
EPISODES = 300
"""Number of walks with new questions; the same questions are then walked again."""
LIVE = 1000
"""Number of episodes that are in progress at the same time."""
IGNORED = (
    "__pycache__/ *.py[cod] *$py.class *.so .Python build/ develop-eggs/ dist/ downloads/ eggs/ .eggs/ lib64/ parts/ "
    "sdist/ var/ wheels/ share/python-wheels/ *.egg-info/ .installed.cfg *.egg MANIFEST *.manifest *.spec pip-log.txt "
    "pip-delete-this-directory.txt htmlcov/ .tox/ .nox/ .coverage .coverage.* .cache nosetests.xml coverage.xml "
    "*.cover *.py,cover .hypothesis/ .pytest_cache/ cover/ *.mo *.pot *.log local_settings.py db.sqlite3 "
    "db.sqlite3-journal instance/ .webassets-cache .scrapy docs/_build/ .pybuilder/ target/ .ipynb_checkpoints "
    "profile_default/ ipython_config.py .pdm.toml __pypackages__/ celerybeat-schedule celerybeat.pid *.sage.py .env "
    ".venv env/ venv/ ENV/ env.bak/ venv.bak/ .spyderproject .spyproject .ropeproject /site .mypy_cache/ .dmypy.json "
    "dmypy.json .pyre/ .pytype/ cython_debug/ **/secrets/*.key !keep.log "
)
"""Roughly GitHub's .gitignore template for Python, one rule per word."""


def make(root: Path, files: int) -> Path:
    """Make a repository of source files of a few kB each, ten per folder."""
    draw = random.Random(files)
    for i in range(files):
        folder = root / f"package{i // 1000}" / f"module_{i // 100 % 10}" / f"part_{i // 10 % 10}"
        if i % 10 == 0:
            folder.mkdir(parents=True)
        lines = (
            f"def function_{draw.randrange(10**6)}(argument: int) -> int:\n    return argument + {j}\n\n"
            for j in range(50)
        )
        (folder / f"file_{i}.py").write_text("".join(lines), encoding="utf-8")
    (root / ".gitignore").write_text(IGNORED.replace(" ", "\n"), encoding="utf-8")
    return root


def make_wide(root: Path, entries: int) -> Path:
    """Make a folder with `entries` files. Most are hard links, which are like separate files to `os.scandir`."""
    root.mkdir()
    for i in range(entries):
        if i % 30_000 == 0:  # a file cannot have many more names
            source = root / f"{i}.txt"
            source.write_text("a text that is long enough\n", encoding="utf-8")
        else:
            os.link(source, root / f"{i}.txt")
    return root


@contextmanager
def repositories(files: int, entries: int) -> Iterator[tuple[Path, Path]]:
    """Make both repositories, and delete them afterwards."""
    with tempfile.TemporaryDirectory(prefix="benchmark") as folder:
        yield make(Path(folder) / "many", files), make_wide(Path(folder) / "wide", entries)


def _walk(root: Path) -> None:
    for _ in os.walk(root):
        pass


def _copy(root: Path) -> None:
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        shutil.copytree(root, f"{folder}/copy")


def _read(repository: Repository) -> None:
    for path in repository:
        repository.read(path)


def _held(root: Path) -> float:
    """Return the MiB that an open repository takes, without texts."""
    tracemalloc.start()
    repository = Repository.open(root)
    traced_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return traced_bytes / 2**20 if repository else 0.0


def rows(
    settings: Settings, files: int = FILES, entries: int = ENTRIES, episodes: int = EPISODES, live: int = LIVE
) -> list[dict[str, Any]]:
    """Return one row per operation: seconds (median if repeated), operations per second, and MiB of memory."""
    with repositories(files, entries) as (many, wide):
        return [*_measured(settings.repetitions, many, wide), *_walked(many, episodes, live)]


def _measured(repetitions: int, many: Path, wide: Path) -> list[dict[str, Any]]:
    from .measure import interleaved

    uncached, cached = Repository.open(many, cache_bytes=0), Repository.open(many, cache_bytes=1 << 30)
    _read(cached)
    files, entries = len(uncached), len(Repository.open(wide))
    cases: dict[str, tuple[int, Callable[[], Any]]] = {
        "open 1,000 folders": (files, partial(Repository.open, many)),
        "os.walk of 1,000 folders": (files, partial(_walk, many)),
        "copy 100 folders": (files // 10, partial(_copy, many / "package0")),
        "open one folder": (entries, partial(Repository.open, wide)),
        "read each file from disk": (files, partial(_read, uncached)),
        "read each file from the cache": (files, partial(_read, cached)),
    }
    seconds = interleaved({what: function for what, (_, function) in cases.items()}, repetitions)
    medians = {what: statistics.median(each) for what, each in seconds.items()}
    memory = {"open 1,000 folders": _held(many), "open one folder": _held(wide)}
    return [
        {"what": what, "n": n, "seconds": medians[what], "per second": n / medians[what], "MiB": memory.get(what)}
        for what, (n, _) in cases.items()
    ]


def _walked(root: Path, episodes: int, live: int) -> list[dict[str, Any]]:
    """Measure the index, steps and live episodes in a repository."""
    finder = Finder(Repository.open(root))
    table_rows = [_timed("index for the first search", lambda: finder.words("function") and 1)]
    draw = random.Random(episodes)
    for actions in ("paper", "extended"):
        env = GivenEnv(finder, actions=actions)
        questions = _questions(draw, episodes)
        for novelty in ("new", "known"):
            table_rows.append(_timed(f"steps, {actions} actions, {novelty} questions", partial(_play, env, questions)))
        if actions == "extended":
            others = _questions(draw, episodes)
            table_rows.append(_timed("files taken apart", partial(_take_apart, finder, others)))
            what = f"steps, {actions} actions, new questions, files taken apart"
            table_rows.append(_timed(what, partial(_play, env, others)))
        table_rows.append(
            {"what": f"{live:,} live episodes, {actions} actions", "n": live} | _live(finder, actions, live)
        )
    return table_rows


def _questions(draw: random.Random, count: int) -> list[str]:
    return [f"where is function {draw.randrange(10**6)}, of file {i} in a part?" for i in range(count)]


def _take_apart(finder: Finder, questions: list[str]) -> int:
    """Parse all files that a player can find for these questions, without answering. Return their number."""
    searches = [text for question in questions for text in (question, *finder.words(question))]
    paths = {path for text in dict.fromkeys(searches) for path, _ in finder.search.rank(text, DEEPEST)}
    for path in paths:
        finder.profiles.of(path)
    return len(paths)


def _timed(what: str, act: Callable[[], int]) -> dict[str, Any]:
    """Time a function that returns how many things it did, and return the row."""
    clock, cpu = time.perf_counter(), time.process_time()
    n = act()
    clock, cpu = time.perf_counter() - clock, time.process_time() - cpu
    return {"what": what, "n": n, "seconds": clock, "per second": n / clock} | {
        "CPU seconds": cpu,
        "per CPU second": n / cpu,
    }


def _play(env: GivenEnv, questions: list[str]) -> int:
    """Play a random legal walk per question, and return the number of steps."""
    steps, draw = 0, random.Random(0)
    for seed, question in enumerate(questions):
        env.reset(seed=seed, options={"task": env.ask(question)})
        while not env.done:
            env.step(draw.randrange(int(env.action_space.n)))
            steps += 1
    return steps


def _live(finder: Finder, actions: str, count: int) -> dict[str, float]:
    """Return the MiB of episodes in mid-walk. One is played before, so that all that it reads is already shared."""
    envs = [GivenEnv(finder, actions=actions) for _ in range(count)]
    _begin(envs[0], 0)
    tracemalloc.start()
    for env in envs:
        _begin(env, 0)
    traced_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"MiB": traced_bytes / 2**20}


def _begin(env: GivenEnv, seed: int) -> None:
    """Take the first five steps of a random walk that does not end there."""
    draw = random.Random(seed)
    env.reset(seed=seed, options={"task": env.ask("where is the function of a part?")})
    for _ in range(5):
        moves = [i for i, action in enumerate(env.legal_actions()) if not action.startswith("id ")]
        env.step(draw.choice(moves))


if __name__ == "__main__":
    from .settings import main

    main(rows, __doc__)
