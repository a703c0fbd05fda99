"""Outcome of a run: `results.json` (every arm's rows, and their summary), the report, the table on the terminal.

`results.json` holds no times, so that two runs of one recipe write the same bytes. Times are in `timings.jsonl`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from reflectrl.core.config import Recipe
from reflectrl.core.envs import make
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.episodes import read_episodes
from reflectrl.core.evaluation import Row, rows_of, summarise
from reflectrl.core.git import Commits, is_clone
from reflectrl.core.json_lines import read_json
from reflectrl.core.terminal import printable_line
from reflectrl.core.types import Episode, Step, UserError
from reflectrl.learn.checkpoint import write_text
from reflectrl.runs.arms import Arm, select_arms
from reflectrl.runs.artifact import Artifact, Graph
from reflectrl.runs.calibration import row_of_decisions
from reflectrl.runs.evaluation import attempt_of, evaluations
from reflectrl.runs.folder import RunFolder
from reflectrl.runs.report.data import CALIBRATION, is_share, read_timings

ORIGIN = ("commit", "hardware")
"""Keys that tell where results were made. If the same results come out again, these keys are left as they are."""


def write_results(recipe: Recipe, run: RunFolder, versions: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Write `results.json`, unless the file has the same content already. Returns the time, for `timings.jsonl`.

    Args:
        versions: versions of reflectrl that made what the results are about; by default, the present one.
    """
    path = run.path / "results.json"
    env = make(recipe.env)
    rows = list(_rows(recipe, run, env))
    results = {
        "recipe": recipe.name,
        "commit": ", ".join(versions) or commit(),
        "hardware": hardware(),
        "env": {**recipe.env, "horizon": env.horizon},
        "confidence": recipe.eval.confidence,
        "rows": rows,
        "summary": summarise(rows, recipe.eval.confidence),
    }
    if _essence(_read(path)) == _essence(json.loads(json.dumps(results))):
        return []
    write_text(path, json.dumps(results, indent=1) + "\n")
    return [{"finished": datetime.now(UTC).isoformat(timespec="seconds")}]


def _rows(recipe: Recipe, run: RunFolder, env: TextEnv) -> Iterator[Row]:
    """Yield the rows of every arm and seed. A milestone gets a row only if its stage is not evaluated separately."""
    for name in recipe.arms:
        learned = select_arms([name], recipe)[name].player == "policy"
        for seed in recipe.seeds:
            for log in evaluations(recipe, run, env, seed, name):
                played = {attempt_of(episode): episode for episode in read_episodes(log.path)}
                if missing := [task for task, repeat in log.wanted() if (task, repeat) not in played]:
                    about = "are the environment's tasks the same in every process?"
                    raise UserError(f"{log.path} lacks the episode of task {missing[0]!r}; {about}")
                episodes = [played[attempt] for attempt in log.wanted()]
                decided = row_of_decisions(episodes, env) if recipe.eval.calibration and learned else {}
                for row in rows_of(episodes, env, recipe.eval.confidence):
                    if row["stage"] == log.stage and log.sampling == "greedy":
                        row |= decided
                    if row["stage"] == log.stage or row["stage"] not in recipe.eval.stages:
                        yield row


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(read_json(path))
    except (OSError, ValueError, TypeError):
        return {}


def _essence(results: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in results.items() if key not in ORIGIN}


def commit() -> str:
    """Return the commit of reflectrl's own checkout, with "+" if the package differs from it; else the version.

    A repository that merely encloses the installed package belongs to another project, and is not read.
    """
    from reflectrl import __version__

    package = Path(__file__).resolve().parents[1]
    root = package.parents[1]
    if _is_own_checkout(root) and is_clone(root):
        with suppress(UserError), Commits(root) as commits:
            below = package.relative_to(root).as_posix()
            if digests := commits.digests(commits.head, f"{below}/"):
                unchanged = all(_holds(root / path, digest) for path, digest in digests.items())
                return commits.head[:12] + ("" if unchanged else "+")
    return f"version {__version__}"


