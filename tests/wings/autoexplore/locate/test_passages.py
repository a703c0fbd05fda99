"""Where the words of a question occur in a file: all at once, and as if each had been searched for."""

import re

from hypothesis import given
from hypothesis import strategies as st

from reflectrl.wings.autoexplore.locate.passages import ReadFile, rule_out
from reflectrl.wings.autoexplore.words import spoken, stem

TEXTS = st.text(alphabet="aAbBeEstT12_. \nßÉéΣσİK\u2019\ud800", max_size=80)
PIECES = st.lists(
    st.sampled_from(["retry", "Retries", "RETRY", "test", "tesTest", "http2", "12", "_", " ", "\n", "É", "é", "K", "x"])
)


def offsets(text: str, lower: str, word: str, form: str) -> list[int]:
    """Return the offsets of a word, searched one by one."""
    shared = 0
    while shared < min(len(word), len(form)) and word[shared] == form[shared]:
        shared += 1
    prefix = word[: max(shared, min(3, len(word)))]
    prefix = prefix[:-1] if prefix.endswith("y") and len(prefix) > 3 else prefix
    found, start = list[int](), 0
    while (start := lower.find(prefix, start)) >= 0:
        end = start + len(prefix)
        begins = not lower[start - 1 : start].isalpha() or (text[start].isupper() and not text[start - 1].isupper())
        if prefix.isdigit() or begins:
            rest = re.compile(r"[a-z]*").match(text, end) if prefix.isascii() and prefix.isalnum() else None
            if stem(lower[start : rest.end() if rest else end]) == word:
                found.append(start)
        start = end
    return found[:200]


@given(st.one_of(TEXTS, PIECES.map("".join)), st.one_of(TEXTS, PIECES.map("".join)))
def test_all_words_are_found_as_one_by_one(text: str, question: str) -> None:
    file = ReadFile("notes.txt", text)
    forms = {word: form for form, word in spoken(question + " retries tests 12 abe http")}
    one_by_one = {word: offsets(text, file.lower, word, form) for word, form in forms.items()}
    assert file.hits(forms) == {word: each for word, each in one_by_one.items() if each}


def test_a_long_word_is_compared_to_its_end() -> None:
    file = ReadFile("notes.txt", "configuration configurable ConfigurationError misconfiguration")
    (word,) = {word for _, word in spoken("configuration")}
    assert file.hits({word: "configuration"}) == {word: [0, 27]}


@given(st.lists(TEXTS, min_size=1, max_size=3), st.lists(st.text(alphabet="abest_é", min_size=1, max_size=6)))
def test_only_names_that_do_not_occur_are_ruled_out(texts: list[str], names: list[str]) -> None:
    files = [ReadFile("notes.txt", text) for text in texts]
    names = list(dict.fromkeys([*names, *(text[:5].lower() for text in texts), *(f"name{n}" for n in range(8))]))
    rule_out(files, names)
    for file in files:
        assert [file.mentions(name) for name in names] == [name in file.lower for name in names]
