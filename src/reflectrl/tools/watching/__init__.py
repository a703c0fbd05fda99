"""Monitoring of runs: alarms, trackers, and `reflectrl watch` in a terminal.

Off unless a recipe or a user asks for it.
"""
