"""Outlines: what files of many languages define and are about, and that no text, however odd, makes them fail."""

import re
import time
import warnings
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reflectrl.wings.autoexplore.comments import comments_of
from reflectrl.wings.autoexplore.outline import Definition, about, outline
from reflectrl.wings.autoexplore.outline_code import code_outline
from reflectrl.wings.autoexplore.outline_languages import LANGUAGES

PYTHON = '''\
#!/usr/bin/env python3
# Copyright 2020 Somebody. Licensed under the MIT License.
"""Fetches pages, e.g. those of a site. And more.

Longer words.
"""
import os

RETRIES = 3
"""How often it is tried. Not more."""
lower, Upper = 1, 2
Alias: TypeAlias = dict[str, int]


def fetch(path, /, retries=3, *rest, timeout: float = max(1, 2), **options):
    """Fetch a page.

    Args:
        path: of the page.
    """
    def inner(): ...
    Local = 1


if True:
    class Client(Base):
        """Talks to servers"""

        LIMIT = 5
        field: int = 1

        @property
        async def open(self, url="a, b"):
            return "def fake(): pass"

        class Inner:
            @classmethod
            def make(cls): ...
try:
    import x
except ImportError:
    def late(): ...
'''
DEFINED = [
    (9, "constant", "RETRIES", "", "How often it is tried.", ""),
    (11, "constant", "Upper", "", "", ""),
    (12, "constant", "Alias", "", "", ""),
    (15, "function", "fetch", "", "Fetch a page.", "(path, retries=3, *rest, timeout=..., **options)"),
    (26, "class", "Client", "", "Talks to servers", ""),
    (29, "constant", "LIMIT", "Client", "", ""),
    (33, "method", "open", "Client", "", "(url='a, b')"),
    (36, "class", "Inner", "Client", "", ""),
    (38, "method", "make", "Inner", "", "()"),
    (42, "function", "late", "", "", "()"),
]


def short(found: tuple[Definition, ...]) -> list[str]:
    """`kind parent.name(parameters): doc`, with the line in front."""
    return [
        f"{each.line} {each.kind} {each.parent + '.' if each.parent else ''}{each.name}{each.signature}"
        + (f": {each.doc}" if each.doc else "")
        for each in found
    ]


def test_python() -> None:
    assert outline("net/fetch.py", PYTHON) == tuple(
        Definition(line, kind, name, parent, doc, signature) for line, kind, name, parent, doc, signature in DEFINED
    )
    assert about("net/fetch.py", PYTHON) == "Fetches pages, e.g. those of a site."


def test_python_that_is_cut_off_is_read_line_by_line() -> None:
    cut = PYTHON + '\n\ndef cut(a: int = 1, *, b="(") -> dict[str, int]:\n    """It ends he'
    found = outline("a.py", cut)
    lines = [(each.line, each.kind, each.name, each.parent) for each in found]
    plain = [each[:4] for each in DEFINED if each[2] != "Upper"]  # it shares its line with another
    assert lines == [*plain, (45, "function", "cut", "")]
    assert (found[-1].signature, found[-1].doc) == ("(a=1, *, b=...)", "It ends he")


def test_python_of_another_version() -> None:
    old = 'class A:\n  """An A."""\n  def run(self, n):\n    print "def no(x):"\n    """\n  def no(): ...\n"""\n'
    assert short(outline("old.py", old)) == ["1 class A: An A.", "3 method A.run(n)"]


def test_line_by_line_python_agrees_with_its_syntax_tree() -> None:
    """On the sources of this very package."""
    import reflectrl.wings.autoexplore.search as example

    with open(example.__file__, encoding="utf-8") as file:  # noqa: PTH123
        text = file.read()
    by_tree = {(each.line, each.kind, each.name, each.parent, each.doc) for each in outline("a.py", text)}
    by_line = code_outline(text, LANGUAGES["py"], comments_of("a.py"))  # type: ignore[arg-type]
    assert {(e.line, e.kind, e.name, e.parent, e.doc) for e in by_line if e.kind != "constant"} == {
        each for each in by_tree if each[1] != "constant"
    }


