"""Kinds of files, told from their paths."""

import pytest

from reflectrl.wings.autoexplore.teacher import kind_of


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("src/shop/basket.py", "code"),
        ("lib/Net.RS", "code"),
        ("src/history.py", "code"),
        ("docs/conf.py", "docs"),
        ("docs/history_of_trade.rst", "news"),
        ("README", "docs"),
        ("guide.md", "docs"),
        ("CHANGES.rst", "news"),
        ("CHANGELOG", "news"),
        ("docs/releases/4.1.rst", "news"),
        ("pyproject.toml", "other"),
        ("Makefile", "other"),
        ("LICENSE", "other"),
    ],
)
def test_the_path_tells_the_kind(path: str, kind: str) -> None:
    assert kind_of(path) == kind
