"""What kind of file a path is: code, documentation, news of changes, or anything else.

A question says which kind answers it, and the words that it shares with files do not: a page of the manual repeats the
words of the docstring that it is about. So files of a kind are compared with each other, and a player decides between
the kinds.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from reflectrl.wings.autoexplore.outline import LANGUAGES

CODE, DOCS, NEWS, OTHER = ("code", "docs", "news", "other")
_TEXTS = frozenset({"", ".rst", ".rest", ".md", ".markdown", ".mdx", ".rmd", ".txt", ".adoc", ".html", ".htm", ".tex"})
_DOCS = frozenset({"doc", "docs", "documentation", "manual"})
_NEWS = re.compile(r"change|history|news|release|whatsnew", re.IGNORECASE)


def kind_of(path: str) -> str:
    """The kind of a file, told from its path alone: whatever lies among documentation belongs to it."""
    pure = PurePosixPath(path)
    suffix = pure.suffix.lower()
    if suffix in _TEXTS and any(_NEWS.search(part) for part in pure.parts):
        return NEWS
    if suffix in _TEXTS - {""} or pure.stem.lower() == "readme" or _DOCS & {part.lower() for part in pure.parts[:-1]}:
        return DOCS
    return CODE if suffix[1:] in LANGUAGES else OTHER
