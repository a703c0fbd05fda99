"""Extract definitions from Python files by the syntax tree, and docstrings by regular expressions.

A text without a syntax tree (a cut end, another version of Python) is left to `outline_code`.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence

from reflectrl.wings.autoexplore.definitions import Definition, one_line, sentence
from reflectrl.wings.autoexplore.outline_languages import TRIPLE

_NESTED = (ast.If, ast.Try, ast.With, ast.For, ast.While)
"""Statements of a module or class whose bodies are searched for definitions."""
_CONSTANT = re.compile(r"_*[A-Z]\w*")
NOWHERE = ""
"""Impossible file name for `ast.parse`. On a syntax error, Python reads the line from the file of that name."""
_STRING = rf"""[rRuU]?(?:{TRIPLE}|"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+')"""
_FIRST_STATEMENT = re.compile(rf"(?>(?:\s|#[^\n]*+)*)(?P<string>{_STRING})", re.DOTALL)
_STRING_NEXT = re.compile(rf"[ \t]*+(?:#[^\n]*+)?\n\s*+(?P<string>{_STRING})", re.DOTALL)


def python_outline(text: str) -> tuple[Definition, ...] | None:
    """Return classes, functions, methods and constants (names that begin with a capital), in line order.

    Return None if the text has no syntax tree.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning about an invalid escape would print the file on stderr
            definitions = _defined(ast.parse(text, NOWHERE).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tuple(sorted(definitions, key=lambda definition: definition.line))


def module_docstring(text: str) -> str:
    """Return the first sentence of a module's docstring; "" if there is none. The rest of the text may be cut."""
    match = _FIRST_STATEMENT.match(text)
    return sentence(inside_quotes(match["string"])) if match else ""


def docstring_after(text: str, start: int) -> str:
    """Return the first sentence of the docstring that follows a colon at `start`; "" if there is none."""
    match = _STRING_NEXT.match(text, start + 1)
    return sentence(inside_quotes(match["string"])) if match else ""


def inside_quotes(literal: str) -> str:
    """Return the contents of a string literal. Escapes are kept."""
    return literal.lstrip("rRuU").strip("\"'")


def _defined(body: Sequence[ast.stmt]) -> list[Definition]:
    """Return the definitions of a module's statements, in no particular order."""
    definitions: list[Definition] = []
    pending = [(body, "")]  # no recursion: an `elif` is an `if` within an `else`, and there may be thousands
    while pending:
        body, parent = pending.pop()
        for index, node in enumerate(body):
            match node:
                case ast.ClassDef(name=name):
                    definitions.append(Definition(node.lineno, "class", name, parent, _doc(node.body)))
                    pending.append((node.body, name))
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    kind = "method" if parent else "function"
                    signature = _signature(node.args, kind)
                    definitions.append(Definition(node.lineno, kind, node.name, parent, _doc(node.body), signature))
                case ast.Assign() | ast.AnnAssign():
                    doc = _doc(body[index + 1 : index + 2])
                    definitions += (Definition(node.lineno, "constant", name, parent, doc) for name in _constants(node))
                case _ if isinstance(node, _NESTED):
                    pending += ((inner, parent) for inner in _bodies(node))
    return definitions


def _bodies(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of a statement."""
    for field in ("body", "orelse", "finalbody"):
        yield getattr(node, field, [])
    yield from (handler.body for handler in getattr(node, "handlers", ()))


def _constants(node: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    for target in node.targets if isinstance(node, ast.Assign) else (node.target,):
        for leaf in target.elts if isinstance(target, ast.Tuple) else (target,):
            if isinstance(leaf, ast.Name) and _CONSTANT.fullmatch(leaf.id):
                yield leaf.id


def _doc(body: Sequence[ast.stmt]) -> str:
    """Return the first sentence of the string that is the first statement; "" if there is none."""
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        value = body[0].value.value
        return sentence(value) if isinstance(value, str) else ""
    return ""


def _signature(given: ast.arguments, kind: str) -> str:
    """Render the parameters with plain defaults, without a method's `self` or `cls`."""
    positional = [*given.posonlyargs, *given.args]
    missing = [None] * (len(positional) - len(given.defaults))
    parameters = [
        _parameter(parameter, default)
        for parameter, default in zip(positional, [*missing, *given.defaults], strict=True)
    ]
    if kind == "method" and parameters and parameters[0] in ("self", "cls"):
        parameters = parameters[1:]
    parameters += [f"*{given.vararg.arg}"] if given.vararg else ["*"] if given.kwonlyargs else []
    parameters += map(_parameter, given.kwonlyargs, given.kw_defaults)
    return one_line(f"({', '.join([*parameters, *([f'**{given.kwarg.arg}'] if given.kwarg else [])])})")


def _parameter(parameter: ast.arg, default: ast.expr | None) -> str:
    if default is None:
        return parameter.arg
    plain = isinstance(default, ast.Constant | ast.Name)
    return f"{parameter.arg}={ast.unparse(default) if plain else '...'}"
