"""Making one part of a run: teaching episodes, a base model, an SFT player, an RL policy, an arm's evaluation.

A part is a unit of work that one process does from files to files, so parts can be done side by side and a killed run
loses at most the part's last moments.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from reflectrl.config import Recipe, load_recipe
from reflectrl.envs import make
from reflectrl.envs.base import TextEnv
from reflectrl.episodes import (
    EpisodeLog,
    check_disjoint,
    drop_half_line,
    read_episodes,
    sft,
    sft_policy,
    sft_reflection,
)
from reflectrl.learn.checkpoint import write_folder
from reflectrl.learn.online import train_online
from reflectrl.learn.sft import Example, choice_examples, reflection_examples, train_sft
from reflectrl.models.labels import candidates
from reflectrl.models.load import LanguageModel, load_model, second_player
from reflectrl.models.scratch import save_scratch
from reflectrl.pipeline.arms import ARMS, Arm, chosen
from reflectrl.pipeline.layout import RunFolder
from reflectrl.players import ExpertPlayer, Player, Policy, RandomPlayer, Reflector
from reflectrl.prompts import policy_prompt
from reflectrl.rollout import Job, rollout
from reflectrl.teach import lessons, teach
from reflectrl.types import Episode, Sampling, Task, UserError, named_seed

Tick = Callable[[int, int, str], None]
"""Called with (done, total, what is known) as a part goes on."""

TOKENIZER_ROWS = 4000
"""Teaching steps from which a scratch tokenizer is learned; more would not change its merges."""


def teach_part(recipe: Recipe, run: RunFolder, seed: int, split: str, tick: Tick) -> None:
    """Write the teaching episodes of a split; a log that was begun is continued."""
    env = make(recipe.env)
    path = run.teach(seed, split)
    tasks = [task for task in env.tasks(split)]
    if split == "train" and recipe.teach.tasks:
        tasks = tasks[: recipe.teach.tasks]
    planned = lessons(tasks, recipe.teach, seed)
    check_disjoint((Episode(lesson.task, (), False, False, 0) for lesson in planned), _held_out(env, split))
    path.parent.mkdir(parents=True, exist_ok=True)
    done = sum(1 for _ in _finished_lines(path))
    with EpisodeLog(path) as log:
        for i, lesson in islice(enumerate(planned), done, None):
            log.append(teach(env, lesson, recipe.teach.unsafe_noise))
            tick(i + 1, len(planned), f"{len(planned)} episodes")


def _held_out(env: TextEnv, split: str) -> list[Task]:
    """Tasks that must not be taught: those of the test split, and for training those of validation too."""
    splits = ("validation", "test") if split == "train" else ("test",)
    return [task for held in splits for task in env.tasks(held)]


def _finished_lines(path: Path) -> Iterator[str]:
    drop_half_line(path)
    if path.exists():
        with path.open(encoding="utf-8") as file:
            yield from file


def base_part(recipe: Recipe, run: RunFolder, seed: int) -> str:
    """The model that players start from: the recipe's, or one made here from the training episodes' text."""
    if recipe.model.source != "scratch":
        return recipe.model.source
    folder = run.checkpoint(seed, "base")
    if not folder.is_dir():
        texts, choices = _corpus(run.teach(seed, "train"))
        write_folder(folder, lambda fresh: save_scratch(fresh, recipe.model, texts, choices, named_seed(seed, "init")))
    return str(folder)


def _corpus(path: Path) -> tuple[list[str], int]:
    """Texts that the players will read and write, and the largest number of actions among them."""
    labels, texts, choices = list(islice(candidates(), 199)), [], 1
    steps = (step for episode in read_episodes(path) for step in episode.steps)
    for step in islice(steps, TOKENIZER_ROWS):
        prompt = policy_prompt(step.observation, step.reflection, labels)
        choices = max(choices, len(step.observation.actions))
        texts.append(f"{prompt.history}{prompt.rest} {labels[step.action % len(labels)]}")
    return texts, choices


def sft_part(recipe: Recipe, run: RunFolder, seed: int, part: str, tick: Tick) -> None:
    """Fine-tune one player: "reflector", "policy", "plain" (a policy without reflections), or "...-positive"."""
    if run.trained(seed, part):
        return
    kind = part.removesuffix("-positive")
    lm = load_model(base_part(recipe, run, seed), recipe.model, "reflector" if kind == "reflector" else "policy")
    negatives = recipe.sft.negatives and not part.endswith("-positive")
    train, validation = (
        _sft_examples(recipe, lm, kind, run.teach(seed, split), negatives, seed) for split in ("train", "validation")
    )
    budget = recipe.sft_budget(kind)
    name = {"reflector": "sft_reflection", "policy": "sft_policy", "plain": "sft"}[kind]
    learner = run.learner(seed, part)
    with MetricsFile(run.part_metrics(seed, part), learner, {"part": name, "seed": seed, "arm": None, "of": part}) as log:

        def note(metrics: dict[str, Any]) -> None:
            log.write(metrics)
            tick(metrics["step"], budget.steps, f"evaluation loss {metrics['eval_loss']:.4f}")

        train_sft(lm, train, validation, budget, named_seed(seed, part), note, learner)
    write_folder(run.checkpoint(seed, part), partial(lm.save, part=part, seed=seed))
    shutil.rmtree(learner, ignore_errors=True)


def _sft_examples(
    recipe: Recipe, lm: LanguageModel, kind: str, path: Path, negatives: bool, seed: int
) -> Sequence[Example]:
    if kind == "reflector":
        return reflection_examples(lm, sft_reflection(read_episodes(path), negatives))
    view = sft if kind == "plain" else sft_policy
    policy = Policy(lm, shuffle_labels=recipe.play.shuffle_labels)
    return choice_examples(policy, view(read_episodes(path), negatives), seed)


def rl_part(recipe: Recipe, run: RunFolder, seed: int, name: str, tick: Tick) -> None:
    """Online RL of one arm's policy."""
    part = f"rl-{name}"
    if run.trained(seed, part):
        return
    arm = ARMS[name]
    policy_lm, reflector_lm = _load_pair(recipe, run, seed, arm, None)
    policy = Policy(policy_lm, shuffle_labels=recipe.play.shuffle_labels, memory=recipe.play.memory)
    reflector = _reflector(recipe, reflector_lm) if reflector_lm is not None else None
    learner = run.learner(seed, part)
    with MetricsFile(run.part_metrics(seed, part), learner, {"part": "rl", "seed": seed, "arm": name}) as log:

        def note(metrics: dict[str, Any]) -> None:
            log.write(metrics)
            judged = metrics.get("eval_success")
            tick(metrics["step"], recipe.rl.updates, "" if judged is None else f"validation {judged:.0%}")

        train_online(policy, reflector, lambda: make(recipe.env), recipe.rl, named_seed(seed, part), note, learner)
    write_folder(run.checkpoint(seed, part), partial(policy.lm.save, part=part, seed=seed))
    shutil.rmtree(learner, ignore_errors=True)


