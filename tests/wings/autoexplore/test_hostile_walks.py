"""Hostile repositories are played in: nothing outside is read, nothing written or started, and nothing crashes."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reflectrl.wings.autoexplore.finder import Finder
from reflectrl.wings.autoexplore.locate.agent import GivenEnv
from reflectrl.wings.autoexplore.repository import Repository
from tests.wings.autoexplore import walking
from tests.wings.autoexplore.hostile import CANARY, LAYOUTS, TEXT, build, playground, state
from tests.wings.autoexplore.test_hostile import swapping


def wide(root: Path) -> None:
    """A folder of 100,000 entries, and a text of 100 MB."""
    (root / "all").mkdir(parents=True)
    (root / "one.txt").write_text(TEXT, encoding="utf-8")
    for i in range(100_000):
        if i % 30_000 == 0:  # a file cannot have many more names
            (root / "all" / f"{i}.txt").write_text(TEXT, encoding="utf-8")
            source = root / "all" / f"{i}.txt"
        else:
            os.link(source, root / "all" / f"{i}.txt")
    with (root / "large.txt").open("w", encoding="utf-8") as file:
        file.writelines(["a line of a large text\n" * 50_000] * 91)


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    with playground() as folder:
        yield folder


def test_ten_thousand_commands_in_hostile_repositories(base: Path) -> None:
    roots = build(base)
    wide(base / "wide" / "repo")
    roots["wide"] = base / "wide" / "repo"
    before = list(state(base))
    given = [f"{title}={root}" for title, root in roots.items()]
    words = [sys.executable, walking.__file__, str(base), "3", "12", *given]
    done = subprocess.run(words, input="\n", capture_output=True, text=True, check=False, env=with_tests())
    assert (done.returncode, done.stderr) == (0, "READY\n")
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    counts = found["counts"]
    assert counts["layouts"] == len(LAYOUTS) + 1 and counts["episodes"] >= 200
    assert counts["commands"] >= 10_000 and counts["illegal"] >= 1000 and counts["opened"] > 1000
    assert list(state(base)) == before


def with_tests() -> dict[str, str]:
    """The environment in which a program finds what it shares with the tests."""
    here = str(Path(__file__).resolve().parents[3])
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))}


@pytest.mark.parametrize("actions", ["paper", "extended"])
def test_files_that_change_and_vanish_underneath(tmp_path: Path, actions: Any) -> None:
    for name, text in (("repo/src/a.py", TEXT), ("repo/b.py", TEXT), ("outside/a.py", CANARY)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text.ljust(len(TEXT)))
        os.utime(tmp_path / name, ns=(1, 1))  # so that even size and time are those of the real file
    stop = threading.Event()
    opened = Repository.open(tmp_path / "repo", cache_bytes=0)
    swapper = threading.Thread(target=swapping, args=(tmp_path / "repo", tmp_path / "outside", stop))
    swapper.start()
    try:
        events, texts = set(), []
        for seed in range(60):
            env = GivenEnv(Finder(opened), actions=actions)
            env.reset(seed=seed, options={"task": env.ask("which text is long enough to be kept?")})
            while not env.done:
                text, _, _, _, info = env.step(int(env.np_random.integers(env.action_space.n)))
                events.update(info["events"])
                texts.append(text)
    finally:
        stop.set()
        swapper.join()
    assert not any("CANARY" in text for text in texts)
    assert any("some text that is long enough" in text for text in texts)
    assert events >= {"wrong"} and events <= {"wrong", "error", "warning"}


def test_a_repository_that_has_gone(tmp_path: Path) -> None:
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "a.py").write_text(TEXT)
    finder = Finder(Repository.open(tmp_path / "repo"))
    shutil.rmtree(tmp_path / "repo")
    env = GivenEnv(finder)
    env.reset(seed=0, options={"task": env.ask("which text is long enough?")})
    for verb in ("ls", "cat", "head", "outline"):
        action = next(n for n, action in enumerate(env.legal_actions()) if action.split()[0] == verb)
        *_, info = env.step(action)
        assert info["events"] == ([] if verb == "ls" else ["error"])
