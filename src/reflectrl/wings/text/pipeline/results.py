"""Results of a text task: scores of every arm's completions in `results.json`, the report, and the table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from reflectrl.core.evaluation import ATTEMPTS
from reflectrl.core.json_lines import read_json
from reflectrl.core.types import UserError
from reflectrl.learn.checkpoint import write_text
from reflectrl.methods.shared.offline.reference_cache import ReferenceCache
from reflectrl.runs.artifact import Build
from reflectrl.runs.results import commit, hardware
from reflectrl.wings.text.generation.generate import read_completions, repeated
from reflectrl.wings.text.generation.table import TextRow, is_attempt_rate, percentiles, pooled, row_of
from reflectrl.wings.text.pipeline.graph import DATA, completion_sets, draws_of, task_name
from reflectrl.wings.text.pipeline.left_out import reason_left_out
from reflectrl.wings.text.pipeline.task import TextTask
from reflectrl.wings.text.pipeline.training import (
    reference_cache,
    without_completions,
    written_by_reference,
    written_to,
)
from reflectrl.wings.text.samples import Sample
from reflectrl.wings.text.samples.sample import imitable


def rows(run: Path, text: TextTask) -> Iterator[TextRow]:
    """Yield a row per arm, seed, checkpoint, split and sampling. The arm "data" has one row per split, as it has no
    training seed.
    """
    config = text.recipe.eval
    pass_reward = config.pass_reward if config.repeats > 1 else None
    for arm in text.recipe.arms:
        for seed in text.recipe.seeds[:1] if arm == DATA else text.recipe.seeds:
            if without_completions(run, arm, seed).exists():
                continue
            for labels in completion_sets(text.recipe, seed, arm, text.samples):
                references = {} if arm == DATA else text.references(labels["split"])
                written = text.test_reward.label(_written(run, text, labels))
                yield row_of(labels, written, references, config.confidence, pass_reward)


def left_out(run: Path, text: TextTask) -> list[dict[str, Any]]:
    """Return the arms without a row of their own, as they had nothing to learn from, with seed and reason."""
    omitted = []
    for arm in text.recipe.arms:
        for seed in text.recipe.seeds:
            if why := reason_left_out(run / "checkpoints" / f"seed{seed}" / arm):
                omitted.append({"arm": arm, "seed": seed, "why": why})
    return omitted


def _written(run: Path, text: TextTask, labels: Mapping[str, Any]) -> list[Sample]:
    """Return the completions of a set. Of the data there is one per prompt."""
    prompts = text.prompts(labels["split"], text.recipe.eval.episodes)
    if labels["arm"] == DATA:
        return prompts
    wanted = {sample.id for sample in repeated(prompts, draws_of(text.recipe, labels))}
    return [sample for sample in read_completions(written_to(run, labels)).values() if sample.id in wanted]


def spread(build: Build, text: TextTask, references: Sequence[Path], values: Sequence[Path]) -> list[dict[str, Any]]:
    """Return percentiles of reward, value and advantage on the training samples, per seed.

    Rejected answers, if an arm learns from some, have percentiles of their own: "rejected reward" and "rejected
    advantage". Their prompts, and so their values, are those of the others.

    Args:
        references: the reference of each seed.
        values: the folder of each one's caches; none if no arm needs them.
    """
    per_seed = []
    for seed, reference, folder in zip(text.recipe.seeds, references, values, strict=False):
        lm = text.load(reference, seed)
        written = written_by_reference(build, seed)
        arm = max(text.offline, key=lambda arm: len(text.training(arm)))  # one that learns from rejected answers, too
        _, cache = reference_cache(text, lm, seed, folder, written, arm, lambda _: None)
        samples = text.training(arm)
        numbers = _numbers(cache)
        write_extremes(build.context.run.path / "extremes", seed, samples, numbers)
        line: dict[str, Any] = {"seed": seed}
        for title, name, indices in _views(samples):
            line[title] = percentiles([numbers[i][name] for i in indices])
        per_seed.append(line)
    return per_seed


def _numbers(cache: ReferenceCache) -> list[dict[str, float]]:
    """Return reward, value and advantage of each training sample."""
    pairs = zip(cache.values_N.tolist(), cache.advantages_N.tolist(), strict=True)
    return [{"reward": value + gain, "value": value, "advantage": gain} for value, gain in pairs]


def _views(samples: Sequence[Sample]) -> list[tuple[str, str, list[int]]]:
    """Return (title, name, indices) of the numbers that are reported: of good answers, and of rejected ones if any."""
    good = [i for i, sample in enumerate(samples) if imitable(sample)]
    rejected = [i for i, sample in enumerate(samples) if not imitable(sample)]
    views = [(name, name, good) for name in ("reward", "value", "advantage")]
    if rejected:
        views += [(f"rejected {name}", name, rejected) for name in ("reward", "advantage")]
    return views


EXTREMES = 20
"""Number of training samples at each end of reward, value and advantage that are written out."""


def write_extremes(folder: Path, seed: int, samples: Sequence[Sample], numbers: Sequence[Mapping[str, float]]) -> None:
    """Write the training samples with the highest and the lowest reward, value and advantage, with all three numbers.

    Files are named by end, number and seed, such as "top-advantage-seed0.jsonl" or, for rejected answers,
    "top-rejected-advantage-seed0.jsonl". The most extreme sample comes first. Other answers to the same prompt stand
    beside it, with their numbers.
    """
    groups: dict[str, list[int]] = {}
    for i, sample in enumerate(samples):
        groups.setdefault(sample.group, []).append(i)

    def line_of(i: int) -> str:
        line: dict[str, Any] = {"prompt": samples[i].prompt, "completion": samples[i].completion, **numbers[i]}
        others = [j for j in groups[samples[i].group] if j != i]
        if others:
            line["others"] = [{"completion": samples[j].completion, **numbers[j]} for j in others]
        return json.dumps(line, ensure_ascii=False) + "\n"

    folder.mkdir(exist_ok=True)
    for title, name, indices in _views(samples):
        order = sorted(indices, key=lambda i: numbers[i][name])
        for end, extreme in (("bottom", order[:EXTREMES]), ("top", order[::-1][:EXTREMES])):
            path = folder / f"{end}-{title.replace(' ', '-')}-seed{seed}.jsonl"
            write_text(path, "".join(map(line_of, extreme)))


def write_results(build: Build, text: TextTask, references: Sequence[Path], values: Sequence[Path]) -> None:
    """Write `results.json`. Takes references and values as `spread` does."""
    text_rows, sections = list(rows(build.context.run.path, text)), text.recipe.sections
    results = {
        "kind": "text",
        "recipe": text.recipe.name,
        "task": task_name(text.recipe),
        "commit": commit(),
        "hardware": hardware(),
        "confidence": text.recipe.eval.confidence,
        "rewards": sorted(sections["test_rewards"] or sections["rewards"]),
        "rows": [asdict(row) for row in text_rows],
        "summary": [asdict(line) for line in pooled(text_rows, text.recipe.eval.confidence)],
        "left_out": left_out(build.context.run.path, text),
        "percentiles": spread(build, text, references, values),
    }
    write_text(build.out, json.dumps(results, indent=1) + "\n")


# ---- on the terminal -----------------------------------------------------------------------------------------------

LAST = ("distinct-1", "distinct-2", "distinct-3", "length", "meteor", "coverage", "density")
"""Metrics that stand after the reward's components in a table."""