CODE = {
    "app.ts": (
        """\
        /*! Copyright (c) 2020 A. B. */
        // @ts-check
        // Loads pages for the viewer. Nothing else.
        import { x } from "y"; // function no() {
        export const API_URL = "https://x", retries = 3;
        /**
         * A page of the site.
         * @public
         */
        export default class Page<T> extends Base {
          private static async load(url: string, { a, b }: Options = {}, ...rest: any[]): Promise<void> {
            if (x) { return later(); }
            function inner() {}
          }
          #hidden(n = 1) {}
          declared(x: number): void;
        }
        export interface Options { a?: number }
        /* function commented() {} */
        type Kind = "a" | "b";
        /** Adds two. */
        const add = (a: number, b = 2): number => a + b;
        const sum = (a + b) * 2;
        export async function* walk<T extends Map<string, T>>(
          root: T,
          depth = 3,
        ) {}
        Page.prototype.close = function (now) {};
        """,
        "Loads pages for the viewer.",
        """\
        5 constant API_URL
        10 class Page: A page of the site.
        11 method Page.load(url, { a, b }, ...rest)
        15 method Page.#hidden(n=1)
        16 method Page.declared(x)
        18 class Options
        20 class Kind
        22 function add(a, b=2): Adds two.
        24 function walk(root, depth=3)
        28 method Page.close(now)""",
    ),
    "net/client.go": (
        """\
        // Copyright 2020 The Authors. All rights reserved.
        // Use of this source code is governed by a license.

        //go:build linux

        // Package net fetches pages.
        package net

        const MaxRetries = 3

        var (
        \tErrClosed = errors.New("func no() {")
        )

        // Client talks to servers. Make one with New.
        type Client struct {
        \tName string
        }

        // Fetch gets a page.
        func (c *Client) Fetch(ctx context.Context, url string, f func(int, int) error) (string, error) {
        \tlocal := 1
        }

        func New[T any](a, b int) *Client {
        """,
        "Package net fetches pages.",
        """\
        9 constant MaxRetries
        12 constant ErrClosed
        16 class Client: Client talks to servers.
        21 method Client.Fetch(ctx, url, f): Fetch gets a page.
        25 function New(a, b)""",
    ),
    "lib.rs": (
        """\
        //! Parses things. Quickly.
        use std::fmt;
        /// How many.
        pub const MAX: usize = 3;
        /// A lexer.
        #[derive(Debug)]
        pub(crate) struct Lexer<'a> {
            text: &'a str,
        }
        impl<'a> fmt::Display for Lexer<'a> {
            /// Writes it.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let c = '"'; // fn no() {
            }
        }
        pub async unsafe fn parse<T: Into<String>>(mut text: T, n: usize) -> T where T: X {
        }
        macro_rules! twice { () => {} }
        """,
        "Parses things.",
        """\
        4 constant MAX: How many.
        7 class Lexer: A lexer.
        12 method Lexer.fmt(f): Writes it.
        16 function parse(text, n)
        18 function twice""",
    ),
    "Client.java": (
        """\
        /*
         * Licensed to the Foundation under one or more agreements.
         *
         * See the NOTICE file.
         */
        package a.b;

        import x.Y;

        /**
         * Talks to servers.
         * @since 1.0
         */
        @Api(since = 1)
        public final class Client<T> extends Base implements X {
            private static final int MAX_RETRIES = 3;
            @Override public Map<String, List<T>> fetch(final String url, int[] n) throws IOException {
                return other(url);
            }
            protected Client(String name) {
            }
            interface Inner { void close(); }
        }
        """,
        "Talks to servers.",
        """\
        15 class Client: Talks to servers.
        16 constant Client.MAX_RETRIES
        17 method Client.fetch(url, n)
        20 method Client.Client(name)
        22 class Client.Inner""",
    ),
    "Main.kt": (
        """\
        package a
        // Starts everything up.
        const val LIMIT: Int = 3
        data class Point(val x: Int)
        fun <T> List<T>.second(offset: Int = 1, vararg rest: T): T = this[1]
        object Registry {
            suspend fun find(name: String) {}
        }
        """,
        "Starts everything up.",
        """\
        3 constant LIMIT: Starts everything up.
        4 class Point
        5 function second(offset=1, rest)
        6 class Registry
        7 method Registry.find(name)""",
    ),
    "Shop.cs": (
        """\
        namespace A.B
        {
            /// <summary>
            /// Sells things.
            /// </summary>
            [Serializable]
            public class Shop
            {
                private const int MaxItems = 3;
                public async Task<int> Sell(string name, int n = 2)
                {
                    await Other(name);
                }
            }
        }
        """,
        "Sells things.",
        """\
        7 class Shop: Sells things.
        9 constant Shop.MaxItems
        10 method Shop.Sell(name, n=2)""",
    ),
    "engine.c": (
        """\
        /* engine.c - the main loop
         *
         * Copyright (C) 2020
         */
        #include <stdio.h>
        #define LIMIT 10
        #define MAX(a, b) ((a) > (b))
        static int declared(int x);
        struct node *next;
        struct node {
            int x;
        };
        /* Runs it. */
        static inline int run(struct node *first, int (*callback)(int, void *), char *names[10])
        {
            if (x) {
                call(x);
            }
        }
        static PyObject *
        module_fetch(PyObject *self,
                     PyObject *args)
        {
        }
        typedef struct {
            int y;
        } leaf_t;
        /* Comes late. */
        static int
        late(
            int x) {
        }
        int main(void) { return 0; }
        """,
        "engine.c - the main loop",
        """\
        6 constant LIMIT
        7 function MAX(a, b)
        10 class node
        14 function run(first, callback, names): Runs it.
        21 function module_fetch(args)
        27 class leaf_t
        30 function late(x): Comes late.
        33 function main()""",
    ),
    "engine.hpp": (
        """\
        #pragma once
        // The engine's interface.
        #define ENGINE_H
        namespace a {
        class Forward;
        template <typename T>
        class EXPORT Engine final : public Base {
         public:
          explicit Engine(int n);
          virtual ~Engine();
          std::vector<int> run(const std::string& name = "x") const;
        };
        void start(int level);
        int
        declared(int x);
        int Engine<T>::stop(bool now) {
        }
        }
        """,
        "The engine's interface.",
        """\
        7 class Engine
        9 method Engine.Engine(n)
        10 method Engine.~Engine()
        11 method Engine.run(name=\"x\")
        13 function start(level)
        15 function declared(x)
        16 method Engine.stop(now)""",
    ),
    "app.rb": (
        """\
        # frozen_string_literal: true
        # Serves pages.
        module Web
          LIMIT = 3
          # Answers requests.
          class Server < Base
            def self.start(port = 80, *rest, host: nil, &block)
              puts "def no"
            end
            def ready?
            end
          end
        end
        =begin
        def commented
        =end
        """,
        "Serves pages.",
        """\
        3 class Web
        4 constant Web.LIMIT
        6 class Web.Server: Answers requests.
        7 method Server.start(port=80, *rest, host, &block)
        10 method Server.ready?""",
    ),
    "index.php": (
        """\
        <?php
        /**
         * Shows the front page.
         */
        namespace A;
        abstract class Page {
            const LIMIT = 3;
            // Draws it.
            public static function draw(?string $name = null, array &$rest) {
            }
        }
        function helper($x) {}
        """,
        "Shows the front page.",
        """\
        6 class Page
        7 constant Page.LIMIT
        9 method Page.draw($name=null, $rest): Draws it.
        12 function helper($x)""",
    ),
    "deploy.sh": (
        """\
        #!/bin/sh
        # Puts everything in place.
        RETRIES=3
        RETRIES=4
        # says why
        usage() {
            LOCAL=1
        }
        function deploy-all { echo "x() {"; }
        """,
        "Puts everything in place.",
        """\
        3 constant RETRIES: Puts everything in place.
        6 function usage: says why
        9 function deploy-all""",
    ),
    "README.md": (
        """\
        ---
        layout: page
        ---
        # The [Project](http://x) `name`

        It **does** things. And more.

        ```sh
        # no heading
        ```
        ## Install

            pip install x

        ### From source ##
        Other
        -----
        | a | b |
        Last
        ====
        """,
        "The Project name",
        """\
        4 heading The Project name: It does things.
        11 heading The Project name.Install
        15 heading Install.From source""",
    ),
    "index.rst": (
        """\
        .. _start:

        =======
        Project
        =======

        What it is.

        Usage
        -----
        Run it. Then stop.

        Details
        ~~~~~~~

        Other
        -----

        === ===
        a   b
        === ===
        """,
        "Project",
        """\
        4 heading Project: What it is.
        9 heading Project.Usage: Run it.
        13 heading Usage.Details
        16 heading Project.Other""",
    ),
    "pyproject.toml": (
        """\
        # how it is built
        [project]
        name = "x"  # of the package
        description = "Finds files"
        list = [
          "a = b",
        ]
        text = \"\"\"
        [no.section]
        \"\"\"
        [[tool.x]]
        "quoted key" = 1
        """,
        "Finds files",
        """\
        2 section project: how it is built
        3 key project.name: of the package
        4 key project.description
        5 key project.list
        8 key project.text
        11 section tool.x
        12 key tool.x.quoted key""",
    ),
    "setup.cfg": (
        """\
        [metadata]
        name = x
        description = Finds files in repositories.
        ; what tests need
        [options.extras_require]
        test =
            pytest == 8
        """,
        "Finds files in repositories.",
        """\
        1 section metadata
        2 key metadata.name
        3 key metadata.description
        5 section options.extras_require: what tests need
        6 key options.extras_require.test""",
    ),
    "ci.yml": (
        """\
        # Runs the tests
        on: [push]  # and more
        jobs:
          test: 1
        "quoted": |
          text: no
        """,
        "Runs the tests",
        """\
        2 key on: Runs the tests
        3 key jobs
        5 key quoted""",
    ),
    "package.json": (
        """\
        {
          "name": "x", "scripts": {"test": "a {b"},
          "description": "Finds \\"files\\".",
          "files": [{"inner": 1}]
        }
        """,
        'Finds \\"files\\".',
        "2 key name\n2 key scripts\n3 key description\n4 key files",
    ),
    "rows.json": ('[\n {"id": 1, "name": {"no": 2}},\n {"other": 3}]', "", "2 column id\n2 column name"),
    "rows.jsonl": ('{"id": 1, "name": 2}\n{"other": 3}\n', "", "1 column id\n1 column name"),
    "table.csv": (
        'name;"first, last";born at\nA;B;3\n',
        "name, first, last, born at",
        "1 column name\n1 column first, last\n1 column born at",
    ),
    "remarks.csv": ("# made by hand\n# in 2020\na,b\n", "a, b", "3 column a\n3 column b"),
    "numbers.csv": ("1,2.5,x\n3,4,y\n", "", ""),
    "table.tsv": ("\tid\tsize\n0\ta\t3\n", "id, size", "1 column id\n1 column size"),
    "setup.py": ('from x import setup\nsetup(name="x",\n description="Finds files")\n', "Finds files", ""),
    "Makefile": ("# The commands of a checkout.\nall:\n", "The commands of a checkout.", ""),
    "page.html": ("<html><title>A page\n here</title>", "A page here", ""),
    "notes.txt": ("======\nNotes on things.\nMore.", "Notes on things.", ""),
    "unknown.xyz": ("def f(): pass", "", ""),
    "empty.py": ("", "", ""),
}