def _is_own_checkout(root: Path) -> bool:
    """Tell whether a folder is a checkout of reflectrl, and not of a project that has a copy of it."""
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8")).get("project", {})
        return bool(project.get("name") == "reflectrl")
    except (OSError, ValueError, AttributeError):
        return False


def _holds(path: Path, digest: str) -> bool:
    """Tell whether a file has the content with a git digest, whatever its line endings."""
    try:
        data = path.read_bytes()
    except OSError:
        return False
    kind = hashlib.sha1 if len(digest) == 40 else hashlib.sha256
    forms = (data, data.replace(b"\r\n", b"\n"))
    return any(kind(b"blob %d\0" % len(form) + form).hexdigest() == digest for form in forms)


def hardware() -> str:
    """Return the name of the processor or GPU, and torch's version."""
    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"


# ---- on the terminal -----------------------------------------------------------------------------------------------


def training_seconds(graph: Graph, folder: Path) -> dict[str, float]:
    """Return the processor seconds that an arm's models took to train, the mean over seeds, for the table.

    Arms share trainings, and each counts in full for every arm that needs it. An arm is left out if it trains nothing,
    or if a time is missing, as for artifacts that a fork took over.
    """
    spent: dict[tuple[Any, ...], float] = defaultdict(float)
    for line in read_timings(folder):
        if "cpu_seconds" in line and "artifact" in line:
            spent[line.get("stage"), line["artifact"], line.get("seed")] += line["cpu_seconds"]
    by_arm: dict[str, list[float]] = defaultdict(list)
    for artifact in graph.values():
        if artifact.kind == "eval":
            trained = [needed for needed in ancestors(artifact) if needed.training]
            times = [spent.get((needed.kind, needed.name, needed.seed), math.nan) for needed in trained]
            by_arm[artifact.name].append(sum(times) if times else math.nan)
    means = {arm: sum(times) / len(times) for arm, times in by_arm.items()}
    return {arm: mean for arm, mean in means.items() if math.isfinite(mean)}


def ancestors(artifact: Artifact) -> list[Artifact]:
    """Return everything from which an artifact is made, directly or not."""
    earlier: dict[str, Artifact] = {}
    for needed in artifact.made_from:
        earlier |= {further.key: further for further in ancestors(needed)} | {needed.key: needed}
    return list(earlier.values())


def show_results(
    console: Console, folder: Path, arms: Mapping[str, Arm], seconds: Mapping[str, float] | None = None
) -> None:
    """Print the success of every arm: a table per split and sampling, a column per stage.

    Args:
        seconds: processor seconds of training, by arm.
    """
    data = read_json(folder / "results.json")
    for split, sampling in dict.fromkeys((row["split"], row["sampling"]) for row in data["summary"]):
        rows = [row for row in data["summary"] if (row["split"], row["sampling"]) == (split, sampling)]
        horizon, level = data["env"]["horizon"], data["confidence"]
        title = f"{data['recipe']}, {split} tasks, {sampling}: success and {level:.0%} interval (horizon {horizon})"
        console.print(_table(title, rows, arms, seconds or {}))
        for line in remarks(rows, arms):
            console.print(line, soft_wrap=True)
    if not data["summary"]:
        for line in remarks((), arms):
            console.print(line, soft_wrap=True)
    names = dict.fromkeys(row["arm"] for row in data["summary"] if row.get("penalised"))
    if names:
        about = "note: some episodes count as won although their last step was penalised (column penalised)"
        advice = "if that is a loss, change when the environment says success"
        console.print(f"{about}: {', '.join(names)}; {advice}", soft_wrap=True, markup=False, highlight=False)


