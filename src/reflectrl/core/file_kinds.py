"""Formats of data files by their first bytes, for messages about a file that is not what its name says."""

from __future__ import annotations

import re

HEAD_BYTES = 512
"""Number of bytes from the beginning of a file that `other_format` needs."""
_LOAD = "load it with `datasets` or pandas, and write one JSON object per line"
_MAGIC = {
    b"\x1f\x8b": ("a gzip file", "name it ....gz, or unpack it with gunzip"),
    b"\x28\xb5\x2f\xfd": ("a Zstandard file", "unpack it with `zstd -d`"),
    b"\xfd7zXZ\x00": ("an xz file", "unpack it with `xz -d`"),
    b"BZh": ("a bzip2 file", "unpack it with `bzip2 -d`"),
    b"\x04\x22\x4d\x18": ("an LZ4 file", "unpack it with `lz4 -d`"),
    b"PAR1": ("a Parquet file", _LOAD),
    b"ARROW1": ("an Arrow file", _LOAD),
    b"ORC": ("an ORC file", _LOAD),
    b"Obj\x01": ("an Avro file", _LOAD),
    b"\x89HDF\r\n": ("an HDF5 file", _LOAD),
    b"SQLite format 3\x00": ("an SQLite database", _LOAD),
    b"\x93NUMPY": ("a NumPy file", _LOAD),
    b"PK\x03\x04": ("a zip archive (or a spreadsheet)", "unpack it, and name the file inside"),
    b"7z\xbc\xaf\x27\x1c": ("a 7-Zip archive", "unpack it, and name the file inside"),
    b"\x80\x04\x95": ("a Python pickle", "pickles can run code and are not read; save it as JSON lines"),
    b"%PDF-": ("a PDF file", "it holds no rows of data"),
    b"version https://git-lfs": ("a pointer of Git LFS, not the file itself", "fetch the file with `git lfs pull`"),
    b"\xff\xfe": ("a text in UTF-16", "save it as UTF-8"),
    b"\xfe\xff": ("a text in UTF-16", "save it as UTF-8"),
}
_HTML = re.compile(rb"\s*+<(?:!doctype|html|\?xml)\b", re.IGNORECASE)
_HEADER = re.compile(rb"""["\w .-]++(?:[,;\t]["\w .-]*+)++""")


def other_format(head: bytes, is_table: bool = False) -> str:
    """Return what a file is, and what to do, if its first bytes cannot begin JSON lines; "" if they can.

    Args:
        head: the first `HEAD_BYTES` bytes.
        is_table: separated values are expected instead of JSON lines.
    """
    for magic, (name, advice) in _MAGIC.items():
        if head.startswith(magic):
            return f"this is {name}; {advice}"
    if head[257:262] == b"ustar":
        return "this is a tar archive; unpack it, and name the file inside"
    if _HTML.match(head):
        return "this is a web page or XML, perhaps an error page in place of a download; fetch the file again"
    first_line = head.partition(b"\n")[0].rstrip(b"\r").removeprefix(b"\xef\xbb\xbf")
    if not is_table and b"\n" in head and _HEADER.fullmatch(first_line) and not first_line[:1].isdigit():
        return f"this is a table of separated values (CSV or TSV); {_LOAD}"
    return ""
