"""Offline learning from completions with rewards: likelihood, A-LoL and relatives, preferences.

The loop serves text (samples with rewards) and agents (steps of logged episodes). It reads both as completions
(`shared/offline/completions.py`). The reference's log-probabilities and values are computed beforehand, so only one
model is in memory (`shared/offline/reference_cache.py`). The settings are in `shared/offline/config.py`, since text
tasks use them too.

Sources: Baheti et al. 2024; for "archer", Zhou et al. 2024 (`shared/offline/utterance_critic.py`), whose offline form
weights completions by exp(beta · advantage) without importance ratios, as here. Departures from the released code of
Baheti et al.: each of their algorithms works with every kind of sampling, the loss does not depend on accumulation, and
dropout is off, so ratios are 1 before the first step. Where a better checkpoint replaces the reference
(`offline.reference_update`), its value is always fitted anew; theirs is only if rows are drawn by advantage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from reflectrl.core.types import Episode, Sampling, Task, UserError, named_seed
from reflectrl.methods.shared.offline.conditions import Condition, ConditionPlayer, conditioned
from reflectrl.methods.shared.offline.config import Algorithm, LogAlgorithm, OfflineConfig, offline_settings
from reflectrl.runs.arms import Arm, base, plain, teaching
from reflectrl.runs.artifact import CHECKPOINT, PLAYED, Artifact, Build, Plan, Source, artifact

if TYPE_CHECKING:  # these bring torch, which a dry run does without
    from reflectrl.core.config import Recipe
    from reflectrl.core.envs.base import TextEnv
    from reflectrl.learn.trainer import Log, Metrics, Verdict
    from reflectrl.methods.shared.offline.completions import Dataset
    from reflectrl.methods.shared.offline.reference_cache import Outcomes, ReferenceCache
    from reflectrl.models.players import Policy
    from reflectrl.runs.metrics import MetricsFile

SECTIONS = {"offline": OfflineConfig}
SETTINGS = (*PLAYED, "sft", "offline", "rl.temperature", "rl.eval_sampling")
"""Recipe keys that offline learning depends on."""
CONDITIONS: dict[str, Condition] = {"rvs": "return", "rvs_share": "share", "rvs_outcome": "outcome"}
"""Algorithms of return-conditioned cloning, and what each conditions on."""
ARCHER = "archer"
"""A further algorithm: advantages of a critic."""
Evaluate = Callable[[], dict[str, float]]
"""Function that scores the current model. The most important score comes first; higher is better."""


# ---- the loop --------------------------------------------------------------------------------------------------------


def train_offline(
    data: Dataset,
    cache: ReferenceCache,
    config: OfflineConfig,
    seed: int,
    log: Log,
    state_folder: Path | None = None,
    evaluate: Evaluate | None = None,
    renew: Callable[[], ReferenceCache] | None = None,
) -> None:
    """Train the model that the data is bound to, in place. It ends with the weights that scored best.

    Args:
        cache: the reference's log-probabilities and values on the same data.
        log: receives one flat dictionary per evaluation, the first before any step. A truthy return value ends the
            training.
        state_folder: folder in which every evaluation saves the state, so that a killed training can resume.
        evaluate: scores the model. With None, checkpoints are compared by the loss on held-out prompts (or tasks),
            which are then excluded from training.
        renew: computes the cache anew, with the current weights as the reference (`config.reference_update`).

    Raises:
        UserError: there is nothing to learn from: no preference, or no completion of positive weight; or the reference
            shall move, and there is no `evaluate` or no `renew`.
    """
    import numpy as np

    from reflectrl.learn.optim import make_optimizers
    from reflectrl.learn.trainer import SCHEDULES, Trainer, accumulate
    from reflectrl.methods.shared.offline.algorithms import (
        DRAWN,
        PREFERENCES,
        REFERRING,
        items_of,
        losses_of,
        mean_loss,
        sampling_weights,
    )
    from reflectrl.methods.shared.offline.moving_reference import MovingReference
    from reflectrl.methods.shared.offline.reference_value import split
    from reflectrl.methods.shared.offline.sampling import batches, scaled_steps

    items = train = items_of(data, config.algorithm)
    if evaluate is None:
        rows, held_out_rows = split([data.units[item.rows[0]] for item in items], config.held_out, seed)
        train, held_out = [items[i] for i in rows], [items[i] for i in held_out_rows]
    weights_N = sampling_weights(train, cache, config)
    sampling = config.sampling if config.algorithm in DRAWN else "none"
    imitable = sum(data.imitable[item.rows[0]] for item in train) if data.imitable else 0
    steps = scaled_steps(config.steps, sampling, weights_N, imitable)
    shared = {"steps": steps, "positive_share": float((weights_N > 0).float().mean())}
    scale = config.preference_lr_scale if config.algorithm in PREFERENCES else 1.0
    optimizers = make_optimizers(
        data.completions.lm, replace(config, lr=config.lr * scale, muon_lr=config.muon_lr * scale)
    )
    moving = None
    if config.reference_update and config.algorithm in REFERRING:
        if evaluate is None or renew is None:
            raise UserError("offline: 'reference_update' needs evaluations by reward or success; set it to 0")
        moving = MovingReference(cache)
    trainer = Trainer(data.completions.lm, optimizers, config.max_grad_norm, state_folder, {"reference": moving})

    def evaluated() -> tuple[Metrics, list[float]]:
        """Return metrics, and the score by which checkpoints are compared."""
        if evaluate is not None:
            scores = evaluate()
            return scores, list(scores.values())
        eval_loss = mean_loss(data, cache, held_out, config, trainer.team)
        return {"eval_loss": eval_loss}, [-eval_loss]

    if trainer.resumed is None:
        # The first weights are a candidate: no algorithm may end below what it started from.
        metrics, score = evaluated()
        trainer.keep_if_best(score)
        if moving is not None:
            moving.become(cache, score[0], step=0)
        log({"step": 0, **metrics, **shared})
    drawn = batches(sampling, weights_N, config.batch_size, seed, skip=trainer.step)
    since = 0  # the step from which on this reference is used
    while not trainer.has_ended(steps):
        if moving is not None and int(moving.since) != since:  # an evaluation, or a resumed training, has moved it
            cache, since = moving.cache, int(moving.since)
            weights_N = sampling_weights(train, cache, config)
            shared["positive_share"] = float((weights_N > 0).float().mean())
            if sampling != "none" and not shared["positive_share"]:
                break  # no completion is better than what the new reference writes
            own_seed = named_seed(seed, "reference", since)
            drawn = batches(sampling, weights_N, config.batch_size, own_seed, skip=trainer.step - since)
        trainer.set_rate(SCHEDULES[config.schedule](trainer.step, steps, config.warmup))
        rows = next(drawn)
        terms: Metrics = {}
        own = trainer.team.part(rows)
        for part in np.array_split(own, min(config.accumulate, len(own))) if own else ():
            loss_N, part_metrics = losses_of(data, cache, [train[i] for i in part], config)
            loss = loss_N.sum() / len(rows)
            loss.backward()
            share = len(part) / len(rows)
            accumulate(terms, {"loss": loss})
            accumulate(terms, part_metrics, share)
        trainer.update(terms)
        trainer.step += 1

        if trainer.is_due(config.eval_every, steps):
            metrics, score = evaluated()
            if moving is not None and renew is not None:
                if moving.is_beaten(score[0], config.reference_update):
                    moving.become(trainer.team.first(renew), score[0], trainer.step)
                metrics = {**metrics, "reference_step": int(moving.since)}
            trainer.checkpoint({**metrics, **shared, **trainer.means()}, score, log)
    trainer.finish()


# ---- the log ---------------------------------------------------------------------------------------------------------


@artifact("log", "rl", "episodes/offline-seed{seed}.jsonl",
          settings=(*PLAYED, "offline.log_episodes", "rl.temperature"))  # fmt: skip
def mixed_log(build: Build, *, teaching: Path, plain: Path | None) -> None:
    """Write a log of mixed quality: the teacher's trajectories, with and without noise, then episodes of a policy.

    Args:
        teaching: the teaching episodes.
        plain: the policy after SFT; None if the recipe wants no episodes of it.
    """
    from reflectrl.core.envs import make
    from reflectrl.core.envs.pool import pool_of
    from reflectrl.core.episodes import read_episodes, to_lines
    from reflectrl.learn.checkpoint import write_text
    from reflectrl.learn.validation import success_rate

    recipe, count = build.recipe, offline_settings(build.recipe).log_episodes
    taught = read_episodes(teaching)
    episodes = [episode for episode in taught if episode.provenance.get("kind") != "negative"]  # those are cut short
    if plain is not None:
        policy = load_policy(recipe, plain, build.seed)
        with pool_of(recipe) as envs:
            played = play_tasks(policy, envs, make(recipe.env).tasks("train"), count, named_seed(build.seed, "log"))
        episodes += [replace(episode, provenance={"player": "policy", "policy": "plain"}) for episode in played]
    write_text(build.out, to_lines(episodes))
    build.progress(len(episodes), len(episodes), f"{success_rate(episodes):.0%} of them won")


@mixed_log.continued_while
def lacks_episodes(build: Build) -> bool:
    """Return whether episodes are missing from the log."""
    from reflectrl.core.envs import make
    from reflectrl.core.teach import Demonstration
    from reflectrl.runs.demonstrations import finished_lines, planned_demonstrations

    recipe, env = build.recipe, make(build.recipe.env)
    taught = 0
    for planned in planned_demonstrations(recipe, env, build.seed, "train"):
        kind = planned.kind if isinstance(planned, Demonstration) else planned.provenance.get("kind")
        taught += kind != "negative"
    expected = taught + offline_settings(recipe).log_episodes * len(env.tasks("train"))
    return finished_lines(build.out) < expected


def planned_log(plan: Plan) -> Artifact:
    """Plan the log: the teacher's trajectories, and episodes of the SFT policy if the recipe asks for some."""
    policy = plain(plan) if offline_settings(plan.recipe).log_episodes else None
    return mixed_log(plan, "episodes", teaching=teaching(plan, "train"), plain=policy)


