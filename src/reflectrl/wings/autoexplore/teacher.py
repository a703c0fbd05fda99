"""What a good reflector would say on a walk: from nothing but what was shown, and where to turn next.

Whoever teaches knows the target; the reasons given for it are what was shown to speak for it, or words that its folder
shares with the question.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from reflectrl.envs.teacher import Teacher
from reflectrl.types import UserError
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
    """The kind of a file, told from its path alone: whatever lies among documentation belongs to it.

    A question says which kind answers it, and the words that it shares with files do not: a page of the manual repeats
    the words of the docstring that it is about. So files of a kind are compared with each other, and a player decides
    between the kinds.
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
"""Words that a reason names."""


class AutoExploreTeacher(Teacher):
    """Takes a shortest way to a file that answers, and gives reasons for it that can be seen."""

    def expert_action(self, env: AutoExploreEnv) -> int:
        return env.legal_actions().index(_best(env))

    def analyse(self, env: AutoExploreEnv) -> str:
        return analyse(env.walk, env.finder, env.question, env.last, _best(env))

    def baseline_action(self, env: AutoExploreEnv) -> int:
        """The file that a search finds first, taken at its word; with the paper's actions there is no search.

        Where there is nothing to search for, or nothing is found, it is the first file that it comes upon in folders.
        """
        if env.actions == "paper":
            raise NotImplementedError("the paper's actions have no search")
        actions = env.legal_actions()
        first = next((action for action in actions if action.startswith("id ")), "")
        return actions.index(next((action for action in (first, "search", "ls") if action in actions), actions[-1]))


def _best(env: AutoExploreEnv) -> str:
    """The first command of a shortest way to a file that answers."""
    if not env.gold:
        raise UserError(f"autoexplore: {env.task.id}: nobody knows the answer")
    return min((env.walk.way_to(path) for path in env.gold), key=len)[0]


def analyse(walk: Walk, finder: Finder, question: str, last: Command | None, action: str) -> str:
    """One line: what the last look showed, why the next action is promising, and the action.

    Args:
        last: the command before; None at the start.
        action: the action to be taken now.
    """
    command = walk.commands()[action]
    said = [_of_last(finder, last, command)]
    if command.verb == "id":
        said.append(_of_file(walk, question, command.path))
    elif command.verb == "cd" and (shared := _shared(question, command.path.rpartition("/")[2])):
        said.append(f"The folder shares {', '.join(shared)} with the question.")
    elif command.verb == "search" and command.path:
        said.append(f"The word {command.path} is telling.")
    return " ".join([*filter(None, said), f"Next: {action}"])


def _of_last(finder: Finder, last: Command | None, command: Command) -> str:
    """What a look at a file or folder showed, where the way now leads elsewhere."""
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
    """The kind of file that answers, and whether this is the first of them that was found."""
    kind = kind_of(path)
    said = f"The answer is in {kind}."
    alike = [one for one in walk.found_with(path) if kind_of(one) == kind]
    if alike:
        return f"{said} It comes first there." if alike[0] == path else said
    shared = _shared(question, path.rpartition("/")[2])
    return f"{said} Its name shares {', '.join(shared)} with the question." if shared else said


def _shared(question: str, name: str) -> list[str]:
    """Words of the question in a name, as the question has them."""
    inside = {word for _, word in spoken(name)}
    return list(dict.fromkeys(form for form, word in spoken(question) if word in inside))[:WORDS]
