"""An environment small enough to compute the expected return as a finite sum, with its exact gradient.

`Treasure` has five rooms, four steps, chance, and rewards at every step. Several ways lead to the same state. All its
trajectories can be listed, and autograd differentiates through the log-probabilities of a policy's choices.
`benchmarks.gradients` compares the learner's estimators with this gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from reflectrl.core.envs.base import SPLITS, TextEnv, require_known
from reflectrl.core.types import Observation, Outcome, Task
from reflectrl.models.players import Policy

# ---- the environment -------------------------------------------------------------------------------------------------

ROOMS, HORIZON, SLIP = 5, 4, 0.2


class Treasure(TextEnv):
    """Five rooms in a row: dig where the treasure is. A step fails one time in five; a wrong dig costs reward.

    All tasks begin in the middle. In training tasks the treasure is there, next door, or at the end of the row.
    """

    stages: ClassVar[tuple[str, ...]] = ("arrived", "full")
    milestones: ClassVar[dict[str, str]] = {"arrived": "arrived"}
    treasures: ClassVar[dict[str, tuple[int, ...]]] = {"train": (2, 1, 4), "validation": (0,), "test": (3,)}

    def __init__(self) -> None:
        super().__init__(HORIZON)

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        require_known("treasure", "split", split, SPLITS)
        require_known("treasure", "stage", stage := stage or "full", self.stages)
        return [Task(f"{stage}-{room}", "treasure", {"room": room}, split, stage) for room in self.treasures[split]]

    def begin(self, task: Task) -> None:
        self.treasure, self.room = int(task.payload["room"]), ROOMS // 2

    def apply(self, action: str) -> Outcome:
        ends = outcomes(self.treasure, self.room, action)
        end = ends[int(self.np_random.choice(len(ends), p=[ending.probability for ending in ends]))]
        arrived = end.room == self.treasure != self.room
        self.room = end.room
        won = end.found or (arrived and self.task.stage == "arrived")
        # Four steps are a rule of the game and no time limit, after which a critic would estimate the rest.
        over = won or self.elapsed + 1 == HORIZON
        return Outcome(end.reward, over, won, events=("arrived",) if arrived else ())

    def state(self) -> str:
        return seen(self.treasure, self.room).state

    def legal_actions(self) -> Sequence[str]:
        return seen(self.treasure, self.room).actions


class End(NamedTuple):
    """Possible result of an action."""

    probability: float
    reward: float
    room: int
    found: bool


def outcomes(treasure: int, room: int, action: str) -> list[End]:
    """Return all possible results of an action."""
    if action == "dig":
        return [End(1.0, 1.0, room, True) if room == treasure else End(1.0, -0.5, room, False)]
    step = {"left": -1, "right": 1}[action]
    return [End(1 - SLIP, -0.1, room + step, False), End(SLIP, -0.1, room, False)]


@cache
def seen(treasure: int, room: int) -> Observation:
    """Return the observation in a room, with two or three actions."""
    actions = ("left",) * (room > 0) + ("right",) * (room < ROOMS - 1) + ("dig",)
    return Observation("", f"Treasure {treasure}, you {room}.\n", actions)


# ---- the exact gradient ----------------------------------------------------------------------------------------------


class Trajectory(NamedTuple):
    """Trajectory: choices (treasure, room, action's index), the environment's factor of its probability, and return."""

    choices: tuple[tuple[int, int, int], ...]
    probability: float
    total: float


def trajectories(treasure: int, path: Trajectory, room: int, left: int = HORIZON) -> Iterator[Trajectory]:
    """Yield every way in which an episode may continue from a room, with `left` steps left."""
    for i, action in enumerate(seen(treasure, room).actions):
        for end in outcomes(treasure, room, action):
            choices = (*path.choices, (treasure, room, i))
            longer = Trajectory(choices, path.probability * end.probability, path.total + end.reward)
            if end.found or left == 1:
                yield longer
            else:
                yield from trajectories(treasure, longer, end.room, left - 1)


class Exact(NamedTuple):
    """Expected return, its gradient (D,), and the mean length of an episode."""

    value: float
    gradient_D: Tensor
    length: float


def exact(policy: Policy, temperature: float = 1.0) -> Exact:
    """Compute J = sum over tasks and trajectories of p(trajectory) · return / tasks, and its gradient through log p."""
    treasures = Treasure.treasures["train"]
    states = [(treasure, room) for treasure in treasures for room in range(ROOMS)]
    logp: dict[tuple[int, int, int], Tensor] = {}
    for state in states:  # one by one: nothing of the learner's batches is used
        observation = seen(*state)
        logits_1A, _ = policy.logits([policy.prompt(observation, None)], [observation.actions])
        logp_A = (logits_1A[0, : len(observation.actions)].double() / temperature).log_softmax(-1)
        logp |= {(*state, i): logp_A[i] for i in range(len(logp_A))}
    start = Trajectory((), 1 / len(treasures), 0.0)
    paths = [path for treasure in treasures for path in trajectories(treasure, start, ROOMS // 2)]
    index = {choice: i for i, choice in enumerate(logp)}
    counts = torch.zeros(len(paths), len(logp), dtype=torch.float64)
    for row, path in enumerate(paths):
        for choice in path.choices:
            counts[row, index[choice]] += 1
    chances_P = torch.tensor([path.probability for path in paths], dtype=torch.float64)
    weights_P = chances_P * (counts @ torch.stack(list(logp.values()))).exp()
    assert abs(float(weights_P.sum().detach()) - 1) < 1e-6, "the trajectories' probabilities do not add up to 1"
    value = (weights_P * torch.tensor([path.total for path in paths], dtype=torch.float64)).sum()
    gradients = torch.autograd.grad(value, policy.lm.parameters(), allow_unused=True)
    length = float((weights_P * counts.sum(1)).sum().detach())
    return Exact(float(value.detach()), flat(policy.lm.parameters(), gradients), length)


def flat(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
    """Concatenate gradients in a vector (D,). Missing gradients are zero."""
    parts = zip(parameters, gradients, strict=True)
    return torch.cat([torch.zeros(p.numel()) if g is None else g.detach().flatten() for p, g in parts]).double()
