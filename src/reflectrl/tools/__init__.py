"""Verbs of the command line besides `run`: play, export, sweep, watch, init, bench and others."""
