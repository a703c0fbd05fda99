"""Completion in real shells: what TAB would offer after a few words."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.cli.completion import Completion, words_of

ASK = {
    "bash": 'source {0}; COMP_WORDS=({1} "{2}"); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _reflectrl; '
    'printf "%s\\n" "${{COMPREPLY[@]}}"',
    "fish": "source {0}; complete -C '{1} {2}'",
}
"""Shell → command that prints what TAB offers: for a script, the words before, and the beginning of a word."""


@pytest.fixture
def offered(tmp_path: Path, capsys: Any) -> Any:
    """`offered("bash", "reflectrl list", "e")`: words that complete the last one."""

    def ask(shell: str, before: str, begun: str) -> set[str]:
        if shutil.which(shell) is None:
            pytest.skip(f"{shell} is not installed")
        assert main(["completion", shell]) == 0
        script = tmp_path / "script"
        script.write_text(capsys.readouterr().out, encoding="utf-8")
        program = ASK[shell].format(script, before, begun)
        done = subprocess.run([shell, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
        assert done.stderr == ""
        return {line.split("\t")[0] for line in done.stdout.splitlines()}

    return ask


@pytest.mark.parametrize("shell", ASK)
@pytest.mark.parametrize(
    ("before", "begun", "words"),
    [
        ("reflectrl", "lo", {"locate"}),
        ("reflectrl list", "e", {"envs"}),
        ("reflectrl rl", "taxi-d", {"taxi-demo"}),
        ("reflectrl run taxi", "--rl.clip", {"--rl.clip-coef", "--rl.clip-high"}),
        ("reflectrl locate", "--na", {"--names-only"}),
        ("reflectrl data", "alf", {"alfworld"}),
        ("reflectrl completion", "zs", {"zsh"}),
    ],
)
def test_a_word_is_completed(offered: Any, shell: str, before: str, begun: str, words: set[str]) -> None:
    assert offered(shell, before, begun) == words


def test_zsh_runs_the_function_of_bash(capsys: Any) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    assert main(["completion", "zsh"]) == 0
    program = f"{capsys.readouterr().out}\nprint $_comps[reflectrl]"
    done = subprocess.run(["zsh", "-fc", program], capture_output=True, text=True, check=True)
    assert "_reflectrl" in done.stdout and done.stderr == ""


def test_a_name_that_a_shell_would_run_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    verb = type("Verb", (Completion,), {"narrowed": None})
    monkeypatch.setattr("reflectrl.cli.completion.names", lambda group: ["$(touch x)", "a;b", "fine-1.2"])
    words = words_of(verb)
    assert "fine-1.2" in words and not any(set(word) & set("$;( ") for word in words)


def test_a_wrong_shell_is_one_line(capsys: Any) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
