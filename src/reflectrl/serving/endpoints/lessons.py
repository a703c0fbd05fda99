"""Lessons of endpoints: teaching episodes, and labels of the states that a student meets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from reflectrl.core.config import Recipe
from reflectrl.core.envs import make
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.envs.pool import pool_of
from reflectrl.core.envs.teacher import ask, ask_preferences, ask_questions
from reflectrl.core.episodes import EpisodeLog, read_episodes, to_lines
from reflectrl.core.players.base import LiveEpisode, Player
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.teach import Demonstration, demonstrations, teach
from reflectrl.core.terminal import console
from reflectrl.core.types import AuxiliaryQuestion, Episode, Sampling, Task, Turn, UserError, named_seed
from reflectrl.learn.checkpoint import write_text
from reflectrl.learn.validation import evenly
from reflectrl.runs.artifact import Build, Source
from reflectrl.runs.demonstrations import demonstrated, finished_lines
from reflectrl.runs.folder import Context
from reflectrl.runs.players import load_pair, make_policy, make_reflector
from reflectrl.runs.progress import ProgressCallback
from reflectrl.serving.endpoints.answers import counted
from reflectrl.serving.endpoints.config import endpoint_settings, require_address, teacher_settings
from reflectrl.serving.endpoints.contestants import asked_by
from reflectrl.serving.endpoints.teacher import (
    EndpointTeacher,
    Lesson,
    Question,
    WalkingPlayer,
    explained,
    questions_of,
    walked,
    with_lesson,
)

CHUNK = 16
"""Number of episodes whose steps are asked about side by side. A kill loses no answer that was received."""

# ---- teaching --------------------------------------------------------------------------------------------------------

Planned = Sequence[Job | Demonstration | Episode]


def write_teaching(build: Build) -> None:
    """Write the teaching episodes of a split. A log that was begun is continued.

    Raises:
        UserError: the endpoint does not answer, the budget is spent, or there is nothing to learn in the episodes.
    """
    recipe, seed, split = build.recipe, build.seed, build.name
    env, path = make(recipe.env), build.out
    teacher, planned = _teacher(build.context, f"{split}-seed{seed}"), _planned(recipe, env, seed, split)
    done = finished_lines(path)
    if done < len(planned):
        _tell(teacher, env, planned[done:], teacher_settings(recipe).ask == "log")
    with EpisodeLog(path) as log:
        for start in range(done, len(planned), CHUNK):
            for episode in _taught(recipe, env, teacher, planned[start : start + CHUNK]):
                log.append(episode)
            build.progress(min(start + CHUNK, len(planned)), len(planned), _spent(teacher))
    if not _teaches(path):
        aside = f" (rejected answers are in {teacher.rejected})" if teacher.rejected.exists() else ""
        raise UserError(
            f"{path}: nothing to learn in {len(planned)} episodes of {teacher.endpoint.name}: none won"
            f" with usable reflections{aside}; try a larger model, or another value of teacher.ask"
        )


def remaining_teaching(build: Build) -> bool:
    """Return whether a log lacks teaching episodes, or has no step to learn from."""
    planned = _planned(build.recipe, make(build.recipe.env), build.seed, build.name)
    return finished_lines(build.out) < len(planned) or not _teaches(build.out)


def _teacher(context: Context, name: str) -> EndpointTeacher:
    recipe, folder = context.recipe, context.run.path
    endpoint = asked_by(require_address(endpoint_settings(recipe), "endpoint"), recipe, folder)
    return EndpointTeacher(endpoint, teacher_settings(recipe), folder / "endpoints" / f"rejected-{name}.jsonl")


def _planned(recipe: Recipe, env: TextEnv, seed: int, split: str) -> Planned:
    """Return the teaching of a split in the order of its log: walks, demonstrations to play, or recorded episodes."""
    config = teacher_settings(recipe)
    if config.ask == "log":
        if not recipe.teach.log:
            raise UserError(
                "teacher.ask is 'log', but teach.log names no file; record one with `reflectrl play ENV --record FILE`"
            )
        return demonstrated(recipe, env, seed)[split]
    if config.ask == "explain":
        if "expert" not in env.teacher.abilities():
            raise UserError(f"teacher.ask is 'explain', but {type(env).__name__} has no expert; set it to 'walks'")
        return demonstrations(_tasks(recipe, env, split), recipe.teach, seed, env)
    tasks = _tasks(recipe, env, split)
    about = {
        "player": "teacher",
        "kind": "walk",
        "model": endpoint_settings(recipe).local or endpoint_settings(recipe).model,
    }
    return [Job(task, named_seed(seed, "walk", task.id, k), about) for task in tasks for k in range(config.walks)]


def _tasks(recipe: Recipe, env: TextEnv, split: str) -> Sequence[Task]:
    most = recipe.teach.tasks if split == "train" else recipe.teach.validation_tasks
    tasks = env.tasks(split)
    return evenly(tasks, most or len(tasks))


def _taught(recipe: Recipe, env: TextEnv, teacher: EndpointTeacher, planned: Planned) -> list[Episode]:
    """Return the teaching episodes of a chunk, in order."""
    jobs = [entry for entry in planned if isinstance(entry, Job)]
    if jobs:
        with pool_of(recipe) as envs:
            walks = {(e.task.id, e.seed): walked(e) for e in rollout(jobs, envs, WalkingPlayer(teacher), batch=CHUNK)}
        return [walks[job.task.id, job.seed] for job in jobs]
    return explained(_played(recipe, env, planned), teacher, teacher.config.ask == "log")


def _played(recipe: Recipe, env: TextEnv, planned: Planned) -> list[Episode]:
    unsafe = recipe.teach.unsafe_noise
    return [teach(env, entry, unsafe) if isinstance(entry, Demonstration) else entry for entry in planned
            if not isinstance(entry, Job)]  # fmt: skip


def _teaches(path: Path) -> bool:
    """Return whether a log has a step to learn from."""
    return path.exists() and any(step.label for episode in read_episodes(path) for step in episode.steps)


def _tell(teacher: EndpointTeacher, env: TextEnv, planned: Planned, missing: bool) -> None:
    """Print an estimate of a job's cost before it begins, from the first episode's questions."""
    first = planned[0]
    if isinstance(first, Job):
        env.reset(seed=0, options={"task": first.task})
        cost = teacher.endpoint.estimate(teacher.asks([Question(env.observe(), None, None, (first.task.id, 0), -1)]))
        factor, about = len(planned) * env.horizon, "at most"
    else:
        episode = first if isinstance(first, Episode) else teach(env, first)
        asks = teacher.asks(list(questions_of(episode, missing).values()))
        cost, factor, about = teacher.endpoint.estimate(asks), len(planned), "about"
    tokens, money = factor * (cost.tokens_in + cost.tokens_out), factor * cost.money
    price = f", cost {money:.2f}" if money else ""
    where = teacher.endpoint.where
    console(120).print(
        f"{len(planned)} episodes from {where}: {about} {factor * cost.requests} requests and {tokens} tokens{price}",
        soft_wrap=True,
    )


def _spent(teacher: EndpointTeacher) -> str:
    spent = teacher.endpoint.journal.spent
    cost = f", cost {spent.money:.2f}" if spent.money else ""
    dropped = f", {teacher.dropped} answers kept aside" if teacher.dropped else ""
    endings = f", {counts}" if (counts := counted(teacher.endpoint.endings)) else ""
    return f"{spent.requests} requests, {spent.tokens_in + spent.tokens_out} tokens{cost}{dropped}{endings}"


# ---- DAgger ----------------------------------------------------------------------------------------------------------


class Label(NamedTuple):
    """Advice of the environment's teacher about a state: what a demonstration of this state would hold."""

    action: int
    analysis: str | None
    preferences: tuple[float, ...]
    questions: tuple[AuxiliaryQuestion, ...]


