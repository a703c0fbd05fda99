"""An endpoint as teacher: reflections on steps whose best action is known, and whole walks.

Answers are validated. If an answer is malformed, or gives away that the best action was known, it is asked for again,
with a remark on what was wrong. After the last attempt it is written to a file of rejected answers, and the step is not
learned from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from reflectrl.core.players.base import LiveEpisode
from reflectrl.core.prompts.messages import continued, conversation, follow_up
from reflectrl.core.types import Choice, Episode, Observation, Reflection, Step, Turn, named_seed
from reflectrl.serving.endpoints.answers import Answer, without_thinking
from reflectrl.serving.endpoints.client import Ask, Endpoint, Message
from reflectrl.serving.endpoints.config import TeacherConfig
from reflectrl.serving.endpoints.contestants import ILLEGAL
from reflectrl.serving.endpoints.local import LocalModel
from reflectrl.serving.endpoints.parsing import problem_of, read_action, read_reflection, whole_sentences

NAME = "teacher"
"""Player's name in an endpoint's turns in teaching episodes."""


class Question(NamedTuple):
    """A state to be reflected on.

    Attributes:
        best: the best action; None if it is not known, so the teacher chooses an action.
        wrong: the action before, if that was a mistake.
        where: task and step, to find a rejected answer again.
    """

    observation: Observation
    best: str | None
    wrong: str | None
    where: tuple[str, int]
    sample: int = 0


@dataclass(frozen=True)
class Lesson:
    """A teacher's lesson about a state: a reflection, and the index of an action. An unusable part is None."""

    reflection: str | None
    action: int | None


class EndpointTeacher:
    """Reflect on states, and choose actions in them.

    Args:
        rejected: file for answers that were not usable after all attempts.

    Attributes:
        dropped: number of such answers in this process.
    """

    def __init__(self, endpoint: Endpoint | LocalModel, config: TeacherConfig, rejected: Path) -> None:
        self.endpoint, self.config, self.rejected, self.dropped = endpoint, config, rejected, 0

    def lessons(self, questions: Sequence[Question]) -> list[Lesson]:
        """Return one lesson per question, all asked for side by side."""
        talks = [self._begun(question) for question in questions]
        lessons = [Lesson(None, None)] * len(questions)
        open_, last = list(range(len(questions))), dict[int, tuple[str, Answer]]()
        refused = list[int]()
        for _ in range(self.config.attempts):
            answers = self.endpoint.complete_all([self._ask(talks[i], questions[i]) for i in open_])
            for i, answer in zip(open_, answers, strict=True):
                lessons[i], problem = self._read(answer, questions[i])
                last[i] = problem, answer
                talks[i] = continued(talks[i], without_thinking(answer), follow_up("again", problem))
            # A refused question would be refused again, since it only becomes longer.
            refused += [i for i in open_ if last[i][1].ending == "refused"]
            open_ = [i for i in open_ if last[i][0] and i not in refused]
        self._set_aside([(questions[i], *last[i]) for i in (*open_, *refused)])
        return lessons

    def asks(self, questions: Sequence[Question]) -> list[Ask]:
        """Return the first questions to the model, for an estimate of the cost."""
        return [self._ask(self._begun(question), question) for question in questions]

    def _begun(self, question: Question) -> list[Message]:
        silent, seen, most = self.config.leak == "action", question.observation, self.config.history
        if question.best is None:
            return conversation("teacher", "walk", seen, most)
        if question.wrong is None:
            return conversation("teacher", "explain", seen, most, question.best, silent)
        return conversation("teacher", "correct", seen, most, question.best, silent, question.wrong)

    def _ask(self, talk: Sequence[Message], question: Question) -> Ask:
        return Ask(list(talk), self.config.max_tokens, self.config.temperature, question.sample)

    def _read(self, answer: Answer, question: Question) -> tuple[Lesson, str]:
        """Return the lesson of an answer, and what is wrong with it ("" if nothing is)."""
        reflection, actions, is_cut = read_reflection(answer), question.observation.actions, answer.ending == "cut"
        if is_cut:
            reflection = whole_sentences(reflection)
        problem = problem_of(reflection, self.config.longest, self.config.leak, question.best or "") or ""
        action = actions.index(question.best) if question.best is not None else read_action(answer, actions, is_cut)
        if action is None:
            problem = f"it names none of the legal actions: {'; '.join(actions)}"
        if answer.ending == "refused":
            problem = "the server refused the question"
        return Lesson(None if problem else reflection, action), problem

    def _set_aside(self, rejected: Sequence[tuple[Question, str, str]]) -> None:
        """Append unusable answers, unless they are there already (from before a kill)."""
        if not rejected:
            return
        self.dropped += len(rejected)
        self.rejected.parent.mkdir(parents=True, exist_ok=True)
        earlier_lines = set(self.rejected.read_text(encoding="utf-8").splitlines()) if self.rejected.exists() else set()
        with self.rejected.open("a", encoding="utf-8") as file:
            for question, problem, answer in rejected:
                row = {"task": question.where[0], "step": question.where[1], "problem": problem.partition(":")[0],
                       "answer": answer[:2000]}  # fmt: skip
                if (line := json.dumps(row)) not in earlier_lines:
                    file.write(line + "\n")


