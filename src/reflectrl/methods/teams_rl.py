"""TeaMs-RL for demonstrations: a teacher policy chooses the next demonstrations, rewarded by the student's gain.

A lesson is a kind of demonstration: short, middle or long training tasks, shown without errors, with random actions, or
with a single mistake. In each round the teacher draws a lesson, the environment's expert gives it, and the student
takes some steps of imitation on what it has seen so far. The teacher's reward is the fall of the student's loss on
validation demonstrations. It learns by REINFORCE with a running mean as the baseline.

Source: Gu et al. 2024, "TeaMs-RL: Teaching LLMs to Generate Better Instruction Datasets via Reinforcement Learning"
(arXiv 2403.08694), whose teacher chooses operations that rewrite instructions, and is rewarded for the diversity of
the results. Departures: lessons in an environment instead of rewritten instructions; the student's gain instead of
diversity; a table of preferences instead of a network, since a round has no state but its number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from reflectrl.core.config.rules import Count, Positive
from reflectrl.core.types import Episode, Task, UserError, named_seed
from reflectrl.runs.arms import Arm, base, teaching
from reflectrl.runs.artifact import CHECKPOINT, PLAYED, Artifact, Build, Plan, Source, artifact

if TYPE_CHECKING:  # these bring torch or numpy, which a dry run does without
    import numpy as np

    from reflectrl.core.config import Recipe
    from reflectrl.core.envs.base import TextEnv
    from reflectrl.core.teach import Demonstration
    from reflectrl.learn.trainer import Log
    from reflectrl.models.players import Policy


@dataclass(frozen=True)
class TeamsConfig:
    """The teacher of the arms "teams" and "teams-uniform" ([learner.md](learner.md)). Settings of the student's
    optimiser are in [sft].
    """

    rounds: Count = 24
    """Number of lessons."""
    demonstrations: Count = 8
    """Number of demonstrations per lesson."""
    steps: Count = 20
    """Optimiser steps of the student after each lesson."""
    lr: Positive = 2.0
    """Learning rate of the teacher's preferences, per unit of gain in standard deviations."""


SECTIONS = {"teams": TeamsConfig}
LENGTHS = ("short", "middle", "long")
"""Thirds of the training tasks, by the number of the expert's steps."""
WAYS = ("steady", "noisy", "mistaken")
"""Ways of showing a task: the expert's actions, with random ones among them, or a single mistake and its repair."""


class Lesson(NamedTuple):
    """Kind of demonstration."""

    length: str
    way: str


LESSONS = tuple(Lesson(*kind) for kind in product(LENGTHS, WAYS))


def settings_of(recipe: Recipe) -> TeamsConfig:
    """Return the section [teams] of a recipe."""
    section = recipe.sections["teams"]
    assert isinstance(section, TeamsConfig)
    return section


# ---- the teacher -----------------------------------------------------------------------------------------------------


class Teacher:
    """Policy over lessons: a softmax of preferences, which learns by REINFORCE.

    Args:
        lr: learning rate. With 0, the choice stays uniform.

    Attributes:
        preferences: logit of each lesson.
        gains: the student's gains so far, in nats.
    """

    def __init__(self, lr: float) -> None:
        import numpy as np

        self.lr, self.preferences, self.gains = lr, np.zeros(len(LESSONS)), list[float]()

    def probabilities(self) -> np.ndarray:
        """Return the probability of each lesson."""
        import numpy as np

        weights = np.exp(self.preferences - self.preferences.max())
        return np.asarray(weights / weights.sum())

    def learn(self, lesson: int, gain: float) -> None:
        """Make a lesson more probable if the student gained more than on average so far, and less otherwise."""
        import numpy as np

        if self.gains:
            # In standard deviations, because gains fall by orders of magnitude while the student learns.
            spread = float(np.std([*self.gains, gain])) or 1.0
            advantage = (gain - float(np.mean(self.gains))) / spread
            gradient = (np.arange(len(LESSONS)) == lesson) - self.probabilities()
            self.preferences += self.lr / len(LESSONS) * advantage * gradient
        self.gains.append(gain)


