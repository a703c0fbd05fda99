"""Offline learning of a policy from a log of episodes of mixed quality."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from reflectrl.core.types import Sampling, named_seed
from reflectrl.methods.offline.config import Algorithm, LogAlgorithm, OfflineConfig, offline_settings
from reflectrl.runs.arms import Arm, base, plain, teaching
from reflectrl.runs.artifact import CHECKPOINT, PLAYED, Artifact, Build, Plan, Source, artifact

if TYPE_CHECKING:  # these bring torch, which a dry run does without
    from reflectrl.core.config import Recipe
    from reflectrl.core.envs.base import TextEnv
    from reflectrl.learn.trainer import Log, Verdict
    from reflectrl.methods.offline.completions import Dataset
    from reflectrl.methods.offline.reference_cache import Outcomes, ReferenceCache
    from reflectrl.models.players import Policy
    from reflectrl.runs.metrics import MetricsFile

SETTINGS = (*PLAYED, "sft", "offline", "rl.temperature", "rl.eval_sampling")
"""Recipe keys that offline learning depends on."""
RVS, ARCHER, EXPERT_ITERATION = "rvs", "archer", "expert-iteration"
"""Further algorithms: return-conditioned cloning, advantages of a critic, imitation of own successes."""


# ---- the log -------------------------------------------------------------------------------------------------------


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
    from reflectrl.core.episodes import read_episodes, to_line
    from reflectrl.learn.checkpoint import write_text
    from reflectrl.learn.validation import success_rate
    from reflectrl.methods.offline.expert_iteration import play

    recipe, count = build.recipe, offline_settings(build.recipe).log_episodes
    taught = read_episodes(teaching)
    episodes = [episode for episode in taught if episode.provenance.get("kind") != "negative"]  # negatives break off
    if plain is not None:
        policy = _policy(recipe, plain, build.seed)
        with pool_of(recipe) as envs:
            played = play(policy, envs, make(recipe.env).tasks("train"), count, named_seed(build.seed, "log"))
        episodes += [replace(episode, provenance={"player": "policy", "policy": "plain"}) for episode in played]
    write_text(build.out, "".join(to_line(episode) + "\n" for episode in episodes))
    build.tick(len(episodes), len(episodes), f"{success_rate(episodes):.0%} of them won")


@mixed_log.continued_while
def lacks_episodes(build: Build) -> bool:
    """Return whether episodes are missing from the log."""
    from reflectrl.core.envs import make
    from reflectrl.core.teach import Demonstration
    from reflectrl.runs.demonstrations import finished_lines, planned_demonstrations

    recipe, env = build.recipe, make(build.recipe.env)
    taught = sum(
        (one.kind if isinstance(one, Demonstration) else one.provenance.get("kind")) != "negative"
        for one in planned_demonstrations(recipe, env, build.seed, "train")
    )
    planned = taught + offline_settings(recipe).log_episodes * len(env.tasks("train"))
    return finished_lines(build.out) < planned


def log(plan: Plan) -> Artifact:
    """Plan the log: the teacher's trajectories, and episodes of the SFT policy if the recipe asks for some."""
    policy = plain(plan) if offline_settings(plan.recipe).log_episodes else None
    return mixed_log(plan, "episodes", teaching=teaching(plan, "train"), plain=policy)


# ---- the reference and its value -----------------------------------------------------------------------------------


@artifact("offline", "rl", "checkpoints/seed{seed}/offline-value/reference_cache.json", settings=SETTINGS)
def reference_value(build: Build, *, log: Path, reference: Path) -> None:
    """Fit the reference's value, and cache log-probabilities and advantages of every step of the log."""
    from reflectrl.core.envs.pool import pool_of
    from reflectrl.runs.metrics import MetricsFile

    recipe, seed = build.recipe, build.seed
    shared = {"kind": "offline_value", "seed": seed, "arm": None}
    with pool_of(recipe) as envs, MetricsFile(build.metrics, build.learner, shared) as file:
        note = partial(_note, file, build, offline_settings(recipe))
        _reference_cache(recipe, log, build.out, seed, _policy(recipe, reference, seed), envs, note)


