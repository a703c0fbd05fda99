"""`locate`: find the files of a repository that may answer a question. Nothing leaves the machine."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from reflectrl.core.json_lines import parse_json, read_json_lines
from reflectrl.core.types import UserError

if TYPE_CHECKING:
    from reflectrl.wings.autoexplore.locate.agent import Agent, Walked
    from reflectrl.wings.autoexplore.locate.answers import Answer, Locator
    from reflectrl.wings.autoexplore.locate.reader import Reader
    from reflectrl.wings.autoexplore.search import Hit

SMALL = 20_000_000
"""Largest number of parameters for which a model runs on one thread. More threads do not speed up such a model, and
on a busy machine every small matrix product waits for them."""


def agent_of(model: str, search: bool) -> Agent | None:
    """Load the agent of a folder or of $REFLECTRL_AGENT; return None to answer by search.

    Args:
        model: folder of the agent; "" if the user named no folder.
        search: answer by search even if there is an agent.

    Raises:
        UserError: both were asked for, or the folder holds no agent.
    """
    if search:
        if model:
            raise UserError("--model answers with an agent, --search and --names-only without one; drop either")
        return None
    from reflectrl.wings.autoexplore.locate.card import agent_folder, read_card

    folder = agent_folder(model)
    if folder is None:
        return None
    read_card(folder)  # reports a damaged agent before the slow import of torch
    from reflectrl.wings.autoexplore.locate.agent import Agent

    agent = Agent.load(folder)
    if 0 < agent.weights <= SMALL:
        import torch

        torch.set_num_threads(1)
    return agent


def reader_of(read: bool, agent: Agent | None, names_only: bool = False) -> Reader | None:
    """Load the model that reads the search's first files; return None without `--read`.

    Raises:
        UserError: another method answers, torch is not installed, or the model is not on this machine.
    """
    if not read:
        return None
    if agent is not None or names_only:
        raise UserError("--read chooses among files of the search; drop --model (or pass --search) and --names-only")
    from reflectrl.wings.autoexplore.locate.reader import Reader

    return Reader.load()


OPTIONS = (
    "--repo", "--top", "--json", "--open", "--questions", "--no-cache", "--cache",
    "--names-only", "--read", "--search", "--model", "--trace",
)  # fmt: skip


@dataclass(frozen=True)
class Locate:
    """Find the files of a repository that answer a question, without anything leaving this machine."""

    question: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="QUESTION")] = ()
    """Question about the repository, such as "where are retries configured?" """
    repo: Annotated[str, tyro.conf.arg(metavar="DIR")] = "."
    """Folder of the repository."""
    top: Annotated[int, tyro.conf.arg(metavar="N", aliases=["-k"])] = 5
    """Largest number of files."""
    json: bool = False
    """Print one JSON object instead of text."""
    open: bool = False
    """Open the first file in $VISUAL or $EDITOR, at its line."""
    questions: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """File with a JSON object with "question" on each line ("-" for stdin). Answers are printed in the same form."""
    no_cache: bool = False
    """Keep no index in the user's cache folder, and use none. $REFLECTRL_CACHE=off does the same."""
    cache: Literal["", "list", "clear"] = ""
    """Instead of an answer: list the indexes in the user's cache folder (size, days since the last use, folder), or
    remove them all. An index that is not used for 30 days is removed anyway."""
    trace: bool = False
    """Also print the agent's episode: its reflections, its commands and their outputs."""
    model: Annotated[str, tyro.conf.arg(metavar="DIR")] = ""
    """Folder of an agent that answers instead of the search, written by `export-agent`. Default: $REFLECTRL_AGENT."""
    search: bool = False
    """Answer by search, even if $REFLECTRL_AGENT names an agent."""
    read: bool = False
    """Let a language model read the first eight files and choose, where the search is unsure: slower, and more often
    right. Needs torch and SmolLM2-135M (`reflectrl data model smollm2-135m`)."""
    names_only: bool = False
    """Search the names of files and folders only, not the contents."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Answer the question, or the file of questions."""
        if settings:
            from reflectrl.core.plugins import suggestion

            option = settings[0].partition("=")[0]
            raise UserError(f"unknown option {option!r}{suggestion(option, OPTIONS)}")
        if self.cache:
            _show_cache(self.cache)
            return
        if self.top < 1:
            raise UserError(f"--top is {self.top}; it must be at least 1")
        question = " ".join(self.question)
        if self.questions and question:
            raise UserError("ask on the command line or with --questions FILE, not both")
        rows = read_questions(self.questions) if self.questions else []
        agent = agent_of(self.model, self.search or self.names_only)
        reader = reader_of(self.read, agent, self.names_only)
        from reflectrl.wings.autoexplore.locate.answers import Locator

        cached, lasting = not self.no_cache, bool(self.questions)
        locator = Locator(self.repo, self.names_only, agent, cached=cached, lasting=lasting, reader=reader)
        if not self.questions:
            locator.check(question)
        _note(self._method(agent))
        if self.questions:
            for row in rows:
                print(json.dumps({**row, **_as_json(locator.locate(row["question"], self.top))}), flush=True)
            return
        self._print(locator.locate(question, self.top))
        if self.open:
            open_first(locator, question)

    def _print(self, answer: Answer) -> None:
        for remark in answer.remarks if self.json else answer.notes:
            _note(remark)
        if self.json:
            print(json.dumps(_as_json(answer), indent=1))
            return
        if self.trace and answer.walked is not None:
            print(_trace(answer.walked))
        for rank, hit in enumerate(answer.files, 1):
            print(f"{rank:>2}  {described(hit)}")

    def _method(self, agent: Agent | None) -> str:
        """Describe in one line how the question is answered."""
        if agent is not None:
            return f"the agent {agent.card.name} walks through the repository; nothing leaves this machine"
        from reflectrl.wings.autoexplore.locate.answers import METHODS

        method = "reader" if self.read else "search"
        what = METHODS["names" if self.names_only else method]
        return f"this is {what}" + ("; --trace shows nothing, since only an agent walks" if self.trace else "")


