"""Extract comments from source files of many languages: the leading comment of a file, and the comment above a line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from reflectrl.wings.autoexplore.definitions import sentence

_MOST_ABOVE = 60
"""Number of lines above a definition that are searched for its comment."""
_MOST_LEADING = 200
"""Number of lines at the beginning of a file that are searched for the comment about the file."""
_CREDITS = re.compile(
    r"copyright|\(c\) |©|licen[sc]e|spdx|all rights reserved|warrant|redistribut|permission is hereby|public domain|"
    r"file is part of|\bgpl\b|notice\.txt|^[^\w\n]*+@?(?:authors?|created|maintainer|contributors?)\b|\$id",
    re.IGNORECASE | re.MULTILINE,
)
_DIRECTIVE = re.compile(
    r"-\*-|coding[:=]|\bvim?:|eslint|jshint|jslint|tslint|prettier|istanbul|@ts-|@flow|@jsx|pylint|flake8|noqa|mypy:|"
    r"type: ignore|ruff:|isort:|fmt:|shellcheck|rubocop|frozen_string_literal|yaml-language-server|\+build|go:build|"
    r"^\W*(?:@?(?:modified|date|since|version|file|filename)\b *:?|do not edit)",
    re.IGNORECASE,
)
_PASSED_OVER = re.compile(
    r"<\?(?:php|xml)?|<!doctype[^>]*>|[\"']use strict[\"'];?|(?:package|namespace)\b.*|---|@echo off|"
    r"#(?:pragma once|ifndef\b.*|define \w+)",
    re.I,
)
"""Lines that are not comments, but may stand before the comment about the file."""
_BETWEEN = re.compile(r"@\w|#\[|\[[A-Z]|template\b")
"""Annotations and attributes, which may stand between a definition and its comment."""
_TYPE = re.compile(r"[\w *]+")
"""Return type of a function in C, which may also stand there."""
_DECORATION = re.compile(r"[ \t]*+(?:[*#/!;%=~+-]++(?=\s|$)|[*!]++(?=\w))?[ \t]?")
"""Decoration at the beginning of a comment's line."""


@dataclass(frozen=True)
class Comments:
    """Comment syntax of a language.

    Attributes:
        line: regular expression for the start of a line comment; "" if the language has none.
        opening, closing: delimiters of block comments; "" if the language has none.
    """

    line: str = ""
    opening: str = ""
    closing: str = ""

    @cached_property
    def _line(self) -> re.Pattern[str]:
        return re.compile(self.line or "(?!)")

    def is_line(self, line: str) -> bool:
        """Return whether a line, stripped of white space, begins with a line comment."""
        return self._line.match(line) is not None

    def bare(self, block: list[str]) -> str:
        """Return the text of a comment's lines without markers and decoration."""
        bare_lines = []
        for line in map(str.strip, block):
            if (mark := self._line.match(line)) is not None:
                line = line[mark.end() :]
            if self.opening:
                line = line.removeprefix(self.opening).removesuffix(self.closing)
            bare_lines.append(_undecorated(line))
        return "\n".join(bare_lines).strip("\n")

    def above(self, lines: list[str], number: int) -> str:
        """Return the first sentence of the comment right above line `number` (from 1); "" if there is none."""
        block: list[str] = []
        inside = False
        # Upwards from the definition, so `block` is reversed, and a block comment begins with its closing mark.
        for line in map(str.strip, reversed(lines[max(0, number - 1 - _MOST_ABOVE) : number - 1])):
            if not block and (_BETWEEN.match(line) or (self.opening == "/*" and _TYPE.fullmatch(line))):
                continue
            if inside or (self.is_line(line) and not line.startswith("#!")):
                block.append(line)
                inside = inside and self.opening not in line
            elif not block and self.closing and line.endswith(self.closing):
                block.append(line)
                inside = self.opening not in line
            else:
                break
            if block and not inside and self.opening and line.startswith(self.opening):
                break
        comment = self.bare(block[::-1])
        is_code = comment.rstrip().endswith((";", "{", "}"))
        return "" if inside or is_code or _DIRECTIVE.match(comment) else sentence(comment)

    def leading(self, text: str) -> str:
        """Return the first sentence of the comment about the file, licences skipped; "" if there is none."""
        for block in self._blocks(text.split("\n", _MOST_LEADING)[:_MOST_LEADING]):
            for paragraph in re.split(r"\n\s*\n", self.bare(block)):
                prose = "\n".join(line for line in paragraph.split("\n") if not _DIRECTIVE.search(line))
                if _CREDITS.search(prose):
                    break  # the rest of a licence comment is about the licence, too
                description = sentence(prose)
                if " " in description:  # a single word is a name, not a description
                    return description
        return ""

    def _blocks(self, lines: list[str]) -> list[list[str]]:
        """Return the comments before the first line of code. Lines that are not comments separate them."""
        blocks: list[list[str]] = [[]]
        inside = False
        for line_index, line in enumerate(map(str.strip, lines)):
            if inside:
                blocks[-1].append(line)
                inside = self.closing not in line
            elif self.opening and line.startswith(self.opening):
                blocks.append([line])
                inside = self.closing not in line[len(self.opening) :]
            elif self.is_line(line) and not (line_index == 0 and line.startswith("#!")):
                blocks[-1].append(line)
            elif not line or line.startswith("#!") or _PASSED_OVER.fullmatch(line):
                blocks.append([])
            else:
                break
            if not inside and self.opening and line.endswith(self.closing):
                blocks.append([])
        return [block for block in blocks if block]


