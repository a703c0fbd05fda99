"""Environments that an OpenEnv server on this machine hosts."""
