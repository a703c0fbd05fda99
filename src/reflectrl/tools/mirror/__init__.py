"""Copies of run folders at an address (a bucket, another machine), made during the run, and fetched from there."""