def play_tasks(
    policy: Policy, make_env: Callable[[], TextEnv], tasks: Sequence[Task], times: int, seed: int
) -> list[Episode]:
    """Play each task `times` times; return the episodes in the order of the tasks."""
    from reflectrl.core.rollout import Job, rollout

    jobs = [Job(task, named_seed(seed, task.id, i)) for task in tasks for i in range(times)]
    order = {job.seed: index for index, job in enumerate(jobs)}
    policy.clear_cache()
    return sorted(rollout(jobs, make_env, policy), key=lambda episode: order[episode.seed])


# ---- the reference and its value -------------------------------------------------------------------------------------


@artifact("offline", "rl", "checkpoints/seed{seed}/offline-value/reference_cache.json", settings=SETTINGS)
def reference_value(build: Build, *, log: Path, reference: Path) -> None:
    """Fit the reference's value, and cache log-probabilities and advantages of every step of the log."""
    from reflectrl.core.envs.pool import pool_of
    from reflectrl.runs.metrics import MetricsFile

    recipe, seed = build.recipe, build.seed
    shared = {"kind": "offline_value", "seed": seed, "arm": None}
    with pool_of(recipe) as envs, MetricsFile(build.metrics, build.learner, shared) as file:
        note = partial(note_progress, file, build, offline_settings(recipe))
        _reference_cache(recipe, log, build.out, seed, load_policy(recipe, reference, seed), envs, note)


