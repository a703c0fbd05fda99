"""`check-env`: test an environment's rules, and whether it is playable, trainable by reward, and teachable.

Playable: every promise is kept. Trainable by reward: in a sample of random play some state had several actions, and
not every episode earned the same. Teachable: it has a teacher with an expert.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reflectrl.cli.projects import EnvName
from reflectrl.core.config import ModelConfig, Recipe, read_recipe
from reflectrl.core.config.values import read_value
from reflectrl.core.plugins import announced, one_line
from reflectrl.core.types import Episode, UserError
from reflectrl.runs.projects import env_section, project_recipe

if TYPE_CHECKING:
    from reflectrl.core.envs.base import TextEnv
    from reflectrl.learn.reward_check import Signal

EPISODES, BATCH = 200, 16
"""Number of episodes of random play, and how many of them run at the same time."""
STABLE = ("tasks are the same", "tasks begin in the same way")
STARTS = 20
"""Number of tasks whose first text is compared between processes."""
LISTS_TASKS = """
import contextlib, json, sys
from reflectrl.core.envs import make
from reflectrl.tools.workbench.check_env import listing
with contextlib.closing(make(json.loads(sys.argv[1]))) as env:
    print(*listing(env), sep="\\n")
"""


@dataclass(frozen=True)
class CheckEnv:
    """Check the rules for environments, and report what the environment is fit for: play, RL from reward, or teaching.

    Any argument of the environment is an option: --size 6
    """

    env: EnvName
    """Name of an environment, package.module:Class, or the folder of a project made by `init`."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Check, and print the findings.

        A broken rule, or an environment that allows no learning, ends with exit code 2.
        """
        section = env_section(self.env, settings)
        try:
            lines, refusal = checked(section, recipe_of(self.env))
            print("\n".join(lines))
        except (UserError, KeyboardInterrupt):
            raise
        except BaseException as error:  # whatever the environment's own code raises
            raise UserError(f"environment {section['name']!r} raised {one_line(error)}") from error
        if refusal:
            raise UserError(refusal)


def recipe_of(name: str) -> Recipe:
    """Return a project's recipe; the default recipe if it is not a project."""
    path = project_recipe(name)
    return Recipe() if path is None or name in announced("envs") else read_recipe(path)


def checked(section: dict[str, Any], recipe: Recipe) -> tuple[list[str], str]:
    """Check the environment of an `env` section, and a recipe's model in it.

    Returns:
        The lines, and the reason why no learning is possible; "" if it is possible.

    Raises:
        UserError: the first broken promise, or more actions than can be labelled.
    """
    from reflectrl.core.envs import make
    from reflectrl.core.envs.base import SPLITS
    from reflectrl.learn.reward_check import RARE, doubt_about_success, random_play, signal_of, ways_out
    from reflectrl.models.labels import require_labels
    from reflectrl.tools.workbench.check import EnvCheckError, check_text_env

    name, make_env = section["name"], functools.partial(make, section)
    env, labelled = make_env(), recipe.play.scoring == "enumeration"
    if labelled:
        require_labels(_first_actions(env))
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            abilities = check_text_env(make_env)
    except EnvCheckError as error:
        raise UserError(f"environment {name!r} breaks a promise: {error}") from error
    _require_stable_tasks(section, env)
    warned = dict.fromkeys(one_line(warning.message) for warning in caught if isinstance(warning.message, Warning))
    notes = [f"note: {message}" for message in warned]
    sizes = [f"{len(env.tasks(split))} {split}" for split in SPLITS]
    facts = {"stages": env.stages, "tasks": sizes, "teacher": abilities or ["none"]}
    summary = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in facts.items())
    played = [e for batch in random_play(env.tasks("train")[:EPISODES], make_env, 0, BATCH, RARE) for e in batch]
    signal = signal_of(played)
    if labelled:
        require_labels(signal.most)
    if signal.length > 1 and len({step.observation.text for episode in played for step in episode.steps}) == 1:
        notes.append("note: every state has the same text, so players cannot see what they do")
    doubt = doubt_about_success(signal, env)
    choices = _choices(played, signal, recipe.model, labelled)
    sample = [_sample(signal, env.horizon), *_success(env, signal, doubt), choices]
    lines = [*notes, f"{name}: every promise is kept ({summary})", *sample, *_levels(signal, abilities, doubt)]
    if signal.problem and "expert" not in abilities:
        return lines, (
            f"environment {name!r} can be played, but not learned by reward: {signal.problem};"
            f" {ways_out(signal, env, name)}"
        )
    return lines, ""


def _first_actions(env: TextEnv) -> int:
    """Return the number of legal actions at the first start; 0 if the environment does not get so far.

    The later checks read all actions again and again, so too many actions have to be found first.
    """
    try:
        _, info = env.reset(seed=0, options={"task": env.tasks("train")[0]})
    except Exception:  # the checks that follow say what is wrong, and how it was found
        return 0
    return len(info["actions"])


def listing(env: TextEnv) -> tuple[str, str]:
    """Return the training tasks, and the texts with which the first of them begin, each as one line of JSON."""
    tasks = env.tasks("train")
    starts = [env.reset(seed=0, options={"task": task})[0] for task in tasks[:STARTS]]
    return json.dumps([[task.id, dict(task.payload)] for task in tasks], sort_keys=True), json.dumps(starts)


