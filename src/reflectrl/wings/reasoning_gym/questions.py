"""Questions of reasoning-gym (Stojanovski et al. 2025), each identified by its origin.

A sample does not store the package's question but its *origin*: the data set, settings, seed and index it was made
from. The package makes the question again when an answer is scored. The same version makes the same question on every
machine.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from reflectrl.core.advice import install
from reflectrl.core.plugins import one_line, suggestion
from reflectrl.core.types import UserError

KEY = "reasoning_gym"
"""Key of a sample's `meta` that holds the origin of its question."""
FIRST_SEED = {"train": 0, "validation": 10**8, "test": 2 * 10**8}
"""First seed of each split. The package makes question i of a data set from seed + i, so the splits begin far apart."""
RUNS_ANSWERS = re.compile(r"\b(eval|exec|parse_expr|sympify)\(")


def package() -> Any:
    """Import the package `reasoning_gym`. Raise UserError if it is not installed."""
    try:
        import reasoning_gym
    except ImportError as error:
        raise UserError(f"questions of reasoning-gym need the package; {install('reasoning-gym')}") from error
    return reasoning_gym


def dataset(name: str, settings: Mapping[str, Any], seed: int) -> Any:
    """Return a data set by name, with its own settings.

    Raises:
        UserError: there is no data set with that name, its settings are wrong, or it scores answers by running them as
            Python code, which is unsafe for text that a model wrote.
    """
    datasets = package().factory.DATASETS
    if name not in datasets:
        raise UserError(f"reasoning-gym has no data set {name!r}{_near(name, datasets)}")
    if RUNS_ANSWERS.search(inspect.getsource(datasets[name][0].score_answer)):
        raise UserError(
            f"reasoning-gym: {name} scores answers by running them as code, which is unsafe; choose another data set"
        )
    try:
        return package().create_dataset(name, seed=seed, **settings)
    except Exception as error:  # checks of the package are assertions
        raise UserError(f"reasoning-gym: {name} with {dict(settings)}: {one_line(error)}") from error


def rows(name: str, settings: Mapping[str, Any], split: str, count: int, seen: set[str]) -> Iterator[dict[str, Any]]:
    """Yield `count` samples as rows of a file: the question is the prompt, the package's answer the completion.

    Args:
        seen: questions of the other splits. They are skipped, and the questions that are yielded are added.

    Raises:
        UserError: as `dataset`; or the data set has too few different questions.
    """
    first, yielded = FIRST_SEED[split], 0
    questions = dataset(name, settings, first)
    for index in range(10 * count):
        entry = questions[index]
        prompt = prompt_of(entry)
        if prompt not in seen:
            seen.add(prompt)
            yielded += 1
            origin = {"dataset": name, "settings": dict(settings), "seed": first, "index": index}
            answer = f" {str(entry['answer']).strip()}"
            yield {
                "id": f"{name}:{split}:{index}",
                "prompt": prompt,
                "completion": answer,
                "reward": 1.0,
                "meta": {KEY: origin},
            }
        if yielded == count:
            return
    raise UserError(f"reasoning-gym: {name} has {yielded} different questions for {split}, not {count}; ask for fewer")


def prompt_of(entry: Mapping[str, Any]) -> str:
    """Return the prompt of a question."""
    return f"{entry['question'].strip()}\nAnswer:"


def score(origin: Mapping[str, Any], prompt: str, answer: str) -> float:
    """Return the package's score of an answer; 0 if the package cannot read it.

    Raises:
        UserError: the origin is invalid, or the installed version of the package makes another question from it.
    """
    try:
        questions, entry = _question(origin["dataset"], json.dumps(origin["settings"]), origin["seed"], origin["index"])
    except (KeyError, TypeError) as error:
        raise UserError(f"reward reasoning_gym: {one_line(error)} in {dict(origin)}") from error
    if prompt_of(entry) != prompt:
        raise UserError(
            f"reward reasoning_gym: question {origin['index']} of {origin['dataset']} is a different one in the"
            " installed version; make the data again: reflectrl data reasoning-gym"
        )
    try:
        return float(questions.score_answer(answer.strip(), entry))
    except Exception:  # scorers raise many errors on unexpected answers
        return 0.0


@lru_cache(maxsize=65_536)
def _question(name: str, settings: str, seed: int, index: int) -> tuple[Any, Any]:
    """Return a data set and one of its questions."""
    questions = _dataset(name, settings, seed)
    return questions, questions[index]


@lru_cache(maxsize=256)
def _dataset(name: str, settings: str, seed: int) -> Any:
    return dataset(name, json.loads(settings), seed)


def _near(name: str, options: Mapping[str, Any]) -> str:
    hint = suggestion(name, options)
    return hint if hint.startswith(" (did") else " (reasoning_gym.factory.DATASETS lists them)"
