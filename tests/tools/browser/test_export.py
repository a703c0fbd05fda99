"""The verb, the files that the page runs on, and what is refused: one line each, nothing lost, nothing overwritten."""

from __future__ import annotations

import shutil
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reflectrl.api import load_agent
from reflectrl.cli import main
from reflectrl.core.players.simple import RandomPlayer
from reflectrl.core.types import Sampling, UserError
from reflectrl.methods.shared.critic import make_critic
from reflectrl.methods.shared.guided import ValueGuidedPolicy
from reflectrl.models.players import Policy, Reflector
from reflectrl.tools.browser.export import Exported, notes, playable
from reflectrl.tools.browser.runtime import FILES, PACKAGES, find_runtime

Lake = Callable[[str], Path]


def test_by_the_command_line_a_page_is_written_replaced_and_linked(
    lake: Lake, exporter: None, runtime: None, tmp_path: Path, capsys: Any
) -> None:
    run = tmp_path / "run"
    shutil.copytree(lake("gpt2"), run)
    words = ["export-browser", str(run), "--arm", "sft-no-reflection", "--tasks", "2"]
    assert main(["report", str(run / "recipe.toml"), "--folder", str(run)]) == 0
    report = run / "report.html"
    assert "reflectrl export-browser RUN" in report.read_text(encoding="utf-8")
    (run / "browser" / "data").mkdir(parents=True)
    (run / "browser" / "data" / "world.js").write_text("an older page", encoding="utf-8")
    assert main(words) == 0
    assert f"{run / 'browser'}: 2 tasks" in capsys.readouterr().out
    assert 'href="browser/index.html"' in report.read_text(encoding="utf-8")
    named = {path.name for path in (run / "browser").iterdir()}
    assert named >= {"index.html", "page.css", "page.js", "players.js", "data", "LICENCES.txt"}
    assert not (run / "browser" / "data" / "reflector.js").exists()
    licences = (run / "browser" / "LICENCES.txt").read_text(encoding="utf-8")
    assert all(f"{name} {version}" in licences for name, version in PACKAGES.items())
    assert "Apache License" in licences and "MIT License" in licences


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (["--arm", "random"], "RandomPlayer cannot be exported"),
        (["--arm", "stf"], "did you mean 'sft'"),
        (["--arm", "reflect-rl"], "not trained yet"),
        (["--split", "tset"], "did you mean 'test'"),
        (["--tasks", "0"], "at least 1"),
        (["--taks", "3"], "did you mean '--tasks'"),
        (["--states", "10"], "more than 10 states"),
        (["--runtime", "."], "lacks onnxruntime-web and @huggingface/tokenizers"),
    ],
)
def test_what_cannot_be_exported(
    lake: Lake, exporter: None, runtime: None, tmp_path: Path, capsys: Any, words: list[str], about: str
) -> None:
    out = tmp_path / "page"
    given = words if "--arm" in words else ["--arm", "sft", *words]
    assert main(["export-browser", str(lake("gpt2")), "--out", str(out), *given]) == 2
    said = capsys.readouterr().err
    assert about in said and said.count("\n") == 1 and not out.exists()


def test_nothing_else_is_overwritten(lake: Lake, exporter: None, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "diary.txt").write_text("dear diary", encoding="utf-8")
    assert main(["export-browser", str(lake("gpt2")), "--arm", "sft", "--out", str(tmp_path)]) == 2
    assert "is not an exported page" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["diary.txt"]
    assert main(["export-browser", str(tmp_path), "--out", str(tmp_path / "page")]) == 2
    assert "not a run folder" in capsys.readouterr().err


def test_players_that_a_page_cannot_be(lake: Lake) -> None:
    agent = load_agent(lake("gpt2"), "sft")
    policy, reflector = agent.player, agent.reflector
    assert isinstance(policy, Policy) and isinstance(reflector, Reflector)
    assert playable(policy, reflector) == (policy, reflector) and notes(policy, reflector) == []
    for player, speaker, about in (
        (policy, RandomPlayer(), "RandomPlayer cannot be exported"),
        (Policy(policy.lm, scoring="sum"), reflector, "play.scoring = 'sum'"),
        (
            ValueGuidedPolicy(policy, make_critic(policy.lm.hidden_size, 0), 0.1),
            reflector,
            "ValueGuidedPolicy cannot be exported",
        ),
    ):
        with pytest.raises(UserError, match=about):
            playable(player, speaker)
    said = notes(Policy(policy.lm, shuffle_labels=True), Reflector(reflector.lm, sampling=Sampling(1.0)))
    assert [line.split()[0] for line in said] == ["play.shuffle_labels", "play.reflection_temperature"]


# ---- what the page runs on -------------------------------------------------------------------------------------------


def npm(folder: Path, script: str) -> str:
    """A program of that name, in a folder that is to be the only one looked into."""
    folder.mkdir()
    path = folder / "npm"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return f"{folder}:/usr/bin:/bin"


def test_files_are_fetched_once_and_others_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    packed = tmp_path / "packed"
    for path in (packed / "package" / file for files in FILES.values() for file in files):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("not what was expected", encoding="utf-8")
    with tarfile.open(tmp_path / "all.tgz", "w:gz") as archive:
        archive.add(packed / "package", "package")
    log = tmp_path / "asked"
    monkeypatch.setenv("REFLECTRL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", npm(tmp_path / "bin", f'echo "$2" >> {log}; cp {tmp_path / "all.tgz"} "$4"'))
    for _ in range(2):
        with pytest.raises(UserError, match="is not the expected file; remove it, and get it with: npm install"):
            find_runtime()
    asked = [f"{name}@{version}" for name, version in PACKAGES.items()]
    assert log.read_text(encoding="utf-8").split() == asked


def test_without_npm_or_network_it_is_said_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFLECTRL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", npm(tmp_path / "bin", "echo 'no network here' >&2; exit 1"))
    with pytest.raises(UserError, match="npm cannot fetch onnxruntime-web: no network here"):
        find_runtime()
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(UserError, match="npm is not installed; .* --runtime node_modules"):
        find_runtime()


def test_what_is_exported_says_its_size(exported: Callable[..., tuple[Path, Exported]]) -> None:
    folder, done = exported("gpt2", "sft")
    assert done.bytes == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert len(done.world.tasks) == 3 and done.notes == []
