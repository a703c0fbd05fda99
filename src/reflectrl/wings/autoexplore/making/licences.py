"""Detect the licence of a repository from its own files, and what it allows. Names are SPDX identifiers or similar."""

from __future__ import annotations

import re
from email.parser import HeaderParser
from pathlib import Path

from reflectrl.core.config.files import parse_toml
from reflectrl.core.regular_files import read_regular

UNKNOWN = "unknown"
_LONGEST = 40
"""Longest name of a licence. A longer "licence" in a package's metadata is the whole text."""
_CLASSIFIER = "License :: "
_PHRASES = (
    ("Apache-2.0", r"apache(?: software)? licen[sc]e|\bapache[- ]2"),
    ("MPL-2.0", r"mozilla public licen[sc]e|\bmpl"),
    ("AGPL-3.0", r"affero"),
    ("LGPL", r"lesser general public|\blgpl"),
    ("GPL", r"general public licen[sc]e|\bgpl"),
    ("MIT", r"\bMIT\b|permission is hereby granted, free of charge"),
    ("BSD-3-Clause", r"bsd[- ]3|3-clause|neither the names? of"),
    ("BSD-2-Clause", r"bsd[- ]2|2-clause|simplified bsd"),
    ("BSD", r"\bbsd\b|redistribution and use in source and binary forms"),
    ("ISC", r"\bisc\b|permission to use, copy, modify, and/or distribute"),
    ("PSF-2.0", r"python software foundation"),
    ("Unlicense", r"unlicense|public domain"),
)
_PERMISSIVE = frozenset({"Apache-2.0", "MIT", "BSD-3-Clause", "BSD-2-Clause", "BSD", "ISC", "PSF-2.0", "Unlicense"})
_LICENCE_FILE = re.compile(r"(?:(?:un)?licen[cs]e|copying)(?:[._-](?!py$).*)?|licen[cs]es/.*", re.IGNORECASE)
_RULES = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _PHRASES)


def licence_of(root: Path, metadata: str = "") -> str:
    """Return the licence of a repository, from metadata, pyproject.toml, or the licence file; else "unknown".

    Args:
        root: folder of the repository.
        metadata: text of the package's PKG-INFO; "" if there is none.
    """
    return _from_metadata(metadata) or _from_pyproject(root / "pyproject.toml") or _from_files(root) or UNKNOWN


def is_permissive(licence: str) -> bool:
    """Return whether a licence lets its text be passed on under permissive terms; False in case of doubt.

    All parts of "A AND B" must be permissive, and one part of "A OR B". Licences with additions ("Apache-2.0 with
    Commons Clause") and expressions in brackets are not interpreted.
    """
    if "(" in licence or " with " in licence.lower():
        return False
    return any(all(map(_is_permissive_name, choice.split(" AND "))) for choice in licence.split(" OR "))


def _is_permissive_name(said: str) -> bool:
    names = {name for name, pattern in _RULES if pattern.search(said)}
    return bool(names) and names <= _PERMISSIVE


def is_licence_file(path: str) -> bool:
    """Return whether a path from a repository's root names a licence: "LICENSE.txt", "licenses/MIT.txt"."""
    return _LICENCE_FILE.fullmatch(path) is not None


def _from_metadata(metadata: str) -> str:
    if not metadata:
        return ""
    headers = HeaderParser().parsestr(metadata)
    classifiers = [line.removeprefix(_CLASSIFIER) for line in headers.get_all("Classifier", []) if _CLASSIFIER in line]
    return (
        _named(headers.get("License-Expression", "")) or _named(headers.get("License", "")) or _find(str(classifiers))
    )


def _from_pyproject(path: Path) -> str:
    try:
        project = parse_toml(read_regular(path).decode("utf-8")).get("project", {})
        licence = project.get("license", "")
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""
    return _named(str(licence.get("text", "")) if isinstance(licence, dict) else str(licence))


def _from_files(root: Path) -> str:
    for path in sorted(root.glob("[LC][IO][CP][EY][NI]*")) + sorted(root.glob("[Ll]icen[sc]e*")):
        if path.is_file() and not path.is_symlink():
            with path.open(encoding="utf-8", errors="replace") as file:
                if licence := _find(" ".join(file.read(4000).split())):
                    return licence
    return ""


def _named(said: str) -> str:
    """Return a short name unchanged, or the name of the licence that a long text matches."""
    said = " ".join(said.split())
    return said if 0 < len(said) <= _LONGEST and said.lower() not in ("unknown", "none") else _find(said)


def _find(text: str) -> str:
    return next((name for name, pattern in _RULES if pattern.search(text)), "")