def show(screen: Console, *folders: Path) -> None:
    """Print a table per task, split and sampling. Each table includes the completions of the data.

    Raises:
        UserError: a folder holds no results of a text task.
    """
    runs = [read_results(folder) for folder in folders]
    lines = [line for results in runs for line in results["summary"]]
    level = runs[0]["confidence"]
    headings = dict.fromkeys((line["task"], line["split"], line["sampling"]) for line in lines if line["sampling"])
    for task, split, sampling in headings:
        table_rows = [row for row in lines if (row["task"], row["split"]) == (task, split)]
        table_rows = [row for row in table_rows if row["sampling"] in ("", sampling)]
        title = f"{task}, {split} prompts, {sampling}"
        screen.print(_table(f"{title}: reward and {level:.0%} interval", table_rows))
        for beginning in ATTEMPTS:
            if counts := counts_in(table_rows, beginning):
                screen.print(_rates_table(f"{title}: {beginning}k", table_rows, beginning, counts))
    for results in runs:
        for omitted in results.get("left_out", ()):
            screen.print(f"left out: {omitted['arm']} (seed {omitted['seed']}): {omitted['why']}", soft_wrap=True)


def read_results(folder: Path) -> dict[str, Any]:
    """Read the results of a run.

    Raises:
        UserError: there are no readable results, or they belong to another kind of task.
    """
    path = folder / "results.json"
    try:
        results: dict[str, Any] = read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: no results there yet (or they cannot be read)") from error
    if results.get("kind") != "text":
        raise UserError(f"{path}: these are not the results of a text task")
    return results


def columns(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the metric names of a table, the reward's components first. pass@k and maj@k have tables of their own."""
    names = dict.fromkeys(name for line in lines for name in line["metrics"] if not is_attempt_rate(name))
    return [*(name for name in names if name not in LAST), *(name for name in LAST if name in names)]


def _table(title: str, lines: Sequence[Mapping[str, Any]]) -> Table:
    names = columns(lines)
    table = Table(title=title, title_justify="left")
    for name in ("arm", "checkpoint", "seeds", "reward"):
        table.add_column(name, no_wrap=True)
    for name in names:
        table.add_column(name.replace("_", " "), justify="right")
    for line in lines:
        reward = f"{line['reward']:.3f} [{line['low']:.3f}, {line['high']:.3f}]"
        values = (line["metrics"].get(name) for name in names)
        cells = ("-" if value is None else f"{value:.3f}" if value < 10 else f"{value:.1f}" for value in values)
        table.add_row(line["arm"], line["checkpoint"], str(line["seeds"]), reward, *cells)
    by = ", ".join(dict.fromkeys(line["meteor_by"] for line in lines if line["meteor_by"]))
    table.caption = f"METEOR matched words by {by}" if by else None
    return table


def counts_in(lines: Sequence[Mapping[str, Any]], beginning: str) -> list[int]:
    """Return the numbers of attempts k for which a line has the rate "pass@" or "maj@", in ascending order."""
    counts = set[int]()
    for line in lines:
        rates = [name for name in line["metrics"] if is_attempt_rate(name, (beginning,))]
        counts.update(int(name.removeprefix(beginning)) for name in rates)
    return sorted(counts)


def _rates_table(title: str, lines: Sequence[Mapping[str, Any]], beginning: str, counts: Sequence[int]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("arm", "checkpoint"):
        table.add_column(name, no_wrap=True)
    for k in counts:
        table.add_column(str(k), justify="right")
    for line in lines:
        rates = [line["metrics"].get(f"{beginning}{k}") for k in counts]
        cells = ("-" if rate is None else f"{rate:.1%}" for rate in rates)
        table.add_row(line["arm"], line["checkpoint"], *cells)
    return table
