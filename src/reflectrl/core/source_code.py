"""Digest of the code and data that decide how an environment behaves, for the fingerprints of a run.

Code is read and never imported, so the digest of a stranger's environment can be computed before it is trusted. It
covers the files of the environment's package, the modules beside it that are imported, and the data that the class
declares or the recipe names. Environments of reflectrl itself have no digest of their code, since a run records the
version of reflectrl.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import io
import os
import re
import stat
import sys
import tokenize
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from reflectrl.core.digests import CHECKSUM
from reflectrl.core.plugins import announced

OWN = "reflectrl"
NOT_SOURCE = (
    ".*", "__pycache__", "*.pyc", "*.egg-info", "tests", "test_*.py", "*_test.py", "conftest.py", "record.py", "runs",
    "recipe.toml", "README*", "*.md", "*.log",
)  # fmt: skip
"""Names of files and folders in a package that do not change how its environment behaves."""
DATA_FILES = "data_files"
"""Attribute of an environment's class that names its data: files, folders or patterns beside its module."""
GYM_ID = re.compile(r"([A-Za-z_]\w*)(?:\.\w+)*:[\w/-]+")
"""Id of a gymnasium environment that names the module which registers it."""
READ_WHOLE = 64 * 2**20
"""Size in bytes up to which the content of a data file counts. Of a larger file, its size and its beginning count."""

_digests_of_loaded: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()
"""Digests of imported modules. Python does not import a file again, so a later edit is not what runs."""


def environment_digest(env: Mapping[str, Any]) -> str:
    """Return the digest of the source of an `env` section's environment, and of the files that the section names.

    It does not depend on where the files lie. It is "" for an environment of reflectrl that needs no files, and for
    modules that cannot be found.

    Args:
        env: name and arguments of the environment.
    """
    modules = dict.fromkeys(name for name in _modules(env) if name != OWN)
    digests = [digest for digest in map(_digest_of_module, modules) if digest]
    files = [_file_digest(Path(value)) for key, value in env.items() if key != "name" and _is_file(value)]
    return _combined([*digests, *files]) if digests or files else ""


def _modules(env: Mapping[str, Any]) -> Iterator[str]:
    """Yield the top-level modules that an `env` section names: of its class, and of the environment that it adapts."""
    name, id = env.get("name"), env.get("id")
    if isinstance(name, str) and name:
        module = name.partition(":")[0]
        if ":" not in name:
            points = announced("envs")
            module = points[name].module if name in points else ""
        yield from filter(None, [module.partition(".")[0]])
    if isinstance(id, str) and (match := GYM_ID.fullmatch(id)):
        yield match[1]


def _digest_of_module(name: str) -> str:
    """Return the digest of a top-level module and what it imports from beside it; "" if it cannot be found."""
    module = sys.modules.get(name)
    if module is not None and module in _digests_of_loaded:
        return _digests_of_loaded[module]
    files = source_files(name)
    digest = _combined([f"{path} {_file_digest(file)}" for path, file in sorted(files.items())]) if files else ""
    if module is not None:
        _digests_of_loaded[module] = digest
    return digest


def source_files(name: str) -> dict[str, Path]:
    """Return the files of a top-level module, of the modules beside it that it imports, and their data.

    Returns:
        Path relative to the folder in which the module lies → file.
    """
    files: dict[str, Path] = {}
    waiting, seen = [name], {OWN}
    beside: Path | None = None
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        for folder, file in _files_of_module(module, beside):
            beside = beside or folder
            files[os.path.relpath(file, folder)] = file
            if file.suffix != ".py":
                continue
            mentions = _mentions(file, *_version(file))
            for data in _data_files(mentions, file.parent):
                files[os.path.relpath(data, folder)] = data
            if not _is_installed(folder):
                waiting += sorted(mentions.modules)
        if beside is None:  # there is no such module
            break
    return files


def _files_of_module(name: str, beside: Path | None) -> Iterator[tuple[Path, Path]]:
    """Yield the files of a module or package, each with the folder in which the module lies.

    Args:
        beside: folder in which the module has to lie; None for anywhere on Python's path, and in the current folder.
    """
    spec = _spec(name) if beside is None else PathFinder.find_spec(name, [str(beside)])
    if spec is None:
        return
    if spec.submodule_search_locations is not None:
        for location in spec.submodule_search_locations:
            folder = Path(location).resolve()
            yield from ((folder.parent, file) for file in _files_below(folder))
    elif spec.origin and Path(spec.origin).is_file():
        file = Path(spec.origin).resolve()
        yield file.parent, file


def _spec(name: str) -> ModuleSpec | None:
    """Find a top-level module, imported or not. A program that is being run is the module `__main__`."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if name == "__main__":
        return importlib.util.spec_from_file_location(name, file) if file else None
    if module is not None and getattr(module, "__spec__", None) is not None:
        return module.__spec__
    with contextlib.suppress(ImportError, ValueError):
        if (spec := importlib.util.find_spec(name)) is not None:
            return spec
    return PathFinder.find_spec(name, [str(Path.cwd())])


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the regular files of a package that may change how its environment behaves."""
    for directory, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _is_ignored(name))
        for name in sorted(names):
            path = Path(directory, name)
            if not _is_ignored(name) and _is_regular(path) and not _is_log(path):
                yield path