def _undecorated(line: str) -> str:
    """Remove the decoration at both ends of a comment's line, and white space around it."""
    match = _DECORATION.match(line)
    line = line[match.end() if match else 0 :].rstrip(" \t")
    plain = line.rstrip("*#/=~+-")
    return plain.rstrip(" \t") if len(line) - len(plain) >= 2 else line


HASH = Comments(r"#+")
SLASHES = Comments(r"//[/!]*", "/*", "*/")
PHP = Comments(r"//+|#(?!\[)", "/*", "*/")
DASHES = Comments(r"--+", "/*", "*/")
PERCENT = Comments(r"%+")
SEMICOLONS = Comments(r"[;#]+")
ANGLES = Comments("", "<!--", "-->")
BRACES = Comments(r"--+", "{-", "-}")

_BY_SUFFIX = {
    HASH: "py pyi pyx pxd rb rake gemspec sh bash zsh ksh fish yaml yml toml r jl pl pm ex exs nim tcl awk cmake mk tf "
    "graphql po",
    SLASHES: "js jsx mjs cjs ts tsx mts cts go rs java kt kts cs c h cc cpp cxx hpp hh hxx cu cuh m mm swift scala "
    "dart groovy gradle proto css scss less zig v sv thrift json5 jsonc glsl",
    PHP: "php",
    DASHES: "sql lua",
    PERCENT: "tex sty bib erl hrl",
    SEMICOLONS: "ini cfg conf properties editorconfig el lisp clj cljs scm asm s",
    ANGLES: "html htm xml xhtml svg vue svelte md xsd xsl",
    BRACES: "hs elm adb ads",
}
_SUFFIXES = {suffix: comments for comments, suffixes in _BY_SUFFIX.items() for suffix in suffixes.split()}
_NAMED = (
    "makefile", "gnumakefile", "dockerfile", "rakefile", "gemfile", "justfile", "vagrantfile", "jenkinsfile", "pipfile",
)  # fmt: skip


def comments_of(path: str) -> Comments | None:
    """Return the comment syntax for a path, by its name or suffix; None if unknown."""
    name = path.rpartition("/")[2].lower()
    return HASH if name in _NAMED else _SUFFIXES.get(name.rpartition(".")[2] if "." in name else "")
