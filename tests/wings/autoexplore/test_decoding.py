"""Bytes of files: byte order marks, declared encodings, and bytes that are in none."""

import codecs
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.wings.autoexplore.decoding import decode
from reflectrl.wings.autoexplore.index import is_text
from reflectrl.wings.autoexplore.locate.engine import Engine
from reflectrl.wings.autoexplore.texts import Text

SCRIPTS = {
    "gbk": "退款金额的计算",
    "gb2312": "退款金额的计算",
    "gb18030": "退款金额的计算",
    "big5": "退款金額的計算",
    "shift_jis": "接続の再試行",
    "euc-jp": "接続の再試行",
    "iso-2022-jp": "接続の再試行",
    "euc-kr": "비밀번호 초기화",
    "koi8-r": "возврат денег",
    "windows-1251": "возврат денег",
    "iso-8859-15": "für 5 € zurück",
    "windows-1252": "für 5 € zurück",
    "tis-620": "ค่าเช่า",
}
DECLARATIONS = (
    "# -*- coding: {} -*-\ndef refund():\n    # {}\n    return 1\n",
    "#!/usr/bin/env ruby\n# encoding: {}\n# {}\n",
    "/* vim: set fileencoding={} : */\n/* {} */\n",
    ";;; -*- mode: lisp; coding: {}-unix -*-\n;;; {}\n",
    '<?xml version="1.0" encoding="{}"?>\n<message>{}</message>\n',
    '<!DOCTYPE html>\n<html><head><meta charset="{}"><title>{}</title></head></html>\n',
    '<html><META http-equiv="Content-Type" content="text/html; charset={}"><body>{}</body></html>\n',
)


@pytest.mark.parametrize("encoding", SCRIPTS)
@pytest.mark.parametrize("declaration", DECLARATIONS)
def test_a_declared_encoding_is_heeded(encoding: str, declaration: str) -> None:
    text = declaration.format(encoding, SCRIPTS[encoding] * 3)
    data = text.encode(encoding)
    decoded = decode(data)
    assert (decoded.text, decoded.is_exact) == (text, True) and decoded.encoding != "latin-1" and is_text(data)
    for end in range(len(data)):  # whatever is cut
        assert text.startswith(decode(data[:end], complete=False).text) or end <= text.index("\n") + 1


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_byte_order_marks(encoding: str) -> None:
    marks = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}
    data = marks.get(encoding, b"") + "# -*- coding: gbk -*-\n退款 für alle 🔎\n".encode(encoding)
    decoded = decode(data)
    assert decoded.text.removeprefix("\ufeff") == "# -*- coding: gbk -*-\n退款 für alle 🔎\n" and decoded.is_exact


def test_a_wrong_declaration_does_not_spoil_utf_8() -> None:
    for declared in ("gbk", "latin-1", "shift_jis", "no-such-encoding", "hex", "rot13", "unicode_escape"):
        text = f"# -*- coding: {declared} -*-\n# 退款 für\n"
        assert decode(text.encode()).text == text


def test_what_is_in_no_known_encoding_is_read_as_latin_1() -> None:
    assert decode(b"# \xff\xfe\xfd") == ("# ÿþý", "latin-1", True)
    assert decode(b"# coding: hex\n# \xff").encoding == "latin-1"


@given(st.binary(max_size=200) | st.sampled_from(DECLARATIONS).map(str.encode), st.booleans())
def test_any_bytes_are_decoded(data: bytes, complete: bool) -> None:
    text, encoding, is_exact = decode(data, complete)
    if is_exact and complete and encoding in ("utf-8", "latin-1"):
        assert text.encode(encoding) == data
    assert isinstance(text, str) and "\ud800" not in text


def test_the_index_and_the_walks_read_the_same_text(tmp_path: Path) -> None:
    from reflectrl.wings.autoexplore.repository import Repository

    text = DECLARATIONS[0].format("gbk", SCRIPTS["gbk"])
    (tmp_path / "refund.py").write_bytes(text.encode("gbk"))
    (tmp_path / "other.py").write_bytes(b"def other():\n    return 1\n")
    engine = Engine(tmp_path, cached=False)
    [hit] = engine.search("退款金额", 5)
    assert (hit.path, hit.line) == ("refund.py", 3) and engine.remarks() == []
    assert Repository.open(tmp_path).read("refund.py") == Text(text)