def reference(plan: Plan) -> Artifact:
    """Plan the reference: a policy that imitates the log, and from which other policies start."""
    return learned_from_log(plan, "offline-reference", log=log(plan), start=base(plan), algorithm="nll")


# ---- the policies --------------------------------------------------------------------------------------------------


@artifact("offline", "rl", CHECKPOINT, settings=SETTINGS, shared=True)
def learned_from_log(build: Build, *, log: Path, start: Source, value: Path | None = None, algorithm: str) -> None:
    """Train a policy, which reads no reflections, from the log of episodes.

    Args:
        log: the log.
        start: the initial model.
        value: the value of the initial policy in every state of the log; None if it is not needed.
        algorithm: a `LogAlgorithm`, "rvs" (return-conditioned cloning) or "archer" (advantages of a critic).
    """
    from reflectrl.core.envs.pool import pool_of
    from reflectrl.learn.checkpoint import drop_state, write_folder
    from reflectrl.methods.offline.learn import train_offline
    from reflectrl.runs.metrics import MetricsFile
    from reflectrl.runs.players import is_base

    recipe, seed, name = build.recipe, build.seed, build.name
    config = _from_scratch(recipe, algorithm) if is_base(start) else _from_reference(recipe, algorithm)
    policy, learning_seed = _policy(recipe, start, seed), named_seed(seed, name)
    with (
        pool_of(recipe) as envs,
        MetricsFile(build.metrics, build.learner, {"kind": "offline", "seed": seed, "arm": name}) as file,
    ):
        note, evaluate = partial(_note, file, build, config), partial(_evaluate, recipe, policy, algorithm, envs, seed)
        if algorithm == ARCHER:
            data, known = _criticised(build, log, policy)
        elif value is not None:
            data, known = _reference_cache(recipe, log, value, seed, policy, envs, note)
        else:
            data, known = _without_value(recipe, log, policy, algorithm)
        train_offline(data, known, config, learning_seed, note, build.learner, evaluate)
    write_folder(build.out, policy.lm.saver(artifact=name, seed=seed))
    drop_state(build.learner)


@artifact("offline", "rl", CHECKPOINT, settings=SETTINGS, shared=True)
def expert_iteration(build: Build, *, log: Path, start: Source) -> None:
    """Train a policy that imitates its own successes, round after round.

    Args:
        log: the log, from which only the initial model has learned.
        start: the initial model.
    """
    from reflectrl.core.envs import make
    from reflectrl.core.envs.pool import pool_of
    from reflectrl.learn.checkpoint import drop_state, write_folder
    from reflectrl.methods.offline.expert_iteration import train_expert_iteration
    from reflectrl.runs.metrics import MetricsFile

    recipe, seed, name, config = build.recipe, build.seed, build.name, offline_settings(build.recipe)
    policy, tasks = _policy(recipe, start, seed), make(recipe.env).tasks("train")
    with (
        pool_of(recipe) as envs,
        MetricsFile(build.metrics, build.learner, {"kind": "offline", "seed": seed, "arm": name}) as file,
    ):
        note = partial(_note, file, build, config)
        evaluate = partial(_evaluate, recipe, policy, EXPERT_ITERATION, envs, seed)
        train_expert_iteration(policy, envs, tasks, config, named_seed(seed, name), note, build.learner, evaluate)
    write_folder(build.out, policy.lm.saver(artifact=name, seed=seed))
    drop_state(build.learner)


def from_value(algorithm: str, plan: Plan) -> Artifact:
    """Plan a policy that learns from the log by an algorithm which uses the reference's value."""
    episodes, start = log(plan), reference(plan)
    value = reference_value(plan, "offline-value", log=episodes, reference=start)
    name = f"offline-{algorithm}"
    return learned_from_log(plan, name, log=episodes, start=start, value=value, algorithm=algorithm)


