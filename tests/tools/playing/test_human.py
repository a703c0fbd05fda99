"""What a person types at the terminal, and what it means."""

import pytest

from reflectrl.tools.playing.human import Word, meaning

ACTIONS = ("go north", "go south", "take", "take all", "/look")


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("1", Word("act", 0)),
        ("take", Word("act", 2)),
        ("TAKE A", Word("act", 3)),
        ("/look", Word("act", 4)),  # an action is an action, whatever it looks like
        ("q", Word("quit")),
        ("h", Word("hand over", 0, "expert")),
        ("h 3", Word("hand over", 3, "expert")),
        ("h random", Word("hand over", 0, "random")),
        ("h random 2", Word("hand over", 2, "random")),
        ("/undo", Word("undo", 1)),
        ("/u 12", Word("undo", 12)),
        ("/reflect  The key is left.", Word("reflect", 0, "The key is left.")),
        ("/c what now?", Word("comment", 0, "what now?")),
        ("/mistake", Word("mistake", 1)),
        ("/drop", Word("drop")),
        ("/h", Word("help")),
    ],
)
def test_lines_that_mean_something(line: str, word: Word) -> None:
    assert meaning(line, ACTIONS, ["expert", "random"]) == word


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("go", "which of them?"),
        ("0", "no such action"),
        ("6", "no such action"),
        ("", "no such action"),
        ("fly", "no such action"),
        ("h exprt", "did you mean 'expert'?"),
        ("h 1 2", "h WHO STEPS"),
        ("/fly", "no such command"),
        ("/undo two", "/undo [N]"),
        ("/undo 0", "/undo [N]"),
        ("/reflect", "/reflect TEXT"),
    ],
)
def test_lines_that_do_not(line: str, said: str) -> None:
    word = meaning(line, ACTIONS, ["expert", "random"])
    assert word.kind == "wrong" and said in word.text


def test_without_helpers_nobody_is_handed_over_to() -> None:
    assert "nobody to hand over to" in meaning("h", ACTIONS).text
