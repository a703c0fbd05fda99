"""`data sft`: teaching episodes as training rows in TRL's columns, for other trainers; or a check of such rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from reflectrl.core.json_lines import parse_json, read_json_lines
from reflectrl.core.types import UserError
from reflectrl.tools.downloads.data import Data, refuse_unknown

if TYPE_CHECKING:
    from reflectrl.core.episodes.views import ChoiceRow
    from reflectrl.core.types import Episode

Paths = Annotated[
    tuple[tuple[Path, ...], ...], tyro.conf.arg(name="from", metavar="LOG ..."), tyro.conf.UseAppendAction
]
FILES = ("sft", "sft_reflection", "sft_policy", "sft_reflection_positive", "sft_policy_positive")
"""Names of the five files: for a policy without a reflector, for a reflector, for a policy that reads it, and for these
two without negative examples."""
TEACHING = "episodes/teach-seed*-train.jsonl"
"""Teaching episodes in a run folder."""


@dataclass(frozen=True)
class SFTRows(Data):
    """Write teaching episodes as the five files of training rows of Reflect-RL, in TRL's columns prompt and completion.

    Without --from, check the five files in a folder, and print what they hold.
    """

    to: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Folder of the five files."""
    from_: Paths = ()
    """Logs of teaching episodes, or run folders that hold some."""
    words: bool = False
    """Let the policy answer with the text of an action instead of its label."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Write the rows if --from is given, then read all files and print their size."""
        refuse_unknown(settings, type(self))
        paths = [path for paths in self.from_ for path in paths]
        if () in self.from_:
            raise UserError("data sft: --from needs a log or a run folder")
        if paths:
            write_rows(paths, self.to, self.words)
        print(self.to)
        for name in FILES:
            rows = read_rows(self.to / f"{name}.jsonl")
            longest = max((len(prompt) + len(completion) for prompt, completion in rows), default=0)
            print(f"  {name + '.jsonl':32}{len(rows):8} rows, the longest of {longest} characters")


def write_rows(paths: Sequence[Path], folder: Path, words: bool = False) -> None:
    """Write the five files, each atomically.

    Raises:
        UserError: a log cannot be read, there is nothing to imitate, or a file cannot be written.
    """
    from reflectrl.core.config.folders import require_writable
    from reflectrl.core.episodes import views
    from reflectrl.learn.checkpoint import write_text

    episodes = list(_episodes(paths))
    choices = {
        "sft": views.sft(episodes),
        "sft_policy": views.sft_policy(episodes),
        "sft_policy_positive": views.sft_policy(episodes, negatives=False),
    }
    if not choices["sft"]:
        raise UserError(f"{', '.join(map(str, paths))}: no step to imitate")
    rows = {name: [_choice(row, words) for row in choice_rows] for name, choice_rows in choices.items()}
    for name, negatives in (("sft_reflection", True), ("sft_reflection_positive", False)):
        reflections = views.sft_reflection(episodes, negatives)
        rows[name] = [("".join(row.prompt), row.completion) for row in reflections]
    require_writable(folder, f"folder {folder}")
    for name in FILES:
        lines = (json.dumps({"prompt": prompt, "completion": text}, ensure_ascii=False) for prompt, text in rows[name])
        write_text(folder / f"{name}.jsonl", "".join(f"{line}\n" for line in lines))


def read_rows(path: Path) -> list[tuple[str, str]]:
    """Read the prompts and completions of a file.

    Raises:
        UserError: the file cannot be read, or a line is not a row. The message names file and line.
    """
    return [row for _, row in read_json_lines(path, _row, "not a row of prompt and completion")]


def _row(line: str) -> tuple[str, str]:
    row = parse_json(line)
    prompt, completion = row["prompt"], row["completion"]
    if not (isinstance(prompt, str) and isinstance(completion, str) and completion):
        raise ValueError("prompt and completion must be text")
    return prompt, completion


def _episodes(paths: Sequence[Path]) -> Iterator[Episode]:
    """Yield the episodes of logs and of the teaching logs in run folders."""
    from reflectrl.core.episodes import read_episodes

    for path in paths:
        logs = sorted(path.glob(TEACHING)) if path.is_dir() else [path]
        if not logs:
            raise UserError(f"{path}: no teaching episodes there ({TEACHING})")
        for log in logs:
            yield from read_episodes(log)


def _choice(row: ChoiceRow, words: bool) -> tuple[str, str]:
    """Return the prompt and the completion of a policy's row."""
    from reflectrl.core.prompts import policy_prompt, words_prompt
    from reflectrl.models.labels import candidates

    actions = row.observation.actions
    if words:
        return "".join(words_prompt(row.observation, row.reflection)), f" {actions[row.target]}"
    labels = tuple(islice(candidates(), len(actions)))
    return "".join(policy_prompt(row.observation, row.reflection, labels)), f" {labels[row.target]}"