Advice = dict[tuple[str, int, int], Label]
"""Advice of the environment's teacher, by task, seed and step."""


class Advised:
    """Wrap a player. In every state that it meets, the environment's teacher is asked for its advice."""

    def __init__(self, player: Player, analyse: bool) -> None:
        self.player, self.analyse, self.advice = player, analyse, Advice()

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        """Record the teacher's advice, then return the player's own turns."""
        for e in episodes:
            count = len(e.observation.actions)
            analysis = ask(e.env, e.task, "analyse", count) if self.analyse else None
            action = ask(e.env, e.task, "expert_action", count)
            preferences, questions = ask_preferences(e.env, e.task, count), ask_questions(e.env, e.task)
            self.advice[e.task.id, e.seed, len(e.steps)] = Label(action, analysis, preferences, questions)
        return self.player.turns(episodes)


def write_walks(build: Build, name: str, earlier: Path, policy: Source, reflector: Source) -> None:
    """Write the log of a DAgger round: the earlier episodes, then all of the student's with the teacher's labels.

    Args:
        name: name of the log.
        earlier: the earlier episodes.
        policy: the student's policy.
        reflector: the student's reflector.

    Raises:
        UserError: there is no teacher who can label the states.
    """
    recipe, seed = build.recipe, build.seed
    env, config = make(recipe.env), teacher_settings(recipe)
    able, endpoint = env.teacher.abilities(), recipe.teach.by == "endpoint"
    knows = "expert" in able and (not endpoint or config.ask != "walks")
    if not endpoint and not {"expert", "analyst"} <= set(able):
        raise UserError(
            f"arm 'dagger' needs a teacher: {type(env).__name__} lacks an expert or an analyst; set teach.by = endpoint"
        )
    policy_lm, reflector_lm = load_pair(recipe, seed, policy, reflector)
    assert policy_lm is not None and reflector_lm is not None
    acting: Player = make_policy(recipe, policy_lm, Sampling(1.0))
    student = Advised(acting, analyse=not endpoint) if knows else acting
    jobs = [Job(task, named_seed(seed, name, task.id, k), {"player": "student", "kind": "dagger"})
            for task in _tasks(recipe, env, "train") for k in range(config.dagger_episodes)]  # fmt: skip
    with pool_of(recipe) as envs:
        speaking, batch = make_reflector(recipe, reflector_lm), recipe.eval.batch
        played = {(e.task.id, e.seed): e for e in rollout(jobs, envs, student, speaking, batch)}
    episodes = [played[job.task.id, job.seed] for job in jobs]
    states = [(k, i) for k, episode in enumerate(episodes) for i in range(len(episode.steps))]
    states = evenly(states, config.dagger_states or len(states))
    advice = student.advice if isinstance(student, Advised) else Advice()
    teacher = _teacher(build.context, f"{name}-seed{seed}") if endpoint else None
    lessons = _lessons(teacher, episodes, states, advice, build.progress)
    labelled = _with_lessons(episodes, lessons, advice)
    write_text(build.out, to_lines(chain(read_episodes(earlier), labelled)))


