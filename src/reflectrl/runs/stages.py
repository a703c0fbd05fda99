"""The artifacts of a run in an environment, in the order in which they are made: every kind, and what it is made from.

`arms.py` and `graph.py` call these functions to plan a run, and the runner calls them to make it (`artifact.py`).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from reflectrl.core.types import Episode, Sampling, UserError, named_seed
from reflectrl.runs.artifact import CHECKPOINT, PLAYED, Build, Source, artifact

if TYPE_CHECKING:
    from reflectrl.core.players import Player
    from reflectrl.core.prompts.chat import Role
    from reflectrl.models.players import Policy
    from reflectrl.runs.arms import Arm

LOG = logging.getLogger(__name__)
TOKENIZER_ROWS = 4000
"""Number of steps whose text trains a scratch tokenizer. More would not change its merges."""


# ---- teaching ------------------------------------------------------------------------------------------------------


@artifact("teach", "teach", "episodes/teach-seed{seed}-{name}.jsonl", settings=("env", "teach"))
def teacher_episodes(build: Build) -> None:
    """Write the teaching episodes of the split that the artifact is named after. An unfinished log is continued."""
    from reflectrl.core.envs import make
    from reflectrl.core.episodes import EpisodeLog
    from reflectrl.core.teach import teach
    from reflectrl.learn.reward_check import most_actions
    from reflectrl.models.labels import require_labels
    from reflectrl.runs.demonstrations import finished_lines, planned_demonstrations
    from reflectrl.runs.evaluation import is_labelled

    recipe, env = build.recipe, make(build.recipe.env)
    # The plan is the same in every process, so the lines that an earlier process has finished are its first entries.
    planned = planned_demonstrations(recipe, env, build.seed, build.name)
    done, labelled = finished_lines(build.out), is_labelled(recipe)
    with EpisodeLog(build.out) as log:
        for i, demonstration in islice(enumerate(planned), done, None):
            if isinstance(demonstration, Episode):  # recorded, so it is not played again
                episode = demonstration
            else:
                episode = teach(env, demonstration, recipe.teach.unsafe_noise)
            if labelled:
                require_labels(most_actions([episode]))
            log.append(episode)
            build.progress(i + 1, len(planned), "")


@teacher_episodes.continued_while
def lacks_demonstrations(build: Build) -> bool:
    """Tell whether a log of teaching episodes is incomplete."""
    from reflectrl.core.envs import make
    from reflectrl.runs.demonstrations import finished_lines, planned_demonstrations

    planned = planned_demonstrations(build.recipe, make(build.recipe.env), build.seed, build.name)
    return finished_lines(build.out) < len(planned)


@artifact("play", "teach", "episodes/random-seed{seed}.jsonl", settings=("env",))
def random_episodes(build: Build) -> None:
    """Play training tasks at random, for about as many steps as are needed to train a tokenizer.

    Raises:
        UserError: random play shows that reward alone can teach nothing, and there is no bonus for novelty either.
    """
    from reflectrl.core.envs import make
    from reflectrl.core.envs.pool import pool_of
    from reflectrl.core.episodes import to_lines
    from reflectrl.learn.checkpoint import write_text
    from reflectrl.learn.reward_check import doubt_about_success, most_actions, random_play, signal_of, ways_out
    from reflectrl.models.labels import require_labels
    from reflectrl.runs.evaluation import is_labelled

    recipe, episodes = build.recipe, list[Episode]()
    env, labelled = make(recipe.env), is_labelled(recipe)
    tasks = env.tasks("train")
    with pool_of(recipe) as envs:
        for played in random_play(tasks, envs, build.seed, recipe.eval.batch, TOKENIZER_ROWS):
            episodes += played
            if labelled:
                require_labels(most_actions(played))
            build.progress(len(episodes), max(len(tasks), len(episodes) + 1), "")
    build.progress(len(episodes), len(episodes), "")
    signal = signal_of(episodes)
    # A bonus for novel states can teach without any reward, if there is more than one action to choose from.
    if signal.problem and not (recipe.rl.count_coef and signal.most > 1):
        raise UserError(f"reward alone teaches nothing here: {signal.problem}; {ways_out(signal, env)}")
    if doubt := doubt_about_success(signal, env):
        LOG.warning("reflectrl: %s", doubt)
    write_text(build.out, to_lines(episodes))


# ---- models before online RL ---------------------------------------------------------------------------------------


@artifact("base", "sft", "checkpoints/seed{seed}/base/config.json", settings=("model",))
def scratch_model(build: Build, *, episodes: Path) -> None:
    """Make the model that players start from: a tokenizer trained on the episodes' text, and random weights."""
    from reflectrl.learn.checkpoint import write_folder
    from reflectrl.models.scratch import save_scratch
    from reflectrl.runs.demonstrations import sample_outcomes
    from reflectrl.runs.training import corpus

    recipe = build.recipe
    texts, choices = corpus(episodes, TOKENIZER_ROWS)
    if recipe.teach.reflections == "outcomes":
        texts += sample_outcomes(recipe, episodes)
    contexts: list[int] = []

    def fill(folder: Path) -> None:
        seed = named_seed(build.seed, "init")
        contexts.append(save_scratch(folder, recipe.model, texts, choices, seed, recipe.play.reflection_tokens))

    write_folder(build.out, fill)
    build.progress(1, 1, f"labels for {choices} actions, a context of {contexts[0]} tokens")


