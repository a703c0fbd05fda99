"""Unpacking packages: what comes out, and that nothing lands outside; and which licence they say they have."""

import io
import zipfile
from pathlib import Path

import pytest

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.making.archives import unpack
from reflectrl.wings.autoexplore.making.licences import licence_of
from tests.wings.autoexplore.written import tar


def packed(folder: Path, data: bytes, name: str = "tool-1.0.tar.gz") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def inside(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_the_enclosing_folder_goes_and_so_do_metadata_and_compiled_code(tmp_path: Path) -> None:
    files = {
        "tool-1.0/PKG-INFO": b"License: MIT\n",
        "tool-1.0/src/tool.egg-info/PKG-INFO": b"x",
        "tool-1.0/src/tool.py": b"x = 1",
        "tool-1.0/src/fast.so": b"\x7fELF",
    }
    metadata = unpack(packed(tmp_path, tar(files)), tmp_path / "repos" / "tool")
    assert metadata == "License: MIT\n"
    assert inside(tmp_path / "repos") == {"tool/src/tool.py"}


def test_a_wheel(tmp_path: Path) -> None:
    files = {"tool/a.py": b"x", "tool-1.0.dist-info/METADATA": b"License-Expression: ISC\n", "tool/b.so": b""}
    metadata = unpack(packed(tmp_path, zipped(files), "tool-1.0-py3-none-any.whl"), tmp_path / "tool")
    assert licence_of(tmp_path / "tool", metadata) == "ISC"
    assert inside(tmp_path / "tool") == {"tool/a.py"}


@pytest.mark.parametrize("name", ["../x.py", "tool/../../x.py"])
@pytest.mark.parametrize("ending", ["tar.gz", "zip"])
def test_what_would_lie_outside_is_refused(tmp_path: Path, name: str, ending: str) -> None:
    data = (tar if ending == "tar.gz" else zipped)({"tool/a.py": b"x", name: b"x"})
    with pytest.raises(UserError, match="cannot be unpacked"):
        unpack(packed(tmp_path, data, f"tool-1.{ending}"), tmp_path / "in" / "tool")
    assert inside(tmp_path) == {f"tool-1.{ending}"} and not list((tmp_path / "in").iterdir())


def test_absolute_names_are_refused_or_stay_inside(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="outside"):
        unpack(packed(tmp_path, zipped({"/etc/x.py": b"x"}), "tool-1.zip"), tmp_path / "in" / "tool")
    unpack(packed(tmp_path, tar({"a.py": b"x", "/etc/x.py": b"x"})), tmp_path / "in" / "tool")  # as tarfile does
    assert inside(tmp_path / "in") == {"tool/a.py", "tool/etc/x.py"}


def test_links_are_left_out(tmp_path: Path) -> None:
    unpack(packed(tmp_path, tar({"t/a.py": b"x"}, {"t/passwd": "/etc/passwd", "t/up": ".."})), tmp_path / "tool")
    assert {path.name for path in (tmp_path / "tool").rglob("*")} == {"a.py"}


@pytest.mark.parametrize("data", [b"", b"no archive", tar({"a": b"x" * 5000})[:60]], ids=["empty", "other", "cut"])
def test_a_damaged_archive_is_one_line(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(UserError, match=r"tool-1.0.tar.gz cannot be unpacked"):
        unpack(packed(tmp_path, data), tmp_path / "tool")
    assert not (tmp_path / "tool").exists()


@pytest.mark.parametrize(
    ("metadata", "name"),
    [
        ("License-Expression: MIT OR Apache-2.0\n", "MIT OR Apache-2.0"),
        ("License: UNKNOWN\nClassifier: License :: OSI Approved :: BSD License\n", "BSD"),
        (f"License: {'Permission is hereby granted, free of charge, '}to any person obtaining a copy\n", "MIT"),
        ("Name: x\n", "unknown"),
    ],
)
def test_licences_in_metadata(tmp_path: Path, metadata: str, name: str) -> None:
    assert licence_of(tmp_path, metadata) == name


@pytest.mark.parametrize(
    ("file", "text", "name"),
    [
        ("LICENSE", "Apache License\nVersion 2.0", "Apache-2.0"),
        ("LICENSE.txt", "Redistribution and use in source and binary forms ... Neither the name of", "BSD-3-Clause"),
        ("COPYING", "GNU GENERAL PUBLIC LICENSE", "GPL"),
        ("pyproject.toml", '[project]\nlicense = "MIT"', "MIT"),
        ("pyproject.toml", '[project]\nlicense = {text = "BSD"}', "BSD"),
        ("pyproject.toml", "project = 3", "unknown"),
        ("README", "MIT", "unknown"),
    ],
)
def test_licences_in_files(tmp_path: Path, file: str, text: str, name: str) -> None:
    (tmp_path / file).write_text(text, encoding="utf-8")
    assert licence_of(tmp_path) == name
