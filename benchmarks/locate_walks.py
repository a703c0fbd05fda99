"""Learn by RL when a further look pays before `locate` chooses, and measure what looking is worth.

    python -m benchmarks.locate_walks SWE-QA.npz TRAIN.npz --folds FOLDS --held-out DEV.npz

The sets are those of `locate_decision collect`, and FOLDS holds the models that `locate_decision fit --folds` wrote. A
policy over "answer", "more", "follow" and "ask again" imitates the cheapest walk that is worth most, then learns by
policy gradients. Its reward is the reciprocal rank of the answer minus the cost of the looks, and its expectation is
computed over all walks, so nothing is sampled. It learns on the largest of the sets, in which every question is scored
by a model that never saw its repository.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.locate_decision import (
    LOOKS,
    MISSING,
    RANKS,
    Decisions,
    crossed,
    interval,
    load_model,
    ranks_of,
    scores_of,
)
from benchmarks.locate_ranker import FOLDS
from reflectrl.core.types import UserError
from reflectrl.wings.autoexplore.locate.decision import FIRST

SETS = 1 << (len(LOOKS) - 1)
"""Number of sets of further looks."""
COST = 0.005
"""Cost of a look. Reading four files more takes about a tenth of an answer's time."""
LOOK_RATE, LOOK_STEPS = 0.05, 400


@dataclass
class Walks:
    """Everything that can happen: N questions, S sets of further looks (bit i of its number: look i + 1), X inputs.

    Attributes:
        states_NSX: what the policy knows after these looks.
        ranks_NS: rank of the first right file; FAR if none is right.
        choices_NS: file that is chosen.
    """

    states_NSX: NDArray[np.float32]
    ranks_NS: NDArray[np.int64]
    choices_NS: NDArray[np.int64]

    @classmethod
    def of(cls, each: Decisions, scores_NF: NDArray[np.float32]) -> Walks:
        """Compute the states and ranks of all sets of looks."""
        states, ranks, choices = list[Any](), list[Any](), list[Any]()
        for looked in range(SETS):
            columns = [0, *(look for look in range(1, len(LOOKS)) if is_in(look, looked))]
            shown_NF = each.looks_NFL[..., columns].any(axis=-1)
            shown_scores_NF = np.where(shown_NF, scores_NF, MISSING)
            states.append(_state(shown_scores_NF, each.looks_NFL[..., 0], looked))
            # files that were not looked at stand below, in the search's order
            ranks.append(ranks_of(np.where(shown_NF, scores_NF, each.search_NF + MISSING), each.right_NF))
            choices.append(shown_scores_NF.argmax(axis=1))
        return cls(*(np.stack(arrays, axis=1) for arrays in (states, ranks, choices)))

    def returns(self) -> NDArray[np.float32]:
        """Return the reward of an answer after each set of looks, (N, S): reciprocal rank minus cost."""
        cost_S = np.array([COST * looked.bit_count() for looked in range(SETS)], np.float32)
        return np.asarray(1 / self.ranks_NS - cost_S, np.float32)


def is_in(look: int, looked: int) -> bool:
    """Return whether a set of looks has a look (1, 2 or 3)."""
    return bool(looked >> (look - 1) & 1)


def _state(scores_NF: NDArray[np.float32], first_NF: NDArray[np.bool_], looked: int) -> NDArray[np.float32]:
    """Return the policy's inputs, (N, X): how sure the choice is, and what was looked at."""
    top_NF = -np.sort(-scores_NF, axis=1)
    parts_NF = np.exp(top_NF - top_NF[:, :1])
    parts_NF /= parts_NF.sum(axis=1, keepdims=True)
    entropy_N = -(parts_NF * np.log(np.maximum(parts_NF, 1e-9))).sum(axis=1)
    is_first_N = np.take_along_axis(first_NF, scores_NF.argmax(axis=1)[:, None], axis=1)[:, 0]
    ones_N = np.ones(len(scores_NF))
    of_looks = [ones_N * is_in(look, looked) for look in range(1, len(LOOKS))]
    inputs = [ones_N, *parts_NF[:, :3].T, parts_NF[:, FIRST - 1], entropy_N, top_NF[:, 0] / 10, is_first_N, *of_looks]
    return np.stack(inputs, axis=1).astype(np.float32)


