"""Which repositories, or which questions, are for training, validation and test."""

from __future__ import annotations

from collections.abc import Sequence

from reflectrl.envs.base import divide
from reflectrl.types import UserError
from reflectrl.wings.autoexplore.questions import Question

FEWEST = 3
"""Repositories that can be split by repository."""


def split_of_repositories(names: Sequence[str], seed: int) -> dict[str, str]:
    """Name → split: a tenth for validation, two tenths for test, but at least one for each.

    Raises:
        UserError: there are fewer than three.
    """
    if len(names) < FEWEST:
        raise UserError(
            f"{len(names)} repositories cannot be split by repository into train, validation and test: "
            "name three at least, or split by task (--split-by task)"
        )
    validation, test = max(1, round(len(names) / 10)), max(1, round(len(names) / 5))
    sizes = {"train": len(names) - validation - test, "validation": validation, "test": test}
    divided = divide(sorted(names), sizes, "autoexplore-repositories", seed)
    return {name: split for split, own in divided.items() for name in own}


def split_by_task(questions: Sequence[Question], seed: int) -> dict[str, list[Question]]:
    """Split → questions, 7 : 2 : 1 for training, validation and test, whatever repository they ask about.

    So does the paper (Reflect-RL, AutoExplore). What is learnt about a repository then helps on its other questions.
    (The split by repository is ours and tests on two tenths: one tenth of a few repositories is one or two of them.)

    Raises:
        UserError: there are fewer than three questions.
    """
    if len(questions) < FEWEST:
        raise UserError(f"{len(questions)} questions cannot be split into train, validation and test")
    validation, test = max(1, round(len(questions) / 5)), max(1, round(len(questions) / 10))
    sizes = {"train": len(questions) - validation - test, "validation": validation, "test": test}
    ordered = sorted(questions, key=lambda question: question.id)
    divided = divide(ordered, sizes, "autoexplore-tasks", seed)
    return {split: sorted(own, key=lambda question: question.id) for split, own in divided.items()}
