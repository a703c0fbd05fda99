"""Extract the definitions of a file, and a one-line description, from its text.

    outline("src/net.py", text)  # (Definition(line=4, kind="function", name="fetch", signature="(url, retries=3)"),)
    about("src/net.py", text)    # "Fetches pages, again and again."

Texts may be cut anywhere. Nothing is imported, run or evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

from reflectrl.wings.autoexplore.comments import HASH, comments_of
from reflectrl.wings.autoexplore.definitions import MOST_DEFINITIONS, Definition, one_line, sentence
from reflectrl.wings.autoexplore.outline_code import code_outline
from reflectrl.wings.autoexplore.outline_data import (
    csv_header,
    csv_outline,
    ini_outline,
    json_about,
    json_outline,
    settings_about,
    toml_outline,
    yaml_outline,
)
from reflectrl.wings.autoexplore.outline_languages import LANGUAGES
from reflectrl.wings.autoexplore.outline_python import module_docstring, python_outline
from reflectrl.wings.autoexplore.outline_texts import markdown_outline, rst_outline, title_in_front

__all__ = ["Definition", "about", "outline"]

_OUTLINES: dict[str, Callable[[str], Iterator[Definition]]] = {
    **dict.fromkeys(("md", "markdown", "mdx", "rmd"), markdown_outline),
    **dict.fromkeys(("rst", "rest"), rst_outline),
    "toml": toml_outline,
    **dict.fromkeys(("ini", "cfg", "conf", "properties", "editorconfig"), ini_outline),
    **dict.fromkeys(("yaml", "yml"), yaml_outline),
    **dict.fromkeys(("json", "json5", "jsonc"), json_outline),
    **dict.fromkeys(("jsonl", "ndjson"), partial(json_outline, one_per_line=True)),
    "csv": csv_outline,
    "tsv": partial(csv_outline, delimiter="\t"),
}
_NAMES = {"cargo.lock": "toml", "poetry.lock": "toml", "pipfile": "toml", "rakefile": "rb", "gemfile": "rb"}
"""Name of a file → suffix that fits its contents."""
_CLASSES = re.compile(r"\b(?:class|interface|struct|trait|enum|object|record|type|module|protocol)[ \t]+(\w+)")
_TITLE = re.compile(r"<(title|description)>([^<]{1,1000})</\1>", re.IGNORECASE)
_SETUP = re.compile(r"\bdescription\s*=\s*[\"']([^\"'\n]{3,})[\"']")
_SUMMARY = re.compile(r"\.(?:summary|description)\s*=\s*[\"']([^\"'\n]{3,})[\"']")


def outline(path: str, text: str, most: int = MOST_DEFINITIONS) -> tuple[Definition, ...]:
    """Return the first `most` definitions of a file, in line order; () for unknown types of files.

    Args:
        path: path whose name determines the type of the file. Nothing is opened.
        text: contents of the file, or their beginning.
    """
    suffix, text = _suffix(path), _clean(text)
    if suffix in _OUTLINES:
        return tuple(islice(_OUTLINES[suffix](text), most))
    if suffix not in LANGUAGES:
        return ()
    definitions: Iterable[Definition] | None = python_outline(text) if suffix in ("py", "pyi") else None
    if definitions is None:
        definitions = code_outline(text, LANGUAGES[suffix], comments_of(path) or HASH)
    distinct, constants = [], set()  # a constant counts once, at its first assignment
    for definition in definitions:
        if definition.kind != "constant" or (definition.name, definition.parent) not in constants:
            distinct.append(definition)
        constants.add((definition.name, definition.parent))
        if len(distinct) == most:
            break
    return tuple(distinct)


def about(path: str, text: str) -> str:
    """Return a one-line description of a file; "" if the file has none.

    Python: first sentence of the docstring. Other code: first sentence of the first comment (licences are skipped), or
    of the comment on the class that is named like the file. Markdown and reStructuredText: first heading. Tables: names
    of the columns. Package files: their description.
    """
    suffix, text, comments = _suffix(path), _clean(text), comments_of(path)
    if suffix in ("md", "markdown", "mdx", "rmd", "rst", "rest"):
        return title_in_front(text) or next((heading.name for heading in outline(path, text)), "")
    if suffix in ("csv", "tsv"):
        return one_line(", ".join(csv_header(text, "\t" if suffix == "tsv" else "")[1]))
    if suffix in ("json", "json5", "jsonc", "jsonl", "ndjson"):
        return json_about(text)
    if suffix == "txt" or not suffix:
        prose = text[:4000].lstrip("\n =-*#~")
        return sentence(prose) if comments is None else comments.leading(text)
    description = _of_package(path, suffix, text) or (comments.leading(text) if comments else "")
    return description or _of_namesake(path, text)


def _of_package(path: str, suffix: str, text: str) -> str:
    """Return the description in a package file, module docstring or page title; "" if there is none."""
    if suffix in ("toml", "ini", "cfg", "yaml", "yml"):
        return settings_about(text, outline(path, text))
    if suffix in ("py", "pyi", "pyx", "pxd") and (docstring := module_docstring(text)):
        return docstring
    pattern = _SETUP if path.endswith("setup.py") else _SUMMARY if suffix == "gemspec" else None
    if pattern is None:
        pattern = _TITLE if suffix in ("html", "htm", "xml", "csproj", "nuspec") else None
    match = pattern.search(text) if pattern else None
    return sentence(match[match.re.groups]) if match else ""


def _of_namesake(path: str, text: str) -> str:
    """Return the first sentence of the comment on the class that is named like the file; "" if there is none."""
    stem = _letters(path.rpartition("/")[2].partition(".")[0])
    if stem not in map(_letters, _CLASSES.findall(text)):
        return ""  # saves the outline of the whole file
    classes = (
        definition
        for definition in outline(path, text)
        if definition.kind == "class" and _letters(definition.name) == stem
    )
    return next((definition.doc for definition in classes if definition.doc), "")


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()


def _suffix(path: str) -> str:
    name = path.rpartition("/")[2].lower()
    return _NAMES.get(name) or (name.rpartition(".")[2] if "." in name else "")


def _clean(text: str) -> str:
    """Make line feeds the only line ends, as everywhere in this package."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", " ")
