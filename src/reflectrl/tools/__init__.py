"""Verbs of the command line beside `run`: play, export, sweep, watch, init, bench."""
