"""Find every regular expression of the package, and measure how its time grows with texts made of its own pieces.

Run as a program in a process of its own: it imports all modules, prints one line of JSON per expression that is slow,
and one with the number of expressions. Time is processor time, so other work on the machine does not matter.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import pkgutil
import re
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from re import _constants as code  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

import reflectrl

SMALL, LARGE = 2048, 16384
"""Sizes in characters. A text of the first size that takes long is tried in the second one."""
QUICK_SECONDS = 0.001
LIMIT_SECONDS = 1.0
MOST_GROWTH = 3 * LARGE / SMALL
METHODS = {"match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}
CATEGORIES = {
    code.CATEGORY_DIGIT: "0", code.CATEGORY_NOT_DIGIT: "a", code.CATEGORY_SPACE: " ",
    code.CATEGORY_NOT_SPACE: "a", code.CATEGORY_WORD: "a", code.CATEGORY_NOT_WORD: " ",
}  # fmt: skip
SAMPLES = " a\n0A.-_,:;!\"'`#*/\\=<>()[]{}|@$%&~^+\t"


class Expression(NamedTuple):
    """Regular expression, and the ways in which the package applies it."""

    pattern: str | bytes
    flags: int
    methods: frozenset[str]


class TooSlowError(Exception):
    """Error: the processor time for one text is used up."""


def expressions() -> list[Expression]:
    """Return the expressions of all modules: compiled ones, and those in calls such as `re.sub("...", ...)`."""
    root = Path(reflectrl.__file__).parent
    for module in pkgutil.walk_packages([str(root)], "reflectrl."):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):  # an extra is not installed
                importlib.import_module(module.name)
    _compile_lazy_ones()
    modules = {name: module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "reflectrl"}
    compiled: dict[tuple[str | bytes, int], set[str]] = defaultdict(set)
    uses = {name: _methods(Path(str(module.__file__)), compiled) for name, module in modules.items()}
    for name, module in modules.items():
        for expression, key in _reachable(vars(module), uses[name]):
            compiled[expression.pattern, expression.flags] |= key
    return [Expression(*key, frozenset(methods or {"finditer"})) for key, methods in compiled.items()]


def _reachable(names: dict[str, Any], uses: dict[str, set[str]]) -> Iterator[tuple[re.Pattern[Any], set[str]]]:
    """Yield the compiled expressions of a module, with the methods that the module calls on them."""
    expressions = {name: value for name, value in names.items() if isinstance(value, re.Pattern)}
    for name, value in expressions.items():
        yield value, uses[name]
    # An expression in a table is called by the name of a variable or an attribute.
    others = (called for name, called in uses.items() if name not in {*expressions, "re"})
    methods = set().union(*others) - {"split"}  # a method of texts, too
    methods = methods if methods <= {"match", "fullmatch"} else {"finditer"}
    for value in _inside([each for name, each in names.items() if name not in expressions]):
        yield value, methods


def _compile_lazy_ones() -> None:
    names = ("reflectrl.wings.autoexplore.comments", "reflectrl.wings.autoexplore.locate.syntax")
    comments, syntax = map(sys.modules.get, names)
    if comments is None or syntax is None:  # the wing is not part of this copy of the package
        return
    for suffix in [*syntax._SUFFIXES, *syntax._NAMES]:
        syntax.syntax_of(suffix if suffix in syntax._NAMES else f"a.{suffix}")
    for value in vars(comments).values():
        if isinstance(value, comments.Comments):
            value.is_line("")


def _inside(values: list[Any]) -> Iterator[re.Pattern[Any]]:
    """Yield the compiled expressions in tables, in objects of the package, and in what a function has cached."""
    pending, seen = values, set[int]()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, re.Pattern):
            yield value
        elif isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, tuple | list | set | frozenset):
            pending += value
        elif hasattr(value, "cache_info"):
            pending += [each for each in gc.get_referents(value) if not isinstance(each, dict)]
        elif type(value).__module__.startswith("reflectrl") and not isinstance(value, type):
            pending += [each for each in gc.get_referents(value) if not isinstance(each, type)]


def _methods(path: Path, compiled: dict[tuple[str | bytes, int], set[str]]) -> dict[str, set[str]]:
    """Return the methods that a file calls on each name; note the expressions that it writes in calls of `re`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    uses: dict[str, set[str]] = defaultdict(set)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in METHODS:
            owner = node.value
            for each in (owner.body, owner.orelse) if isinstance(owner, ast.IfExp) else (owner,):
                if isinstance(each, ast.Name | ast.Attribute):
                    uses[each.id if isinstance(each, ast.Name) else each.attr].add(node.attr)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id == "re" and (text := _text(node.args[0], texts)) is not None:
                flags = [*node.args[1:], *(keyword.value for keyword in node.keywords)]
                names = {each.attr for flag in flags for each in ast.walk(flag) if isinstance(each, ast.Attribute)}
                number = sum(int(getattr(re, each)) for each in names if each.isupper())
                compiled[text, number].add(node.func.attr)
    return uses


