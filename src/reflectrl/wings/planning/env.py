"""Planning domains as `TextEnv`s: a search in which the agent picks the next state, or a walk move by move.

`FrontierEnv` asks the question of BeelineBench: which of the states that a search has reached but not explored should
it explore next? `WalkEnv` shows one state and its legal moves. Both take their tasks from trials that are not
official ones (`trials.py`), and write states in short texts (`wording.py`).
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from reflectrl.core.envs.base import SPLITS, TextEnv, require_known
from reflectrl.core.types import Observation, Outcome, Task, UserError
from reflectrl.wings.planning.distances import Distances, distances
from reflectrl.wings.planning.moves import Move, moves
from reflectrl.wings.planning.teacher import FrontierTeacher, WalkTeacher
from reflectrl.wings.planning.trials import (
    DOMAINS,
    DOWNLOADED,
    FIRST_TRIAL,
    MOST_TRIALS,
    downloaded,
    is_left_out,
    official_boards,
    package,
    problem,
    rules,
)
from reflectrl.wings.planning.wording import QUESTIONS, STATES, domain_of, shorten

LABELLED_LINE = re.compile(r"^(Goal|Context): (.*)$", re.MULTILINE)


@lru_cache(maxsize=64)
def measured(domain: str, trial: int) -> Distances:
    """Return the distances of a trial. Those of Rush Hour take a quarter of a second to prepare."""
    return distances(problem(domain, trial))


class PlanningEnv(TextEnv):
    """Tasks from trials of BeelineBench, shared by both forms.

    Args:
        domains: names of domains: "tiles" (8-puzzle), "blocksworld", "countdown", "rush_hour" and "keys_doors". Also
            "word_ladder" and "wikispeedia", where `python -m beelinebench download` has fetched their data.
        train: trials per domain for training: one number for all, or a number for each domain by name (numbers of
            domains that are left out do not matter). A search of Countdown takes 3 to 8 decisions and one of
            Blocksworld some 20, so equal numbers of trials give very different numbers of decisions.
        validation, test: trials per domain.
        horizon: largest number of decisions in an episode.

    Raises:
        UserError: `beelinebench` is not installed, a domain is unknown or has no number, or a number is out of range.
    """

    def __init__(
        self, domains: Sequence[str], train: int | Mapping[str, int], validation: int, test: int, horizon: int
    ) -> None:
        super().__init__(horizon)
        for domain in domains:
            require_known(self.name, "domain", domain, (*DOMAINS, *DOWNLOADED))
        self.domains = tuple(dict.fromkeys(domains))
        if isinstance(train, int):
            train = dict.fromkeys(self.domains, train)
        for domain in train:
            require_known(f"{self.name}: train", "domain", domain, (*DOMAINS, *DOWNLOADED))
        if not all(isinstance(train.get(domain), int) for domain in self.domains):
            raise UserError(
                f"{self.name}: train needs a whole number for each of {', '.join(self.domains)}, not {train}"
            )
        self.train = dict(train)
        self.sizes = {"validation": validation, "test": test}
        sizes = [*train.values(), validation, test]
        if not domains or not all(1 <= size <= MOST_TRIALS for size in sizes) or horizon < 1:
            raise UserError(
                f"{self.name}: needs a domain, 1 to {MOST_TRIALS} trials a split, and a horizon of 1 or more"
            )
        rules()  # raises UserError at once if the package is missing
        for domain in set(DOWNLOADED).intersection(self.domains):
            downloaded(domain)

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the environment in tasks and messages."""

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        require_known(self.name, "split", split, SPLITS)
        require_known(self.name, "stage", stage or "full", self.stages)
        first = FIRST_TRIAL[split]
        return [
            Task(f"{self.name}-{domain}-{trial}", self.name, {"domain": domain, "trial": trial}, split)
            # Domain by domain: if domains alternated, tasks drawn evenly from the list could miss one altogether.
            for domain in self.domains
            for trial in range(first, first + self.sizes.get(split, self.train[domain]))
            if not (split == "train" and is_left_out(domain, trial))
        ]

    def group(self, task: Task) -> str:
        return str(task.payload["domain"])

    def begin(self, task: Task) -> None:
        self.domain, self.trial = task.payload["domain"], task.payload["trial"]
        self.problem = problem(self.domain, self.trial)
        self.question = QUESTIONS[self.domain](self.problem.objective, self.problem.context)

    def distances(self, states: Sequence[Any]) -> list[int | None]:
        """Return the fewest moves from each state to the goal; None if no way leads there."""
        return measured(self.domain, self.trial)(states)

    def short(self, state: Any) -> str:
        """Write a state in short."""
        return STATES[self.domain](self.problem.render(state))


