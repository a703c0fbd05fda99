"""Compare an exported page with `reflectrl play`, step by step and in speed, in a real headless browser.

    reflectrl run taxi && reflectrl export-browser runs/taxi
    python -m benchmarks.browser runs/taxi

Every task of the page is played twice, greedily: by the page, opened from the disk, and by the players in Python.
Actions and reflections are compared step by step; the exit code is 1 if any differ. The program also prints the
folder's size, the seconds from opening the page to its first observation, and the steps per second of both, one episode
at a time. (Both cache what they wrote for equal prompts.)
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.chromium import Browser
from reflectrl.api import Agent, load_agent
from reflectrl.core.config import load_recipe
from reflectrl.core.envs import make
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Episode, Task

Played = list[dict[str, Any]]
"""Steps of an episode, each with "reflection", "action" and "text"."""

PLAY = """(async () => {
  const agent = await reflectrl.ready, began = performance.now(), episodes = [];
  for (let task = 0; task < %d; task++) episodes.push(await agent.episode(task));
  return { episodes, seconds: (performance.now() - began) / 1000 };
})()"""


def in_python(agent: Agent, env: TextEnv, tasks: Sequence[Task]) -> list[Episode]:
    """Play the tasks as `reflectrl play` does, one after another."""
    played = rollout([Job(task, 0) for task in tasks], lambda: env, agent.player, agent.reflector, batch=1)
    return list(played)


def steps_of(episode: Episode) -> Played:
    """Return the steps of a Python episode in the page's format."""
    return [
        {"reflection": step.reflection, "action": step.action, "text": step.observation.actions[step.action]}
        for step in episode.steps
    ]


def compare(page: list[dict[str, Any]], episodes: Sequence[Episode]) -> list[str]:
    """Return a line for each task in which the page's episode differs from Python's."""
    differences = []
    for ours, episode in zip(page, episodes, strict=True):
        page_steps = [{key: step[key] for key in ("reflection", "action", "text")} for step in ours["steps"]]
        wanted = steps_of(episode)
        equal = page_steps == wanted and ours["success"] == episode.success
        if not (equal and abs(ours["total"] - episode.total_reward) < 1e-9):
            first = next((i for i, (a, b) in enumerate(zip(page_steps, wanted, strict=False)) if a != b), len(wanted))
            differences.append(
                f"{episode.task.id}: differs from step {first}: {page_steps[first:][:1]}, not {wanted[first:][:1]}"
            )
    return differences


def measure(run: Path, page: Path, arm: str, split: str, pictures: Path | None) -> tuple[dict[str, Any], list[str]]:
    """Return the figures, and the differences between page and Python."""
    agent, env = load_agent(run, arm), make(load_recipe(run / "recipe.toml").env)
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(Path(profile))
        began = time.perf_counter()
        browser.open(page / "index.html")
        count = browser.run("reflectrl.ready.then((agent) => agent.world.tasks.length)")
        loaded = time.perf_counter() - began
        answer = browser.run(PLAY % count)
        for width in (1400, 390) if pictures else ():
            for dark in (False, True):
                browser.open(page / "index.html", width=width, height=1000, dark=dark)
                browser.run("reflectrl.ready.then(() => new Promise((done) => setTimeout(done, 3000)))")
                browser.picture(pictures / f"browser-{width}-{'dark' if dark else 'light'}.png")
        browser.close()
    tasks = list(env.tasks(split))[:count]
    began = time.perf_counter()
    episodes = in_python(agent, env, tasks)
    seconds = time.perf_counter() - began
    steps = sum(len(episode.steps) for episode in episodes)
    figures = {
        "episodes": count,
        "steps": steps,
        "success": sum(episode.success for episode in episodes) / count,
        "folder_mib": sum(path.stat().st_size for path in page.rglob("*") if path.is_file()) / 2**20,
        "load_s": loaded,
        "browser_steps_per_s": steps / answer["seconds"],
        "python_steps_per_s": steps / seconds,
    }
    return {name: round(value, 3) for name, value in figures.items()}, compare(answer["episodes"], episodes)


def main() -> int:
    """Measure and compare one page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the run folder that the page was made from")
    parser.add_argument("--page", type=Path, help="the page's folder; RUN/browser if not given")
    parser.add_argument("--arm", default="", help="as for export-browser")
    parser.add_argument("--split", default="test", help="as for export-browser")
    parser.add_argument(
        "--pictures", type=Path, help="a folder for pictures of the page: wide and narrow, light and dark"
    )
    args = parser.parse_args()
    page = args.page or args.run / "browser"
    figures, differences = measure(args.run, page, args.arm, args.split, args.pictures)
    print(json.dumps({**figures, "episodes_that_differ": len(differences)}, indent=1))
    print("\n".join(differences), file=sys.stderr)
    return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main())
