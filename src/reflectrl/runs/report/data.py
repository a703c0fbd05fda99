"""Read a run folder for the report: recipe, results and metrics. Missing parts are None or empty.

`results.json` holds no times, so that two runs of one recipe write the same results. Times are in `timings.jsonl`: one
line per evaluation with its seconds per episode, and one line with the time at which the results were finished. Here
they are joined with the results, unless those have their own `seconds` or `created`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from reflectrl.core.config.files import parse_toml
from reflectrl.core.evaluation import ATTEMPTS, INCOMPLETE
from reflectrl.core.json_lines import parse_shown, read_json_lines
from reflectrl.core.plugins import one_line
from reflectrl.core.regular_files import read_regular
from reflectrl.core.types import UserError

T = TypeVar("T")
REFERENCES = ("random", "expert", "oracle", "baseline")
"""Arms that learn nothing, for comparison. They are never marked as the best."""
ARMS = (*REFERENCES, "sft", "sft-no-reflection", "rl-only", "no-reflection", "no-negatives", "reflect-rl")
"""The usual arms, in the order in which the page shows them. Other arms follow in order of appearance."""
ANCESTORS = "ancestors.json"
"""File of a run folder with the learning curves of the runs from which its policy was loaded, the oldest first."""
SHARED = "shared"
"""Name for curves that belong to no single arm, such as the curves of a reflector that several arms use."""


@dataclass(frozen=True)
class Score:
    """One line of results: an arm on one split, stage and sampling. Numbers that were not recorded are None.

    `success`, `low` and `high` are shares in [0, 1]. The row of a single seed has `seed`; a row that is pooled over
    seeds has their number, `seeds`. `shares` holds further shares by name, if there are any: "pass@2", "illegal".
    """

    arm: str
    split: str
    stage: str
    sampling: str
    success: float
    low: float | None = None
    high: float | None = None
    mean_return: float | None = None
    steps: float | None = None
    seconds: float | None = None
    episodes: int | None = None
    seed: int | None = None
    seeds: int | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    reliability: tuple[tuple[float, float, float], ...] = ()
    """Bins of the arm's decisions: (number, mean confidence, share of right choices)."""


@dataclass(frozen=True)
class Results:
    """The contents of results.json. `summary` is pooled over seeds; it equals `rows` if they were not pooled."""

    recipe: str
    commit: str
    hardware: str
    created: str
    env: Mapping[str, Any]
    confidence: float | None
    rows: tuple[Score, ...]
    summary: tuple[Score, ...]


@dataclass(frozen=True)
class Metric:
    """One line of metrics.jsonl: the finite numbers logged at one step.

    Attributes:
        arm: the arm that was trained. A training that arms share has the name of what it made ("plain").
        kind: the kind of training ("rl", "sft").
        shared: True if several arms may share the training.
    """

    arm: str
    kind: str
    seed: int
    step: int
    stage: str
    values: Mapping[str, float]
    shared: bool = False


@dataclass(frozen=True)
class Ancestor:
    """A run whose trained policy another run loaded, and the learning curve of that policy.

    Attributes:
        run: name of its folder.
        arm: the arm whose policy was loaded.
        seed: the seed of that policy.
        metrics: lines of its online RL.
        times: lines of timings.jsonl that belong to them.
    """

    run: str
    arm: str
    seed: int
    metrics: tuple[Metric, ...]
    times: tuple[Mapping[str, Any], ...] = ()

    @property
    def updates(self) -> int:
        """Number of updates."""
        return max(metric.step for metric in self.metrics)

    @property
    def episodes(self) -> float:
        """Number of episodes played in all updates."""
        return max(metric.values.get("episodes", 0.0) for metric in self.metrics)


@dataclass(frozen=True)
class Run:
    """Everything about a run except its episodes.

    `recipe` is the plain TOML. It is not checked against today's recipe classes, so that old runs can still be viewed.
    """

    name: str
    recipe: Mapping[str, Any]
    recipe_text: str
    results: Results | None
    metrics: tuple[Metric, ...]
    times: tuple[Mapping[str, Any], ...] = ()
    """Lines of timings.jsonl."""
    ancestors: tuple[Ancestor, ...] = ()
    """Runs from which the policy was loaded, the oldest first."""