class WalkingPlayer:
    """Play the teacher's actions. Each turn is a lesson, and its reflection becomes part of the episode."""

    def __init__(self, teacher: EndpointTeacher) -> None:
        self.teacher = teacher

    def turns(self, episodes: Sequence[LiveEpisode]) -> list[Turn]:
        """Return the teacher's actions. If it named none, return a random action in a turn of the player "illegal"."""
        questions = [
            Question(e.observation, None, None, (e.task.id, len(e.steps)), named_seed("walk", e.seed, len(e.steps)))
            for e in episodes
        ]
        turns = list[Turn]()
        for episode, lesson in zip(episodes, self.teacher.lessons(questions), strict=True):
            actions, action = episode.observation.actions, lesson.action
            if lesson.reflection is not None:
                episode.turns.append(Reflection(NAME, lesson.reflection))
            player = NAME if action is not None else ILLEGAL
            action = int(episode.rng.integers(len(actions))) if action is None else action
            turns.append(Choice(player, actions[action], choice=action))
        return turns


def walked(episode: Episode) -> Episode:
    """Turn a teacher's walk into a teaching episode. If it won, steps that it chose and reflected on become targets."""

    def taught(step: Step) -> Step:
        chose = step.choice is not None and step.choice.player == NAME
        usable = episode.success and chose and step.reflection is not None
        return replace(step, target=step.action, label="positive") if usable else step

    return replace(episode, steps=tuple(map(taught, episode.steps)))


def questions_of(episode: Episode, missing: bool) -> dict[int, Question]:
    """Return the labelled steps of an episode, by index, as questions for reflections.

    Args:
        missing: take only steps without a reflection.
    """
    questions = {}
    for i, step in enumerate(episode.steps):
        if step.label is None or step.target is None or (missing and step.reflection is not None):
            continue
        before = episode.steps[i - 1] if i else None
        wrong = before.observation.actions[before.action] if before and step.label == "negative" else None
        best = step.observation.actions[step.target]
        questions[i] = Question(step.observation, best, wrong, (episode.task.id, i))
    return questions


def explained(
    episodes: Sequence[Episode], teacher: EndpointTeacher, missing: bool,
    choose: Callable[[Episode, bool], dict[int, Question]] = questions_of,
) -> list[Episode]:  # fmt: skip
    """Return the episodes with the endpoint's reflections. A step without a usable one is not learned from."""
    indexed_questions = [(k, i, question) for k, e in enumerate(episodes) for i, question in choose(e, missing).items()]
    lessons = teacher.lessons([question for _, _, question in indexed_questions])
    steps = [list(episode.steps) for episode in episodes]
    for (k, i, _), lesson in zip(indexed_questions, lessons, strict=True):
        steps[k][i] = with_lesson(steps[k][i], lesson)
    return [replace(e, steps=tuple(new)) for e, new in zip(episodes, steps, strict=True)]


def with_lesson(step: Step, lesson: Lesson) -> Step:
    """Return the step with the lesson's reflection and target. If the lesson is not usable, the label is removed."""
    acting = tuple(turn for turn in step.turns if isinstance(turn, Choice))
    if lesson.reflection is None or lesson.action is None:
        return replace(step, turns=acting, label=None)
    changed: dict[str, Any] = {"turns": (Reflection(NAME, lesson.reflection), *acting), "target": lesson.action}
    return replace(step, **changed, label=step.label or "positive")