def reference(plan: Plan) -> Artifact:
    """Plan the reference: a policy that imitates the log, and from which other policies start."""
    return learned_from_log(plan, "offline-reference", log=planned_log(plan), start=base(plan), algorithm="nll")


# ---- the policies ----------------------------------------------------------------------------------------------------


@artifact("offline", "rl", CHECKPOINT, settings=SETTINGS, shared=True)
def learned_from_log(build: Build, *, log: Path, start: Source, value: Path | None = None, algorithm: str) -> None:
    """Train a policy, which reads no reflections, from the log of episodes.

    Args:
        log: the log.
        start: the initial model.
        value: the value of the initial policy in every state of the log; None if it is not needed.
        algorithm: a `LogAlgorithm`, one of `CONDITIONS` (return-conditioned cloning), or "archer" (a critic of steps).
    """
    from reflectrl.core.envs.pool import pool_of
    from reflectrl.learn.checkpoint import drop_state, write_folder
    from reflectrl.runs.metrics import MetricsFile
    from reflectrl.runs.players import is_base

    recipe, seed, name = build.recipe, build.seed, build.name
    config = _from_scratch(recipe, algorithm) if is_base(start) else _from_reference(recipe, algorithm)
    policy, learning_seed = load_policy(recipe, start, seed), named_seed(seed, name)
    with (
        pool_of(recipe) as envs,
        MetricsFile(build.metrics, build.learner, {"kind": "offline", "seed": seed, "arm": name}) as file,
    ):
        note = partial(note_progress, file, build, config)
        evaluate = partial(evaluate_on_validation, recipe, policy, algorithm, envs, seed)
        renew = None
        if algorithm == ARCHER:
            data, cache = _criticised(build, log, policy)
        elif value is not None:
            data, cache = _reference_cache(recipe, log, value, seed, policy, envs, note)
            renew = partial(_renewed, recipe, policy, envs, data, seed)
        else:
            data, cache = _without_value(recipe, log, policy, algorithm)
        train_offline(data, cache, config, learning_seed, note, build.learner, evaluate, renew)
    write_folder(build.out, policy.lm.saver(artifact=name, seed=seed))
    drop_state(build.learner)