def from_critic(plan: Plan) -> Artifact:
    """Plan a policy that learns from the log by a critic's advantages."""
    return learned_from_log(plan, "offline-archer", log=log(plan), start=reference(plan), algorithm=ARCHER)


def from_returns(plan: Plan) -> Artifact:
    """Plan a policy that imitates the log and is told the return."""
    return learned_from_log(plan, "offline-rvs", log=log(plan), start=base(plan), algorithm=RVS)


def from_successes(plan: Plan) -> Artifact:
    """Plan a policy that imitates its own successes."""
    return expert_iteration(plan, "offline-expert-iteration", log=log(plan), start=reference(plan))


def _from_scratch(recipe: Recipe, algorithm: str) -> OfflineConfig:
    """Return the settings of a policy that starts from the base model, with the optimiser settings of [sft].

    All arms take the same number of steps in total, counting the steps that made the reference.
    """
    config = offline_settings(recipe)
    steps = config.reference_steps + (config.steps if algorithm == RVS else 0)
    rates = {name: getattr(recipe.sft, name) for name in ("optimizer", "lr", "muon_lr", "weight_decay", "batch_size")}
    return replace(config, algorithm="nll", steps=steps, **rates)


def _from_reference(recipe: Recipe, algorithm: str) -> OfflineConfig:
    config = offline_settings(recipe)
    is_listed = algorithm in get_args(LogAlgorithm)
    return replace(config, algorithm=cast(LogAlgorithm, algorithm)) if is_listed else config


def _policy(recipe: Recipe, source: Source, seed: int) -> Policy:
    from reflectrl.models.load import load_model
    from reflectrl.runs.players import instructed, make_policy, model_source

    lm = load_model(model_source(recipe, source, "policy"), recipe.model, "policy", named_seed(seed, "policy"))
    return make_policy(recipe, instructed(recipe, lm, "policy"), Sampling(recipe.rl.temperature))


# ---- the log as data -----------------------------------------------------------------------------------------------


def _without_value(recipe: Recipe, log: Path, policy: Policy, algorithm: str) -> tuple[Dataset, ReferenceCache]:
    """Return the log as a policy's data. Before a reference exists, the value is 0."""
    import torch

    from reflectrl.core.episodes import read_episodes, without_reflections
    from reflectrl.methods.offline.completions import step_dataset
    from reflectrl.methods.offline.reference_cache import score_reference
    from reflectrl.methods.offline.target_return import with_target_returns

    episodes, config = read_episodes(log), offline_settings(recipe)
    seen = with_target_returns(episodes, config.gamma) if algorithm == RVS else without_reflections(episodes)
    data = step_dataset(policy, list(seen), config)
    return data, score_reference(data, torch.zeros(len(data)))


def _reference_cache(
    recipe: Recipe, log: Path, folder: Path, seed: int, reference: Policy, envs: Callable[[], TextEnv], note: Log
) -> tuple[Dataset, ReferenceCache]:
    """Return the log as a policy's data, and the reference's view of it, which `folder` keeps."""
    from reflectrl.core import distributed
    from reflectrl.core.episodes import read_episodes, without_reflections
    from reflectrl.methods.offline.completions import step_dataset
    from reflectrl.methods.offline.reference_cache import cached_reference

    config, fitting_seed = offline_settings(recipe), named_seed(seed, "value")
    data = step_dataset(reference, list(without_reflections(read_episodes(log))), config)
    by_play = config.value_from == "rollouts"
    played = partial(_played, recipe, reference, envs, data, seed) if by_play else None
    return data, distributed.first(lambda: cached_reference(folder, data, config, fitting_seed, note, played))


