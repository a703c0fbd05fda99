"""AutoExplore as a `TextEnv`: find the file of a repository that answers a question.

Rules (Reflect-RL, section on benchmarks): the player walks through a repository in a sandbox. `id F` ends the episode,
which succeeds if F is one of the files that answer the question. A step costs 1, an error 2 more, a warning 1 more. A
right answer earns H. A wrong answer, or no answer within H = 15 steps, costs H. All rewards are divided by H.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from reflectrl.core.envs.base import TextEnv, require_known
from reflectrl.core.types import Outcome, Task, UserError
from reflectrl.wings.autoexplore.commands import Command, Walk
from reflectrl.wings.autoexplore.extended import ExtendedWalk
from reflectrl.wings.autoexplore.finder import Finder
from reflectrl.wings.autoexplore.library import Library, open_library
from reflectrl.wings.autoexplore.names import depth
from reflectrl.wings.autoexplore.paper import PaperWalk
from reflectrl.wings.autoexplore.questions import Question
from reflectrl.wings.autoexplore.teacher import AutoExploreTeacher
from reflectrl.wings.autoexplore.texts import printable
from reflectrl.wings.autoexplore.view import View

TROUBLE = {"error": 2, "warning": 1, None: 0}
"""Extra cost of a step, by its trouble."""
STAGES = {"depth-1": 1, "depth-2": 2}
"""Curriculum stage → largest number of folders above the file. The first two levels form one stage."""
PAPER_LEFT_OUT = 0.5


class AutoExploreEnv(TextEnv):
    """Environment: find the file that answers a question.

    Args:
        library: folder of the library that `reflectrl data autoexplore` made; "" for its default.
        actions: "paper" for Reflect-RL's actions (cd, cat, id), "extended" to add search, outline and head.
        sources: sources of questions to use ("docstring", "docs" ...); empty for all.
        repos: names of repositories to use; empty for all.
        leave_out: during training, probability of hiding each file and folder off the path to the answer. Negative
            means 0.5 with the paper's actions and 0 with the extended ones, which rank files.
        page: number of folder entries shown at a time; 0 means 40 with the paper's actions and 20 otherwise.
        hits: number of files that a search shows at a time.
        group_by: report results by source of the question, depth of the file, or repository.
        limit: largest number of questions per split, evenly spaced; 0 for all.
        easy: replace each question by "Find F", where F is the file that answers it.
        first_step: end after the first action, and win if it is the expert's (a contextual bandit).
        horizon: largest number of steps.

    Attributes:
        walk: state of the current walk.
        finder: search engine of the repository.
        question, gold: question of the episode, and the files that answer it.
        last: previous command; None at the start.

    Raises:
        UserError: an argument is unknown or out of range, or there is no library.
    """

    stages = (*STAGES, "all")
    teacher = AutoExploreTeacher()
    instructions = (
        "You walk through the files of a repository to find the one that answers a question. Look around, and identify"
        " a file once you have reason to; a wrong answer costs more than another look."
    )

    def __init__(
        self,
        library: str = "",
        actions: Literal["paper", "extended"] = "extended",
        sources: tuple[str, ...] = (),
        repos: tuple[str, ...] = (),
        leave_out: float = -1.0,
        page: int = 0,
        hits: int = 8,
        group_by: Literal["source", "depth", "repo"] = "source",
        limit: int = 0,
        easy: bool = False,
        first_step: bool = False,
        horizon: int = 15,
    ) -> None:
        super().__init__(horizon)
        if horizon < 1 or hits < 1 or page < 0 or limit < 0 or leave_out > 1:
            raise UserError(
                "autoexplore: horizon and hits must be at least 1, page and limit at least 0, leave_out at most 1"
            )
        self.library, self.actions, self.sources, self.repos = library, actions, sources, repos
        self.leave_out = leave_out if leave_out >= 0 else (PAPER_LEFT_OUT if actions == "paper" else 0.0)
        self.page, self.hits = page or (40 if actions == "paper" else 20), hits
        self.group_by, self.limit, self.easy, self.first_step = group_by, limit, easy, first_step

    # ---- tasks -----------------------------------------------------------------------------------------------------

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        stage = stage or "all"
        require_known("autoexplore", "stage", stage, self.stages)
        tasks = []
        for question in self._questions(split):
            if min(map(depth, question.gold)) <= STAGES.get(stage, 1_000):
                text = f"Find {question.gold[0]}" if self.easy else question.question
                payload = {
                    "question": text,
                    "repo": question.repo,
                    "gold": list(question.gold),
                    "source": question.source,
                }
                tasks.append(Task(question.id, "autoexplore", payload, split, stage))
        return tasks

    def _questions(self, split: str) -> list[Question]:
        library = open_library(self.library)
        require_known("autoexplore", "split", split, library.splits)
        questions = [
            question
            for question in library.questions(split)
            if (not self.sources or question.source in self.sources) and (not self.repos or question.repo in self.repos)
        ]
        if not questions:
            raise UserError(f"autoexplore: no questions of these sources and repositories in {split!r}")
        count = min(self.limit or len(questions), len(questions))
        return [questions[i * len(questions) // count] for i in range(count)]

    def card_settings(self) -> Mapping[str, Any]:
        """Return the settings that determine the prompts and actions of a walk."""
        return {"actions": self.actions, "hits": self.hits, "page": self.page, "horizon": self.horizon}

    def group(self, task: Task) -> str | None:
        """Return the group under which a task's result is also reported."""
        if self.group_by == "depth":
            nearest = min(map(depth, task.payload["gold"]))
            return next((name for name, most in STAGES.items() if nearest <= most), "deeper")
        return str(task.payload[self.group_by])

    # ---- the world -------------------------------------------------------------------------------------------------

    def begin(self, task: Task) -> None:
        self._ask(task)
        if task.payload["gold"] and not self.gold:
            missing = task.payload["gold"][0]
            raise UserError(f"autoexplore: {task.id}: {missing} is not among the files of {task.payload['repo']}")
        salt = str(int(self.np_random.integers(2**62))) if self.leave_out and task.split == "train" else ""
        self.walk = self._started(salt)
        self.last: Command | None = None

    def _ask(self, task: Task) -> None:
        """Set the question of a task. A question without `gold` has no right answer and no expert."""
        self.finder = self.finder_of(task)
        self.question = printable(task.payload["question"])
        self.gold = tuple(path for path in task.payload["gold"] if path in self.finder.repository)

    def finder_of(self, task: Task) -> Finder:
        """Return the search engine of a task's repository. All episodes in the repository share it."""
        return _opened(open_library(self.library), task.payload["repo"])

    def _started(self, salt: str) -> Walk:
        """Return a new walk. With a salt, parts of the repository are hidden."""
        view = View.around(self.finder.repository, self.gold, self.leave_out if salt else 0.0, salt)
        if self.actions == "paper":
            return PaperWalk(view, self.question, self.page)
        return ExtendedWalk(view, self.finder, self.question, self.page, self.hits)

    def apply(self, action: str) -> Outcome:
        command = self.walk.commands()[action]
        if self.first_step:
            right = action == self.legal_actions()[self.teacher.expert_action(self)]
            payment = self.horizon if right else -self.horizon
            self.last = command
            return Outcome((payment - 1) / self.horizon, True, right, ("found" if right else "wrong",))
        result = self.walk.do(action)
        self.last = command
        cost = 1 + TROUBLE[result.trouble]
        if command.verb == "id":
            right = command.path in self.gold
            payment = self.horizon if right else -self.horizon
            return Outcome((payment - cost) / self.horizon, True, right, ("found" if right else "wrong",))
        if self.elapsed + 1 >= self.horizon:
            cost += self.horizon
        return Outcome(-cost / self.horizon, events=(result.trouble,) if result.trouble else ())

    # ---- text ------------------------------------------------------------------------------------------------------

    def history(self) -> str:
        return self.walk.history()

    def state(self) -> str:
        return self.walk.state()

    def legal_actions(self) -> Sequence[str]:
        return tuple(self.walk.commands())

    # ---- saving ----------------------------------------------------------------------------------------------------

    def get_state(self) -> Any:
        return (self.task, self.walk.view.salt, self.last, self.walk.get_state())

    def set_state(self, state: Any) -> None:
        task, salt, self.last, walk = state
        self._ask(task)
        self.walk = self._started(salt)
        self.walk.set_state(walk)


@lru_cache(maxsize=256)
def _opened(library: Library, name: str) -> Finder:
    """Return the search engine of a repository, made once per process."""
    return Finder(library.repository(name))
