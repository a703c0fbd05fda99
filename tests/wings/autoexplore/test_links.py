"""A file of questions is not written through a symbolic link."""

from pathlib import Path

import pytest

from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.questions import write_questions
from tests.runs.test_links import link


def test_temporary_files_beside_what_is_written_may_be_no_links(target: Path) -> None:
    link(Path("questions.jsonl.writing"), target)
    with pytest.raises(UserError, match="symbolic links"):
        write_questions("questions.jsonl", [])
    assert target.read_text() == "of value\n"
