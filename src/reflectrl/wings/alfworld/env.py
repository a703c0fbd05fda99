"""ALFWorld as a `TextEnv`: household tasks in text, played by a native engine.

Rules (ALFWorld, and Reflect-RL's section on benchmarks): the player reads the replies to its commands and picks one of
the admissible commands. It wins when the household is as the task asks, within 50 steps (15 on the paper's subset). The
game's text is the history: it only grows. A win gives reward 1. Milestones (found, taken, prepared, placed) give reward
`milestone` each, once. They shape learning and never decide success.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any, Literal

from reflectrl.core.envs.base import TextEnv, require_known
from reflectrl.core.types import Outcome, Task, UserError, named_seed
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
"""Names of splits → the official sets. "-current" or "-paper" after a name asks for its tasks in that dialect."""

DIALECTS: tuple[Dialect, ...] = ("current", "paper")

SUBSETS = {"tomato-microwave": "pick_and_place_simple-Tomato-None-Microwave-*"}
"""Names of subsets → patterns of task folders. "tomato-microwave" is the subset of Reflect-RL."""

SHORT, MEDIUM = 5, 6
"""Longest plan, in commands, in the first two stages of the curriculum by length. Each adds a third of the games."""


class AlfworldEnv(TextEnv):
    """Carry out a household task by text commands.

    Args:
        games: folder of the games that `reflectrl data alfworld` made; "" is its default.
        subset: "" for all games, a name ("tomato-microwave") or a pattern of task folders ("pick_heat*-Mug-*").
        types: task types, by their full or short names ("heat"); none means all six.
        curriculum: stages before the last one: games with short and medium plans ("length"), or the task types one
            after another ("types").
        dialect: wording of alfworld 0.4 ("current"), or of 0.3, which published prompts use ("paper"). With "both",
            every game is two tasks, one per dialect. They are neighbours in the list, in an order drawn by game, so a
            teacher that plays half of the tasks plays every game once, about half of them in each dialect.
        wording: the task as the reference words it ("template"), or as people wrote it ("human").
        expert: the teacher: "search" looks for things, "planner" knows where they are.
        status: show a summary below the history at every step: the task, what is in the hand, what is at the current
            place, where the things named in the task are, and which places were not looked at yet. It repeats only what
            the text has said, in a place where small models find it.
        guide: the status guides the player. For each kind of thing in the task it says where one is (within reach
            first). If none was seen, it says so and where to look next; with `prior`, the most promising places come
            first.
        prior: use knowledge from outside the game: the kinds of places in which ALFWorld's training games keep each
            kind of thing. The searching expert uses it, and with `guide` players read it too. If False, places are
            searched in order of their names.
        recall: number of recent commands, with their replies, to show above the status. They replace the whole text,
            which the status sums up, so prompts become far shorter. Without the status, only the introduction stands
            above them, so a reflector has to keep notes of what was seen earlier. 0 shows the whole text.
        analysis: the teacher's text. "advice" gives the reason for the next command, and the command. "belief" gives
            the notes of a reflector that carries its reflections, and then the next command.
        milestone: reward for each of found, taken, prepared and placed, at its first time; 0 turns them off. They are
            the environment's subgoals either way, for `rl.milestone_coef`.
        step_cost: reward subtracted at every step.
        variants: number of extra variants of each training game, with its things and numbers shuffled.
        validation: the official set that validation tasks come from; "train" plays its games in two more variants.
        limit: largest number of games per split, spread evenly; 0 takes all.
        engine: "native", or "textworld" for the reference engine (slow; needs the extra, and `source`).
        source: folder of the official layout, for the reference engine.
        horizon: greatest number of steps.

    Attributes:
        house: current state of the household.
        spoken: dialect of the current task.
        beliefs: knowledge of the household from the text so far.
        last: the last command; "" at the start.
        advice: the searching expert's advice for this step; None until it is asked.

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
        dialect: Literal["current", "paper", "both"] = "current",
        wording: Literal["template", "human"] = "template",
        expert: Literal["search", "planner"] = "search",
        status: bool = True,
        guide: bool = False,
        prior: bool = True,
        recall: int = 0,
        analysis: Literal["advice", "belief"] = "advice",
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
        if guide and not status:
            raise UserError("alfworld: guide = true needs status = true, since guide changes the status")
        if engine == "textworld" and (not source or dialect != "current"):
            raise UserError("alfworld: engine 'textworld' needs source = DIR (official layout) and the current dialect")
        self.games, self.pattern = games, SUBSETS.get(subset, subset)
        self.types, self.curriculum = _full_names(types) or TYPES, curriculum
        self.dialects = DIALECTS if dialect == "both" else (dialect,)
        self.wording, self.expert = wording, expert
        self.status, self.recall, self.milestone, self.step_cost = status, recall, milestone, step_cost
        self.guide, self.prior, self.analysis = guide, prior, analysis
        self.variants, self.limit = variants, limit
        self.official = {**SPLITS, "validation": SPLITS[validation]}
        self.engine, self.source = engine, source
        self.stages = (  # type: ignore[misc]
            ("short", "medium", "all")
            if curriculum == "length"
            else (*(SHORT_NAMES[task_type] for task_type in self.types), "all")
        )

    # ---- tasks -----------------------------------------------------------------------------------------------------

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        name, dialects = self._named(split)
        stage = stage or "all"
        require_known("alfworld", "stage", stage, self.stages)
        official = self.official[name]
        entries = [entry for entry in self._entries(official) if self._is_in(entry, stage)]
        variants = range(1 + self.variants if name == "train" else 1)  # 0 is the game as it is
        if name == "validation" and official == "train":  # variants that are not trained on
            variants = range(self.variants + 1, self.variants + 3)
        # The name keeps results on generated games from being taken for ALFWorld scores.
        env = "alfworld-generated" if self._shelf(official).generated else "alfworld"
        tasks = list[Task]()
        for variant in variants:
            for entry in entries:
                # A fixed order would give one dialect alone to tasks that are drawn evenly from the list.
                drawn = named_seed("alfworld-dialect", entry.id) % 2
                for dialect in dialects[::-1] if drawn else dialects:
                    payload: dict[str, Any] = {"game": entry.id, "set": official, "type": entry.type}
                    task_id = entry.id
                    if variant:
                        payload["variant"] = variant
                        task_id += f"#{variant}"
                    if dialect != self.dialects[0]:
                        payload["dialect"] = dialect
                        task_id += f"@{dialect}"
                    tasks.append(Task(task_id, env, payload, split, stage))
        return tasks

    def _named(self, split: str) -> tuple[str, tuple[Dialect, ...]]:
        """Return the name of a split without its dialect, and the dialects of its tasks."""
        splits: dict[str, tuple[str, tuple[Dialect, ...]]] = {}
        for name in self.official:
            splits[name] = (name, self.dialects)
            for dialect in DIALECTS:
                splits[f"{name}-{dialect}"] = (name, (dialect,))
        require_known("alfworld", "split", split, list(splits))
        name, dialects = splits[split]
        if self.engine == "textworld" and "paper" in dialects:
            raise UserError(f"alfworld: engine 'textworld' has the current dialect only, so it cannot play {split!r}")
        return name, dialects

    def _is_in(self, entry: Entry, stage: str) -> bool:
        if stage in SHORT_NAMES.values():
            return SHORT_NAMES[entry.type] == stage
        return entry.plan_length <= {"short": SHORT, "medium": MEDIUM}.get(stage, entry.plan_length)

    def _entries(self, official: str) -> list[Entry]:
        entries = [entry for entry in self._shelf(official).entries if self._is_wanted(entry)]
        if not entries:
            raise UserError(f"alfworld: no games of {self.pattern or ', '.join(self.types)} in {official}")
        count = min(self.limit or len(entries), len(entries))
        return [entries[index * len(entries) // count] for index in range(count)]

    def _is_wanted(self, entry: Entry) -> bool:
        folder = entry.id.partition("/")[0]
        return entry.type in self.types and (not self.pattern or fnmatch.fnmatchcase(folder, self.pattern))

    def _shelf(self, official: str) -> Shelf:
        return open_shelf(self.games, official)

    def group(self, task: Task) -> str | None:
        """Return the task type, by which results are reported too."""
        return SHORT_NAMES[task.payload["type"]]

    def counted_as(self, task: Task) -> str:
        """Return the task's name without its dialect: a game in two dialects is one game in intervals."""
        return task.id.partition("@")[0]

    # ---- the world -------------------------------------------------------------------------------------------------

    def begin(self, task: Task) -> None:
        game = self._shelf(task.payload["set"]).game(task.payload["game"])
        if task.payload.get("variant"):
            game = redrawn(game, task.payload["variant"])
        self.spoken = task.payload.get("dialect", self.dialects[0])
        self.house = self._started(game)
        words = game.description if self.wording == "template" or not game.wordings else game.wordings[0]
        self._introduction = self.house.introduction(words) + "\n"
        self.beliefs, self._reached = Beliefs.begin(self._introduction), frozenset[str]()
        self._text, self.last, self._words = self._introduction, "", words
        self._recent: tuple[str, ...] = ()
        self.advice: Advice | None = None

    def _started(self, game: Game) -> House | ReferenceHouse:
        if self.engine == "native":
            return House(game, self.spoken)
        return ReferenceHouse.from_folder(self.source, game)

    def apply(self, action: str) -> Outcome:
        reply = self.house.do(action)
        self.beliefs.add(action, reply)
        exchange = f"> {action}\n{reply}\n"
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
        if not self.recall:
            return self._text
        return "" if self.status else self._introduction

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
        texts = (self._introduction, self._text, self._recent, self.last, self._words)
        return (self.house.game, self.spoken, self.house.get_state(), self.beliefs.copy(), self._reached, texts)

    def set_state(self, state: Any) -> None:
        game, self.spoken, house, beliefs, self._reached, texts = state
        self._introduction, self._text, self._recent, self.last, self._words = texts
        self.house = self._started(game)
        self.house.set_state(house)
        self.beliefs, self.advice = beliefs.copy(), None


def _full_names(types: tuple[str, ...]) -> tuple[str, ...]:
    """Expand short names of task types. Raise UserError for an unknown name."""
    full = {short: name for name, short in SHORT_NAMES.items()} | {name: name for name in TYPES}
    for task_type in types:
        require_known("alfworld", "task type", task_type, list(full))
    return tuple(full[task_type] for task_type in types)