# ---- lessons ---------------------------------------------------------------------------------------------------------


def by_length(env: TextEnv, tasks: Sequence[Task], seed: int) -> dict[str, list[Task]]:
    """Divide tasks into thirds by the number of the expert's steps.

    Raises:
        UserError: there are fewer than three tasks, or the environment has no expert.
    """
    import numpy as np

    from reflectrl.core.teach import expert_length

    if len(tasks) < len(LENGTHS):
        raise UserError(f"teams: {len(tasks)} training tasks are too few; {len(LENGTHS)} are needed")
    steps = {task.id: expert_length(env, task, named_seed(seed, "length", task.id)) for task in tasks}
    ordered = sorted(tasks, key=lambda task: (steps[task.id], task.id))
    thirds = dict[str, list[Task]]()
    for name, indices in zip(LENGTHS, np.array_split(np.arange(len(ordered)), len(LENGTHS)), strict=True):
        thirds[name] = [ordered[i] for i in indices]
    return thirds


def planned(lesson: Lesson, tasks: Sequence[Task], noise: float, count: int, seed: int) -> list[Demonstration]:
    """Plan the demonstrations of a lesson, of tasks that are drawn with replacement."""
    import numpy as np

    from reflectrl.core.teach import Demonstration

    kind: Literal["trajectory", "negative"] = "negative" if lesson.way == "mistaken" else "trajectory"
    share = noise if lesson.way == "noisy" else 0.0
    drawn = np.random.default_rng(seed).integers(len(tasks), size=count)
    return [Demonstration(tasks[i], named_seed(seed, "shown", n), kind, share) for n, i in enumerate(drawn)]


# ---- the loop --------------------------------------------------------------------------------------------------------


def train_teams(
    policy: Policy,
    lesson: Callable[[int, int], list[Episode]],
    validation: Sequence[Episode],
    recipe: Recipe,
    seed: int,
    teaches: bool,
    log: Log,
    state_folder: Path | None = None,
) -> None:
    """Train the policy in place. It ends with the weights of the lowest validation loss.

    Args:
        lesson: function of a lesson's index and the round's, which returns demonstrations.
        validation: demonstrations on which gains are measured.
        teaches: True if the teacher learns; False keeps its choice uniform.
        log: receives a line for each round.
        state_folder: folder of the state after each round, so that a killed training can resume.
    """
    import numpy as np
    import torch

    from reflectrl.core.episodes import sft as sft_plain
    from reflectrl.learn.examples import choice_examples, evaluate_loss, micro_batches, summed_nll
    from reflectrl.learn.optim import make_optimizers
    from reflectrl.learn.trainer import SCHEDULES, Trainer
    from reflectrl.models.sharing import no_sharing

    config, settings = recipe.sft, settings_of(recipe)

    def examples(episodes: Sequence[Episode]) -> list[Any]:
        return list(choice_examples(policy, sft_plain(episodes), seed, config.auxiliary_coef))

    held_out = examples(validation)[: config.eval_rows or None]
    teacher, rows = Teacher(settings.lr if teaches else 0.0), list[Any]()
    trainer = Trainer(policy.lm, make_optimizers(policy.lm, config), config.max_grad_norm, state_folder)
    loss = evaluate_loss(policy.lm, held_out, config.batch_size, no_sharing)
    done: list[tuple[int, float]] = trainer.resumed["lessons"] if trainer.resumed else []
    for round_index, (lesson_index, gain) in enumerate(done):  # replay the lessons of an interrupted run
        rows += examples(lesson(lesson_index, round_index))
        teacher.learn(lesson_index, gain)
    if trainer.step == 0:
        trainer.keep_if_best([-loss])  # no lesson may help
    while not trainer.has_ended(settings.rounds):
        rng = np.random.default_rng(named_seed(seed, "round", trainer.step))
        lesson_index = int(rng.choice(len(LESSONS), p=teacher.probabilities()))
        rows += examples(lesson(lesson_index, trainer.step))
        trainer.set_rate(SCHEDULES[config.schedule](trainer.step, settings.rounds, config.warmup))
        mean_nll = 0.0
        for step in range(settings.steps if rows else 0):
            torch.manual_seed(named_seed(seed, "dropout", trainer.step, step))
            batch = [rows[i] for i in rng.integers(len(rows), size=config.batch_size)]
            tokens = sum(len(row.ids) - row.start for row in batch)
            with policy.lm.training():
                for part in micro_batches(batch, policy.lm, config):
                    nll = summed_nll(policy.lm, batch[part], no_sharing) / tokens
                    nll.backward()
                    mean_nll += float(nll.detach()) / settings.steps
            trainer.update({"loss": mean_nll})
        before, loss = loss, evaluate_loss(policy.lm, held_out, config.batch_size, no_sharing)
        gain = before - loss
        teacher.learn(lesson_index, gain)
        done = [*done, (lesson_index, gain)]
        trainer.step += 1
        trainer.keep_if_best([-loss])
        chances = {
            f"lesson/{'-'.join(kind)}": float(p) for kind, p in zip(LESSONS, teacher.probabilities(), strict=True)
        }
        log({"step": trainer.step, "loss": mean_nll, "eval_loss": loss, "gain": gain, "rows": len(rows), **chances})
        trainer.save(trainer.step, lessons=done)
    trainer.finish()