@artifact("sft", "sft", CHECKPOINT, settings=(*PLAYED, "sft"), shared=True)
def fine_tuned(
    build: Build,
    *,
    start: Source,
    train: Path,
    validation: Path,
    player: Literal["reflector", "policy", "plain"],
    negatives: bool = True,
) -> None:
    """Fine-tune a player on teaching episodes.

    Args:
        start: the initial model.
        train: the training episodes.
        validation: the validation episodes.
        player: the role that it learns: "reflector", "policy", or "plain" (a policy that reads no reflections).
        negatives: True if it learns from negative examples, too.
    """
    from reflectrl.learn.checkpoint import drop_state, write_folder
    from reflectrl.learn.sft import train_sft
    from reflectrl.models.load import load_model
    from reflectrl.runs.metrics import MetricsFile
    from reflectrl.runs.players import instructed, model_source
    from reflectrl.runs.training import sft_examples

    recipe, seed, name = build.recipe, build.seed, build.name
    role: Role = "reflector" if player == "reflector" else "policy"
    lm = load_model(model_source(recipe, start, role), recipe.model, role, named_seed(seed, name))
    lm = instructed(recipe, lm, role)
    negatives = recipe.sft.negatives and negatives
    rows = {path: sft_examples(recipe, lm, player, path, negatives, seed) for path in (train, validation)}
    budget = recipe.sft_budget(player)
    kind = {"reflector": "sft_reflection", "policy": "sft_policy", "plain": "sft"}[player]
    last: dict[str, float] = {}  # the newest metrics, which tell later whether SFT stopped early
    build.progress(0, budget.steps, "")
    shared = {"kind": kind, "seed": seed, "arm": None, "artifact": name}
    with MetricsFile(build.metrics, build.learner, shared) as log:

        def note(metrics: dict[str, float]) -> Any:
            verdict = log.write(metrics)
            last.update(metrics)
            build.progress(int(metrics["step"]), budget.steps, f"evaluation loss {metrics['eval_loss']:.4f}")
            return verdict

        train_sft(lm, rows[train], rows[validation], budget, named_seed(seed, name), note, build.learner)
    if last.get("step", budget.steps) < budget.steps:
        build.progress(budget.steps, budget.steps, f"stopped early, after {last['step']:.0f}")
    write_folder(build.out, lm.saver(artifact=name, seed=seed))
    drop_state(build.learner)