@pytest.mark.parametrize("path", CODE)
def test_what_files_define_and_are_about(path: str) -> None:
    text, said, defined = map(dedent, CODE[path])
    assert short(outline(path, text)) == defined.split("\n") * bool(defined)
    assert about(path, text) == said
    windows = text.replace("\n", "\r\n")
    assert (outline(path, windows), about(path, "\ufeff" + windows)) == (outline(path, text), about(path, text))


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("a.py", "# -*- coding: utf-8 -*-\n# Author: A.\n# with B.\n\n# What it does.\nimport x", "What it does."),
        ("a.py", "'''One word'''", "One word"),
        ("a.py", "# say \"hi there\"\nimport x", 'say "hi there"'),
        ("a.py", "import x\n# not about the file", ""),
        ("a.js", "// Copyright A\n\n// b.js\n\n/* eslint-disable */\n/* What it is. More */", "What it is."),
        ("a.js", "/* eslint-disable */\n/* What it is. */", "What it is."),
        ("a.sql", "-- Makes the tables.\ncreate table x;", "Makes the tables."),
        ("a.py", '"""\x1b[2J Two\u202e words. Three\x00"""', "[2J Two words."),
        ("a.md", "---\ntitle: 'From the front'\n---\n# Other", "From the front"),
        ("Chart.yaml", "name: x\ndescription: >-\n  A chart\n  for it.\n", "A chart for it."),
    ],
)  # fmt: skip
def test_what_files_are_about(path: str, text: str, said: str) -> None:
    assert about(path, text) == said