def _text(node: ast.expr, texts: dict[str, ast.expr]) -> str | None:
    """Return a literal, with "x" in the place of what is known only later."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        return _text(texts[node.id], texts) if node.id in texts else None
    if isinstance(node, ast.JoinedStr):
        texts_in = (each.value if isinstance(each, ast.FormattedValue) else each for each in node.values)
        return "".join(_text(each, texts) or "x" for each in texts_in)
    return None


def attacks(expression: Expression) -> set[str]:
    """Return texts of `SMALL` characters, made of what the expression can match."""
    heads: set[tuple[str, str]] = set()
    tree = parser.parse(expression.pattern, expression.flags & ~re.DEBUG)
    _collect(list(tree), "", heads)
    texts: set[str] = set()
    for head, body in heads:
        texts |= {head + body * (SMALL // len(body)) + tail for tail in ("", "!\n")}
        texts |= {(head + body) * (SMALL // len(head + body)), (head + 3 * body) * (SMALL // len(head + 3 * body))}
        texts |= {_root(SMALL, head, body)}
    return texts


def _root(size: int, head: str, body: str) -> str:
    """Return many short heads with bodies of some length: as many as they are long."""
    stretch = head + body * 60
    return stretch * (size // len(stretch) + 1)


def _collect(items: list[Any], head: str, heads: set[tuple[str, str]]) -> None:
    """Collect what may be repeated, and what stands before it."""
    for index, item in enumerate(items):
        for body in _samples(item):
            if body:
                heads.add((head, body))
                heads.add(("", body))
                heads.add(("", head + body))
                follow = "".join(_samples(each)[0] for each in items[index + 1 : index + 2])
                heads.add((head, body + follow))
        for inner in _inner(item):
            _collect(inner, head, heads)
        head += _samples(item)[0]


def _inner(item: Any) -> Iterator[list[Any]]:
    """Yield the sequences within a part of an expression."""
    kind, value = item
    if kind in (code.MAX_REPEAT, code.MIN_REPEAT, code.POSSESSIVE_REPEAT):
        yield list(value[2])
    elif kind is code.BRANCH:
        yield from map(list, _telling(value[1]))
    elif kind is code.SUBPATTERN:
        yield list(value[3])
    elif kind in (code.ASSERT, code.ASSERT_NOT):
        yield list(value[1])
    elif kind is code.ATOMIC_GROUP:
        yield list(value)


def _telling(branches: list[Any]) -> list[Any]:
    """Return a few branches: words are alike, so three of them are enough, and six of the others."""
    words = [branch for branch in branches if all(kind is code.LITERAL for kind, _ in branch)]
    others = [branch for branch in branches if branch not in words]
    return words[:3] + others[:6]


def _samples(item: Any) -> list[str]:
    """Return texts that a part of an expression can match; the first is used before other parts."""
    kind, value = item
    match kind:
        case code.LITERAL:
            return [chr(value)]
        case code.NOT_LITERAL:
            return [next(each for each in SAMPLES if ord(each) != value)]
        case code.ANY:
            return ["a", " "]
        case code.IN:
            return _members(value)
        case code.MAX_REPEAT | code.MIN_REPEAT | code.POSSESSIVE_REPEAT:
            once = ["".join(texts) for texts in _sequences(list(value[2]))]
            return [once[0] * max(value[0], 0), *once] if value[0] != 1 else once
        case code.BRANCH:
            return ["".join(texts) for branch in _telling(value[1]) for texts in _sequences(list(branch))] or [""]
        case code.SUBPATTERN:
            return ["".join(texts) for texts in _sequences(list(value[3]))]
        case code.ATOMIC_GROUP:
            return ["".join(texts) for texts in _sequences(list(value))]
        case code.AT:
            return ["\n" if value in (code.AT_BEGINNING, code.AT_BEGINNING_LINE, code.AT_END) else ""]
    return [""]


def _sequences(items: list[Any]) -> list[list[str]]:
    """Return samples of a sequence: the first of each part, and each other in its place."""
    columns = [_samples(item) for item in items]
    first = [column[0] for column in columns]
    others = [
        [*first[:index], other, *first[index + 1 :]] for index, column in enumerate(columns) for other in column[1:4]
    ]
    return [first, *others[:12]]


def _members(value: list[Any]) -> list[str]:
    negated = value[0][0] is code.NEGATE
    members = []
    if negated:
        excluded = re.compile("[" + "".join(map(_written, value[1:])) + "]")
        return [each for each in SAMPLES if not excluded.match(each)][:3] or ["é"]
    for kind, each in value:
        if kind is code.LITERAL:
            members.append(chr(each))
        elif kind is code.RANGE:
            members.append(chr(each[0]))
        elif kind is code.CATEGORY:
            members.append(CATEGORIES[each])
    return members[:4] or ["a"]


def _written(member: Any) -> str:
    kind, value = member
    if kind is code.LITERAL:
        return re.escape(chr(value))
    if kind is code.RANGE:
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    return {"0": r"\d", " ": r"\s", "a": r"\w"}[CATEGORIES[value]] if "NOT" not in str(value) else {
        "a": r"\S" if "SPACE" in str(value) else r"\D", " ": r"\W"
    }[CATEGORIES[value]]  # fmt: skip


def seconds(compiled: re.Pattern[Any], method: str, text: Any) -> float:
    """Return the processor time of applying an expression to a text; at most about `LIMIT_SECONDS`."""
    start = time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_SECONDS)
    try:
        if method in ("sub", "subn"):
            compiled.sub(lambda match: match[0], text)
        elif method == "finditer":
            for _ in compiled.finditer(text):
                pass
        else:
            getattr(compiled, method)(text)
    except TooSlowError:
        return LIMIT_SECONDS
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return time.process_time() - start


def slow(expression: Expression) -> dict[str, Any] | None:
    """Return the text for which the time of an expression grows faster than linearly, with the times; else None."""
    compiled = re.compile(expression.pattern, expression.flags)
    for text in sorted(attacks(expression)):
        texts = [text, _longer(text)]
        inputs = texts if isinstance(expression.pattern, str) else [each.encode() for each in texts]
        for method in expression.methods:
            if seconds(compiled, method, inputs[0]) < QUICK_SECONDS:
                continue
            before = min(seconds(compiled, method, inputs[0]) for _ in range(3))
            if before < QUICK_SECONDS:
                continue
            after = seconds(compiled, method, inputs[1])
            if after > MOST_GROWTH * before or after >= LIMIT_SECONDS:
                return {
                    "pattern": str(expression.pattern), "method": method, "text": text[:60] + "..." + text[-20:],
                    "seconds": [round(before, 4), round(after, 4)],
                }  # fmt: skip
    return None


def _longer(text: str) -> str:
    """Return a text in which each stretch is longer: the middle is repeated."""
    begin, end = SMALL // 4, SMALL // 2
    middle = text[begin:end]
    return text[:begin] + middle * ((LARGE - len(text)) // len(middle) + 1) + text[end:]


def _raise(*_: object) -> None:
    raise TooSlowError


def main() -> None:
    signal.signal(signal.SIGVTALRM, _raise)
    listed = expressions()
    for expression in listed:
        if (result := slow(expression)) is not None:
            print(json.dumps(result), flush=True)
    print(json.dumps({"expressions": len(listed)}))


if __name__ == "__main__":
    main()