@artifact("outcomes", "sft", "episodes/outcomes-seed{seed}-{name}.jsonl", settings=(*PLAYED, "teach"))
def outcome_episodes(build: Build, *, episodes: Path, plain: Path) -> None:
    """Try actions in a split's teaching episodes, and write reflections that name the winning ones.

    After each tried action, the policy without reflections plays to the end. An unfinished log is continued.

    Args:
        episodes: the teaching episodes.
        plain: the policy without reflections.
    """
    from reflectrl.models.load import load_model
    from reflectrl.runs.demonstrations import write_outcomes
    from reflectrl.runs.players import make_policy

    recipe = build.recipe
    lm = load_model(plain, recipe.model, "policy", named_seed(build.seed, "plain"))
    write_outcomes(recipe, episodes, make_policy(recipe, lm, Sampling(1.0)), build.out, build.seed, build.progress)


@outcome_episodes.continued_while
def lacks_outcomes(build: Build) -> bool:
    """Tell whether a log of outcomes is incomplete."""
    from reflectrl.runs.demonstrations import finished_lines

    return finished_lines(build.out) < finished_lines(build.inputs["episodes"])


@artifact(
    "wins",
    "teach",
    "episodes/wins-seed{seed}-train.jsonl",
    "episodes/wins-seed{seed}-validation.jsonl",
    settings=("env", "rl.own_wins", "rl.own_wins_steps", "rl.own_wins_detours"),
)
def own_wins(build: Build) -> None:
    """Search training tasks for wins to imitate, and write them. A fifth of them are held out for validation.

    Both files are empty if a search would be useless (`rl.own_wins`).
    """
    from functools import partial

    from reflectrl.core.envs import make
    from reflectrl.core.episodes import to_lines
    from reflectrl.learn.checkpoint import write_text
    from reflectrl.learn.own_wins import find_wins
    from reflectrl.learn.reward_check import luck_decides, random_play, signal_of
    from reflectrl.learn.validation import evenly

    recipe, make_env = build.recipe, partial(make, build.recipe.env)
    tasks = evenly(make_env().tasks("train"), recipe.rl.own_wins)
    sample = list(chain.from_iterable(random_play(tasks, make_env, build.seed, 16, 2000)))
    chance = signal_of(sample).won / len(sample)
    wins, tried, steps, reason = list[list[Episode]](), 0, 0, ""
    if luck_decides(make_env, tasks):
        reason = "luck decides what actions do, so nothing is searched"
    elif chance >= 0.5:
        reason = f"chance wins {chance:.0%}, so nothing is searched"
    else:
        searched = find_wins(make_env, tasks, recipe.rl.own_wins_steps, build.seed, recipe.rl.own_wins_detours)
        for tried, (episodes, taken) in enumerate(searched, start=1):
            steps += taken
            if episodes:
                wins.append(episodes)
            build.progress(tried, len(tasks), f"chance wins {chance:.0%}; {len(wins)} wins found in {steps:,} steps")
        if tried < len(tasks):  # the limit of steps was reached before all tasks had their turn
            note = f"chance wins {chance:.0%}; {len(wins)} of {tried} tasks won in {steps:,} steps, then it ended"
            build.progress(tried, tried, note)
    if reason:
        build.progress(1, 1, reason)
    held_out = trained = wins
    if len(wins) > 1:  # a single win has to serve for both
        held_out = wins[::5]
        trained = [episodes for episodes in wins if episodes not in held_out] or wins
    folder = build.context.run.path
    # The training file is written last, because it shows that the search is over.
    for path, by_task in zip(build.artifact.outputs[::-1], (held_out, trained), strict=True):
        write_text(folder / path, to_lines(list(chain.from_iterable(by_task))))


