"""`locate`: find the files of a repository that may answer a question. Nothing leaves the machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from reflectrl.core.types import UserError

if TYPE_CHECKING:
    from reflectrl.wings.autoexplore.locate.agent import Agent, Walked
    from reflectrl.wings.autoexplore.locate.answers import Answer
    from reflectrl.wings.autoexplore.search import Hit

SMALL = 20_000_000
"""Largest number of parameters for which a model runs on one thread. More threads do not speed up such a model, and
on a busy machine every small matrix product waits for them."""


def agent_of(model: str, search: bool) -> Agent | None:
    """Load the agent of a folder, of $REFLECTRL_AGENT, or of the package; return None to answer by search.

    Args:
        model: folder of the agent; "" if the user named no folder.
        search: answer by search even if there is an agent.

    Raises:
        UserError: both were asked for, or the folder holds no agent.
    """
    if search:
        if model:
            raise UserError("--model names an agent, and the other options leave the answer to search; drop either")
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


WORDS_SHOWN = 6
"""Number of printed words that a file shares with the question. JSON holds all of them."""
CUT_SHOWN = 3
"""Number of printed names of files that were searched only in part."""
OPTIONS = ("--repo", "--top", "--json", "--names-only", "--search", "--model", "--trace")


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
    trace: bool = False
    """Also print the agent's episode: its reflections, its commands and their outputs."""
    model: Annotated[str, tyro.conf.arg(metavar="DIR")] = ""
    """Folder of the agent, written by `export-agent`. Default: $REFLECTRL_AGENT, else the shipped agent if any."""
    search: bool = False
    """Answer by search, even if there is an agent."""
    names_only: bool = False
    """Search the names of files and folders only, not the contents."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Answer the question and print the files, best first."""
        if settings:
            from reflectrl.core.plugins import suggestion

            option = settings[0].partition("=")[0]
            raise UserError(f"unknown option {option!r}{suggestion(option, OPTIONS)}")
        if self.top < 1:
            raise UserError(f"--top is {self.top}; it must be at least 1")
        from reflectrl.wings.autoexplore.repository import Repository
        from reflectrl.wings.autoexplore.search import check_question

        question = " ".join(self.question)
        check_question(question)
        repository = Repository.open(self.repo)
        agent = agent_of(self.model, self.search or self.names_only)
        _note(self._method(agent))
        from reflectrl.wings.autoexplore.locate.answers import Locator

        answer = Locator(repository, self.names_only, agent).locate(question, self.top)
        if answer.cut:
            _note(_about_cut(answer.cut))
        if self.json:
            print(json.dumps(_as_json(answer), indent=1))
            return
        if self.trace and answer.walked is not None:
            print(_trace(answer.walked))
        if not answer.files:
            _note("no file shares a word with the question")
        for number, hit in enumerate(answer.files, 1):
            print(f"{number:>2}  {_described(hit)}")

    def _method(self, agent: Agent | None) -> str:
        """Describe in one line how the question is answered."""
        if agent is not None:
            return f"the agent {agent.card.name} walks through the repository; nothing leaves this machine"
        from reflectrl.wings.autoexplore.locate.answers import METHODS

        why = "" if self.search or self.names_only else "no trained model is there yet: "
        what = METHODS["names" if self.names_only else "search"]
        return f"{why}this is {what}" + ("; it takes no walk to be traced" if self.trace else "")


def _as_json(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = {"method": answer.method, "files": [asdict(hit) for hit in answer.files]}
    if answer.walked is not None:
        keys = ("action", "probability", "reflection", "output")
        found |= {
            "model": answer.walked.episode.provenance["agent"],
            "ranking": [{"path": path, "probability": share} for path, share in answer.walked.ranking],
            "walk": [{key: getattr(stride, key) for key in keys} for stride in answer.walked.strides],
        }
    return found


def _about_cut(paths: Sequence[str]) -> str:
    """Describe in one line which files were searched only in part."""
    from reflectrl.wings.autoexplore.legible import CONTENT_BYTES
    from reflectrl.wings.autoexplore.names import shown

    named = ", ".join(map(shown, paths[:CUT_SHOWN]))
    more = f" and {len(paths) - CUT_SHOWN} more" if len(paths) > CUT_SHOWN else ""
    return f"only the first {CONTENT_BYTES // 1024} KiB were searched of {named}{more}"


def _trace(walked: Walked) -> str:
    """Render an episode as text: reflections, commands with the policy's probabilities, and outputs."""
    lines = []
    for stride in walked.strides:
        if stride.reflection is not None:
            lines.append(f"# {''.join(c if c.isprintable() else ' ' for c in stride.reflection)}")
        lines.append(f"> {stride.action}  (p = {stride.probability or 0:.2f})")
        lines += [f"  {line}" for line in stride.output.split("\n") if line]
    return "\n".join([*lines, ""])


def _described(hit: Hit) -> str:
    """Render a hit: path and line as editors understand them, the matching words, and below them the text of the line.

    No probability is shown, because a policy is nearly certain of its file whether it is right or wrong.
    """
    from reflectrl.wings.autoexplore.names import shown

    place = shown(hit.path) if hit.line is None else f"{shown(hit.path)}:{hit.line}"
    more = len(hit.words) - WORDS_SHOWN
    words = ", ".join(hit.words[:WORDS_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return place + (f"  ({words})" if words else "") + (f"\n      {hit.text}" if hit.text else "")


def _note(text: str) -> None:
    print(f"reflectrl: {text}", file=sys.stderr, flush=True)