def from_value(algorithm: str, plan: Plan) -> Artifact:
    """Plan a policy that learns from the log by an algorithm which uses the reference's value."""
    episodes, start = planned_log(plan), reference(plan)
    value = reference_value(plan, "offline-value", log=episodes, reference=start)
    name = f"offline-{algorithm}"
    return learned_from_log(plan, name, log=episodes, start=start, value=value, algorithm=algorithm)


def from_critic(plan: Plan) -> Artifact:
    """Plan a policy that learns from the log by a critic's advantages."""
    return learned_from_log(plan, "offline-archer", log=planned_log(plan), start=reference(plan), algorithm=ARCHER)


def from_returns(algorithm: str, plan: Plan) -> Artifact:
    """Plan a policy that imitates the log, conditioned on how each episode went on."""
    return learned_from_log(plan, f"offline-{algorithm}", log=planned_log(plan), start=base(plan), algorithm=algorithm)


def _from_scratch(recipe: Recipe, algorithm: str) -> OfflineConfig:
    """Return the settings of a policy that starts from the base model, with the optimiser settings of [sft].

    All arms take the same number of steps in total, counting the steps that made the reference.
    """
    config = offline_settings(recipe)
    steps = config.reference_steps + (config.steps if algorithm in CONDITIONS else 0)
    return replace(config, algorithm="nll", steps=steps, **imitation_rates(recipe))


def imitation_rates(recipe: Recipe) -> dict[str, Any]:
    """Return the optimiser settings of [sft], under their names in [offline]."""
    return {name: getattr(recipe.sft, name) for name in ("optimizer", "lr", "muon_lr", "weight_decay", "batch_size")}


def _from_reference(recipe: Recipe, algorithm: str) -> OfflineConfig:
    config = offline_settings(recipe)
    if algorithm not in get_args(LogAlgorithm):
        return config
    return replace(config, algorithm=cast(LogAlgorithm, algorithm))


def load_policy(recipe: Recipe, source: Source, seed: int) -> Policy:
    """Load a policy that reads no reflections and samples at the temperature of [rl]."""
    from reflectrl.models.load import load_model
    from reflectrl.runs.players import instructed, make_policy, model_source

    lm = load_model(model_source(recipe, source, "policy"), recipe.model, "policy", named_seed(seed, "policy"))
    return make_policy(recipe, instructed(recipe, lm, "policy"), Sampling(recipe.rl.temperature))


