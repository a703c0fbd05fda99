"""Environments to copy from. Each file is complete by itself. A class is named `reflectrl.examples.FILE:CLASS`."""
