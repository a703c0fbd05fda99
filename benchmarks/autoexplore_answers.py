"""Answers to AutoExplore's questions by the arms of runs, by search and by chance. `autoexplore_quality` reports them.

An answer ranks files. An arm's ranking comes from its episode, which is replayed (`autoexplore.locate.agent.retrace`).
First comes the identified file. Then come the files that could have been identified in the last step, sorted by the
probability that the player gave them, or in the order shown if it has no probabilities. The other files follow in the
order of the search.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from pathlib import Path
from typing import Any

from reflectrl.core.config import load_recipe
from reflectrl.core.envs import make
from reflectrl.core.episodes import read_episodes
from reflectrl.core.players.simple import ExpertPlayer
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Episode, Task, UserError, named_seed
from reflectrl.wings.autoexplore.env import AutoExploreEnv
from reflectrl.wings.autoexplore.library import Library, open_library
from reflectrl.wings.autoexplore.locate.agent import ranking, retrace
from reflectrl.wings.autoexplore.search import Over, Search
from reflectrl.wings.autoexplore.texts import printable
from reflectrl.wings.autoexplore.view import View, count_tokens

SEARCHES: dict[str, Over] = {"BM25, whole files": "files", "BM25, names": "names", "BM25, both": "both"}
CHANCE = "a file at random"
FIRST = (1, 5)


@dataclass(frozen=True)
class Asked:
    """A question, and the groups in which it is counted."""

    id: str
    split: str
    repo: str
    question: str
    gold: tuple[str, ...]
    groups: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """An arm's answer to a question, with one seed."""

    asked: Asked
    arm: str
    sampling: str
    seed: int
    top: tuple[float, ...]
    """Hit among the first k files, for each k of `FIRST`: 1 or 0, or the probability of a hit by chance."""
    reciprocal: float
    """Reciprocal rank of the first file that answers; 0 if it is not ranked."""
    success: bool | None = None
    """True if a right file was identified; None for arms that do not walk."""
    steps: int | None = None
    tokens: int | None = None
    """Tokens of all command outputs that the player was shown, counted by `view.count_tokens`."""


@dataclass(frozen=True)
class Timing:
    """Seconds per question of an arm on a split, in evaluation."""

    arm: str
    split: str
    sampling: str
    episodes: int
    seconds: float


class Run:
    """A run folder on autoexplore.

    Args:
        folder: the run folder.
        library: folder of the library, if it is not the recipe's.
        prefix: put before the names of the run's arms.

    Raises:
        UserError: it is not a run folder, or has another environment.
    """

    def __init__(self, folder: Path, library: str = "", prefix: str = "") -> None:
        if not (folder / "recipe.toml").is_file():
            raise UserError(f"{folder} is not a run folder (it has no recipe.toml)")
        self.folder, self.prefix = folder, prefix
        recipe = load_recipe(folder / "recipe.toml")
        env = make({**recipe.env, **({"library": library} if library else {})})
        if not isinstance(env, AutoExploreEnv):
            raise UserError(f"{folder} is a run of {recipe.env['name']!r}, not of 'autoexplore'")
        self.env, self.library = env, open_library(env.library)

    def answers(self) -> Iterator[Answer]:
        """Yield the answers of every arm and seed. An episode that is logged under several stages counts once."""
        seen = set()
        for path in sorted((self.folder / "episodes").glob("eval-*.jsonl")):
            for episode in read_episodes(path):
                about = episode.provenance
                key = (about["arm"], about["seed"], about["sampling"], episode.task.split, episode.task.id)
                if key not in seen:
                    seen.add(key)
                    yield self.answer(episode, self.prefix + about["arm"], about["sampling"], about["seed"])

    def answer(self, episode: Episode, arm: str, sampling: str, seed: int) -> Answer:
        """Turn an episode into an answer."""
        strides = retrace(self.env, episode)
        question = asked_of(self.env, self.library, episode.task)
        finder = self.env.finder_of(episode.task)
        rest = finder.ranked(printable(question.question), "", View(finder.repository))
        order = [path for path, _ in ranking(strides[-1], rest)]
        # Files that the player's search does not rank come last.
        order += [
            path for path in _searched(self.library, question.repo, "both", question.question) if path not in rest
        ]
        tokens = sum(count_tokens(stride.output) for stride in strides)
        return Answer(
            question, arm, sampling, seed, *judged(order, question.gold), episode.success, len(strides), tokens
        )

    def timings(self) -> Iterator[Timing]:
        """Yield the evaluation times in `timings.jsonl`."""
        path = self.folder / "timings.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        for row in map(json.loads, lines):
            if "arm" in row:
                name = self.prefix + row["arm"]
                yield Timing(name, row["split"], row["sampling"], row["episodes"], row["seconds"])

    def expert(self, questions: Iterable[Asked]) -> Iterator[Answer]:
        """Let the expert play the questions, and yield its answers."""
        wanted = {(question.split, question.id) for question in questions}
        splits = dict.fromkeys(split for split, _ in sorted(wanted))
        tasks = [task for split in splits for task in self.env.tasks(split) if (split, task.id) in wanted]
        jobs = [Job(task, named_seed(0, "eval", task.id, "greedy")) for task in tasks]
        for episode in list(rollout(jobs, lambda: self.env, ExpertPlayer(), batch=1)):
            yield self.answer(episode, self.prefix + "expert", "greedy", 0)