def eval_part(recipe: Recipe, run: RunFolder, seed: int, name: str, tick: Tick) -> list[dict[str, Any]]:
    """Play one arm on every split, stage and sampling; begun logs are continued. Returns how long each took."""
    env = make(recipe.env)
    timings = []
    plan = [
        (split, stage, sampling)
        for split in recipe.eval.splits
        for stage in recipe.eval.stages or (env.stages[-1],)
        for sampling in recipe.eval.sampling
    ]
    player, reflector = None, None
    for done, (split, stage, sampling) in enumerate(plan):
        path = run.evaluation(name, seed, split, stage, sampling)
        about = {"arm": name, "seed": seed, "split": split, "sampling": sampling}
        jobs = [Job(t, named_seed(seed, "eval", t.id, sampling), about) for t in eval_tasks(recipe, env, split, stage)]
        drop_half_line(path)
        finished = {episode.task.id for episode in read_episodes(path)} if path.exists() else set()
        missing = [job for job in jobs if job.task.id not in finished]
        if missing:
            if player is None:
                player, reflector = _players(recipe, run, seed, ARMS[name])
            if isinstance(player, Policy):
                player.sampling = Sampling(0.0 if sampling == "greedy" else 1.0)
                player.forget()
            start = time.perf_counter()
            path.parent.mkdir(parents=True, exist_ok=True)
            with EpisodeLog(path) as log:
                for episode in rollout(missing, lambda: make(recipe.env), player, reflector, recipe.eval.batch):
                    log.append(episode)
            seconds = (time.perf_counter() - start) / len(missing)
            timings.append({**about, "stage": stage, "seconds": seconds})
        tick(done + 1, len(plan), f"{split} {stage} {sampling}")
    return timings