class FrontierEnv(PlanningEnv):
    """Search for the goal: pick one of the states reached so far, which is explored, until the goal is picked.

    The search is the benchmark's: the start is explored first, a single state is explored without a question, and
    random states are dropped while there are more than 255. The reward of a success is the benchmark's score: the
    states on a shortest path, divided by the states explored. The texts of the actions are states, so there are more of
    them than there are labels: play with `play.scoring = "options"`.

    In training, the 8-puzzle shows no official board and no neighbour of one.

    Args:
        train_frontier: most states that the search of a training task holds; random ones are dropped. Short questions
            are quicker to learn from. Other tasks follow the benchmark's limit.
    """

    name = "planning"
    teacher = FrontierTeacher()
    instructions = (
        "A search looks for a way to the goal. Each action is a state that the search has reached and not explored yet."
        " Choose the state from which the goal takes the fewest moves. The search explores it, and then asks again."
    )

    def __init__(
        self,
        domains: Sequence[str] = DOMAINS,
        train: int | Mapping[str, int] = 2000,
        validation: int = 20,
        test: int = 100,
        horizon: int = 200,
        train_frontier: int = 32,
    ) -> None:
        super().__init__(domains, train, validation, test, horizon)
        self.most_states = rules().max_frontier
        if not 2 <= train_frontier <= self.most_states:
            raise UserError(f"planning: train_frontier must be from 2 to {self.most_states}, not {train_frontier}")
        self.train_frontier = train_frontier

    def begin(self, task: Task) -> None:
        self._start(task)
        self._reach(self.problem.start)
        self._explore(0)

    def _start(self, task: Task) -> None:
        """Set everything that does not change in an episode, and an empty search."""
        super().begin(task)
        trains = task.split == "train"
        self._hidden = official_boards() if trains and self.domain == "tiles" else frozenset()
        self._limit = self.train_frontier if trains else self.most_states
        self._evict = package("rng").Draws(self.domain, self.trial, "evict", "model", "reflectrl")
        self.frontier: list[Any] = []
        self._texts: list[str] = []
        self.seen: set[Any] = set()
        self.explored = 0

    def _reach(self, state: Any) -> None:
        """Add a state to the frontier."""
        self.seen.add(state)
        self.frontier.append(state)
        self._texts.append(self.short(state))

    def apply(self, action: str) -> Outcome:
        if self._explore(self._texts.index(action)):
            [shortest] = self.distances([self.problem.start])
            score = package("search").efficiency(shortest, self.explored)
            return Outcome(float(score), terminated=True, success=True)
        return Outcome(0.0, terminated=not self.frontier)

    def _explore(self, index: int) -> bool:
        """Explore a state of the frontier, and those that follow without a choice. Return whether one is the goal."""
        while True:
            state = self._forget(index)
            self.explored += 1
            if self.problem.solved(state):
                return True
            for after in self.problem.moves(state):
                if after not in self.seen and after not in self._hidden:
                    self._reach(after)
            while len(self.frontier) > self._limit:
                self.seen.discard(self._forget(self._evict.below(len(self.frontier))))
            if len(self.frontier) != 1:
                return False
            index = 0

    def _forget(self, index: int) -> Any:
        """Take a state from the frontier."""
        del self._texts[index]
        return self.frontier.pop(index)

    def state(self) -> str:
        return self.question

    def legal_actions(self) -> Sequence[str]:
        return tuple(self._texts)

    def card_settings(self) -> Mapping[str, Any]:
        return {"domains": list(self.domains), "horizon": self.horizon}

    @classmethod
    def read_question(
        cls, state: Any, instructions: Any, options: Sequence[str]
    ) -> tuple[Observation, Sequence[int]] | None:
        """Translate a question of BeelineBench into short texts, whichever protocol it came by."""
        if isinstance(state, str):  # OpenAI's protocol: the benchmark writes its fields as lines
            state = {name.lower(): value for name, value in LABELLED_LINE.findall(state)}
        if not isinstance(state, dict) or not {"goal", "context"} <= state.keys() or not domain_of(str(state["goal"])):
            return None
        question, texts = shorten(str(state["goal"]), str(state["context"]), options)
        return Observation("", question, texts), range(len(options))

    def get_state(self) -> Any:
        search = (tuple(self.frontier), tuple(self._texts), frozenset(self.seen), self.explored)
        return search, self._evict.source.getstate(), tuple(self._actions)

    def set_state(self, state: Any) -> None:
        self._start(self.task)
        (frontier, texts, seen, self.explored), source, actions = state
        self.frontier, self._texts, self.seen, self._actions = list(frontier), list(texts), set(seen), list(actions)
        self._evict.source.setstate(source)


class WalkEnv(PlanningEnv):
    """Walk to the goal move by move. A state without moves ends the walk; only Countdown has such states.

    The reward is 1 for reaching the goal, and a little less for each move.
    """

    name = "planning-walk"
    teacher = WalkTeacher()
    instructions = (
        "Reach the goal in as few moves as you can. The first line gives the goal, the second the state you are in."
    )
    move_cost = 0.01

    def __init__(
        self,
        domains: Sequence[str] = DOMAINS,
        train: int | Mapping[str, int] = 2000,
        validation: int = 50,
        test: int = 200,
        horizon: int = 60,
    ) -> None:
        super().__init__(domains, train, validation, test, horizon)

    def begin(self, task: Task) -> None:
        super().begin(task)
        self._arrive(self.problem.start)

    def _arrive(self, current: Any) -> None:
        self.current = current
        self.moves: dict[str, Move] = {move.name: move for move in moves(self.problem, current)}

    def apply(self, action: str) -> Outcome:
        self._arrive(self.moves[action].state)
        if self.problem.solved(self.current):
            return Outcome(1 - self.move_cost, terminated=True, success=True)
        return Outcome(-self.move_cost, terminated=not self.moves)

    def state(self) -> str:
        return f"{self.question}Now: {self.short(self.current)}\n"

    def legal_actions(self) -> Sequence[str]:
        return list(self.moves)

    def get_state(self) -> Any:
        return self.current, tuple(self._actions)

    def set_state(self, state: Any) -> None:
        self.begin(self.task)
        current, actions = state
        self._actions = list(actions)
        self._arrive(current)
