"""Environments to copy from. Each file is complete by itself; a class is named `reflectrl.examples.FILE:CLASS`."""