# ---- the log as data -------------------------------------------------------------------------------------------------


def _without_value(recipe: Recipe, log: Path, policy: Policy, algorithm: str) -> tuple[Dataset, ReferenceCache]:
    """Return the log as a policy's data. Before a reference exists, the value is 0."""
    import torch

    from reflectrl.core.episodes import read_episodes, without_reflections
    from reflectrl.methods.shared.offline.completions import step_dataset
    from reflectrl.methods.shared.offline.reference_cache import score_reference

    episodes, config = read_episodes(log), offline_settings(recipe)
    seen = without_reflections(episodes)
    if algorithm in CONDITIONS:
        seen = conditioned(episodes, CONDITIONS[algorithm], config.gamma)
    data = step_dataset(policy, list(seen), config)
    return data, score_reference(data, torch.zeros(len(data)))


def _reference_cache(
    recipe: Recipe, log: Path, folder: Path, seed: int, reference: Policy, envs: Callable[[], TextEnv], note: Log
) -> tuple[Dataset, ReferenceCache]:
    """Return the log as a policy's data, with log-probabilities and values under the reference, cached in `folder`."""
    from reflectrl.core import distributed
    from reflectrl.core.episodes import read_episodes, without_reflections
    from reflectrl.methods.shared.offline.completions import step_dataset
    from reflectrl.methods.shared.offline.reference_cache import cached_reference

    config, fitting_seed = offline_settings(recipe), named_seed(seed, "value")
    data = step_dataset(reference, list(without_reflections(read_episodes(log))), config)
    played = _outcomes(recipe, reference, envs, data, seed)
    return data, distributed.first(lambda: cached_reference(folder, data, config, fitting_seed, note, played))


def _outcomes(
    recipe: Recipe, reference: Policy, envs: Callable[[], TextEnv], data: Dataset, seed: int
) -> Callable[[], Outcomes] | None:
    """Return a function that plays the reference to learn its value; None if the log's returns are used."""
    if offline_settings(recipe).value_from == "log":
        return None
    return partial(_played, recipe, reference, envs, data, seed)


def _renewed(recipe: Recipe, policy: Policy, envs: Callable[[], TextEnv], data: Dataset, seed: int) -> ReferenceCache:
    """Return the view that the policy's current weights have of the data, with their own value."""
    from reflectrl.methods.shared.offline.reference_cache import fit_reference

    played = _outcomes(recipe, policy, envs, data, seed)
    return fit_reference(data, offline_settings(recipe), named_seed(seed, "value"), lambda _: None, played)


def _criticised(build: Build, log: Path, reference: Policy) -> tuple[Dataset, ReferenceCache]:
    """Return the log as data, with an utterance-level critic's values. Fitting the critic writes its metrics."""
    from reflectrl.core import distributed
    from reflectrl.core.episodes import read_episodes, without_reflections
    from reflectrl.methods.shared.offline.completions import step_dataset
    from reflectrl.methods.shared.offline.utterance_critic import cached_critic
    from reflectrl.runs.metrics import MetricsFile

    name, seed, config = "offline-critic", build.seed, offline_settings(build.recipe)
    episodes = list(without_reflections(read_episodes(log)))
    data = step_dataset(reference, episodes, config)
    fit_metrics: list[dict[str, float]] = []
    folder, fitting_seed = build.out.with_name(name), named_seed(seed, "critic")
    cache = distributed.first(lambda: cached_critic(folder, data, episodes, config, fitting_seed, fit_metrics.append))
    if fit_metrics:
        shared = {"kind": "offline_critic", "seed": seed, "arm": None}
        run = build.context.run
        with MetricsFile(run.metrics(seed, name), run.learner(seed, name), shared) as file:
            for metrics in fit_metrics:
                file.write(metrics)
    return data, cache