def _require_stable_tasks(section: Mapping[str, Any], env: TextEnv) -> None:
    """Refuse tasks or first texts that change between processes, as the order of a set of words does."""
    plain = json.dumps({key: read_value(item) for key, item in section.items()})
    expected = listing(env)
    for seed in "1", "2":
        command = [sys.executable, "-P", "-c", LISTS_TASKS, plain]  # -P: no file here stands in for a library
        surroundings = os.environ | {"PYTHONHASHSEED": seed}
        completed = subprocess.run(command, capture_output=True, text=True, env=surroundings, check=False)
        if completed.returncode:
            continue
        for promise, ours, theirs in zip(STABLE, expected, completed.stdout.splitlines()[-2:], strict=True):
            if ours != theirs:
                about = f"{promise} in every process: another one has others (is a set or hash() involved?)"
                raise UserError(f"environment {section['name']!r} breaks a promise: {about}")


def _sample(signal: Signal, horizon: int) -> str:
    """Describe the sample of random play, in figures."""

    def share(count: int) -> str:
        return f"{count} ({count / signal.episodes:.0%})"

    return (
        f"  in {signal.episodes} episodes of random play: won {share(signal.won)}; some reward above 0"
        f" {share(signal.rewarded)}; returns {signal.lowest:g} to {signal.highest:g}; up to {signal.length} of"
        f" {horizon} steps, out of time {share(signal.truncated)}"
    )


def _success(env: TextEnv, signal: Signal, doubt: str) -> list[str]:
    """Describe the rules of success and of milestones, and note if they seem to be missing."""
    rule = env.success_rule or "an outcome says success=True"
    events = ", ".join(f"{event} in {count}" for event, count in sorted(signal.events.items())) or "none"
    lines = [f"  success: {rule}; events: {events}"]
    if signal.unmarked:
        lines.append(
            f"  note: {signal.unmarked} episodes ended with a reward above 0 without success;"
            " if that is winning, let the outcome say success=True, since results count successes"
        )
    if signal.costly_wins:
        lines.append(
            f"  note: {signal.costly_wins} of {signal.won} won episodes ended with a reward below 0;"
            " if that is losing, change when the environment says success, since results count successes"
        )
    if signal.won and signal.early_wins == signal.won:
        lines.append(
            "  note: every won episode ended with a reward that its other steps paid as well;"
            " if such an end comes too early (a fall, a crash), it is a loss, and lasting is a win"
        )
    if doubt:
        lines.append(f"  note: {doubt}")
    return lines


def _choices(episodes: Sequence[Episode], signal: Signal, model: ModelConfig, labelled: bool) -> str:
    """Describe a model's input and choices: labels or texts of actions, and the tokens of the longest prompt."""
    from reflectrl.core.prompts import policy_prompt, words_prompt
    from reflectrl.models.byte_pairs import READS, train_byte_pairs
    from reflectrl.models.labels import candidates

    labels = list(candidates())[: signal.most]
    observations = {step.observation: None for episode in episodes for step in episode.steps}
    if labelled:
        prompts = ["".join(policy_prompt(observation, None, labels)) for observation in observations]
        answers, named = [""], f"labelled {labels[0]} to {labels[-1]}"
    else:
        prompts = ["".join(words_prompt(observation, None)) for observation in observations]
        answers, named = sorted({action for seen in observations for action in seen.actions}), "by their texts"
    tokenizer = train_byte_pairs([*prompts, *answers], model.vocab, signal.most, model.family == READS)

    def longest_of(texts: list[str]) -> int:
        return max(len(encoding.ids) for encoding in tokenizer.encode_batch(texts))

    longest = longest_of(prompts) + max(1, longest_of(answers))  # a label is one token
    actions = str(signal.most) if signal.fewest == signal.most else f"{signal.fewest} to {signal.most}"
    fits = f"model.context is {model.context}" if model.context else "model.context is chosen from it"
    if 0 < model.context < longest:
        fits += f", which loses history or is too short: raise it to {-(-longest // 64) * 64 + 64}"
    return (
        f"  a model chooses among {actions} actions, {named}; the longest prompt has"
        f" {longest} tokens of a tokenizer made from this text ({fits})"
    )


def _levels(signal: Signal, abilities: Sequence[str], doubt: str) -> list[str]:
    """Return a line for each use that an environment may be fit for, with the requirement of the next one."""
    lines = ["  playable: yes"]
    if signal.problem:
        lines.append(f"  trainable by reward: no; {signal.problem}")
    else:
        rare = "" if signal.won else " (nobody won by chance: expect to need rewards on the way, or demonstrations)"
        rare = " (but nothing that chance found counts as won: see the note)" if doubt else rare
        lines.append(f"  trainable by reward: yes, returns differ{rare}: --arms rl-only")
    if "expert" not in abilities:
        lines.append("  teachable: no; name a teacher with an expert_action, or record demonstrations")
    elif "analyst" not in abilities:
        lines.append("  teachable: without reflections (--arms no-reflection); for those, its teacher needs an analyse")
    else:
        lines.append("  teachable: yes, with reflections: --arms reflect-rl")
    return lines