@artifact("imitate", "sft", CHECKPOINT, settings=(*PLAYED, "sft", "rl.own_wins_updates"), shared=True)
def imitated_wins(
    build: Build,
    *,
    start: Source,
    train: Path,
    validation: Path,
    taught: Source | None = None,
    shown: Path | None = None,
    shown_apart: Path | None = None,
) -> None:
    """Train a policy to imitate the wins of a search. Without wins, the result is the policy before the search.

    Recorded episodes are imitated together with the wins, from the initial model: a policy that has memorised a few
    episodes is overconfident, and a worse start than an untrained one.

    Args:
        start: the initial model.
        train: the wins to imitate.
        validation: held-out wins for choosing the best weights.
        taught: the policy that has imitated the recorded episodes alone; None if nothing was recorded.
        shown: the recorded episodes.
        shown_apart: held-out recorded episodes for choosing the best weights, in addition to `validation`.
    """
    from reflectrl.learn.checkpoint import drop_state, write_folder
    from reflectrl.learn.sft import train_sft
    from reflectrl.models.load import load_model
    from reflectrl.runs.metrics import MetricsFile
    from reflectrl.runs.players import instructed, model_source
    from reflectrl.runs.training import sft_examples

    recipe, seed, name = build.recipe, build.seed, build.name
    has_wins = train.stat().st_size > 0
    if taught is not None and not has_wins:
        start = taught
    lm = load_model(model_source(recipe, start, "policy"), recipe.model, "policy", named_seed(seed, name))
    lm = instructed(recipe, lm, "policy")
    steps = recipe.rl.own_wins_updates

    def examples(wins: Path, recorded: Path | None) -> list[Any]:
        rows = [*sft_examples(recipe, lm, "plain", wins, False, seed)]
        if recorded is not None:
            rows += sft_examples(recipe, lm, "plain", recorded, False, seed)
        return rows

    shared = {"kind": "sft", "seed": seed, "arm": None, "artifact": name}
    with MetricsFile(build.metrics, build.learner, shared) as log:

        def note(metrics: dict[str, float]) -> Any:
            build.progress(int(metrics["step"]), steps, f"evaluation loss {metrics['eval_loss']:.4f}")
            return log.write(metrics)

        ended = "no wins to imitate"
        if has_wins:
            ended = ""
            settings = replace(recipe.sft, steps=steps)
            rows, rows_apart = examples(train, shown), examples(validation, shown_apart)
            train_sft(lm, rows, rows_apart, settings, named_seed(seed, name), note, build.learner)
    build.progress(steps, steps, ended)
    write_folder(build.out, lm.saver(artifact=name, seed=seed))
    drop_state(build.learner)


# ---- online RL -----------------------------------------------------------------------------------------------------


