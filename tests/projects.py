"""A small project to find files in."""

from pathlib import Path


def make_project(root: Path) -> Path:
    """Three files; two of them answer "where are retries configured?"."""
    (root / "net").mkdir(parents=True)
    (root / "net" / "retry.py").write_text("# nothing\nretries = config['retries']\n", encoding="utf-8")
    (root / "net" / "pages.py").write_text("# how pages are loaded\n", encoding="utf-8")
    (root / "config.toml").write_text("# everything is configured here\nretries = 3\n", encoding="utf-8")
    return root