class LookingPolicy(nn.Module):
    """Linear policy over "answer" and the further looks."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, len(LOOKS), bias=False)
        nn.init.zeros_(self.linear.weight)

    def forward(self, states_NSX: Tensor) -> Tensor:
        """Return the log-probabilities of the actions, (N, S, A). A look is taken once."""
        logits_NSA = self.linear(states_NSX)
        taken = torch.tensor(
            [[action > 0 and is_in(action, looked) for action in range(len(LOOKS))] for looked in range(SETS)]
        )
        return logits_NSA.masked_fill(taken, -torch.inf).log_softmax(-1)

    def reached(self, states_NSX: Tensor, greedy: bool = False) -> Tensor:
        """Return the probability that the policy answers after each set of looks, (N, S)."""
        p_NSA = self(states_NSX).exp()
        if greedy:
            p_NSA = nn.functional.one_hot(p_NSA.argmax(-1), len(LOOKS)).to(p_NSA.dtype)
        at = [torch.zeros(len(p_NSA)) for _ in range(SETS)]
        at[0] = torch.ones(len(p_NSA))
        for looked in range(SETS):  # a set comes after those that it contains
            for look in range(1, len(LOOKS)):
                if not is_in(look, looked):
                    after = looked | 1 << (look - 1)
                    at[after] = at[after] + at[looked] * p_NSA[:, looked, look]
        return torch.stack([each * p_NSA[:, looked, 0] for looked, each in enumerate(at)], dim=1)


def imitate(policy: LookingPolicy, walks: Walks) -> None:
    """Teach the policy the walks of an expert who knows the answer: the fewest looks that are worth most."""
    best_N = walks.returns().argmax(axis=1)
    rows, sets, actions = list[int](), list[int](), list[int]()
    for row, best in enumerate(best_N.tolist()):
        looked = 0
        while True:
            missing = [look for look in range(1, len(LOOKS)) if is_in(look, best) and not is_in(look, looked)]
            rows.append(row)
            sets.append(looked)
            actions.append(missing[0] if missing else 0)
            if not missing:
                break
            looked |= 1 << (missing[0] - 1)
    states = torch.from_numpy(walks.states_NSX)
    _climb(policy, lambda: policy(states)[rows, sets, actions].mean())


def reinforce(policy: LookingPolicy, walks: Walks) -> None:
    """Follow the policy gradient. The expected return is a sum over all walks, so it has no sampling noise."""
    states, returns = torch.from_numpy(walks.states_NSX), torch.from_numpy(walks.returns())
    _climb(policy, lambda: (policy.reached(states) * returns).sum(1).mean())


def _climb(policy: LookingPolicy, goal: Callable[[], Tensor]) -> None:
    optimizer = torch.optim.Adam(policy.parameters(), lr=LOOK_RATE)
    for _ in range(LOOK_STEPS):
        loss = -goal()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def describe(name: str, policy: LookingPolicy, each: Decisions, walks: Walks) -> None:
    """Print what the policy does, greedily, beside answering at once and beside all looks."""
    with torch.inference_mode():
        after_N = policy.reached(torch.from_numpy(walks.states_NSX), greedy=True).argmax(1).numpy()
    at_once, everything = np.zeros_like(after_N), np.full_like(after_N, SETS - 1)
    rows = np.arange(len(after_N))
    for who, sets_N in (("answers at once", at_once), (name, after_N), ("all looks", everything)):
        ranks_N, returns_N = walks.ranks_NS[rows, sets_N], walks.returns()[rows, sets_N]
        firsts = ", ".join(f"first {k} {100 * (ranks_N <= k).mean():.1f}" for k in RANKS)
        gains = returns_N - walks.returns()[:, 0]
        print(
            f"    {who}: return {returns_N.mean():.4f} ({interval(gains, 1)}), {firsts}, "
            f"{np.mean([int(looked).bit_count() for looked in sets_N]):.2f} looks"
        )
    taken = [np.array([is_in(look, int(looked)) for looked in after_N]) for look in range(1, len(LOOKS))]
    print("    looks of the policy:", *(f"{LOOKS[i + 1]} {100 * mask.mean():.1f} %" for i, mask in enumerate(taken)))
    new = ~each.looks_NFL[rows, walks.choices_NS[rows, after_N], 0]
    if new.any():
        print(
            f"    it chose a file of a further look in {100 * new.mean():.1f} %, and was right in "
            f"{100 * (walks.ranks_NS[rows, after_N][new] == 1).mean():.1f} % of these, the first choice in "
            f"{100 * (walks.ranks_NS[:, 0][new] == 1).mean():.1f} %"
        )


def main(words: Sequence[str] | None = None) -> None:
    """Teach a policy to look, and print what it does on every set."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("sets", nargs="+", type=Path)
    parser.add_argument("--folds", type=Path, required=True)
    parser.add_argument("--held-out", nargs="*", type=Path, default=[], help="sets that the shipped model did not see")
    args = parser.parse_args(words)
    sets = [Decisions.load(path) for path in args.sets]
    scored = crossed(sets, [load_model(args.folds / f"decider-{fold}.npz")[0] for fold in range(FOLDS)])
    with as_file(files("reflectrl.wings.autoexplore.locate").joinpath("data/decider.npz")) as path:
        shipped, _ = load_model(path)
    for path in args.held_out:
        sets.append(Decisions.load(path))
        scored.append(scores_of(shipped, sets[-1]))
    walks = [Walks.of(each, scores) for each, scores in zip(sets, scored, strict=True)]
    largest = max(walks[: len(args.sets)], key=lambda each: len(each.ranks_NS))
    policy = LookingPolicy(largest.states_NSX.shape[-1])
    for name, learn in (("imitation", imitate), ("imitation, then RL", reinforce)):
        learn(policy, largest)
        for path, each, of_set in zip([*args.sets, *args.held_out], sets, walks, strict=True):
            print(f"{path.stem}, {name}:")
            describe(name, policy, each, of_set)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