def _criticised(build: Build, log: Path, reference: Policy) -> tuple[Dataset, ReferenceCache]:
    """Return the log as data, and an utterance-level critic's view of it. Fitting the critic writes its metrics."""
    from reflectrl.core import distributed
    from reflectrl.core.episodes import read_episodes, without_reflections
    from reflectrl.methods.offline.completions import step_dataset
    from reflectrl.methods.offline.utterance_critic import cached_critic
    from reflectrl.runs.metrics import MetricsFile

    name, seed, config = "offline-critic", build.seed, offline_settings(build.recipe)
    episodes = list(without_reflections(read_episodes(log)))
    data = step_dataset(reference, episodes, config)
    noted: list[dict[str, float]] = []
    folder, fitting_seed = build.out.with_name(name), named_seed(seed, "critic")
    known = distributed.first(lambda: cached_critic(folder, data, episodes, config, fitting_seed, noted.append))
    if noted:
        shared = {"kind": "offline_critic", "seed": seed, "arm": None}
        run = build.context.run
        with MetricsFile(run.metrics(seed, name), run.learner(seed, name), shared) as file:
            for metrics in noted:
                file.write(metrics)
    return data, known


def _played(recipe: Recipe, reference: Policy, envs: Callable[[], TextEnv], data: Dataset, seed: int) -> Outcomes:
    """Play the reference on training and validation tasks; return its reward-to-go from each state."""
    from reflectrl.core.envs import make
    from reflectrl.core.episodes import task_key
    from reflectrl.learn.steps import flatten
    from reflectrl.methods.offline.expert_iteration import play
    from reflectrl.methods.offline.reference_cache import Outcomes

    env, config = make(recipe.env), offline_settings(recipe)
    tasks = [*env.tasks("train"), *env.tasks("validation")]
    episodes = play(reference, envs, tasks, config.value_episodes, named_seed(seed, "value"))
    steps = flatten(reference, episodes, config.gamma)
    units = [task_key(episode.task) for episode in episodes for _ in episode.steps]
    return Outcomes(steps.prompts, data.affine(steps.returns_N), units)


def _evaluate(
    recipe: Recipe, policy: Policy, algorithm: str, envs: Callable[[], TextEnv], seed: int
) -> dict[str, float]:
    """Return success rate and mean return of the current policy on validation tasks."""
    from reflectrl.core.envs import make
    from reflectrl.learn.validation import evaluate_policy, evenly

    tasks = evenly(make(recipe.env).tasks("validation"), offline_settings(recipe).eval_episodes)
    asking = asked_return(recipe) if algorithm == RVS else None
    return evaluate_policy(policy, asking, envs, tasks, recipe.rl.eval_sampling, seed)


def _note(file: MetricsFile, build: Build, config: OfflineConfig, metrics: dict[str, Any]) -> Verdict:
    verdict = file.write(metrics)
    if "value_loss" in metrics:
        explained = f"explained variance {metrics['explained_variance']:.2f}"
        build.tick(int(metrics["step"]), config.value_epochs, explained)
    else:
        total = max(int(metrics["steps"]), int(metrics["step"]))
        build.tick(int(metrics["step"]), total, f"validation {metrics['eval_success']:.0%}")
    return verdict


# ---- the arms ------------------------------------------------------------------------------------------------------


def asked_return(recipe: Recipe) -> Any:
    """Return the player that asks for `offline.target_return` in place of a reflector."""
    from reflectrl.methods.offline.target_return import target_return_player

    return target_return_player(recipe)


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
    "offline-expert-iteration": Arm("imitates its own successes, round after round", from_successes),
    "offline-rvs": Arm(
        "imitation told the return, then asked for a high one (RvS)",
        from_returns,
        speaker=asked_return,
        settings=("offline.target_return",),
    ),
    "offline-online": Arm("A-LoL on the log, then online RL", partial(from_value, "a_lol"), rl={}),
}
SECTIONS = {"offline": OfflineConfig}
HOOKS = {"log": log}