def _played(recipe: Recipe, reference: Policy, envs: Callable[[], TextEnv], data: Dataset, seed: int) -> Outcomes:
    """Play the reference on training and validation tasks; return its reward-to-go from each state."""
    from reflectrl.core.envs import make
    from reflectrl.core.episodes import task_key
    from reflectrl.learn.steps import flatten
    from reflectrl.methods.shared.offline.reference_cache import Outcomes

    env, config = make(recipe.env), offline_settings(recipe)
    tasks = [*env.tasks("train"), *env.tasks("validation")]
    episodes = play_tasks(reference, envs, tasks, config.value_episodes, named_seed(seed, "value"))
    steps = flatten(reference, episodes, config.gamma)
    units = [task_key(episode.task) for episode in episodes for _ in episode.steps]
    return Outcomes(steps.prompts, data.affine(steps.returns_N), units)


# ---- progress --------------------------------------------------------------------------------------------------------


def evaluate_on_validation(
    recipe: Recipe, policy: Policy, algorithm: str, envs: Callable[[], TextEnv], seed: int
) -> dict[str, float]:
    """Return success rate and mean return of the current policy on validation tasks."""
    from reflectrl.core.envs import make
    from reflectrl.learn.validation import evaluate_policy, evenly

    tasks = evenly(make(recipe.env).tasks("validation"), offline_settings(recipe).eval_episodes)
    condition_player = asked_for(CONDITIONS[algorithm], recipe) if algorithm in CONDITIONS else None
    return evaluate_policy(policy, condition_player, envs, tasks, recipe.rl.eval_sampling, seed)


def note_progress(file: MetricsFile, build: Build, config: OfflineConfig, metrics: dict[str, Any]) -> Verdict:
    """Log the metrics of a training, and show its progress. Return the callbacks' request."""
    verdict = file.write(metrics)
    if "value_loss" in metrics:
        explained = f"explained variance {metrics['explained_variance']:.2f}"
        build.progress(int(metrics["step"]), config.value_epochs, explained)
    else:
        total = max(int(metrics["steps"]), int(metrics["step"]))
        build.progress(int(metrics["step"]), total, f"validation {metrics['eval_success']:.0%}")
    return verdict


# ---- the arms --------------------------------------------------------------------------------------------------------


def asked_for(condition: Condition, recipe: Recipe) -> ConditionPlayer:
    """Return the player that asks for a good episode, in place of a reflector."""
    settings = offline_settings(recipe)
    return ConditionPlayer(condition, settings.target_return, settings.gamma)


ABOUT: dict[Algorithm, str] = {
    "nll": "goes on imitating the log",
    "wbc": "imitation weighted by reward-to-go",
    "r_gold": "the same, and by its own probability (GOLD)",
    "r_lol": "reward-to-go times importance ratio",
    "r_lol_kl": "reward-to-go with a KL penalty",
    "a_lol": "A-LoL: advantage times importance ratio",
    "a_lol_ref_free": "A-LoL without importance ratio",
    "a_lol_seq": "A-LoL with a ratio per token",
    "a_lol_kl": "A-LoL with a KL penalty",
    "dpo": "preferences between logged actions of one state (DPO)",
    "dpo_ref_free": "the same without the reference",
    "pro": "rankings of logged actions of one state (PRO)",
}
ARMS = {
    "offline-reference": Arm("imitates the log: what the other offline arms start from", reference),
    **{f"offline-{algorithm}": Arm(about, partial(from_value, algorithm)) for algorithm, about in ABOUT.items()},
    "offline-archer": Arm("advantages of a critic that learns from step to step (ArCHer)", from_critic),
    "offline-rvs": Arm(
        "imitation told the return, then asked for a high one (RvS)",
        partial(from_returns, "rvs"),
        speaker=partial(asked_for, "return"),
        settings=("offline.target_return", "offline.gamma"),
    ),
    "offline-rvs_share": Arm(
        "the same, with the return as a share of the best of its start",
        partial(from_returns, "rvs_share"),
        speaker=partial(asked_for, "share"),
    ),
    "offline-rvs_outcome": Arm(
        "the same, told whether the goal was reached",
        partial(from_returns, "rvs_outcome"),
        speaker=partial(asked_for, "outcome"),
    ),
    "offline-online": Arm("A-LoL on the log, then online RL", partial(from_value, "a_lol"), rl={}),
}
HOOKS = {"log": planned_log}
