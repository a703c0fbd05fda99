"""ALFWorld as a `TextEnv`: household tasks in text, played by a native engine.

Rules (ALFWorld, and Reflect-RL's section on benchmarks): the player reads what commands lead to, picks one of the
admissible commands, and wins when the household is as the task asks; up to 50 steps (15 on the paper's subset). The
game's text is history: it only grows. A win pays 1. Milestones (found, taken, prepared, placed) pay `milestone` each,
once; they shape learning and never decide success.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any, Literal

from reflectrl.envs.base import TextEnv, require_known
from reflectrl.types import Outcome, Task, UserError
from reflectrl.wings.alfworld.beliefs import Beliefs
from reflectrl.wings.alfworld.game import SHORT_NAMES, TYPES, Game
from reflectrl.wings.alfworld.house import Dialect, House
from reflectrl.wings.alfworld.library import Entry, Shelf, open_shelf
from reflectrl.wings.alfworld.reference import ReferenceHouse
from reflectrl.wings.alfworld.search import Advice, reached
from reflectrl.wings.alfworld.status import guiding_status, plain_status
from reflectrl.wings.alfworld.teacher import AlfworldTeacher
from reflectrl.wings.alfworld.variants import redrawn

SPLITS = {
    "train": "train", "validation": "valid_train", "test": "valid_seen",
    "valid_train": "valid_train", "valid_seen": "valid_seen", "valid_unseen": "valid_unseen",
}  # fmt: skip
"""Names of splits → the official sets."""

SUBSETS = {"tomato-microwave": "pick_and_place_simple-Tomato-None-Microwave-*"}
"""Names of subsets → patterns of task folders. This one is the subset of Reflect-RL."""

SHORT, MEDIUM = 5, 6
"""Longest plan, in commands, of the first two stages of the curriculum by length: about a third of the games each."""


class AlfworldEnv(TextEnv):
    """Carry out a household task by text commands.

    Args:
        games: folder of the games that `reflectrl data alfworld` made; "" is its default.
        subset: "" for all games, a name ("tomato-microwave") or a pattern of task folders ("pick_heat*-Mug-*").
        types: task types, by their full or short names ("heat"); none means all six.
        curriculum: what the stages before the last are: games with short and medium plans ("length"), or the task
            types one after another ("types").
        dialect: the words of alfworld 0.4 ("current"), or those of 0.3 that published prompts use ("paper").
        wording: the task in the reference's words ("template"), or in those that people wrote ("human").
        expert: who teaches: one that looks for things ("search"), or one that knows where they are ("planner").
        status: show below the history, at every step, the task, what is in the hand, what is where one stands, where
            things are that the task names, and which places were not looked at yet: nothing but what the text has
            said, put where small models find it.
        guide: the status guides: for each kind of thing in the task it says where one is (what is here first), or else
            that none was seen and where to look next; with `prior`, the most promising places first.
        prior: knowledge from outside the game is used: in which kinds of places ALFWorld's training games keep each
            kind of thing. The searching expert always has it then, and the players are told it if `guide` is on.
            Without it, places are looked at by name.
        recall: so many of the last commands, with what they led to, are shown above the status instead of the whole
            text, which the status sums up: far shorter prompts. 0 shows the whole text.
        milestone: reward for each of found, taken, prepared and placed, at its first time; 0 turns them off. They are
            the environment's subgoals either way, for `rl.milestone_coef`.
        step_cost: reward taken off at every step.
        variants: how many more times each training game is played with its things and numbers dealt out anew.
        validation: the official set that validation tasks come from; "train" plays its games in two more variants.
        limit: at most so many games per split, spread evenly; 0 takes all.
        engine: "native", or "textworld" for the reference engine (slow; needs the extra, and `source`).
        source: folder of the official layout, for the reference engine.
        horizon: greatest number of steps.

    Attributes:
        house: the household as it is.
        beliefs: what the text has told of it so far.
        last: the last command; "" at the start.
        advice: what the searching expert says here, once it was asked.

    Raises:
        UserError: an argument is unknown or out of range, or there are no such games.
    """

    teacher = AlfworldTeacher()
    subgoals = ("found", "taken", "prepared", "placed")
    instructions = (
        "You are in a house and have a task, which is part of what you read. You go to one place at a time, open what"
        " is closed to see what is in it, carry one thing at a time, and clean, heat or cool things where that is done."
    )

    def __init__(
        self,
        games: str = "",
        subset: str = "",
        types: tuple[str, ...] = (),
        curriculum: Literal["length", "types"] = "length",
        dialect: Dialect = "current",
        wording: Literal["template", "human"] = "template",
        expert: Literal["search", "planner"] = "search",
        status: bool = True,
        guide: bool = False,
        prior: bool = True,
        recall: int = 0,
        milestone: float = 0.1,
        step_cost: float = 0.01,
        variants: int = 0,
        validation: str = "valid_train",
        limit: int = 0,
        engine: Literal["native", "textworld"] = "native",
        source: str = "",
        horizon: int = 50,
    ) -> None:
        super().__init__(horizon)
        if horizon < 1 or min(variants, limit, recall) < 0:
            raise UserError("alfworld: horizon must be at least 1; variants, limit and recall at least 0")
        require_known("alfworld", "split", validation, list(SPLITS))
        _require_status(status, recall, guide)
        if engine == "textworld" and (not source or dialect != "current"):
            raise UserError("alfworld: engine 'textworld' needs source = DIR (official layout) and the current dialect")
        self.games, self.pattern = games, SUBSETS.get(subset, subset)
        self.types, self.curriculum = _full_names(types) or TYPES, curriculum
        self.dialect, self.wording, self.expert = dialect, wording, expert
        self.status, self.recall, self.milestone, self.step_cost = status, recall, milestone, step_cost
        self.guide, self.prior = guide, prior
        self.variants, self.limit = variants, limit
        self.official = {**SPLITS, "validation": SPLITS[validation]}
        self.engine, self.source = engine, source
        self.stages = (  # type: ignore[misc]
            ("short", "medium", "all") if curriculum == "length" else (*(SHORT_NAMES[one] for one in self.types), "all")
        )

    # ---- tasks -----------------------------------------------------------------------------------------------------

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        require_known("alfworld", "split", split, list(self.official))
        stage = stage or "all"
        require_known("alfworld", "stage", stage, self.stages)
        found = [entry for entry in self._entries(split) if self._is_in(entry, stage)]
        variants = range(1 + self.variants if split == "train" else 1)  # 0 is the game as it is
        if split == "validation" and self.official[split] == "train":  # not those that are trained on
            variants = range(self.variants + 1, self.variants + 3)
        return [self._task_of(entry, split, stage, variant) for variant in variants for entry in found]

    def _task_of(self, entry: Entry, split: str, stage: str, variant: int) -> Task:
        name = entry.id if not variant else f"{entry.id}#{variant}"
        payload = {"game": entry.id, "set": self.official[split], "type": entry.type}
        # What is reported of generated games must not be taken for an ALFWorld score.
        env = "alfworld-generated" if self._shelf(self.official[split]).generated else "alfworld"
        return Task(name, env, {**payload, "variant": variant} if variant else payload, split, stage)

    def _is_in(self, entry: Entry, stage: str) -> bool:
        if stage in SHORT_NAMES.values():
            return SHORT_NAMES[entry.type] == stage
        return entry.plan_length <= {"short": SHORT, "medium": MEDIUM}.get(stage, entry.plan_length)

    def _entries(self, split: str) -> list[Entry]:
        found = [entry for entry in self._shelf(self.official[split]).entries if self._is_wanted(entry)]
        if not found:
            raise UserError(f"alfworld: no games of {self.pattern or ', '.join(self.types)} in {self.official[split]}")
        count = min(self.limit or len(found), len(found))
        return [found[i * len(found) // count] for i in range(count)]

    def _is_wanted(self, entry: Entry) -> bool:
        folder = entry.id.partition("/")[0]
        return entry.type in self.types and (not self.pattern or fnmatch.fnmatchcase(folder, self.pattern))

    def _shelf(self, official: str) -> Shelf:
        return open_shelf(self.games, official)

    def group(self, task: Task) -> str | None:
        """The task type, by which results are reported too."""
        return SHORT_NAMES[task.payload["type"]]

    # ---- the world -------------------------------------------------------------------------------------------------

    def begin(self, task: Task) -> None:
        game = self._shelf(task.payload["set"]).game(task.payload["game"])
        if task.payload.get("variant"):
            game = redrawn(game, task.payload["variant"])
        self.house = self._started(game)
        words = game.description if self.wording == "template" or not game.wordings else game.wordings[0]
        introduction = self.house.introduction(words)
        self.beliefs, self._reached = Beliefs.begin(introduction), frozenset[str]()
        self._text, self.last, self._words = introduction + "\n", "", words
        self._recent: tuple[str, ...] = ()
        self.advice: Advice | None = None

    def _started(self, game: Game) -> House | ReferenceHouse:
        if self.engine == "native":
            return House(game, self.dialect)
        return ReferenceHouse.from_folder(self.source, game)

    def apply(self, action: str) -> Outcome:
        said = self.house.do(action)
        self.beliefs.add(action, said)
        exchange = f"> {action}\n{said}\n"
        self._text += exchange
        self._recent = (*self._recent, exchange)[-self.recall :] if self.recall else ()
        self.last, self.advice = action, None
        won = self.house.is_won()
        new = reached(self.beliefs, self.house.game.goal) - self._reached
        self._reached |= new
        reward = float(won) + self.milestone * len(new) - self.step_cost
        return Outcome(reward, terminated=won, success=won, events=(*sorted(new), *(["won"] if won else [])))

    # ---- text ------------------------------------------------------------------------------------------------------

    def history(self) -> str:
        return "" if self.recall else self._text

    def state(self) -> str:
        status = ""
        if self.guide:
            status = guiding_status(self.beliefs, self._words, set(self.legal_actions()), self.prior)
        elif self.status:
            status = plain_status(self.beliefs, self._words)
        return "".join(self._recent) + status

    def legal_actions(self) -> Sequence[str]:
        return self.house.admissible()

    # ---- saving ----------------------------------------------------------------------------------------------------

    def get_state(self) -> Any:
        progress = (self.beliefs.copy(), self._reached, self._text, self._recent, self.last, self._words)
        return (self.house.game, self.house.get_state(), *progress)

    def set_state(self, state: Any) -> None:
        game, house, beliefs, self._reached, self._text, self._recent, self.last, self._words = state
        self.house = self._started(game)
        self.house.set_state(house)
        self.beliefs, self.advice = beliefs.copy(), None


def _full_names(types: tuple[str, ...]) -> tuple[str, ...]:
    """The names of task types, which may be given in short; UserError names one that does not exist."""
    full = {short: name for name, short in SHORT_NAMES.items()} | {name: name for name in TYPES}
    for one in types:
        require_known("alfworld", "task type", one, list(full))
    return tuple(full[one] for one in types)


def _require_status(status: bool, recall: int, guide: bool) -> None:
    """Refuse settings that need the status where it is off."""
    if recall and not status:
        raise UserError("alfworld: with recall above 0, status must be on: it says what the missing text said")
    if guide and not status:
        raise UserError("alfworld: with guide on, status must be on: it is the status that guides")