def read_run(folder: Path) -> Run:
    """Read a run folder, as far as it is complete.

    Raises:
        UserError: the folder is missing, or one of its files is corrupt (named, with the reason).
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a run folder: there is no such folder")
    recipe, text = read_recipe(folder / "recipe.toml")
    results, metrics = read_results(folder / "results.json"), read_metrics(folder / "metrics.jsonl")
    times = read_timings(folder)
    if results is not None:
        results = with_times(results, times)
    ancestors = read_ancestors(folder / ANCESTORS, recipe)
    return Run(folder.resolve().name, recipe, text, results, metrics, tuple(times), ancestors)


def read_recipe(path: Path) -> tuple[dict[str, Any], str]:
    """Read the recipe's values and its text, both empty if there is no file.

    Raises UserError if it is not valid TOML.
    """
    if not path.exists():
        return {}, ""
    try:
        text = read_regular(path).decode("utf-8")
        return parse_toml(text), text
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid TOML: {one_line(error)}") from error


def read_results(path: Path) -> Results | None:
    """Read the results; None if there is no file. Raises UserError that names the file and the problem."""
    if not path.exists():
        return None
    try:
        data = parse_shown(read_regular(path))
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: not valid JSON: {one_line(error)}") from error
    if not isinstance(data, dict) or not isinstance(data.get("rows"), list):
        raise UserError(f'{path}: must be an object with a list "rows"')
    if not isinstance(data.get("env") or {}, dict):
        raise UserError(f'{path}: "env" must be an object, not {data["env"]!r}')
    rows = tuple(_score(row, f"{path}: rows[{i}]") for i, row in enumerate(data["rows"]))
    summary = data.get("summary")
    if summary is not None and not isinstance(summary, list):
        raise UserError(f'{path}: "summary" must be a list, not {summary!r}')
    texts = {key: str(data.get(key) or "") for key in ("recipe", "commit", "hardware", "created")}
    confidence = _number(data, "confidence", f"{path}: ")
    pooled = tuple(_score(row, f"{path}: summary[{i}]") for i, row in enumerate(summary or ())) or rows
    return Results(**texts, env=data.get("env") or {}, confidence=confidence, rows=rows, summary=pooled)


def _score(row: Any, where: str) -> Score:
    if not isinstance(row, dict):
        raise UserError(f"{where} must be an object, not {row!r}")
    for key in ("arm", "split", "stage", "sampling"):
        if not isinstance(row.get(key), str):
            raise UserError(f"{where}.{key} must be text, not {row.get(key)!r}")
    numbers: dict[str, Any] = {
        key: _number(row, key, f"{where}.")
        for key in ("success", "low", "high", "return", "steps", "seconds", "episodes", "seed")
    }
    success = numbers.pop("success")
    if success is None:
        raise UserError(f"{where}.success must be a number, not {row.get('success')!r}")
    seeds = row.get("seeds")
    numbers["seeds"] = len(seeds) if isinstance(seeds, list) else _number(row, "seeds", f"{where}.")
    counts = dict[str, Any]()
    for key in ("episodes", "seed", "seeds"):
        number = numbers.pop(key)
        counts[key] = None if number is None else int(number)
    texts = {key: row[key] for key in ("arm", "split", "stage", "sampling")}
    shares = dict[str, float]()
    for key in row:
        if is_share(key) and (share := _number(row, key, f"{where}.")) is not None:
            shares[CALIBRATION.get(key) or key] = share
    return Score(
        **texts,
        success=success,
        mean_return=numbers.pop("return"),
        **numbers,
        **counts,
        shares=shares,
        reliability=_reliability(row.get("reliability") or [], f"{where}.reliability"),
    )


def _reliability(bins: Any, where: str) -> tuple[tuple[float, float, float], ...]:
    """Return checked bins: number of decisions, mean confidence, share of right choices."""
    if not isinstance(bins, list):
        raise UserError(f"{where} must be a list of bins")
    checked = list[tuple[float, float, float]]()
    for index, entry in enumerate(bins):
        try:
            count, confidence, accuracy = entry
            checked.append((_finite(count), _finite(confidence), _finite(accuracy)))
        except (TypeError, ValueError) as error:
            raise UserError(f"{where}[{index}] must hold three numbers, not {entry!r:.100}") from error
    return tuple(checked)


CALIBRATION = {"ece": "ECE", "brier": "Brier"}
"""Figures of calibration in a row of results, and their names in tables. They are shown in percent, like shares."""


def is_share(key: str) -> bool:
    """Return whether a key of a row is a further share that tables show."""
    return key.startswith(ATTEMPTS) or key in (*INCOMPLETE, "penalised", "unread") or key in CALIBRATION


def _number(row: Mapping[str, Any], key: str, where: str) -> float | None:
    """Return a finite number; None if it is missing or not finite (an arm without wins has no mean length of wins)."""
    value = row.get(key)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    try:
        return _finite(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}{key} must be a number, not {value!r:.100}") from error


def _finite(value: Any) -> float:
    """Return a number as a float.

    Raises:
        TypeError: it is not a number.
        ValueError: it is not finite, or too large for a float.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.100} is not a number")
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError("a number is too large") from error
    if not math.isfinite(number):
        raise ValueError(f"{number} is not finite")
    return number


def _timing(row: dict[str, Any]) -> dict[str, Any]:
    """Check a line of `timings.jsonl`. Raises ValueError or TypeError for a figure or a name of another type."""
    for key in ("seconds", "cpu_seconds", "episodes"):
        if row.get(key) is not None:
            _finite(row[key])
    for key in ("arm", "split", "stage", "sampling", "artifact", "seed"):
        if isinstance(row.get(key), dict | list):
            raise TypeError(f"{key} is {row[key]!r:.100}")
    if row.get("kind") == "rl" and not {"step", "seconds"} <= row.keys():
        raise ValueError("an update needs its step and seconds")
    return row


