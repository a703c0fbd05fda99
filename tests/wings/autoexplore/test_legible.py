"""Encoded data in a repository: its words are not found, and what stands behind it is."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest

from reflectrl.cli import main
from reflectrl.wings.autoexplore.legible import CONTENT_BYTES, legible, without_encoded
from reflectrl.wings.autoexplore.repository import Repository

NOISE = base64.b64encode(random.Random(7).randbytes(300_000)).decode()
"""A picture, as a notebook holds it; by chance it has every short word."""


def notebook(*outputs: dict[str, Any], indent: int | None = 1) -> str:
    """A notebook whose first cell has these outputs, and whose second defines something."""
    cells = [
        {"cell_type": "code", "source": ["plot(rooms)\n"], "outputs": list(outputs)},
        {"cell_type": "code", "source": ["def calibrate_thermostat(sensor):\n", "    return sensor\n"], "outputs": []},
    ]
    return json.dumps({"cells": cells, "nbformat": 4}, indent=indent)


def located(capsys: Any, folder: Path, question: str) -> tuple[list[str], list[str]]:
    """The files that search finds, with their lines, and what is said on stderr."""
    assert main(["locate", question, "--repo", str(folder), "--search", "--json"]) == 0
    out, err = capsys.readouterr()
    return [f"{one['path']}:{one['line']}" for one in json.loads(out)["files"]], err.splitlines()


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("lines", [False, True])
def test_a_picture_in_a_notebook_is_no_text_and_hides_none(
    tmp_path: Path, capsys: Any, indent: int | None, lines: bool
) -> None:
    data = "".join(f"{NOISE[i : i + 76]}\n" for i in range(0, len(NOISE), 76)) if lines else NOISE
    text = notebook({"output_type": "display_data", "data": {"image/png": data}}, indent=indent)
    (tmp_path / "analysis.ipynb").write_text(text, encoding="utf-8")
    assert located(capsys, tmp_path, "where is debounce search box?")[0] == []
    # Without line breaks in the file, the lines of the cells are counted.
    number = 1 + text[: text.index("def calibrate")].count("\n") if indent else 4
    found, said = located(capsys, tmp_path, "where is calibrate thermostat?")
    assert found == [f"analysis.ipynb:{number}"] and len(said) == 1


def test_cells_are_found_behind_large_outputs_of_text(tmp_path: Path, capsys: Any) -> None:
    table = {"output_type": "stream", "text": [f"row {i} of a table\n" for i in range(20_000)]}
    (tmp_path / "analysis.ipynb").write_text(notebook(table), encoding="utf-8")
    (found,), said = located(capsys, tmp_path, "where is calibrate thermostat?")
    assert found.startswith("analysis.ipynb:") and len(said) == 1
    (tmp_path / "analysis.ipynb").write_text(notebook({"text": ["the furnace is lit\n"]}), encoding="utf-8")
    assert located(capsys, tmp_path, "where is the furnace?")[0] == []  # outputs are never searched


def test_files_that_are_not_searched_to_their_ends_are_named(tmp_path: Path, capsys: Any) -> None:
    long = "some words of a log\n" * 20_000
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_text(f"{long}thermostat\n", encoding="utf-8")
    found, said = located(capsys, tmp_path, "where is the thermostat?")
    assert found == []
    assert said[1] == "reflectrl: a.txt, b.txt, c.txt and 1 more: searched only in part, because they are long"


@pytest.mark.parametrize(
    "text",
    [
        f"key: {NOISE[:600]}",
        "\n".join(NOISE[i : i + 64] for i in range(0, 6400, 64)),
        f'<img alt="" src="data:image/png;base64,{NOISE[:200]}">',
        f"url(data:image/svg+xml,%3Csvg%20box{'%20box' * 40})",
        'x={"version":3,"mappings":"' + "AAAA,box;CAAC,box;" * 20 + '"}',
        "var box=1;".replace(" ", "") * 200,
    ],
)
def test_encoded_data_is_passed_over(text: str) -> None:
    left = without_encoded(text)
    assert "box" not in left and len(left.strip()) < 150 and left.count("\n") == text.count("\n")


@pytest.mark.parametrize(
    "text",
    [
        "src/main/java/com/example/thermostat/service/CalibrationServiceFactoryImplementation2.java",
        "https://example.com/documents/thermostat/calibration/how-to-calibrate-a-thermostat?page=2&section=3",
        "thermostat_calibration_table_of_all_rooms_that_are_heated_by_the_old_furnace_2 = 1",
        "testThatTheThermostatIsCalibratedWhenTheSensorOfTheSecondRoomReportsATemperatureBelow10Degrees()",
        "Name,Room,Degrees\nAlice,Kitchen,21,Ben,Hall,19,Carla,Attic,17,Dan,Cellar,14,Eve,Porch,3,Fay,Hall,19\n",
        "恒温器" * 1000,
    ],
)
def test_names_paths_and_writing_without_spaces_are_text(text: str) -> None:
    assert without_encoded(text) == text


def test_a_file_without_encoded_data_is_read_as_far_as_before(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words and words\n" * 40_000, encoding="utf-8")
    found = legible(Repository.open(tmp_path), "a.txt")
    assert len(found.text) == CONTENT_BYTES and not found.complete
