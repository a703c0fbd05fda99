"""Regular expressions for definitions in programming languages, matched at the beginning of a line.

Comments and strings are blanked before. Files are untrusted, so no expression may backtrack for long: a repetition can
never match the same characters in two ways, and long lines are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_NAME = r"(?P<name>[^\W\d]\w*+)"
_CAPITALS = r"(?P<name>_*+[A-Z][A-Z0-9_]*+)"
_GENERIC = r"(?:<[^<>()\n]*+(?:<[^<>()\n]*+>[^<>()\n]*+)*+>)?+"
_TYPED = r"(?:[ \t]*+:[^=\n]*+)?[ \t]*+="
_NO_NAME = (
    r"(?!(?:if|else|elif|for|foreach|while|do|switch|case|catch|return|throw|new|await|yield|using|lock|sizeof|delete|goto|"
    r"function|super|this|assert|typedef|import|package)\b)"
)
_DOUBLE = r'"(?:[^"\\\n]|\\.)*+"?'
_SINGLE = r"'(?:[^'\\\n]|\\.)*+'?"
_CHARACTER = r"'(?:[^'\\\n]|\\[^\n]{1,9}?)'"
_SLASHED = r"//[^\n]*|/\*.*?(?:\*/|\Z)"
_HASHED = r"(?<![$\w{])#[^\n]*"
TRIPLE = r'(?:"""(?:[^"\\]|\\.?|"(?!""))*+(?:"""|\Z)|' + r"'''(?:[^'\\]|\\.?|'(?!''))*+(?:'''|\Z))"
"""Triple-quoted string. Without a closing mark, it reaches to the end of the text."""


@dataclass(frozen=True)
class Language:
    """Rules that find the definitions of a language.

    Attributes:
        masked: expression for comments and strings, which are blanked.
        rules: pairs of kind and expression. Group "name" is the name of the definition, and the optional group "parent"
            its owner. The match ends after the "(" of a function. The first rule that matches a line wins. The kind
            "within" is not a definition, but owns the definitions inside it (Rust's `impl`).
        type_first: True if a parameter's name follows its type.
    """

    masked: re.Pattern[str]
    rules: tuple[tuple[str, re.Pattern[str]], ...]
    type_first: bool = False


def _language(masked: str, rules: Mapping[str, tuple[str, ...]], type_first: bool = False) -> Language:
    pairs = ((kind, expression) for kind, expressions in rules.items() for expression in expressions)
    compiled = ((kind, re.compile(rf"^(?P<indent>[ \t]*+){expression}", re.MULTILINE)) for kind, expression in pairs)
    return Language(re.compile(masked, re.DOTALL), tuple(compiled), type_first)


PYTHON = _language(
    rf"#[^\n]*|{TRIPLE}|{_DOUBLE}|{_SINGLE}",
    {
        "class": (rf"class[ \t]++{_NAME}",),
        "function": (rf"(?:async[ \t]++)?def[ \t]++{_NAME}[ \t]*+(?:\[[^\]\n]*\])?\(",),
        "constant": (rf"(?P<name>_*[A-Z]\w*){_TYPED}(?!=)",),
    },
)

_EXPORT = r"(?:export[ \t]++)?(?:default[ \t]++)?(?:declare[ \t]++)?"
_JS_NAME = r"(?P<name>[A-Za-z_$][\w$]*+)"
_JAVASCRIPT = _language(
    rf"{_SLASHED}|{_DOUBLE}|{_SINGLE}|`(?:[^`\\]|\\.?)*+(?:`|\Z)",
    {
        "class": (
            rf"{_EXPORT}(?:abstract[ \t]++)?(?:const[ \t]++)?(?:class|interface|enum|namespace|type)[ \t]++{_JS_NAME}"
            r"(?=[ \t]*+[{<=]|[ \t]++(?:extends|implements)\b|[ \t]*+$)",
        ),
        "function": (
            rf"{_EXPORT}(?:async[ \t]++)?function[ \t]*+\*?[ \t]*+{_JS_NAME}[ \t]*+{_GENERIC}\(",
            rf"{_EXPORT}(?:const|let|var)[ \t]++{_JS_NAME}{_TYPED}[ \t]*+(?:async[ \t]*+)?(?:function\b[^(\n]*\(|"
            rf"{_GENERIC}\((?=[^()\n]*\)[^=;\n]*=>|[ \t]*+$)|[\w$]+[ \t]*+=>)",
            rf"(?:module\.)?(?:exports|(?P<parent>[A-Z][\w$]*)\.prototype)\.{_JS_NAME}[ \t]*+=[ \t]*+(?:async[ \t]++)?"
            r"function\b[^(\n]*\(",
        ),
        "method": (
            rf"{_NO_NAME}(?:(?:public|private|protected|static|async|override|readonly|abstract|get|set)[ \t]++)*"
            rf"\*?[ \t]*+(?P<name>#?[A-Za-z_$][\w$]*+){_GENERIC}[ \t]*+\(",
        ),
        "constant": (rf"export[ \t]++(?:const|let|var)[ \t]++{_JS_NAME}", rf"const[ \t]++{_CAPITALS}[ \t]*+[:=]"),
    },
)

_GO = _language(
    rf"{_SLASHED}|{_DOUBLE}|{_CHARACTER}|`[^`]*(?:`|\Z)",
    {
        "class": (rf"type[ \t]++{_NAME}",),
        "function": (
            rf"func[ \t]*+\([^()\n]*?(?<!\w)(?P<parent>\w++)(?:\[[^\[\]\n]*+\])?\)[ \t]*+{_NAME}[ \t]*+\(",
            rf"func[ \t]++{_NAME}[ \t]*+(?:\[[^\]\n]*\])?\(",
        ),
        "constant": (rf"(?:const|var)[ \t]++{_NAME}", r"(?P<name>[A-Z]\w*)(?:[ \t]++[\w.]+)?[ \t]*+=(?!=)"),
    },
)

_PUB = r"(?:pub(?:\([^)\n]*\))?[ \t]++)?"
_RUST = _language(
    rf"{_SLASHED}|{_DOUBLE}|{_CHARACTER}",
    {
        "class": (rf"{_PUB}(?:unsafe[ \t]++)?(?:struct|enum|trait|union|type)[ \t]++{_NAME}",),
        "within": (
            rf"(?:unsafe[ \t]++)?impl\b[ \t]*+{_GENERIC}[ \t]*+(?:[^{{\n]*?[ \t]for[ \t]++)?[&']*+(?:\w++::)*+{_NAME}",
        ),
        "function": (
            rf"{_PUB}(?:(?:default|async|const|unsafe|extern)[ \t]++)*fn[ \t]++{_NAME}[ \t]*+{_GENERIC}\(",
            rf"macro_rules![ \t]*+{_NAME}",
        ),
        "constant": (rf"{_PUB}(?:const|static)[ \t]++(?:mut[ \t]++)?{_CAPITALS}[ \t]*+:",),
    },
)

_MODIFIERS = (
    r"(?:@\w+(?:\([^()\n]*\))?[ \t]++)*(?:(?:public|private|protected|internal|static|final|abstract|sealed|non-sealed|"
    r"partial|data|open|inner|case|readonly|unsafe|value|annotation|companion|override|fileprivate|indirect|inline|"
    r"virtual|async|suspend|extern|implicit|mutating|operator|tailrec|infix|ref)[ \t]++)*"
)
_OBJECTS = {
    "class": (
        rf"{_MODIFIERS}(?:(?:enum|record)[ \t]++(?:class|struct)|@?interface|class|enum|record|struct|object|trait|"
        rf"protocol|extension|actor)[ \t]++{_NAME}",
    ),
    "function": (
        rf"{_MODIFIERS}(?:fun|func|def)[ \t]++(?:<[^>\n]*>[ \t]*+)?(?:\w+(?:<[^>\n]*>)?\??\.)*{_NAME}[ \t]*+{_GENERIC}"
        r"(?:\[[^\]\n]*\])?\(",
        rf"{_MODIFIERS}{_NO_NAME}(?:[\w<>\[\],.?]+[ \t]++){{1,8}}{_NAME}[ \t]*+{_GENERIC}\(",
    ),
    "constant": (
        r"(?=[^=\n(]*\b(?:const|val|final|readonly)\b)(?:[\w<>\[\],.?]+[ \t]++){1,8}(?P<name>[A-Z]\w*)" + _TYPED,
    ),
}
_OBJECTS_MASKED = rf'{_SLASHED}|"""(?:[^"]|"(?!""))*+(?:"""|\Z)|{_DOUBLE}|{_CHARACTER}'
_JAVA = _language(_OBJECTS_MASKED, _OBJECTS, type_first=True)
_KOTLIN = _language(_OBJECTS_MASKED, _OBJECTS)

_C_TYPES = rf"{_NO_NAME}(?:[\w:<>,*&~\[\]]+[ \t]++){{1,8}}[*&]*"
_C_NAME = r"(?:(?P<parent>\w+)(?:<[^<>\n]*>)?::)?(?P<name>~?[A-Za-z_]\w*)[ \t]*+\("
_C_RULES = {
    "class": (
        r"(?:template[ \t]*+<[^\n]*>[ \t]*+)?(?:typedef[ \t]++)?(?:class|struct|enum(?:[ \t]++(?:class|struct))?|union)"
        rf"[ \t]++(?:[A-Z][A-Z0-9_]*[ \t]++)?{_NAME}(?=[ \t]*+(?:final[ \t]*+)?(?:[:{{][^;\n]*)?$)",
        r"\}[ \t]*+(?P<name>[A-Za-z_]\w*)[ \t]*+;",  # the end of a typedef
    ),
    "function": (
        rf"{_C_TYPES}{_C_NAME}(?![^\n]*;[ \t]*+$)",
        rf"{_NO_NAME}{_C_NAME}(?=(?:[^;{{\n]*\n){{0,10}}[^;{{\n]*\{{)",  # the type stands on the line above
        r"#[ \t]*+define[ \t]++(?P<name>\w+)\(",
    ),
    "constant": (r"#[ \t]*+define[ \t]++(?P<name>\w+)[ \t]++[^\s]",),
}
_C_MASKED = rf"{_SLASHED}|{_DOUBLE}|{_CHARACTER}"
_C = _language(_C_MASKED, _C_RULES, type_first=True)
_HEADER = _language(
    _C_MASKED,
    _C_RULES | {"function": (*_C_RULES["function"], rf"{_C_TYPES}{_C_NAME}", rf"(?<![ \t]){_NO_NAME}{_C_NAME}")},
    type_first=True,
)

_RUBY = _language(
    rf"(?m:^=begin\b.*?(?:^=end|\Z))|{_HASHED}|{_DOUBLE}|{_SINGLE}",
    {
        "class": (r"(?:class|module)[ \t]++(?:\w+::)*(?P<name>[A-Z]\w*)",),
        "function": (r"def[ \t]++(?:self\.)?(?P<name>[^\W\d]\w*[?!=]?)(?:[ \t]*+\()?",),
        "constant": (r"(?P<name>[A-Z]\w*)[ \t]*+=(?![=~>])",),
    },
)

_PHP = _language(
    rf"{_SLASHED}|#(?!\[)[^\n]*|{_DOUBLE}|{_SINGLE}",
    {
        "class": (rf"(?:(?:abstract|final|readonly)[ \t]++)*(?:class|interface|trait|enum)[ \t]++{_NAME}",),
        "function": (
            rf"(?:(?:public|private|protected|static|abstract|final)[ \t]++)*function[ \t]++&?{_NAME}[ \t]*+\(",
        ),
        "constant": (rf"(?:(?:public|private|protected|final)[ \t]++)*const[ \t]++(?:\w+[ \t]++)?{_CAPITALS}[ \t]*+=",),
    },
    type_first=True,
)

_SHELL = _language(
    rf"{_HASHED}|{_DOUBLE}|'[^'\n]*'?",
    {
        "function": (r"function[ \t]++(?P<name>[\w:.-]+)", r"(?P<name>[\w:.-]+)[ \t]*+\([ \t]*+\)"),
        "constant": (rf"(?:(?:export|readonly|declare[ \t]++-\w+)[ \t]++)?{_CAPITALS}=",),
    },
)

_LANGUAGES = {
    "py pyi pyx pxd": PYTHON,
    "js jsx mjs cjs ts tsx mts cts": _JAVASCRIPT,
    "go": _GO,
    "rs": _RUST,
    "java cs groovy dart": _JAVA,
    "kt kts scala swift": _KOTLIN,
    "c cc cpp cxx cu m mm": _C,
    "h hpp hh hxx cuh": _HEADER,
    "rb rake gemspec": _RUBY,
    "php": _PHP,
    "sh bash zsh ksh": _SHELL,
}
LANGUAGES = {suffix: language for suffixes, language in _LANGUAGES.items() for suffix in suffixes.split()}
"""Suffix (lower case, without dot) → language."""
