"""Verbs of text tasks."""