ANY = st.text(st.characters(codec=None, exclude_categories=[]), max_size=300)
PIECES = st.lists(
    st.sampled_from(
        [
            *"\n\n\n\n    \t(){}[]<>:;,.=#*/\\'\"`-~|$%&!?\r\f\0\x85\u2028\ud800é",
            *("class", "def", "function", "func", "fn", "impl", "type", "const", "static", "public", "struct", "enum"),
            *('"""', "'''", "/*", "*/", "//", "<!--", "-->", "```", "====", "----", "=>", "->", "::", "A", "b_1", "9"),
            *("#define ", "@x", "---\n", "title: ", "description = ", "Copyright", "elif x:\n", "\n    ", "\n        "),
        ]
    ),
    max_size=80,
).map("".join)
PATHS = st.sampled_from(
    [f"a.{suffix}" for suffix in LANGUAGES] + list(CODE) + ["x", "", "a/.b", "LICENSE", "q.sql", "é.tex"]
)


@settings(deadline=None, max_examples=400)
@given(PATHS, ANY | PIECES)
def test_no_text_makes_it_fail(path: str, text: str) -> None:
    check(path, text)


@pytest.mark.parametrize("path", CODE)
def test_no_cut_makes_it_fail(path: str) -> None:
    text = dedent(CODE[path][0])
    for end in range(0, len(text), 3):
        check(path, text[:end])


