"""Regular expressions that find comments and names of definitions in one pass, for the index of `locate`.

They trade exactness for speed: nothing is masked, and nesting is ignored. `outline.py` is exact, and takes twenty times
as long; it is used for the few files that are shown. No repetition can match the same characters in two ways without
a bound, since files are untrusted.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import NamedTuple


class Syntax(NamedTuple):
    """Expressions for a family of languages.

    Attributes:
        comments: comments and docstrings; None if all of the text is prose.
        definitions: a definition; the first group that is not empty is its name.
    """

    comments: re.Pattern[bytes] | None
    definitions: re.Pattern[bytes] | None


# Expressions begin with a literal character wherever possible, since Python then skips quickly to the next one.
_HASH = r"#(?<!\S#)[^\n]*"
_SLASHES = r"/(?:\*(?:[^*]|\*(?!/))*+(?:\*/|\Z)|/(?<![:\w'\"\\/]//)[^\n]*)"
_TRIPLE = r'"""(?:[^"\\]|\\.?|"(?!""))*+(?:"""|\Z)' + "|" + r"'''(?:[^'\\]|\\.?|'(?!''))*+(?:'''|\Z)"
_NO_NAME = (
    r"(?!(?:if|else|elif|for|foreach|while|do|switch|case|catch|return|throw|new|await|yield|using|lock|sizeof|delete|"
    r"goto|function|super|this|assert|typedef|import|package)\b)"
)


class _Source(NamedTuple):
    """Expressions before they are compiled: a command uses few of them, and compiling all takes a tenth of a second."""

    comments: str
    definitions: tuple[str, ...]


def _syntax(comments: str, *definitions: str) -> _Source:
    return _Source(comments, definitions)


@cache
def _compiled(source: _Source) -> Syntax:
    flags = re.MULTILINE | re.DOTALL
    starts = "|".join(each.removeprefix("^") for each in source.definitions)
    return Syntax(
        re.compile(source.comments.encode(), flags) if source.comments else None,
        re.compile(rf"\n(?:{starts})".encode(), flags) if source.definitions else None,
    )


_PYTHON = _syntax(
    rf"{_TRIPLE}|{_HASH}",
    r"^[ \t]*+(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)",
    r"^(_*[A-Z]\w*)[ \t]*+(?::[^=\n]{0,200})?=(?!=)",
)
_FUNCTIONS = (
    r"^[ \t]*+(?:export[ \t]+)?(?:default[ \t]+)?(?:declare[ \t]+)?(?:abstract[ \t]+)?(?:async[ \t]+)?"
    r"(?:function\b(?:[ \t]*+\*)?+|class|interface|enum|type|namespace)[ \t]++([A-Za-z_$][\w$]*)",
    r"^(?:export[ \t]+)?(?:const|let|var)[ \t]+([A-Za-z_$][\w$]*)",
    r"^[ \t]++export[ \t]+(?:const|let|var)[ \t]+([A-Za-z_$][\w$]*)",
)
_JAVASCRIPT = _syntax(
    _SLASHES,
    *_FUNCTIONS,
    rf"^[ \t]++{_NO_NAME}(?:(?:public|private|protected|static|async|override|readonly|get|set)[ \t]+){{0,4}}"
    r"([A-Za-z_$][\w$]*)[ \t]*(?:<[^<>\n]{1,80}>)?\([^;\n]{0,200}\{[ \t]*$",
    r"^[ \t]*+(?:module\.)?(?:exports|[A-Z][\w$]*\.prototype)\.([A-Za-z_$][\w$]*)[ \t]*=",
)
_GO = _syntax(
    _SLASHES,
    r"^func[ \t]+(?:\([^)\n]{0,200}\)[ \t]*)?(\w+)",
    r"^(?:type|var|const)[ \t]+(\w+)",
    r"^\t([A-Z]\w*)(?:[ \t]+[\w.*\[\]]{1,80})?[ \t]*=(?!=)",
)
_RUST = _syntax(
    _SLASHES,
    r"^[ \t]*+(?:pub(?:\([^)\n]{0,40}\))?[ \t]+)?(?:(?:default|async|const|unsafe|extern)[ \t]+){0,4}"
    r"(?:fn|struct|enum|trait|union|type|mod|static|const)[ \t]+(?:mut[ \t]+)?(\w+)",
    r"^[ \t]*+macro_rules![ \t]*(\w+)",
)
_MODIFIER = (
    r"(?:public|private|protected|internal|static|final|abstract|sealed|partial|data|open|inner|readonly|unsafe|"
    r"override|fileprivate|inline|virtual|async|suspend|extern|implicit|mutating|synchronized|default|native|case|"
    r"companion|annotation|export|required|convenience|value)"
)
_OBJECTS = _syntax(
    _SLASHES,
    rf"^[ \t]*+(?:@\w+[ \t]+){{0,3}}(?:{_MODIFIER}[ \t]+){{0,5}}(?:(?:enum|record)[ \t]+(?:class|struct)|@?interface|"
    r"class|enum|record|struct|object|trait|protocol|extension|actor|mixin|fun|func|def|val)[ \t]+"
    r"(?:<[^>\n]{0,80}>[ \t]*)?(\w+)",
    rf"^[ \t]*+(?:{_MODIFIER}[ \t]+){{1,5}}(?:<[^>\n]{{0,80}}>[ \t]+)?[\w<>\[\],.? ]{{1,80}}[ \t](\w+)"
    r"[ \t]*(?:\(|=(?!=))",
    rf"^(?:[ ]{{2,4}}|\t){_NO_NAME}[\w<>\[\],.?]{{2,60}}[ \t]+{_NO_NAME}(\w+)[ \t]*\([^;\n]{{0,200}}\{{[ \t]*$",
)
_C = _syntax(
    _SLASHES,
    rf"^{_NO_NAME}(?:[A-Za-z_][\w \t*&:<>,]{{0,120}}[ \t*&])?(?:\w+(?:<[^<>\n]{{0,40}}>)?::)?(~?[A-Za-z_]\w*)[ \t]*"
    r"\((?![^\n]{0,400};[ \t]*$)",
    r"^#[ \t]*define[ \t]+(\w+)",
    r"^[ \t]*+(?:typedef[ \t]+)?(?:class|struct|enum(?:[ \t]+class)?|union|namespace)[ \t]+(?:[A-Z][A-Z0-9_]*[ \t]+)?"
    r"(\w+)[ \t]*(?:final[ \t]*)?(?:[:{][^;\n]{0,200})?$",
    r"^\}[ \t]*(\w+)[ \t]*;",
    r"^[ \t]{1,8}(?:virtual|static|inline|explicit)[ \t][\w \t*&:<>,]{0,80}[ \t*&](~?\w+)[ \t]*\(",
)
_RUBY = _syntax(
    rf"{_HASH}|^=begin\b.*?(?:^=end|\Z)",
    r"^[ \t]*+(?:class|module)[ \t]+(?:\w+::){0,5}(\w+)",
    r"^[ \t]*+def[ \t]+(?:self\.)?(\w+)",
    r"^[ \t]*+([A-Z]\w*)[ \t]*=(?![=~>])",
)
_PHP = _syntax(
    rf"{_SLASHES}|{_HASH}",
    r"^[ \t]*+(?:(?:abstract|final|readonly|public|private|protected|static)[ \t]+){0,4}"
    r"(?:class|interface|trait|enum|function|const)[ \t]+&?(\w+)",
)
_SHELL = _syntax(
    _HASH,
    r"^[ \t]*+function[ \t]+([\w:.-]+)",
    r"^[ \t]*+([\w:.-]+)[ \t]*\([ \t]*\)",
    r"^(?:export[ \t]+)?([A-Z][A-Z0-9_]*)=",
)
_ELIXIR = _syntax(rf"{_TRIPLE}|{_HASH}", r"^[ \t]*+def(?:p|macro|module|protocol|impl|struct)?[ \t]+([\w.]+[?!]?)")
_LUA = _syntax(
    r"--\[\[.*?(?:\]\]|\Z)|--[^\n]*",
    r"^[ \t]*+(?:local[ \t]+)?function[ \t]+([\w.:]+)",
    r"^([\w.]+)[ \t]*=[ \t]*function",
)
_SQL = _syntax(
    rf"--[^\n]*|{_SLASHES}",
    r"(?i:^[ \t]*+create[ \t]+(?:or[ \t]+replace[ \t]+)?(?:unique[ \t]+)?(?:table|view|function|procedure|index|"
    r"trigger|type)[ \t]+(?:if[ \t]+not[ \t]+exists[ \t]+)?[\"`]?([\w.]+))",
)
_HASKELL = _syntax(
    r"\{-.*?(?:-\}|\Z)|--[^\n]*",
    r"^(?:data|newtype|class|type|module|instance)[ \t]+([\w.]+)",
    r"^(\w+)[ \t]*::",
)
_PROTO = _syntax(_SLASHES, r"^[ \t]*+(?:message|service|enum|rpc|extend)[ \t]+(\w+)")
_TERRAFORM = _syntax(
    rf"{_HASH}|{_SLASHES}", r"^(?:resource|data|module|variable|output|provider)[ \t]+\"([\w-]+)\"(?:[ \t]+\"[\w-]+\")?"
)
_MARKDOWN = _syntax("", r"^#{1,6}[ \t]+([^\n]+)", r"^([^\n]{1,200})\n(?:={3,}|-{3,})[ \t]*$")
_RST = _syntax("", r"^([^\s.][^\n]{0,200})\n([=\-~^\"'`#*+:.])\2{2,}[ \t]*$")
_SETTINGS = _syntax(
    r"(?<!\S)[#;][^\n]*", r"^[ \t]*+\[{1,2}([^\]\n]{1,200})\]", r"^[ \t]*+([\w.\"'-]{1,80})[ \t]*=", r"^([\w.-]{1,80}):"
)
_YAML = _syntax(_HASH, r"^ {0,2}([\w.$/-]{1,80}|\"[^\"\n]{1,80}\"):(?=\s|$)")
_JSON = _syntax(r"(?!)", r"^[ \t]{0,4}\"([^\"\n]{1,80})\"[ \t]*:")
_MAKE = _syntax(_HASH, r"^([\w./%-]{1,80})[ \t]*:(?!=)", r"^(?:define[ \t]+)?([A-Z_]\w*)[ \t]*[:?+]?=")
_STYLE = _syntax(_SLASHES, r"^[ \t]*+([.#@$][\w-]{1,80})[^\n;]{0,200}\{")
_MARKUP = _syntax(
    r"<!--.*?(?:-->|\Z)|\{#(?:[^#{\n]|#(?!\})|\{(?!#))*+#\}",
    r"^[^<\n]{0,80}<(?:title|h[1-3])[^>\n]{0,80}>([^<\n]{1,200})",
    r"^[ \t]*+\{%-?[ \t]*(?:block|macro)[ \t]+(\w+)",
)
_COMPONENT = _syntax(
    rf"<!--.*?(?:-->|\Z)|{_SLASHES}",
    *_FUNCTIONS,
    r"^[ \t]*+([A-Za-z_$][\w$]*)[ \t]*\([^;\n]{0,200}\{[ \t]*$",
    r"^[ \t]*+name:[ \t]*['\"]([\w-]{1,80})['\"]",
)
_PROSE = _syntax("")
_OTHER = _syntax(
    rf"{_HASH}|{_SLASHES}", r"^[ \t]*+(?:def|fn|func|function|class|module|type|struct|interface)[ \t]+(\w+)"
)

_BY_SUFFIX = {
    "py pyi pyx pxd ipynb bzl star": _PYTHON,
    "js jsx mjs cjs ts tsx mts cts coffee": _JAVASCRIPT,
    "vue svelte astro": _COMPONENT,
    "go": _GO,
    "rs": _RUST,
    "java cs groovy gradle dart kt kts scala swift": _OBJECTS,
    "c cc cpp cxx cu m mm h hpp hh hxx cuh inl y l yy ll": _C,
    "rb rake gemspec erb cr": _RUBY,
    "php": _PHP,
    "sh bash zsh ksh fish": _SHELL,
    "ex exs eex heex": _ELIXIR,
    "lua": _LUA,
    "sql": _SQL,
    "hs elm": _HASKELL,
    "proto thrift graphql": _PROTO,
    "tf hcl tfvars": _TERRAFORM,
    "md markdown mdx rmd qmd": _MARKDOWN,
    "rst rest": _RST,
    "txt adoc tex": _PROSE,
    "toml ini cfg conf properties editorconfig": _SETTINGS,
    "yaml yml": _YAML,
    "json json5 jsonc jsonl ndjson": _JSON,
    "mk cmake": _MAKE,
    "css scss less sass": _STYLE,
    "html htm xml xhtml jinja jinja2 j2 tmpl hbs mustache twig ejs": _MARKUP,
}
_SUFFIXES = {suffix: syntax for suffixes, syntax in _BY_SUFFIX.items() for suffix in suffixes.split()}
_NAMES = {
    "makefile": _MAKE, "gnumakefile": _MAKE, "dockerfile": _MAKE, "justfile": _MAKE, "cmakelists.txt": _MAKE,
    "rakefile": _RUBY, "gemfile": _RUBY, "vagrantfile": _RUBY, "jenkinsfile": _OBJECTS, "readme": _PROSE,
}  # fmt: skip


@lru_cache(maxsize=1024)
def _of_name(name: str) -> Syntax:
    source = _NAMES.get(name) or _SUFFIXES.get(name.rpartition(".")[2] if "." in name else "", _OTHER)
    return _compiled(source)


def syntax_of(path: str) -> Syntax:
    """Return the expressions for a path, by its name or suffix."""
    return _of_name(path.rpartition("/")[2].lower())
