"""Watching runs: alarms, trackers, `reflectrl watch` in a terminal. Off unless a recipe or a person asks for it."""