def _is_log(path: Path) -> bool:
    """Tell whether a file holds recorded episodes, which do not belong to an environment."""
    if path.suffix != ".jsonl":
        return False
    with path.open("rb") as file:
        return f'"{CHECKSUM}":"'.encode() in file.readline(2**20)


def _is_ignored(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in NOT_SOURCE)


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def _is_installed(folder: Path) -> bool:
    """Tell whether a folder holds installed packages, whose neighbours are not the environment's own modules."""
    return folder.name in ("site-packages", "dist-packages") or folder == Path(os.__file__).resolve().parent


# ---- what a file mentions --------------------------------------------------------------------------------------------


class Mentions(NamedTuple):
    """Names in a file of code.

    Attributes:
        modules: top-level modules that it imports, or that ids of gymnasium name.
        data: files, folders or patterns that a class declares as its data.
    """

    modules: frozenset[str]
    data: tuple[str, ...]


@lru_cache(maxsize=4096)
def _mentions(file: Path, modified: int, size: int) -> Mentions:
    """Read what a file of code mentions. The other arguments make the cache notice changes of the file."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return Mentions(frozenset(), ())
    modules, data = set[str](), list[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            modules.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if (match := GYM_ID.fullmatch(node.value[:200])) is not None:
                modules.add(match[1])
        elif isinstance(node, ast.Assign | ast.AnnAssign) and _assigns(node, DATA_FILES):
            data += _text_constants(node.value)
    return Mentions(frozenset(modules), tuple(data))


def _assigns(node: ast.Assign | ast.AnnAssign, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _text_constants(node: ast.AST | None) -> list[str]:
    if node is None:
        return []
    return [item.value for item in ast.walk(node) if isinstance(item, ast.Constant) and isinstance(item.value, str)]


def _data_files(mentions: Mentions, folder: Path) -> Iterator[Path]:
    """Yield the data that a class in a file of code declares. The file lies in the folder."""
    for declared in mentions.data:
        with contextlib.suppress(ValueError, OSError, NotImplementedError):  # not a pattern
            for path in sorted(folder.glob(declared)):
                yield from (file for file in ([path] if path.is_file() else _files_below(path)) if _is_regular(file))


def _is_file(value: object) -> bool:
    """Tell whether an argument is the path of a file."""
    return isinstance(value, str) and bool(value.strip()) and _is_regular(Path(value))


# ---- digests ---------------------------------------------------------------------------------------------------------


def _version(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_mtime_ns, status.st_size


def _file_digest(file: Path) -> str:
    try:
        return _digest_of_version(file, *_version(file))
    except OSError:
        return "unreadable"


@lru_cache(maxsize=4096)
def _digest_of_version(file: Path, modified: int, size: int) -> str:
    """Return the digest of a file. `modified` makes the cache notice changes."""
    with file.open("rb") as stream:
        content = stream.read(READ_WHOLE + 1)
    if file.suffix == ".py":
        content = without_comments(content)
        if file == _program():
            content = _definitions(content)
    if len(content) > READ_WHOLE:
        content = content[: 2**20] + str(size).encode()
    return hashlib.sha256(content).hexdigest()


def without_comments(code: bytes) -> bytes:
    """Return code without comments and empty lines, which change nothing that it does. Texts in it are unchanged."""
    lines: list[str | None]
    try:
        text = code.decode("utf-8")
        lines = [*io.StringIO(text, newline=None)]  # with the ends of lines of every system
        for token in tokenize.generate_tokens(io.StringIO(text, newline=None).readline):
            row, column = token.start
            line = lines[row - 1] if row <= len(lines) else None
            if token.type == tokenize.COMMENT and line is not None:
                lines[row - 1] = line[:column].rstrip() + "\n"
                line = lines[row - 1]
            if token.type == tokenize.NL and line is not None and not line.strip():
                lines[row - 1] = None
    except (tokenize.TokenError, SyntaxError, UnicodeDecodeError):
        return code
    return "".join(line for line in lines if line is not None).encode("utf-8")


def _program() -> Path | None:
    """Return the file of the program that is being run."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).resolve() if file else None


def _definitions(code: bytes) -> bytes:
    """Return the classes, functions and constants of a program that defines an environment, without its calls.

    A program that trains in its own environment may train with other settings the next time.
    """
    try:
        text = code.decode("utf-8")
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return code
    lasting = (ast.ClassDef, ast.FunctionDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    parts = []
    for node in tree.body:
        is_constant = not any(isinstance(inner, ast.Call) for inner in ast.walk(node))
        if isinstance(node, lasting) and (is_constant or isinstance(node, ast.ClassDef | ast.FunctionDef)):
            parts.append(ast.get_source_segment(text, node) or "")
    return "\n".join(parts).encode("utf-8")


def _combined(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]
