"""The verb `data autoexplore`, as tests give it."""

import pytest

from reflectrl.cli import main


def run(*words: object) -> int:
    """Run the verb and return its exit code."""
    return main(["data", "autoexplore", *map(str, words)])


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line on stderr with which words are refused."""
    capsys.readouterr()
    assert run(*words) == 2
    err = capsys.readouterr().err
    assert err.startswith("reflectrl: ") and err.count("\n") == 1, err
    return err
