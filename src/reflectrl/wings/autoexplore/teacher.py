"""Teacher of AutoExplore: expert actions, and reflections that are based only on what was shown.

The teacher knows the target, but its reasons use only outputs of the walk and words that a file or folder shares with
the question.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from reflectrl.core.envs.teacher import Teacher
from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.commands import Command, Walk
from reflectrl.wings.autoexplore.finder import Finder
from reflectrl.wings.autoexplore.names import shown
from reflectrl.wings.autoexplore.outline import LANGUAGES
from reflectrl.wings.autoexplore.words import spoken

CODE, DOCS, NEWS, OTHER = ("code", "docs", "news", "other")
_TEXTS = frozenset({"", ".rst", ".rest", ".md", ".markdown", ".mdx", ".rmd", ".txt", ".adoc", ".html", ".htm", ".tex"})
_DOCS = frozenset({"doc", "docs", "documentation", "manual"})
_NEWS = re.compile(r"change|history|news|release|whatsnew", re.IGNORECASE)


def kind_of(path: str) -> str:
    """Return the kind of a file, judged by its path alone. Any file in a documentation folder counts as documentation.

    Shared words do not show whether code or documentation answers a question, since a page of the manual repeats the
    words of the docstring. The phrasing of the question does. So files are compared within their kind, and the player
    decides on the kind.
    """
    pure = PurePosixPath(path)
    suffix = pure.suffix.lower()
    if suffix in _TEXTS and any(_NEWS.search(part) for part in pure.parts):
        return NEWS
    if suffix in _TEXTS - {""} or pure.stem.lower() == "readme" or _DOCS & {part.lower() for part in pure.parts[:-1]}:
        return DOCS
    return CODE if suffix[1:] in LANGUAGES else OTHER


if TYPE_CHECKING:
    from reflectrl.wings.autoexplore.env import AutoExploreEnv

WORDS = 3
"""Largest number of words that a reason names."""


class AutoExploreTeacher(Teacher):
    """Teacher that takes a shortest sequence of actions to a right answer, and gives visible reasons for it."""

    def expert_action(self, env: AutoExploreEnv) -> int:
        return env.legal_actions().index(_best(env))

    def analyse(self, env: AutoExploreEnv) -> str:
        return analyse(env.walk, env.finder, env.question, env.last, _best(env))

    def baseline_action(self, env: AutoExploreEnv) -> int:
        """Return the action of a baseline that identifies the first hit of a search.

        If the search is impossible or finds nothing, the baseline takes the first file that it meets in the folders.

        Raises:
            NotImplementedError: the paper's actions have no search.
        """
        if env.actions == "paper":
            raise NotImplementedError("the paper's actions have no search")
        actions = env.legal_actions()
        first = next((action for action in actions if action.startswith("id ")), "")
        return actions.index(next((action for action in (first, "search", "ls") if action in actions), actions[-1]))


def _best(env: AutoExploreEnv) -> str:
    """Return the first action of a shortest sequence to a file that answers."""
    if not env.gold:
        raise UserError(f"autoexplore: {env.task.id}: the question has no known answer, so there is no expert")
    return min((env.walk.way_to(path) for path in env.gold), key=len)[0]


def analyse(walk: Walk, finder: Finder, question: str, last: Command | None, action: str) -> str:
    """Write a one-line reflection: what the last output showed, why the next action is promising, and the action.

    Args:
        last: previous command; None at the start.
        action: next action.
    """
    command = walk.commands()[action]
    sentences = [_of_last(finder, last, command)]
    if command.verb == "id":
        sentences.append(_of_file(walk, question, command.path))
    elif command.verb == "cd" and (shared := _shared(question, command.path.rpartition("/")[2])):
        sentences.append(f"The folder shares {', '.join(shared)} with the question.")
    elif command.verb == "search" and command.path:
        sentences.append(f"The word {command.path} is telling.")
    return " ".join([*filter(None, sentences), f"Next: {action}"])


def _of_last(finder: Finder, last: Command | None, command: Command) -> str:
    """Say what the last command showed, if the next one leads elsewhere; otherwise ""."""
    if last is None or last.path == command.path:
        return ""
    if last.verb in ("cat", "head", "outline"):
        about = finder.profiles.of(last.path).about
        name = shown(last.path.rpartition("/")[2])
        in_short = " ".join(about.rstrip(".").split()[:12])
        return f"{name} is about {in_short}, not this." if about else f"{name} does not answer it."
    if command.verb in ("more", "search") and last.verb in ("search", "more"):
        return "None of these fits."
    if last.verb == "cd" and command.verb == "cd" and not command.path.startswith(last.path):
        return f"{shown(last.path) if last.path else 'The root'} does not lead there."
    return ""


def _of_file(walk: Walk, question: str, path: str) -> str:
    """Say which kind of file answers, and whether this file is the first hit of that kind."""
    kind = kind_of(path)
    sentence = f"The answer is in {kind}."
    same_kind = [hit for hit in walk.found_with(path) if kind_of(hit) == kind]
    if same_kind:
        return f"{sentence} It comes first there." if same_kind[0] == path else sentence
    shared = _shared(question, path.rpartition("/")[2])
    return f"{sentence} Its name shares {', '.join(shared)} with the question." if shared else sentence


def _shared(question: str, name: str) -> list[str]:
    """Return the words of the question that occur in a name, spelled as in the question."""
    name_words = {word for _, word in spoken(name)}
    return list(dict.fromkeys(form for form, word in spoken(question) if word in name_words))[:WORDS]
