"""Compare what we and a peer need in the strangers until validation tasks are won: episodes, processor seconds.

    python -m benchmarks.strangers.beside runs/strangers runs/strangers/peer.jsonl

The first folder is one that `benchmarks.strangers.bench` left, the file is one of `benchmarks.strangers.peer`. The
threshold is the peer's: 80 % of what the best known player wins. Everything counts on our side: the random play for the
tokenizer, the search for wins with its returns (played again here, to count it), imitation, RL and its evaluations.
Random play in which the peer collects words counts on its side.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.strangers import STRANGERS, make
from reflectrl.core.config import Recipe, read_recipe
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.types import UserError
from reflectrl.learn.own_wins import find_wins
from reflectrl.learn.reward_check import luck_decides, random_play, signal_of
from reflectrl.learn.validation import evenly


class Spent(NamedTuple):
    """Cost of a training: episodes begun, steps of the environment, and processor seconds."""

    episodes: int
    steps: int
    cpu_seconds: float


class Count:
    """Counter of what is played in the environments that it makes."""

    def __init__(self, name: str) -> None:
        self.name, self.episodes, self.steps = name, 0, 0

    def make(self) -> TextEnv:
        """Make an environment whose episodes and steps are counted."""
        env = make(self.name)
        reset, step = env.reset, env.step

        def counted_reset(**words: Any) -> Any:
            self.episodes += 1
            return reset(**words)

        def counted_step(action: int) -> Any:
            self.steps += 1
            return step(action)

        # On the instance: the class stays as it is, and whoever plays the environment notices nothing.
        env.reset, env.step = counted_reset, counted_step  # type: ignore[method-assign]
        return env


def searched(name: str, recipe: Recipe, seed: int) -> tuple[int, int, int]:
    """Search for wins as the run did. Return the numbers of wins with their copies, of episodes begun, and of steps."""
    count = Count(name)
    tasks = evenly(make(name).tasks("train"), recipe.rl.own_wins)
    sample = list(chain.from_iterable(random_play(tasks, count.make, seed, 16, 2000)))
    wins = 0
    if not luck_decides(count.make, tasks) and signal_of(sample).won / len(sample) < 0.5:
        own_wins = find_wins(count.make, tasks, recipe.rl.own_wins_steps, seed, recipe.rl.own_wins_detours)
        wins = sum(len(episodes) for episodes, _ in own_wins)
    return wins, count.episodes, count.steps


def played_before(name: str, folder: Path, seed: int) -> tuple[int, int]:
    """Return the episodes and steps that a run of ours played before RL.

    Raises:
        UserError: the search finds other wins than the run did, so another version of the code made it.
    """
    recipe = read_recipe(folder / "recipe.toml")
    lines = [json.loads(text) for text in (folder / f"episodes/random-seed{seed}.jsonl").read_text().splitlines()]
    episodes, steps = len(lines), sum(len(line["steps"]) for line in lines)
    own = [folder / f"episodes/wins-seed{seed}-{split}.jsonl" for split in ("train", "validation")]
    if recipe.rl.own_wins and own[0].is_file():
        wins, begun, taken = searched(name, recipe, seed)
        there = {text for path in own for text in path.read_text().splitlines()}  # a single win is in both files
        if wins != len(there):
            raise UserError(f"{folder}: its search found {len(there)} wins, and now it finds {wins}")
        episodes, steps = episodes + begun, steps + taken
    return episodes, steps


def reached(
    metrics: Sequence[dict[str, Any]], timings: Sequence[dict[str, Any]], threshold: float, scale: float = 1.0
) -> Spent | None:
    """Return what RL and the stages before it took until an evaluation reached the threshold; None if none did.

    Args:
        metrics: lines of metrics.jsonl of a run with one seed and one trained arm.
        timings: lines of its timings.jsonl.
        scale: processor seconds per second, for timings without the former.
    """
    before = {"episodes": 0, "env_steps": 0}
    for line in metrics:
        if line["kind"] != "rl":
            continue
        if line.get("eval_success", -1.0) >= threshold:
            spent = 0.0
            for part in timings:
                stage = part.get("stage") in ("play", "wins", "base", "imitate", "sft", "teach") and "arm" not in part
                if stage or (part.get("kind") == "rl" and part["step"] <= line["step"]):
                    spent += part.get("cpu_seconds", scale * part["seconds"])
            return Spent(before["episodes"], before["env_steps"], spent)
        # An update is evaluated before its own episodes are played.
        before = {key: line.get(key, before[key]) for key in before}
    return None


def ours(folder: Path, line: dict[str, Any], threshold: float) -> Spent | None:
    """Return what a run of the bench took until the threshold.

    Args:
        folder: the bench's folder.
        line: the run's line in its lines.jsonl.
    """
    run = folder / f"runs/{line['name']}-alone-{line['seed']}"
    metrics, timings = (
        [json.loads(text) for text in (run / name).read_text(encoding="utf-8").splitlines()]
        for name in ("metrics.jsonl", "timings.jsonl")
    )
    spent = reached(metrics, timings, threshold, line["cpu_seconds"] / line["seconds"])
    if spent is None:
        return None
    episodes, steps = played_before(line["name"], run, line["seed"])
    return spent._replace(episodes=spent.episodes + episodes, steps=spent.steps + steps)


HEAD = (
    "| stranger | seed | threshold | episodes: ours, peer | ratio | steps: ours, peer | ratio "
    "| processor seconds: ours, peer | ratio | test: ours, peer |\n" + "|---" * 10 + "|"
)


def row(line: dict[str, Any], spent: Spent | None, success: float, peer: dict[str, Any]) -> str:
    """Return a row of the table.

    Args:
        line: our line of the bench.
        spent: what we took until the threshold; None if we did not reach it.
        success: our success on test tasks.
        peer: the peer's line.
    """
    cells = [line["name"], str(line["seed"]), f"{100 * peer['threshold']:.0f} %"]
    theirs = peer["reached"]
    if theirs is not None:
        sample = peer["sample"]
        theirs = Spent(
            theirs["episodes"] + sample["episodes"], theirs["steps"] + sample["steps"], theirs["cpu_seconds"]
        )
    most = Spent(peer["episodes"], peer["steps"], peer["cpu_seconds"])
    for field in Spent._fields:
        own = "never" if spent is None else f"{getattr(spent, field):,.0f}"
        other = f"never in {getattr(most, field):,.0f}" if theirs is None else f"{getattr(theirs, field):,.0f}"
        cells.append(f"{own}, {other}")
        if spent is not None:
            bound = "" if theirs is not None else "< "
            cells.append(f"{bound}{getattr(spent, field) / getattr(theirs or most, field):.2g}")
        else:
            cells.append("")
    cells.append(f"{100 * success:.0f} %, {100 * peer['test']:.0f} %")
    return f"| {' | '.join(cells)} |"


def table(folder: Path, peers: Sequence[dict[str, Any]]) -> str:
    """Return the table of all runs that both have made."""
    lines = [json.loads(text) for text in (folder / "lines.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = [HEAD]
    for name in STRANGERS:
        for line in lines:
            if line["name"] != name or line["shown"] or "rl-only" not in line.get("success", {}):
                continue
            for peer in peers:
                if (peer["name"], peer["seed"]) == (name, line["seed"]):
                    spent = ours(folder, line, peer["threshold"])
                    rows.append(row(line, spent, line["success"]["rl-only"], peer))
    return "\n".join(rows)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of benchmarks.strangers.bench")
    parser.add_argument("peer", type=Path, help="lines of benchmarks.strangers.peer")
    args = parser.parse_args()
    peers = [json.loads(text) for text in args.peer.read_text(encoding="utf-8").splitlines()]
    print(table(args.folder, peers))


if __name__ == "__main__":
    main()
