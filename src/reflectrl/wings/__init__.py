"""Task families: each holds everything of its own. Entry points name its environments, and `parts.py` the rest."""