def _lessons(
    teacher: EndpointTeacher | None, episodes: Sequence[Episode], states: Sequence[tuple[int, int]], advice: Advice,
    progress: ProgressCallback,
) -> dict[tuple[int, int], Lesson]:  # fmt: skip
    """Return the teacher's lesson for each of the states."""
    labels = {(k, i): advice.get((episodes[k].task.id, episodes[k].seed, i)) for k, i in states}
    if teacher is None:
        return {state: Lesson(label.analysis, label.action) for state, label in labels.items() if label is not None}
    lessons, waiting = dict[tuple[int, int], Lesson](), iter(states)
    while part := list(islice(waiting, 64)):
        questions = []
        for k, i in part:
            seen, label = episodes[k].steps[i].observation, labels[k, i]
            questions.append(
                Question(seen, seen.actions[label.action] if label else None, None, (episodes[k].task.id, i))
            )
        lessons |= dict(zip(part, teacher.lessons(questions), strict=True))
        progress(len(lessons), len(states), _spent(teacher))
    return lessons


def _with_lessons(
    episodes: Sequence[Episode], lessons: dict[tuple[int, int], Lesson], advice: Advice
) -> Iterator[Episode]:
    for k, episode in enumerate(episodes):
        steps = []
        for i, step in enumerate(episode.steps):
            labelled = with_lesson(step, lessons.get((k, i), Lesson(None, None)))
            label = advice.get((episode.task.id, episode.seed, i))
            if label is not None and labelled.target == label.action:
                labelled = replace(labelled, preferences=label.preferences, questions=label.questions)
            steps.append(labelled)
        yield replace(episode, steps=tuple(steps))