@artifact("rl", "rl", "checkpoints/seed{seed}/rl-{name}/reflectrl.json", settings=(*PLAYED, "rl"), shared=True)
def learned_online(
    build: Build,
    *,
    reflector: Source | None,
    policy: Source,
    log: Path | None = None,
    teaching: Path | None = None,
    imitated: bool = False,
    own: Path | None = None,
    arm: Arm | None = None,
    changes: dict[str, Any],
) -> None:
    """Train an arm's policy by online RL.

    Args:
        reflector: the model that writes reflections; None for none.
        policy: the initial policy.
        log: further episodes to learn from.
        teaching: teaching episodes, from whose ends RL begins.
        imitated: True if the initial policy was taught by imitation, so that there is something to lose.
        own: wins of a search that the initial policy imitates, if there are any; RL may begin part-way into them.
        arm: the arm, if a model behind an endpoint plays a part in it.
        changes: the arm's own settings of [rl].
    """
    from reflectrl.core.envs.pool import pool_of
    from reflectrl.core.episodes import read_episodes, with_carried, with_reflections, without_reflections
    from reflectrl.core.players import carries
    from reflectrl.learn.checkpoint import drop_state, write_folder
    from reflectrl.learn.online import after_imitation, train_online
    from reflectrl.runs.players import build_players, load_pair, make_policy, make_reflector
    from reflectrl.runs.training import metrics_log, rollouts_of

    recipe, seed = build.recipe, build.seed
    config = replace(recipe.rl, **changes)
    wins = list[Episode]()
    if teaching is not None:
        wins += [episode for episode in read_episodes(teaching) if episode.success]
    if own is not None:
        wins += read_episodes(own)
        imitated = imitated or bool(wins)
    hold = imitated and config.baseline == "critic" and config.hold > 0
    if hold:
        config = after_imitation(config)
    policy_lm, reflector_lm = load_pair(recipe, seed, policy, reflector)
    assert policy_lm is not None
    acting: Policy = make_policy(recipe, policy_lm)
    speaking: Player | None = None
    if arm is not None:  # an endpoint writes the reflections
        speaking = build_players(recipe, build.context.run.path, build.name, arm, (policy_lm, None), 1.0)[1]
    elif reflector_lm is not None:
        speaking = make_reflector(recipe, reflector_lm)
    logged: list[Episode] = []
    if log is not None:  # with or without reflections, as this arm would have seen the episodes
        if speaking is not None:
            logged += with_reflections(read_episodes(log))
        else:
            logged += without_reflections(read_episodes(log))
    if carries(speaking):
        logged, wins = list(with_carried(logged)), list(with_carried(wins))
    rl_seed = named_seed(seed, build.trained)
    with pool_of(recipe) as envs, metrics_log(build, config.updates) as note:
        collecting = config
        if hold:  # the first updates need a reference model, even if `kl_coef` is 0 afterwards
            collecting = replace(config, kl_coef=config.kl_coef + config.hold_kl)
        rollouts = rollouts_of(build)(acting, speaking, envs, collecting, rl_seed, logged, wins)
        train_online(rollouts, config, rl_seed, note, build.learner, hold)
    # Weights first: a kill between the two lines leaves a finished model and a state that the next run drops.
    write_folder(build.out, acting.lm.saver(artifact=build.trained, seed=seed))
    drop_state(build.learner)


# ---- evaluation and report -----------------------------------------------------------------------------------------


@artifact("eval", "eval", "episodes/eval-{name}-seed{seed}-*.jsonl", shared=True,
          extent=("eval.splits", "eval.stages", "eval.sampling", "eval.episodes"))  # fmt: skip
def evaluation(
    build: Build, *, reflector: Source | None, policy: Source | None, teaching: Path | None, arm: Arm
) -> list[dict[str, Any]]:
    """Let an arm play the tasks of all splits. Unfinished logs are continued. Returns timings.

    Args:
        reflector: its reflector; None for none.
        policy: its policy; None for players without a model of ours.
        teaching: teaching episodes from which the arm shows some to the model.
        arm: its row in the table.
    """
    from reflectrl.runs.evaluation import evaluate_arm

    return evaluate_arm(build, arm, policy, reflector, teaching)


@evaluation.continued_while
def lacks_tasks(build: Build) -> bool:
    """Tell whether an arm still has tasks to play."""
    from reflectrl.runs.evaluation import remaining_tasks

    return remaining_tasks(build.context, build.seed, build.name)


@artifact("results", "eval", "results.json", always=True)
def results(build: Build, *, evaluations: tuple[Path, ...]) -> list[dict[str, Any]]:
    """Write `results.json` from the evaluations of all arms, unless the file has the same content already.

    Returns the time, for `timings.jsonl`.
    """
    from reflectrl.runs.results import write_results
    from reflectrl.runs.state import State

    run = build.context.run
    return write_results(build.recipe, run, State.read(run.path).versions([build.artifact]))


@artifact("report", "report", "report.html", always=True)
def report(build: Build, *, results: Path) -> None:
    """Write `report.html` about everything in the run folder."""
    from reflectrl.runs.report import write_report

    write_report(results.parent)
