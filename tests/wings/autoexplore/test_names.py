"""How paths are shown: one text per path, and nothing in it that breaks a line or a prompt."""

import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reflectrl.wings.autoexplore.names import depth, joined, parent, shown

PATHS = st.one_of(
    st.text(st.characters(codec=None, exclude_categories=[]), max_size=12),
    st.text(st.sampled_from('\\"nu{}x0a \n\t\r\u202e\u0301\udcff;$`é/'), max_size=8),
)
ESCAPE = re.compile(r"\\u\{([0-9a-f]+)\}|\\x([0-9a-f]{2})|\\(.)", re.DOTALL)


def read_back(text: str) -> str:
    """The path that is shown like this."""
    if not text.startswith('"'):
        return text

    def meant(found: re.Match[str]) -> str:
        code, byte, short = found.groups()
        if code or byte:
            return chr(int(code, 16) if code else 0xDC00 + int(byte, 16))
        return {"n": "\n", "r": "\r", "t": "\t"}.get(short, short)

    return ESCAPE.sub(meant, text[1:-1])


@given(PATHS)
@example("; touch x")
@example('"quoted"')
@example("\\n")
@example("\n")
def test_what_is_shown_leads_back_to_the_path(path: str) -> None:
    assert read_back(shown(path)) == path


@given(PATHS)
def test_what_is_shown_is_harmless(path: str) -> None:
    text = shown(path)
    assert text and text == text.strip() and text.isprintable()
    assert not any(unicodedata.category(character)[0] == "M" for character in text)
    text.encode()  # no half of a surrogate pair


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("src/app.py", "src/app.py"),
        ("app/[slug]/(group)/page.tsx", "app/[slug]/(group)/page.tsx"),
        ("größe/文件.txt", "größe/文件.txt"),
        ("; touch x", '"; touch x"'),
        ("$(id)", '"$(id)"'),
        ("a\nb", r'"a\nb"'),
        ("a\\nb", r'"a\\nb"'),
        ("\u202egnp.exe", r'"\u{202e}gnp.exe"'),
        ("e\u0301", r'"e\u{301}"'),
        ("\udcff", r'"\xff"'),
        ("", '""'),
    ],
)
def test_examples(path: str, text: str) -> None:
    assert shown(path) == text


def test_paths_are_taken_apart_and_put_together() -> None:
    assert joined("", "a") == "a" and joined("a/b", "c") == "a/b/c"
    assert parent("a/b/c") == "a/b" and parent("a") == "" and parent("") == ""
    assert depth("a") == 0 and depth("a/b/c") == 2
