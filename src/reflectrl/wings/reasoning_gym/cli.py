"""`data reasoning-gym`: prompts whose answers can be verified."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from reflectrl.core.config.folders import replacing, writing
from reflectrl.core.types import UserError
from reflectrl.tools.downloads.data import Data, refuse_unknown


@dataclass(frozen=True)
class ReasoningGym(Data):
    """Make questions of reasoning-gym with verified answers, as samples of a text task (the extra `reasoning-gym`)."""

    dataset: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ("spell_backward",)
    """Data sets of the package. Several are mixed in equal numbers."""
    settings: Annotated[str, tyro.conf.arg(metavar="JSON")] = "{}"
    """Settings of the data set, as the package names them: '{"max_word_len": 4}'."""
    train: int = 1000
    """Training questions per data set."""
    validation: int = 100
    """Validation questions per data set."""
    test: int = 200
    """Test questions per data set. No question is in two splits."""
    to: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("reasoning-gym")
    """Folder for train.jsonl, validation.jsonl and test.jsonl. The recipe `reasoning-gym` reads this default folder."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Make the questions, write them, and show one."""
        refuse_unknown(settings, type(self))
        if min(self.train, self.validation, self.test) < 1 or not self.dataset:
            raise UserError(
                "data reasoning-gym: --train, --validation and --test must be at least 1, and --dataset a name"
            )
        sizes = {"test": self.test, "validation": self.validation, "train": self.train}
        seen: set[str] = set()
        rows_by_split = {split: list(self._rows(split, count, seen)) for split, count in sizes.items()}
        for split, rows in rows_by_split.items():
            _write(self.to / f"{split}.jsonl", rows)
            print(f"{self.to / split}.jsonl: {len(rows)} questions")
        example = rows_by_split["train"][0]
        print(f"\n{example['prompt']}{example['completion']}")

    def _rows(self, split: str, count: int, seen: set[str]) -> Iterator[dict[str, Any]]:
        from reflectrl.wings.reasoning_gym.questions import rows

        try:
            settings = json.loads(self.settings)
        except ValueError as error:
            raise UserError(f"data reasoning-gym: --settings is not valid JSON: {error}") from error
        if not isinstance(settings, dict):
            raise UserError(f"data reasoning-gym: --settings must be a JSON object, not {self.settings!r:.60}")
        sets = [list(rows(name, settings, split, count, seen)) for name in self.dataset]
        return (row for group in zip(*sets, strict=True) for row in group)


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write lines of JSON. If writing fails, the old file stays as it was."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)
