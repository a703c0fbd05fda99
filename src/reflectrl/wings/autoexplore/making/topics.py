"""Topics for questions about a file: definitions, comments, sections and keys, with their documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from reflectrl.wings.autoexplore.comments import comments_of
from reflectrl.wings.autoexplore.making.english import parts, plain, word_list
from reflectrl.wings.autoexplore.outline import Definition, about, outline

DOCS = ("md", "markdown", "mdx", "rst", "rest", "txt")
DATA = ("csv", "tsv", "json", "jsonl", "ndjson", "toml", "yaml", "yml", "ini", "cfg", "conf", "properties")
LONGEST_BODY = 80
"""Number of lines of a definition that are searched for details."""

_UNASKED = re.compile(
    r"(?:licen[sc]e|copying|notice|authors|contributors|requirements|constraints|py\.typed)", re.IGNORECASE
)
"""Names of files without topics."""
Source = Literal["docstring", "comment", "name", "docs", "header"]


@dataclass(frozen=True)
class Topic:
    """Topic of a question: a statement or element of a file.

    Attributes:
        path: path of the file.
        source: part of the file in which the topic was found.
        kind: "class", "function", "method", "constant", "module", "section" or "keys".
        name: name as written; "" for a module.
        told: sentence of the documentation or a comment about it; "" if there is none.
        owner: name of the enclosing class or section; "" at the top level.
        owner_told: sentence of the documentation about the owner.
        remarks: comments in the body.
        calls: names that the body calls.
        raises: names of raised exceptions.
        takes: names of parameters; for "keys", the keys or columns.
        bases: names of the base classes of a class.
    """

    path: str
    source: Source
    kind: str
    name: str = ""
    told: str = ""
    owner: str = ""
    owner_told: str = ""
    remarks: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    raises: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()


def topics(path: str, text: str) -> list[Topic]:
    """Return all topics of a file, in the order of its lines; [] if the file cannot be parsed."""
    if _UNASKED.match(path.rpartition("/")[2]):
        return []
    suffix = path.rpartition(".")[2].lower()
    if suffix in DOCS or "." not in path.rpartition("/")[2]:
        return list(_of_docs(path, text))
    if suffix in DATA:
        return list(_of_data(path, text))
    return list(_of_code(path, text))


# ---- code ------------------------------------------------------------------------------------------------------------

_USUAL_NAMES = ("main", "setUp", "run")
"""Names of definitions that are too common to ask about."""
_DERIVED = re.compile(r"class\s+\w+\s*\(([^()]*)\)|class\s+\w+\s*(?:extends|implements|:)\s*([\w.,: ]+)")
_CALL = re.compile(r"(?<![\w@])(\w{4,}+)\(")
_RAISE = re.compile(r"\b(?:raise|throw new|throw)\s+(?:\w+\.)*(\w+)")
_PARAMETER = re.compile(r"(?<![\w.])\*{0,2}(\w+)(?==|,|\)|:)")
_TELLING = re.compile(r"[A-Za-z][\w'`,.()/ -]{15,160}")
_NO_PROSE = re.compile(
    r"[=<>{}\[\];|\\]|https?:|\b(?:todo|fixme|xxx|hack|noqa|pragma|type:|pylint|copyright|licen[sc]e|coding|author)\b|\w\(",
    re.I,
)


def _of_code(path: str, text: str) -> Iterator[Topic]:
    lines = text.split("\n")
    if sentence := about(path, text):
        yield Topic(path, "docstring", "module", told=sentence)
    defined = outline(path, text)
    classes = {definition.name: definition for definition in defined if definition.kind == "class"}
    ends = [definition.line for definition in defined[1:]] + [len(lines) + 1]
    for definition, end in zip(defined, ends, strict=False):
        name = definition.name
        if (name.startswith("__") and name != "__init__") or len(name.strip("_")) < 3 or name in _USUAL_NAMES:
            continue
        body = lines[definition.line - 1 : min(end - 1, definition.line + LONGEST_BODY)]
        topic = _definition(path, definition, classes.get(definition.parent), body)
        yield topic
        for remark in topic.remarks:
            yield Topic(path, "comment", definition.kind, definition.name, remark, definition.parent, topic.owner_told)


def _definition(path: str, each: Definition, owner: Definition | None, body: Sequence[str]) -> Topic:
    code = "\n".join(line for line in body[1:] if not line.lstrip().startswith(("#", "//", "*")))
    calls = [name for name in _CALL.findall(code) if name not in word_list("usual_calls") and name != each.name]
    raises = [name for name in _RAISE.findall(code) if name not in word_list("usual_errors") and name[:1].isupper()]
    takes = [name for name in _PARAMETER.findall(each.signature) if name not in ("self", "cls", "args", "kwargs")]
    derived = _DERIVED.search(body[0]) if each.kind == "class" and body else None
    bases = re.findall(r"(?:\w{1,60}\.){0,8}([A-Z]\w{3,})", derived[1] or derived[2] or "") if derived else []
    return Topic(
        path,
        "docstring" if each.doc else "name",
        each.kind,
        each.name,
        each.doc,
        each.parent,
        owner.doc if owner else "",
        tuple(dict.fromkeys(_remarks(path, body))),
        tuple(name for name in dict.fromkeys(calls) if len(parts(name)) > 1)[:6],
        tuple(dict.fromkeys(raises))[:3],
        tuple(name for name in takes if len(name) > 2)[:6],
        tuple(name for name in bases if len(parts(name)) > 1),
    )


def _remarks(path: str, body: Sequence[str]) -> Iterator[str]:
    """Yield the first sentences of comments that are prose and stand on their own lines."""
    comments = comments_of(path)
    block: list[str] = []
    for line in [*map(str.strip, body), ""]:
        if comments is not None and comments.is_line(line):
            block.append(line)
        elif block and comments is not None:
            sentence = plain(re.split(r"(?<=[a-z])[.:?]\s", " ".join(comments.bare(block).split()), maxsplit=1)[0])
            if _TELLING.fullmatch(sentence) and not _NO_PROSE.search(sentence) and len(sentence.split()) >= 4:
                yield sentence
            block = []


# ---- documentation and data ------------------------------------------------------------------------------------------

_USUAL_HEADINGS = (
    "usage|install(?:ation|ing)?|examples?|notes?|api(?: reference)?|contents|introduction|overview|change ?log|"
    "changes|history|licen[sc]e|see also|references?|links?|faq|todo|features|summary|credits|authors|news|"
    "contributors|description|parameters|returns|new features|bug ?fix(?:es)?|fixed|added|removed|changed|misc|"
    "deprecat(?:ed|ions?)|improvements|enhancements|indices and tables|table of contents|getting started|quickstart|"
    "release notes|requirements|documentation|tests?|support|other changes|warning|version|released?|unreleased"
)
_USUAL_HEADING = re.compile(
    rf"[\W\d]*(?:(?:more |basic |advanced |quick )?(?:{_USUAL_HEADINGS})s?[\W\d]*)?", re.IGNORECASE
)


def _of_docs(path: str, text: str) -> Iterator[Topic]:
    headings = outline(path, text)
    for heading in headings:
        usual = _USUAL_HEADING.fullmatch(heading.name) is not None or len(re.findall("[A-Za-z]{3,}", heading.name)) < 2
        sentence = heading.doc if _says_something(heading.doc) else ""
        if sentence or not usual:
            yield Topic(path, "docs", "section", "" if usual else heading.name, sentence, heading.parent)
    if not headings and _says_something(sentence := about(path, text)):
        yield Topic(path, "docs", "section", told=sentence)
    for sentence in _paragraphs(text):
        yield Topic(path, "docs", "section", told=sentence)


def _says_something(text: str) -> bool:
    """Return whether a text is prose of some length, rather than a table, a list or code."""
    letters = sum(character.isalpha() or character == " " for character in text)
    return len(text.split()) >= 5 and letters >= 0.9 * len(text) and not _NO_PROSE.search(text)


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the first sentences of paragraphs of prose that begin without indentation."""
    for paragraph in re.split(r"\n\s*\n", text):
        joined = " ".join(paragraph.split())
        if paragraph[:1].isupper() and paragraph[:1].isalpha() and len(joined) > 60:
            sentence = plain(re.split(r"(?<=[a-z`)])[.:?]\s", joined, maxsplit=1)[0])
            if 40 < len(sentence) < 160 and not _NO_PROSE.search(sentence):
                yield sentence


def _of_data(path: str, text: str) -> Iterator[Topic]:
    defined = outline(path, text)
    sentence = about(path, text)
    groups: dict[str, list[str]] = {}
    for definition in defined:
        if (
            definition.kind in ("key", "column")
            and re.fullmatch(r"[\w .-]{3,40}", definition.name)
            and re.search("[a-z]{3}", definition.name, re.I)
        ):
            groups.setdefault(definition.parent, []).append(definition.name)
    for owner, keys in groups.items():
        for start in range(0, min(len(keys), 12), 4):
            yield Topic(path, "header", "keys", told=sentence, owner=owner, takes=tuple(keys[start : start + 4]))
