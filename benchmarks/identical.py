"""Speed-up from computing identical prompts once: rollouts on standard taxi with and without the players' caches.

    python -m benchmarks.identical --sizes 4x256

As in RL, several rollouts follow one another. The reflector is frozen and keeps its cache throughout. The policy's
cache is cleared after each rollout, since its weights would have changed. Reflections are greedy and have at most 57
tokens; 64 environments run at a time.
"""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np

from reflectrl.core.rollout import Job, rollout
from reflectrl.core.types import Sampling
from reflectrl.models.players import Policy, Reflector

from .measure import interleaved, timed
from .play import instrumented
from .settings import Settings, main, note
from .workloads import GuidedTaxi, bench_model, workload

EPISODES, ROLLOUTS, LENGTH = 64, 4, 57


def jobs_of(number: int) -> list[Job]:
    """Draw the training tasks of a rollout as RL draws them."""
    tasks = GuidedTaxi().tasks("train")
    indices = np.random.default_rng(number).choice(len(tasks), size=EPISODES, replace=len(tasks) < EPISODES)
    return [Job(tasks[int(i)], 1000 * number + k) for k, i in enumerate(indices)]


def row(size: str, settings: Settings) -> dict[str, Any]:
    """Measure both sides, rollout by rollout."""
    policy_lm, reflector_lm = (
        instrumented(bench_model(size, workload("taxi"), seed=seed), endless=True) for seed in (0, 1)
    )
    steps = 0

    def play(memory: int) -> tuple[float, Policy, Reflector]:
        nonlocal steps
        policy = Policy(policy_lm, Sampling(1.0), memory=memory)
        reflector = Reflector(reflector_lm, LENGTH, Sampling(0.0), memory=memory)
        total, steps = 0.0, 0
        for index in range(ROLLOUTS):
            episodes: list[Any] = []
            total += timed(lambda n=index, e=episodes: e.extend(rollout(jobs_of(n), GuidedTaxi, policy, reflector, 64)))
            steps += sum(len(episode.steps) for episode in episodes)
            policy.clear_cache()
        return total, policy, reflector

    runs = {"each": lambda: play(0)[0], "once": lambda: play(50_000)[0]}
    seconds = interleaved(runs, settings.repetitions, warm_up=False)
    _, policy, reflector = play(50_000)
    each, once = statistics.median(seconds["each"]), statistics.median(seconds["once"])
    return {
        "size": size,
        "steps": steps,
        "each prompt, steps/s": steps / each,
        "each once, steps/s": steps / once,
        "speed-up": each / once,
        "reflector's hit rate": reflector.hits / reflector.lookups,
        "policy's hit rate": policy.hits / policy.lookups,
    }


def rows(settings: Settings) -> list[dict[str, Any]]:
    """Return a row per size."""
    return [note(row(size, settings)) for size in settings.sizes]


if __name__ == "__main__":
    main(rows, __doc__)
