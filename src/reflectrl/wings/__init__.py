"""Task families: each holds everything of its own, and is found as a stranger's package is found (entry points)."""
