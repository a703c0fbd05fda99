"""What is not as it was written is noticed when it is read: files by digests, lines by checksums."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reflectrl.core import digests
from reflectrl.core.digests import DIGESTS, damage, require_undamaged, seal, unseal, write_digests
from reflectrl.core.types import UserError

# ---- lines -----------------------------------------------------------------------------------------------------------

objects = st.dictionaries(st.text(), st.integers() | st.text(), min_size=1, max_size=3)


@given(objects)
def test_a_sealed_line_is_an_object_with_one_more_key_and_comes_back(data: dict[str, object]) -> None:
    line = json.dumps(data, ensure_ascii=False)
    assert unseal(seal(line)) == unseal(line) == line
    assert {**data, "crc32": json.loads(seal(line))["crc32"]} == json.loads(seal(line))


@given(objects, st.integers(0), st.integers(0, 7))
def test_no_flipped_bit_of_a_sealed_line_passes(data: dict[str, object], place: int, bit: int) -> None:
    whole = bytearray(seal(json.dumps(data, ensure_ascii=False)).encode())
    whole[place % len(whole)] ^= 1 << bit
    try:
        text = unseal(whole.decode())
        read = json.loads(text)
    except ValueError:
        return
    assert "crc32" not in str(read) and len(read) == len(data) + 1, "only a key that is none of ours may be left"


# ---- folders ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "made"
    (place / "inner").mkdir(parents=True)
    (place / "a.bin").write_bytes(bytes(range(256)))
    (place / "inner" / "b.json").write_text("{}", encoding="utf-8")
    write_digests(place)
    return place


def test_a_folder_as_it_was_written_is_sound_with_all_below_it_and_so_is_one_without_digests(folder: Path) -> None:
    (folder / "added.txt").write_text("notes", encoding="utf-8")
    assert damage(folder) is damage(folder / "inner") is damage(folder.parent) is None
    require_undamaged(folder)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda path: path.write_bytes(b"\1" + path.read_bytes()[1:]), r"a\.bin has changed since it was written"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), r"a\.bin has changed since it was written"),
        (lambda path: path.unlink(), r"a\.bin is missing"),
        (lambda path: (path.parent / DIGESTS).write_text("{"), r"digests\.json is damaged"),
        (lambda path: (path.parent / DIGESTS).write_text("{}"), r"digests\.json is damaged"),
        (lambda path: (path.parent / DIGESTS).write_bytes(b"\xff"), r"digests\.json is damaged"),
        (lambda path: (path.parent / DIGESTS).write_text("[1]"), r"digests\.json is damaged"),
    ],
)
def test_a_change_is_told_with_the_file_and_what_to_do(folder: Path, change: object, told: str) -> None:
    require_undamaged(folder)
    change(folder / "a.bin")  # type: ignore[operator]
    with pytest.raises(UserError, match=rf"{told}; remove {folder}, then repeat the command") as caught:
        require_undamaged(folder)
    assert "\n" not in str(caught.value)
    assert damage(folder / "inner") is None


def test_a_file_is_read_once_as_long_as_nobody_writes_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    real = digests.open_regular

    def noted(path: Path) -> object:
        read.append(path)
        return real(path)

    monkeypatch.setattr(digests, "open_regular", noted)
    for _ in range(3):
        require_undamaged(folder)
    assert sum(path.name == "a.bin" for path in read) == 1


@pytest.mark.parametrize("name", ["/dev/zero", "/proc/kmsg", "../a.bin", "inner/a.bin", "..", ""])
def test_a_name_that_leads_out_of_the_folder_is_damage(folder: Path, name: str) -> None:
    (folder / DIGESTS).write_text(json.dumps({name: "0"}))
    assert damage(folder) == f"{folder / DIGESTS} is damaged"


@pytest.mark.parametrize("target", ["/dev/zero", "/proc/kmsg", "pipe"])
def test_a_file_or_its_digests_without_an_end_are_damage(folder: Path, target: str) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "a.bin").unlink()
    (folder / "a.bin").symlink_to(target)
    assert str(folder / "a.bin") in str(damage(folder))
    (folder / DIGESTS).unlink()
    (folder / DIGESTS).symlink_to(target)
    assert str(folder / DIGESTS) in str(damage(folder))


def test_digests_that_are_deeply_nested_are_damage(folder: Path) -> None:
    (folder / DIGESTS).write_text("[" * 1_000_000)
    assert damage(folder) == f"{folder / DIGESTS} is damaged"
