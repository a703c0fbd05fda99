"""Patterns of tokenizers: those in use pass, and those that are tried for ever are recognised."""

import json
from math import prod

import pytest

from reflectrl.models.patterns import growth, is_runaway
from reflectrl.models.scratch import train_tokenizer

QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+(?i:'s|'t|'re)?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*(?i:'s|'t|'re)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.mark.parametrize(
    "pattern",
    [
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        QWEN,
        GPT4O,
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
        r" ?[^(\s|[.,!?…。，、।۔،])]+",
        r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
        r"[^\r\n\p{L}\p{N}]?+\p{L}+| ?[^\s\p{L}\p{N}]++[\r\n]*",
        r" {2,}",
        r"[^]a]+|[]]",
    ],
)
def test_patterns_of_tokenizers_in_use_pass(pattern: str) -> None:
    assert not is_runaway(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+$",
        r"(.|.|.|[^x])*(.|\n)*y$",
        r"(x+x+)+y",
        r"(\w+\s?)*$",
        r"((a?){20}){20}b",
        r"(a*){3,}",
        r"(?:(?:a*)*)*b",
        r"(?=([a-z]+)*!)",
        r".*.*.*.*.*y",
        r"a{1,}{1,}b",
        r"(?<x>a|b\g<x>c)",
    ],
)
def test_patterns_that_are_tried_for_ever_are_recognised(pattern: str) -> None:
    assert is_runaway(pattern)


def test_what_replacements_add_is_counted() -> None:
    double = {"type": "Replace", "pattern": {"String": " "}, "content": "  "}
    assert list(growth({"normalizer": {"normalizers": [double, double]}})) == [2.0, 2.0]
    assert list(growth({"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}})) == [1.0]
    assert prod(growth(json.loads(train_tokenizer(["a b"], 300).backend_tokenizer.to_str()))) == 1.0