def _show_cache(action: str) -> None:
    """List the indexes in the cache folder, or remove them."""
    from reflectrl.wings.autoexplore.locate.store import cache_folder, saved_indexes
    from reflectrl.wings.autoexplore.names import shown

    base = cache_folder()
    if base is None:
        raise UserError("there is no cache folder: set REFLECTRL_CACHE to one")
    indexes = saved_indexes(base)
    total = f"{len(indexes)} indexes, {sum(index.size for index in indexes) / 1e6:,.1f} MB in {base}"
    if action == "clear":
        for index in indexes:
            index.remove()
        _note(f"removed {total}")
        return
    for index in indexes:
        days = max(time.time() - index.used, 0) / 86400
        root = shown(index.root) if index.root else "(of another version)"
        print(f"{index.size / 1e6:8,.1f} MB  {days:5.1f} days  {root}")
    _note(total)


def read_questions(name: str) -> list[dict[str, Any]]:
    """Read a file of questions, "-" for stdin.

    Raises:
        UserError: the file cannot be read, or a line is not a question. The message names the line.
    """
    from reflectrl.wings.autoexplore.search import check_question

    rows = []
    path = Path("/dev/stdin" if name == "-" else name)
    for line_number, row in read_json_lines(path, parse_json, "not valid JSON", skip_blank=True):
        if not isinstance(row, dict) or not isinstance(row.get("question"), str):
            raise UserError(f'{name}, line {line_number}: expected an object with a "question"')
        try:
            check_question(row["question"])
        except UserError as error:
            raise UserError(f"{name}, line {line_number}: {error}") from None
        rows.append(row)
    return rows


def open_first(locator: Locator, question: str) -> None:
    """Open the best file in the user's editor.

    Raises:
        UserError: no editor is set, nothing was found, or the editor cannot be started.
    """
    hits = locator.locate(question, 1).files
    if not hits:
        raise UserError("there is no file to open")
    editor = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "")
    if not editor:
        raise UserError("--open needs an editor; set EDITOR, for example to vim")
    path, line = locator.root / hits[0].path, hits[0].line or 1
    try:
        subprocess.run([*editor, *editor_arguments(editor[0], path, line)], check=False)
    except OSError as error:
        raise UserError(f"{editor[0]!r} cannot be started: {error.strerror}") from None


def editor_arguments(editor: str, path: Path, line: int) -> list[str]:
    """Return the arguments with which an editor opens a file at a line."""
    name = Path(editor).name
    if name in ("code", "codium", "cursor", "windsurf"):
        return ["--goto", f"{path}:{line}"]
    if name in ("subl", "zed", "hx"):
        return [f"{path}:{line}"]
    if name in ("vi", "vim", "nvim", "nano", "emacs", "emacsclient", "micro", "kak", "ed", "joe"):
        return [f"+{line}", str(path)]
    return [str(path)]


def _as_json(answer: Answer) -> dict[str, Any]:
    reply: dict[str, Any] = {
        "method": answer.method,
        "is_sure": answer.is_sure,
        "files": [asdict(hit) for hit in answer.files],
        "remarks": list(answer.notes),
        "left_out": dict(answer.left_out),
    }
    if answer.walked is not None:
        keys = ("action", "probability", "reflection", "output")
        reply |= {
            "model": answer.walked.episode.provenance["agent"],
            "ranking": [{"path": path, "probability": share} for path, share in answer.walked.ranking],
            "walk": [{key: getattr(stride, key) for key in keys} for stride in answer.walked.strides],
        }
    return reply


def _trace(walked: Walked) -> str:
    """Render an episode as text: reflections, commands with the policy's probabilities, and outputs."""
    lines = []
    for stride in walked.strides:
        if stride.reflection is not None:
            lines.append(f"# {''.join(c if c.isprintable() else ' ' for c in stride.reflection)}")
        lines.append(f"> {stride.action}  (p = {stride.probability or 0:.2f})")
        lines += [f"  {line}" for line in stride.output.split("\n") if line]
    return "\n".join([*lines, ""])


def described(hit: Hit) -> str:
    """Render a hit: path and lines as editors understand them, name, percentage, reason, and the best line's text."""
    from reflectrl.wings.autoexplore.names import shown

    location = shown(hit.path)
    if hit.start is not None and hit.end is not None:
        location += f":{hit.start}-{hit.end}" if hit.end > hit.start else f":{hit.start}"
    elif hit.line is not None:
        location += f":{hit.line}"
    name = f"  {hit.name}" if hit.name else ""
    share = f"  {percentage(hit.probability)}" if hit.probability is not None else ""
    more = len(hit.words) - WORDS_SHOWN
    words = ", ".join(hit.words[:WORDS_SHOWN]) + (f" and {more} more" if more > 0 else "")
    why = f"  ({hit.why or words})" if hit.why or words else ""
    return f"{location}{name}{share}{why}" + (f"\n      {hit.text}" if hit.text else "")


def percentage(probability: float) -> str:
    """Round a probability for people: "under 1 %" instead of 0."""
    return f"{round(100 * probability)} %" if probability >= 0.01 else "under 1 %"


def _note(text: str) -> None:
    print(f"reflectrl: {text}", file=sys.stderr, flush=True)


WORDS_SHOWN = 6
"""Number of printed words that a file shares with the question. JSON holds all of them."""