def check(path: str, text: str) -> None:
    found = outline(path, text)
    lines = [each.line for each in found]
    assert lines == sorted(lines) and all(1 <= line <= text.count("\n") + 1 for line in lines)
    for each in found:
        assert each.name and all(part.isprintable() for part in (each.name, each.parent, each.doc, each.signature))
    said = about(path, text)
    assert said.isprintable() and len(said) <= 300


DEEP = 20_000
HOSTILE = {
    "parentheses": "(" * DEEP,
    "brackets": "x = " + "[" * DEEP + "]" * DEEP,
    "minuses": "x = " + "-" * DEEP + "1",
    "sum": "x = " + "1+" * DEEP + "1",
    "attributes": "x" + ".a" * DEEP,
    "elif": "if x:\n  A = 1\n" + "elif x:\n  B = 1\n" * 2000,
    "blocks": "".join(f"{' ' * i}if x:\n" for i in range(120)) + " " * 120 + "X = 1\n",
    "null": "def f(): pass\0",
    "digits": "X = " + "1" * DEEP,
    "hexadecimal": "def f(x=0x" + "f" * DEEP + "): pass",
    "long name": f"def {'a' * 30_000}(): pass",
    "long line": "a " * 30_000,
    "spaces": (" " * 990 + "\n") * 30,
    "indented": (" " * 500 + "x" * 490 + "\n") * 30,
    "words": ("a " * 480 + "\n") * 30,
    "generics": ("fn a<" + "<" * 900 + "\n") * 30,
    "openings": ("function a(" * 80 + "\n") * 30,
    "quotes": '"""\\' * 8_000,
    "backslashes": '"' + "\\" * 30_001,
    "comments": "/*" * 30_000,
    "hashes": "# a\n" * 8_000,
    "lines": "\n" * 30_000,
    "carriage returns": "def f(): pass\r" * 4_000,
    "braces": '{"a":' * 5_000,
    "commas": "," * 30_000,
    "colons": "a: " * 10_000,
    "headings": "# a\n" * 8_000,
    "underlines": "a\n===\n" * 10_000,
    "links": "# " + "[" * 10_000 + "](" * 10_000,
    "tags": "<title>" * 8_000,
    "licences": "// Copyright\n\n" * 4_000,
    "typed": ("const a" + " " * 900 + ":\n") * 30,
    "macros": ("name(a\n\n\n\n") * 3_000,
}


KINDS = [
    f"a.{suffix}" for suffix in ("py", "ts", "go", "rs", "java", "h", "rb", "php", "sh", "md", "rst", "toml", "cfg")
]
KINDS += ["a.yml", "a.json", "a.csv", "a.html", "a.txt"]


@pytest.mark.parametrize("title", HOSTILE)
def test_hostile_texts_take_no_time(title: str) -> None:
    for path in KINDS:
        began = time.process_time()
        check(path, HOSTILE[title])
        assert time.process_time() - began < 3, path  # what is not linear takes minutes


def test_a_large_file_is_quick() -> None:
    source = PYTHON.split("import os\n")[1]
    large = source * (250 * 1024 // len(source))
    for text in (large, large + "def cut("):
        began = time.process_time()
        found = outline("large.py", text)
        assert time.process_time() - began < 5, "fifty times what it takes, for busy machines"
        assert len(found) > 1000


def test_nothing_is_said_about_doubtful_escapes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert short(outline("a.py", 'X = "\\d"\nif 1 is 1: Y = 2')) == ["1 constant X", "2 constant Y"]


def test_sentences_are_short() -> None:
    doc = "word " * 500
    [found] = outline("a.py", f'def f():\n    """{doc}"""')
    assert len(found.doc) <= 300 and re.fullmatch("(word )+…", found.doc)
