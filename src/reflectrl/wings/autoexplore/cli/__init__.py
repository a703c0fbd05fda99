"""Verbs of AutoExplore."""