# ---- the arms --------------------------------------------------------------------------------------------------------


@artifact("teams", "sft", CHECKPOINT, settings=(*PLAYED, "sft", "teach", "teams"))
def taught_by_lessons(build: Build, *, start: Source, validation: Path, teaches: bool) -> None:
    """Train a policy on the lessons of a teacher.

    Args:
        start: the initial model.
        validation: the validation episodes.
        teaches: True if the teacher learns; False keeps its choice uniform (the control).
    """
    from reflectrl.core.envs import make
    from reflectrl.core.episodes import read_episodes
    from reflectrl.core.teach import teach
    from reflectrl.learn.checkpoint import drop_state, write_folder
    from reflectrl.methods.offline import load_policy
    from reflectrl.runs.metrics import MetricsFile

    recipe, seed = build.recipe, named_seed(build.seed, "teams")
    settings, policy = settings_of(recipe), load_policy(recipe, start, build.seed)
    env = make(recipe.env)
    tasks = by_length(env, env.tasks("train"), seed)

    def lesson(number: int, turn: int) -> list[Episode]:
        kind, drawn = LESSONS[number], named_seed(seed, "lesson", turn)
        plans = planned(kind, tasks[kind.length], max(recipe.teach.noise), settings.demonstrations, drawn)
        return [teach(env, plan, recipe.teach.unsafe_noise) for plan in plans]

    shared = {"kind": "teams", "seed": build.seed, "arm": build.name, "artifact": build.name}
    with MetricsFile(build.metrics, build.learner, shared) as file:

        def note(metrics: dict[str, Any]) -> Any:
            build.progress(int(metrics["step"]), settings.rounds, f"evaluation loss {metrics['eval_loss']:.4f}")
            return file.write(metrics)

        held_out = list(read_episodes(validation))
        train_teams(policy, lesson, held_out, recipe, seed, teaches, note, build.learner)
    env.close()
    write_folder(build.out, policy.lm.saver(artifact=build.name, seed=build.seed))
    drop_state(build.learner)


def student(name: str, teaches: bool, plan: Plan) -> Artifact:
    """Plan a policy that is taught by lessons."""
    start, validation = base(plan), teaching(plan, "validation")
    return taught_by_lessons(plan, name, start=start, validation=validation, teaches=teaches)


ARMS = {
    "teams": Arm("SFT on lessons that a teacher chooses, paid by the student's gain", partial(student, "teams", True)),
    "teams-uniform": Arm("SFT on as many lessons, drawn evenly", partial(student, "teams-uniform", False)),
}
