"""FrozenLake as a `TextEnv`.

Rules: gymnasium's FrozenLake (its maps, moves and slipperiness) with three departures. Reaching the goal gives reward
1, as there; falling into a hole costs 1 and every other step 0.01, so that shorter ways score higher (`rewards`). An
episode may start on any ice from which the goal can be reached. The horizon is 4 × size on dry ice, more than any
shortest way of the standard maps (14), and gymnasium's 25 × size on slippery ice.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np

from reflectrl.core.envs.base import SPLITS, TextEnv, divide, require_known
from reflectrl.core.types import Outcome, Task, UserError, named_seed
from reflectrl.wings.frozenlake.teacher import FrozenLakeTeacher, in_words
from reflectrl.wings.frozenlake.world import ACTIONS, STANDARD, Cell, draw_rows, lake, restarted

SIZES = {"4x4": (6, 2, 3), "8x8": (30, 8, 15), "random": (2000, 100, 500)}
REWARDS = {"shaped": (-0.01, -1.0), "gymnasium": (0.0, 0.0)}
"""Rewards of a step onto ice, and of a step into a hole. The goal gives 1."""

RULES = (
    "You cross a frozen lake. A is you, S where you started, F ice, H a hole, G the goal. Reach the goal; a hole ends"
    " the walk."
)
SLIPS = " The ice is slippery: a move goes straight or to either side, each one time in three."


class FrozenLakeEnv(TextEnv):
    """Cross the ice to the goal without falling into a hole.

    Args:
        maps: "4x4" or "8x8" (gymnasium's maps; tasks are start cells) or "random" (every task has its own map, and no
            map is in two splits).
        slippery: moves go straight or to either side with probability 1/3 each.
        size: rows and columns of random maps.
        holes: probability that a cell of a random map is a hole.
        train, validation, test: tasks per split; 0 takes the default. The standard maps have 11 and 53 starts.
        rules: put the rules before everything else.
        history: show the past maps and actions.
        view: "map" draws the lake from above; "around" draws it with the agent in the middle and W beyond the edge.
            With "around", the same position in the text always means the same neighbour, so a model trained from
            scratch learns from far fewer episodes.
        rewards: "shaped", or "gymnasium" (for the goal alone). Trained from scratch, a policy that is punished for
            holes only first learns to stand still, and a policy that is punished for steps only learns to fall into the
            nearest hole.
        analysis: the analyst's text. "route" describes a shortest way at once; "waves" writes out the search for it, on
            dry ice only.
        horizon: 0 takes 4 × size, or 25 × size on slippery ice.
        split_seed: decides which start, or which random map, belongs to which split.

    Raises:
        UserError: an argument is unknown, out of range, or asks for more tasks than there are.

    Attributes:
        lake, cell: the map, and the agent's position on it.
        before, last: the cell before the last action, and that action; None at the start.
    """

    teacher = FrozenLakeTeacher()

    def __init__(
        self,
        maps: Literal["4x4", "8x8", "random"] = "4x4",
        slippery: bool = False,
        size: int = 6,
        holes: float = 0.25,
        train: int = 0,
        validation: int = 0,
        test: int = 0,
        rules: bool = False,
        history: bool = False,
        horizon: int = 0,
        split_seed: int = 0,
        view: Literal["map", "around"] = "map",
        rewards: Literal["shaped", "gymnasium"] = "shaped",
        analysis: Literal["route", "waves"] = "route",
    ) -> None:
        require_known("frozenlake", "maps", maps, list(SIZES))
        require_known("frozenlake", "view", view, ["map", "around"])
        require_known("frozenlake", "rewards", rewards, list(REWARDS))
        require_known("frozenlake", "analysis", analysis, ["route", "waves"])
        if slippery and analysis == "waves":
            raise UserError("frozenlake: analysis 'waves' is a search on dry ice; set 'slippery' to false")
        if not 2 <= size <= 16 or not 0 <= holes < 1:
            raise UserError(f"frozenlake: size must be in 2..16 and holes in [0, 1), not {size} and {holes}")
        self.size = size if maps == "random" else len(STANDARD[maps])
        super().__init__(horizon or (25 if slippery else 4) * self.size)
        self.maps, self.slippery, self.holes, self.analysis = maps, slippery, holes, analysis
        self.instructions = RULES + SLIPS if slippery else RULES
        counts = (train, validation, test)
        self.sizes = dict(
            zip(SPLITS, (count or default for count, default in zip(counts, SIZES[maps], strict=True)), strict=True)
        )
        if min(self.sizes.values()) < 1:
            raise UserError(f"frozenlake: split sizes must be positive, not {self.sizes}")
        self.show_rules, self.show_history, self.split_seed = rules, history, split_seed
        self.view, (self.step_reward, self.hole_reward) = view, REWARDS[rewards]

    # ---- tasks -----------------------------------------------------------------------------------------------------

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        require_known("frozenlake", "split", split, SPLITS)
        require_known("frozenlake", "stage", stage or "full", self.stages)
        return self._tasks[split]

    def _task_of(self, rows: tuple[str, ...], split: str) -> Task:
        row, column = lake(rows).start
        name = f"{row}-{column}" if self.maps != "random" else f"{named_seed(*rows):016x}"
        return Task(f"frozenlake-{self.maps}-{name}", "frozenlake", {"map": list(rows)}, split)

    @cached_property
    def _tasks(self) -> dict[str, list[Task]]:
        """Tasks per split: one for every map, with its start marked S."""
        if self.maps == "random":
            maps = {split: self._random_maps(split) for split in SPLITS}
        else:
            rows = STANDARD[self.maps]
            starts = [cell for cell in lake(rows).ice if cell in lake(rows).distances]
            maps = divide([restarted(rows, cell) for cell in starts], self.sizes, "frozenlake", self.split_seed)
        return {split: [self._task_of(rows, split) for rows in split_maps] for split, split_maps in maps.items()}

    def _random_maps(self, split: str) -> list[tuple[str, ...]]:
        """Draw distinct solvable maps for a split.

        The hash of a map decides its split. Small lakes are drawn repeatedly, so a split by seeds alone would put the
        same map into two splits.
        """
        rng = np.random.default_rng(named_seed("frozenlake-maps", self.split_seed, split))
        maps: dict[tuple[str, ...], None] = {}
        for _ in range(1000 + 100 * self.sizes[split]):
            if len(maps) == self.sizes[split]:
                return list(maps)
            rows = draw_rows(rng, self.size, self.holes)
            if SPLITS[named_seed(self.split_seed, *rows) % 3] != split:
                continue
            world = lake(rows)
            if world.distances.get(world.start, self.horizon + 1) <= self.horizon:
                maps[rows] = None
        wish = f"{self.sizes[split]} different {self.size}x{self.size} maps"
        raise UserError(f"frozenlake: cannot draw {wish} for {split}: found {len(maps)} (larger size, fewer holes?)")

    # ---- the world -------------------------------------------------------------------------------------------------

    def begin(self, task: Task) -> None:
        self.lake = lake(tuple(task.payload["map"]), self.slippery)
        self.cell = self.lake.start
        self.before: Cell | None = None
        self.last: str | None = None
        self._past = f"{self.instructions}\n" if self.show_rules else ""

    def apply(self, action: str) -> Outcome:
        if self.show_history:
            self._past += f"{self.draw()}> {action}\n"
        outcomes = self.lake.outcomes(self.cell, action)
        slip = int(self.np_random.integers(len(outcomes))) if len(outcomes) > 1 else 0
        self.before, self.last, self.cell = self.cell, action, outcomes[slip]
        letter = self.lake.letter(self.cell)
        if letter == "H":
            return Outcome(self.hole_reward, terminated=True, events=("hole",))
        if letter == "G":
            return Outcome(1.0, terminated=True, success=True, events=("goal",))
        return Outcome(self.step_reward)

    # ---- text ------------------------------------------------------------------------------------------------------

    def history(self) -> str:
        return self._past

    def state(self) -> str:
        return f"{self.draw()}Last: {self.last or 'none'}{f' from {in_words(self.before)}' if self.before else ''}\n"

    def draw(self) -> str:
        """Draw the visible part of the lake: a line per row, each cell a space and a letter."""
        rows = [list(row) for row in self.lake.rows]
        row, column = self.cell
        rows[row][column] = "A"
        if self.view == "around":
            letters = {(i, j): letter for i, cells in enumerate(rows) for j, letter in enumerate(cells)}
            offsets = range(1 - self.size, self.size)
            rows = []
            for i in offsets:
                rows.append([letters.get((row + i, column + j), "W") for j in offsets])
        return "".join(f" {' '.join(cells)}\n" for cells in rows)

    def legal_actions(self) -> Sequence[str]:
        return ACTIONS

    # ---- saving ----------------------------------------------------------------------------------------------------

    def get_state(self) -> Any:
        return (self.lake, self.cell, self.before, self.last, self._past)

    def set_state(self, state: Any) -> None:
        self.lake, self.cell, self.before, self.last, self._past = state