def asked_of(env: AutoExploreEnv, library: Library, task: Task) -> Asked:
    """Return the question of a task. It counts for its source, its depth and "all", and as dominant if it is."""
    payload = task.payload
    source = payload["source"]
    dominant = [f"{source}, dominant"] if task.id in _dominant(library, task.split) else []
    groups = (source, *dominant, depth_of(env, task), "all")
    return Asked(task.id, task.split, payload["repo"], payload["question"], tuple(payload["gold"]), groups)


def depth_of(env: AutoExploreEnv, task: Task) -> str:
    """Return the depth of the answer in the stages of the paper, or "deeper"."""
    grouped, env.group_by = env.group_by, "depth"
    try:
        return str(env.group(task))
    finally:
        env.group_by = grouped


def by_search(library: Library, questions: Iterable[Asked]) -> Iterator[Answer]:
    """Yield the answers of the search baselines and of chance."""
    for question in questions:
        for name, over in SEARCHES.items():
            order = _searched(library, question.repo, over, question.question)
            yield Answer(question, name, "greedy", 0, *judged(order, question.gold))
        files = library.repository(question.repo).files
        yield Answer(question, CHANCE, "greedy", 0, *by_chance(len(files), len(set(question.gold) & set(files))))


def judged(order: Sequence[str], gold: Iterable[str]) -> tuple[tuple[float, ...], float]:
    """Return 1 if a gold file is among the first k, for each k of `FIRST`, and 1 / its rank (0 if not ranked)."""
    wanted = set(gold)
    rank = next((rank for rank, path in enumerate(order, 1) if path in wanted), None)
    return tuple(float(rank is not None and rank <= k) for k in FIRST), 1 / rank if rank else 0.0


def by_chance(files: int, gold: int) -> tuple[tuple[float, ...], float]:
    """Return the expected value of `judged` for files in random order."""
    first = [comb(files - rank, gold - 1) / comb(files, gold) for rank in range(1, files - gold + 2)] if gold else []
    return tuple(sum(first[:k]) for k in FIRST), sum(p / rank for rank, p in enumerate(first, 1))


@lru_cache(maxsize=64)
def _search(library: Library, repo: str, over: Over) -> Search:
    return Search(library.repository(repo), over)


@lru_cache(maxsize=1 << 14)
def _searched(library: Library, repo: str, over: Over, question: str) -> tuple[str, ...]:
    try:
        return tuple(path for path, _ in _search(library, repo, over).rank(question))
    except UserError:  # a question of nothing but stop words finds nothing
        return ()


@lru_cache(maxsize=64)
def _dominant(library: Library, split: str) -> frozenset[str]:
    return frozenset(question.id for question in library.questions(split) if question.dominant)


def named(folders: Sequence[Path], library: str) -> list[Run]:
    """Open run folders. If there are several, each arm's name is preceded by the name of its run."""
    names = [folder.name for folder in folders]
    labels = names if len(set(names)) == len(names) else [str(folder) for folder in folders]
    prefixes = [f"{name}: " for name in labels] if len(folders) > 1 else [""]
    return [Run(folder, library, prefix) for folder, prefix in zip(folders, prefixes, strict=True)]


def figures(answer: Answer) -> dict[str, Any]:
    """Return the figures of an answer that are averaged over questions."""
    top = {f"acc@{k}": value for k, value in zip(FIRST, answer.top, strict=True)}
    return {"success": answer.success, **top, "MRR": answer.reciprocal, "steps": answer.steps, "tokens": answer.tokens}
