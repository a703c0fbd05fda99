"""Kinds of files: told from paths, and shown beside what a search found."""

import pytest

from reflectrl.envs.autoexplore.kinds import KINDS, by_kind, kind_of


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


def test_files_of_a_kind_stay_in_order() -> None:
    found = by_kind(["b.py", "docs/x.md", "a.py", "setup.cfg"])
    assert found == {"code": ["b.py", "a.py"], "docs": ["docs/x.md"], "other": ["setup.cfg"]}
    assert set(found) <= set(KINDS)