def _table(
    title: str, rows: Sequence[Mapping[str, Any]], arms: Mapping[str, Arm], seconds: Mapping[str, float]
) -> Table:
    stages = list(dict.fromkeys(row["stage"] for row in rows))
    cells = {(row["arm"], row["stage"]): row for row in rows}
    table = Table(title=title, title_justify="left")
    table.add_column("arm", no_wrap=True)
    for stage in stages:
        table.add_column(stage, justify="right", no_wrap=True)
    shares = list(dict.fromkeys(key for row in rows for key in row if is_share(key)))
    for share in shares:
        table.add_column(CALIBRATION.get(share, share), justify="right", no_wrap=True)
    if seconds:
        table.add_column("training, CPU s", justify="right", no_wrap=True)
    table.add_column("what it is")
    for name, arm in arms.items():
        last = cells.get((name, stages[-1]), {})
        further = ("-" if last.get(share) is None else f"{100 * last[share]:.1f} %" for share in shares)
        spent = [f"{seconds[name]:.0f}" if name in seconds else "-"] if seconds else []
        table.add_row(name, *(_cell(cells.get((name, stage))) for stage in stages), *further, *spent, arm.about)
    return table


ANSWERS = {
    "illegal": "no legal action named",
    "cut": "answer cut off at max_tokens",
    "filtered": "answer withheld by a content filter",
    "declined": "answer declined by the model",
}
"""Explanations of the shares of steps that rows of models behind endpoints have."""


def remarks(rows: Sequence[Mapping[str, Any]], arms: Mapping[str, Arm]) -> Iterator[str]:
    """Yield a line for each arm whose answers were not all read: how many, why, and how they count."""
    last_rows = {row["arm"]: row for row in rows}  # of several stages, the last one stands last
    for name, arm in arms.items():
        row = last_rows.get(name)
        if row is None:
            if arm.asked:
                yield f"{name}: no results, since the server refused a question in every episode"
            continue
        notes = [f"{about} in {100 * row[key]:.1f} % of steps" for key, about in ANSWERS.items() if key in row]
        if "refused" in row:
            count = round(row["refused"] * row["episodes"])
            notes.append(
                f"the server refused a question in {count} of {row['episodes']} episodes, lost if it was to act"
            )
        if "unread" in row:
            played = round(row["episodes"] / (1 - row["unread"]))
            notes.append(
                f"{played - row['episodes']} of {played} episodes left out, in which the server refused a question"
            )
        if notes:
            yield f"{name}: {'; '.join(notes)}"


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    return f"{100 * row['success']:.1f} % [{100 * row['low']:.0f}, {100 * row['high']:.0f}]"


def show_episode(console: Console, run: RunFolder, recipe: Recipe) -> None:
    """Print one won episode of about eight steps, of the last arm that has won, and of its last split if possible."""
    logs = [run.evaluation(arm, seed, split, "*", "*").name for arm in reversed(recipe.arms)
            for seed in recipe.seeds[:1] for split in recipe.eval.splits[::-1]]  # fmt: skip
    for pattern in logs:
        for path in sorted((run.path / "episodes").glob(pattern)):
            won = [episode for episode in read_episodes(path) if episode.success]
            if won:
                _print_episode(console, min(won, key=lambda episode: (abs(len(episode.steps) - 8), episode.task.id)))
                return


def _print_episode(console: Console, episode: Episode) -> None:
    console.rule(f"{episode.provenance.get('arm')} on {printable_line(episode.task.id)} ({episode.task.split})")
    printed = 0
    for step_number, step in enumerate(episode.steps, start=1):
        console.print(f"\nstep {step_number}", style="bold")
        console.print(step.observation.text[printed:].strip())  # the history grows
        printed = len(step.observation.history)
        if step.reflection is not None:
            console.print(f"reflector: {step.reflection}", style="cyan")
        console.print(_choice(step), style="green")
    end = "won" if episode.success else "lost"
    console.print(f"\n{end} in {len(episode.steps)} steps, return {episode.total_reward:+.2f}")


def _choice(step: Step) -> str:
    turn = step.choice
    chance = f" ({turn.probs[step.action]:.0%})" if turn is not None and turn.probs else ""
    events = f"  [{printable_line(', '.join(step.events))}]" if step.events else ""
    return f"policy: {printable_line(step.observation.actions[step.action])}{chance}, reward {step.reward:+.2f}{events}"
