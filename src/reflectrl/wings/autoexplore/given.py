"""AutoExplore in a repository that is in no library, with questions whose answers nobody knows."""

from __future__ import annotations

from typing import Any

from reflectrl.types import Task
from reflectrl.wings.autoexplore.env import AutoExploreEnv
from reflectrl.wings.autoexplore.finder import Finder


class GivenEnv(AutoExploreEnv):
    """The environment around one repository.

    Args:
        finder: the search of the repository; share it between environments.
        arguments: the others of `AutoExploreEnv`.
    """

    def __init__(self, finder: Finder, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._given = finder

    def ask(self, question: str) -> Task:
        """A question as a task, without a right answer: there is neither an expert nor success."""
        repo = self._given.repository.root.name
        payload = {"question": question, "repo": repo, "gold": [], "source": "user"}
        return Task("question", "autoexplore", payload, split="test", stage="all")

    def finder_of(self, task: Task) -> Finder:
        return self._given