def with_times(results: Results, timings: list[dict[str, Any]]) -> Results:
    """Return the results with their times from `timings.jsonl`: seconds per episode, and when they were finished."""
    durations: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    for line in timings:
        if {"arm", "seconds", "episodes"} <= line.keys():
            evaluation = tuple(line.get(key) for key in ("arm", "split", "stage", "sampling"))
            for key in (evaluation, (*evaluation, line.get("seed"))):  # the row pooled over seeds, and the seed's own
                durations.setdefault(key, []).append((float(line["seconds"]), float(line["episodes"])))
    finished = [str(line["finished"]) for line in timings if "finished" in line]
    return dataclasses.replace(
        results,
        created=results.created or (finished[-1] if finished else ""),
        rows=tuple(_timed(score, durations) for score in results.rows),
        summary=tuple(_timed(score, durations) for score in results.summary),
    )


def _timed(score: Score, durations: Mapping[tuple[object, ...], list[tuple[float, float]]]) -> Score:
    evaluation = (score.arm, score.split, score.stage, score.sampling)
    parts = durations.get(evaluation if score.seed is None else (*evaluation, score.seed), [])
    episodes = sum(count for _, count in parts)
    if score.seconds is not None or not episodes:
        return score
    return dataclasses.replace(score, seconds=sum(seconds * count for seconds, count in parts) / episodes)


def read_lines(path: Path, parse: Callable[[dict[str, Any]], T], what: str) -> list[T]:
    """Parse each object in a file of JSON lines; [] if there is no file. A half-written last line is skipped.

    Raises:
        UserError: another line cannot be parsed. The message names the line, and the expected kind (`what`).
    """
    if not path.exists():
        return []
    rows = read_json_lines(path, lambda line: parse(dict(parse_shown(line))), f"no {what} object", half_written="skip")
    return [row for _, row in rows]


def read_timings(folder: Path) -> list[dict[str, Any]]:
    """Read `timings.jsonl`; [] if there is no file. Raises UserError for a bad line."""
    return read_lines(folder / "timings.jsonl", _timing, "timing")


def read_metrics(path: Path) -> tuple[Metric, ...]:
    """Read all metrics. A half-written last line, left by a kill, is skipped. Any other bad line raises UserError."""
    return tuple(read_lines(path, _metric, "metrics"))


def _metric(row: dict[str, Any]) -> Metric:
    values = dict[str, float]()
    for name, value in row.items():
        if name not in ("seed", "step"):
            with suppress(TypeError, ValueError):  # texts, and losses that are not finite, are not plotted
                values[name] = _finite(value)
    arm = str(row.get("arm") or row.get("artifact") or SHARED)
    kind = str(row["part"] if "part" in row else row["kind"])  # "part" is what older versions called it
    seed, step, stage = int(_finite(row.get("seed") or 0)), int(_finite(row["step"])), str(row.get("stage") or "")
    return Metric(arm, kind, seed, step, stage, values, shared=not row.get("arm"))


def read_ancestors(path: Path, recipe: Mapping[str, Any]) -> tuple[Ancestor, ...]:
    """Read the ancestors of a run's policy, the oldest first; () if there is no file, or it is about another policy.

    Raises:
        UserError: the file is damaged.
    """
    if not path.exists():
        return ()
    try:
        data = parse_shown(read_regular(path))
        ancestors = tuple(_ancestor(entry) for entry in data["ancestors"])
        policy = data["policy"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise UserError(f"{path}: not a list of ancestors: {one_line(error)}") from error
    model = recipe.get("model")
    return ancestors if isinstance(model, Mapping) and model.get("policy") == policy else ()


def _ancestor(entry: Any) -> Ancestor:
    run, arm, seed = str(entry["run"]), str(entry["arm"]), int(entry["seed"])
    metrics = tuple(_metric({**row, "arm": arm, "seed": seed}) for row in entry["metrics"])
    if not metrics:
        raise ValueError("an ancestor has no metrics")
    times = []
    for line in entry["times"]:
        spent = {"step": int(_finite(line["step"])), "seconds": _finite(line["seconds"])}
        times.append({"kind": "rl", "arm": arm, "seed": seed, **spent})
    return Ancestor(run, arm, seed, metrics, tuple(times))


def in_page_order(arms: list[str]) -> list[str]:
    """Return the distinct arms: the usual ones in their order, then others in order of appearance, `SHARED` last."""
    distinct = list(dict.fromkeys(arms))
    others = [arm for arm in distinct if arm not in ARMS and arm != SHARED]
    shared = [SHARED] if SHARED in distinct else []
    return [*(arm for arm in ARMS if arm in distinct), *others, *shared]
