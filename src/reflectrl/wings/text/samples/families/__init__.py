"""Task families of the A-LoL paper: conversion of downloaded raw files to samples, split by split."""

from reflectrl.wings.text.samples.families import comet, hha, knowledge, reddit
from reflectrl.wings.text.samples.families.store import Account, Family, prepare, read_account

FAMILIES: dict[str, Family] = {module.FAMILY.name: module.FAMILY for module in (hha, comet, reddit, knowledge)}

__all__ = ["FAMILIES", "Account", "Family", "prepare", "read_account"]