def eval_tasks(recipe: Recipe, env: TextEnv, split: str, stage: str) -> list[Task]:
    """The tasks on which a split is judged."""
    tasks = list(env.tasks(split, stage))
    return tasks[: recipe.eval.episodes] if recipe.eval.episodes else tasks


def load_players(folder: Path, arm: str, seed: int) -> tuple[Player, Player | None]:
    """The acting player (greedy) and the reflector of an arm in a run folder.

    Raises:
        UserError: no such run or arm, or the arm is not trained yet.
    """
    if not (folder / "recipe.toml").is_file():
        raise UserError(f"{folder} is no run folder (it has no recipe.toml)")
    recipe = load_recipe(folder / "recipe.toml")
    chosen([arm])
    run = RunFolder(folder)
    trained_seed = seed if seed in recipe.seeds else recipe.seeds[0]
    return _players(recipe, run, trained_seed, ARMS[arm], arm)


def _players(
    recipe: Recipe, run: RunFolder, seed: int, arm: Arm, name: str | None = None
) -> tuple[Player, Player | None]:
    if arm.player == "random":
        return RandomPlayer(), None
    if arm.player == "expert":
        return ExpertPlayer(), None
    name = name or next(key for key, value in ARMS.items() if value is arm)
    policy_lm, reflector_lm = _load_pair(recipe, run, seed, arm, f"rl-{name}" if arm.rl else arm.policy_part)
    policy = Policy(policy_lm, Sampling(0.0), recipe.play.shuffle_labels, recipe.play.memory)
    return policy, _reflector(recipe, reflector_lm) if reflector_lm is not None else None


def _reflector(recipe: Recipe, lm: LanguageModel) -> Reflector:
    sampling = Sampling(recipe.play.reflection_temperature)
    return Reflector(lm, recipe.play.reflection_tokens, sampling, recipe.play.memory)


def _load_pair(
    recipe: Recipe, run: RunFolder, seed: int, arm: Arm, policy_part: str | None
) -> tuple[LanguageModel, LanguageModel | None]:
    """The policy (after `policy_part`, or as RL starts when None) and the reflector: two models, or two adapters."""
    start = policy_part or arm.policy_part
    policy_source = run.checkpoint(seed, start) if start else Path(base_part(recipe, run, seed))
    for part in filter(None, (start, arm.reflector_part)):
        if not run.trained(seed, part):
            raise UserError(f"{run.checkpoint(seed, part)} is not trained yet; run the recipe first")
    policy_lm = load_model(policy_source, recipe.model, "policy")
    if arm.reflector_part is None:
        return policy_lm, None
    folder = run.checkpoint(seed, arm.reflector_part)
    if policy_lm.adapter is not None:
        return policy_lm, second_player(policy_lm, "reflector", folder)
    return policy_lm, load_model(folder, recipe.model, "reflector")


class MetricsFile:
    """The metrics of one part, a JSON line each. What was logged after the learner's saved state is written anew."""

    def __init__(self, path: Path, learner: Path, shared: dict[str, Any]) -> None:
        self.path, self.shared = path, shared
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = self._before(_saved_step(learner))
        self._file = path.open("w", encoding="utf-8")
        self._file.writelines(kept)
        self._file.flush()

    def _before(self, step: int) -> list[str]:
        lines = list(_finished_lines(self.path))
        return [line for line in lines if json.loads(line)["step"] < step]

    def write(self, metrics: dict[str, Any]) -> None:
        self._file.write(json.dumps({**self.shared, **metrics}) + "\n")
        self._file.flush()

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _saved_step(learner: Path) -> int:
    """The step from which a saved learner goes on: SFT has finished it, RL is about to do it."""
    state = learner / "state.json"
    if not state.is_file():
        return 0
    meta = json.loads(state.read_text(encoding="utf-8"))
    return int(meta["step"]) + 1 if "step" in meta else int(meta["update"])
