"""Comments of many languages: where they are, what the first one says, and what the one above a line says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from reflectrl.wings.autoexplore.definitions import sentence

_MOST_ABOVE = 60
"""Lines above a definition that are looked at for its comment."""
_MOST_LEADING = 200
"""Lines at the beginning of a file in which the comment about all of it is looked for."""
_CREDITS = re.compile(
    r"copyright|\(c\) |©|licen[sc]e|spdx|all rights reserved|warrant|redistribut|permission is hereby|public domain|"
    r"file is part of|\bgpl\b|notice\.txt|^\W*@?(?:authors?|created|maintainer|contributors?)\b|\$id",
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
"""Lines that are no comment, and before which no comment is about the file as yet."""
_BETWEEN = re.compile(r"@\w|#\[|\[[A-Z]|template\b")
"""Annotations and attributes stand between a definition and its comment."""
_TYPE = re.compile(r"[\w *]+")
"""So does, in C, what a function returns."""
_DECORATION = re.compile(r"^[ \t]*(?:[*#/!;%=~+-]+(?=\s|$)|[*!]+(?=\w))?[ \t]?|(?:[ \t]*[*#/=~+-]{2,})?[ \t]*$")


@dataclass(frozen=True)
class Comments:
    """How a language writes comments.

    Attributes:
        line: what begins a comment that ends with its line, as an expression; "" if there is none.
        opening, closing: what encloses others; "" if there are none.
    """

    line: str = ""
    opening: str = ""
    closing: str = ""

    @cached_property
    def _line(self) -> re.Pattern[str]:
        return re.compile(self.line or "(?!)")

    def is_line(self, line: str) -> bool:
        """Whether a line, without white space at its ends, is a comment from its beginning on."""
        return self._line.match(line) is not None

    def bare(self, block: list[str]) -> str:
        """What is said in the lines of a comment."""
        said = []
        for line in map(str.strip, block):
            if (mark := self._line.match(line)) is not None:
                line = line[mark.end() :]
            if self.opening:
                line = line.removeprefix(self.opening).removesuffix(self.closing)
            said.append(_DECORATION.sub("", line))
        return "\n".join(said).strip("\n")

    def above(self, lines: list[str], number: int) -> str:
        """The first sentence of the comment right above line `number` (from 1), "" if there is none."""
        block: list[str] = []
        inside = False
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
        said = self.bare(block[::-1])
        is_code = said.rstrip().endswith((";", "{", "}"))
        return "" if inside or is_code or _DIRECTIVE.match(said) else sentence(said)

    def leading(self, text: str) -> str:
        """The first sentence of the first comment that is about the file, rather than its licence; "" if none is."""
        for block in self._blocks(text.split("\n", _MOST_LEADING)[:_MOST_LEADING]):
            for paragraph in re.split(r"\n\s*\n", self.bare(block)):
                told = "\n".join(line for line in paragraph.split("\n") if not _DIRECTIVE.search(line))
                if _CREDITS.search(told):
                    break  # and so is what follows
                said = sentence(told)
                if " " in said:  # a single word is a name
                    return said
        return ""

    def _blocks(self, lines: list[str]) -> list[list[str]]:
        """The comments before the first line of code, cut where there is none between."""
        blocks: list[list[str]] = [[]]
        inside = False
        for number, line in enumerate(map(str.strip, lines)):
            if inside:
                blocks[-1].append(line)
                inside = self.closing not in line
            elif self.opening and line.startswith(self.opening):
                blocks.append([line])
                inside = self.closing not in line[len(self.opening) :]
            elif self.is_line(line) and not (number == 0 and line.startswith("#!")):
                blocks[-1].append(line)
            elif not line or line.startswith("#!") or _PASSED_OVER.fullmatch(line):
                blocks.append([])
            else:
                break
            if not inside and self.opening and line.endswith(self.closing):
                blocks.append([])
        return [block for block in blocks if block]


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
    """How the file of that name writes comments; None if that is not known."""
    name = path.rpartition("/")[2].lower()
    return HASH if name in _NAMED else _SUFFIXES.get(name.rpartition(".")[2] if "." in name else "")
