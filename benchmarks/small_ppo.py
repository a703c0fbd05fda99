r"""Sample efficiency of a small network on the same tasks: PPO with a table or an MLP in place of a language model.

    python -m benchmarks.small_ppo --env frozenlake --policy tabular
    python -m benchmarks.small_ppo --env frozenlake --options '{"maps": "random", "size": 4}' --out lake.json
    python -m benchmarks.small_ppo --env taxi --episodes 40000 --gamma 0.9 --entropy 0.03 --lr 1.5e-3 --envs 128 \
        --minibatches 8

This is a reference: a language model's policy needs some multiple of these numbers of episodes. It is a single linear
file, after Huang et al. 2022, "The 37 Implementation Details of Proximal Policy Optimization". The policy sees what a
language model sees, but not as language:

- "tabular": every distinct text of an observation is a state with its own logits and value. Learning about a state
  changes no other state.
- "mlp": every (line, place in the line, word or character) of the text is a feature, 0 or 1. Two networks (actor and
  critic) of two layers of 64 tanh units read them. A drawn map has one feature per cell and letter.

Illegal actions have probability 0. Lines of the observation that begin with `--ignore` are removed. By default this is
the last action: neither taxi nor FrozenLake needs it, and it would multiply the states of a table. An episode cut off
by the horizon counts as ended, as it does for the language model's learner.

The settings were tuned with one seed each. The defaults were tuned on FrozenLake's random maps (learning rate and
entropy bonus, on validation tasks) and on its standard map (on training starts, since it has only two for validation).
The settings of the taxi command above were tuned on taxi's validation starts. There, with a discount of 0.95, a quick
death costs less than a ride that never finds the passenger, and small batches converge early to the few rides that they
have won.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

import numpy as np
import torch
import tyro
from torch import nn

from reflectrl.core.envs import make
from reflectrl.core.envs.base import TextEnv
from reflectrl.core.types import Observation, Task, named_seed
from reflectrl.learn.losses import entropy, gae, normalise, ppo_loss
from reflectrl.learn.validation import evenly

from .measure import report
from .small_networks import SLOTS, Encoder, Network


@dataclass(frozen=True)
class Settings:
    """Settings of the task, the policy and PPO."""

    env: str = "taxi"
    """Name from `reflectrl list envs`, or "package.module:Class"."""
    options: str = "{}"
    """Arguments of the environment, as a JSON object."""
    stage: str = ""
    """Stage of the tasks; empty for the last."""
    policy: Literal["tabular", "mlp"] = "mlp"
    """Policy that is trained: a table or an MLP."""
    seeds: int = 3
    """Number of trainings, with seeds 0, 1 and so on."""
    episodes: int = 20_000
    """Episodes per training."""
    held_out: str = "test"
    """Split of the held-out tasks; "validation" for tuning."""
    ignore: str = "Last:"
    """Beginning of lines that are removed from the observation; if empty, no line is removed."""
    eval_every: int = 500
    """Episodes between evaluations."""
    eval_episodes: int = 200
    """Episodes per evaluation, roughly: all tasks several times over, or tasks spread evenly over the split."""
    goal: float = 0.8
    """Success rate to reach."""
    envs: int = 32
    """Number of environments in lock-step."""
    steps: int = 32
    """Steps of each environment between two updates."""
    epochs: int = 4
    """Passes over these steps."""
    minibatches: int = 4
    """Optimiser steps per pass."""
    lr: float = 0.0
    """Adam's learning rate, which falls linearly to a tenth; 0 takes the best rate on validation tasks (`RATES`)."""
    gamma: float = 0.95
    """Discount factor."""
    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation."""
    clip: float = 0.2
    """Clip range of the probability ratio."""
    entropy: float = 0.01
    """Weight of the entropy bonus."""
    value: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Largest gradient norm; larger gradients are clipped."""
    out: str = ""
    """JSON file for settings, curves and summary; empty for none."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise SystemExit(f"--seeds is how many trainings there are, 1 or more, not {self.seeds}")


RATES = {"tabular": 0.2, "mlp": 4e-3}
"""Learning rates by policy if none is given."""


# ---- training --------------------------------------------------------------------------------------------------------


def train(settings: Settings, seed: int) -> list[dict[str, float]]:
    """Train once. Return evaluations at the beginning, after every `eval_every` episodes, and at the end."""
    torch.manual_seed(named_seed("small_ppo", seed) % 2**63)
    rng, c = np.random.default_rng(named_seed("small_ppo", seed)), settings
    section = {"name": c.env, **json.loads(c.options)}
    envs, further = [make(section) for _ in range(c.envs)], [make(section) for _ in range(64)]
    tasks = list(envs[0].tasks("train", c.stage or None))
    encode, network = Encoder(c.policy, c.ignore), Network(c.policy, SLOTS[c.policy])
    peak = c.lr or RATES[c.policy]
    optimizer = torch.optim.Adam(network.parameters(), lr=peak, eps=1e-5, fused=True)
    live = [begun(env, tasks[int(rng.integers(len(tasks)))], rng) for env in envs]
    episodes, env_steps, next_eval, seconds, curve = 0, 0, 0, 0.0, list[dict[str, float]]()
    while True:
        if episodes >= min(next_eval, c.episodes):
            line = {"seed": seed, "episodes": episodes, "env_steps": env_steps, "seconds": round(seconds, 1)}
            curve.append(line | scores(network, encode, further, settings, seed))
            print(json.dumps(curve[-1]), file=sys.stderr, flush=True)
            next_eval += c.eval_every
        if episodes >= c.episodes:
            return curve
        clock = time.perf_counter()
        optimizer.param_groups[0]["lr"] = peak * max(0.1, 1 - episodes / c.episodes)

        # Play: T steps in each of E environments; an episode that ends is followed by another task at once.
        seen, chosen, rewards_TE = [], [], torch.zeros(c.steps, c.envs)
        ends_TE, logp_TE, values_TE = torch.zeros(c.steps, c.envs), torch.zeros(c.steps, c.envs), []
        for t in range(c.steps):
            encoded = [encode(observation, True) for observation in live]
            with torch.no_grad():
                logp_EA, values_E = network(encoded)
            actions_E = torch.multinomial(logp_EA.exp(), 1)[:, 0]
            seen += encoded
            chosen.append(actions_E)
            values_TE.append(values_E)
            logp_TE[t] = logp_EA.gather(1, actions_E[:, None])[:, 0]
            for e, env in enumerate(envs):
                _, reward, terminated, truncated, info = env.step(position(encode, live[e], int(actions_E[e])))
                rewards_TE[t, e], ends_TE[t, e], live[e] = reward, terminated or truncated, info["observation"]
                if terminated or truncated:
                    live[e] = begun(env, tasks[int(rng.integers(len(tasks)))], rng)
        episodes, env_steps = episodes + int(ends_TE.sum()), env_steps + c.steps * c.envs

        # Estimate generalised advantages within each episode.
        with torch.no_grad():
            values_TE.append(network([encode(observation, True) for observation in live])[1])
        values_TE = torch.stack(values_TE)
        advantages_TE = torch.zeros(c.steps, c.envs)
        for e in range(c.envs):
            cuts = [0, *(ends_TE[:, e].nonzero()[:, 0] + 1).tolist()]
            for start, end in zip(cuts, [*cuts[1:], c.steps], strict=True):
                rest = float(values_TE[end, e]) if end == c.steps and not ends_TE[-1, e] else 0.0
                span = slice(start, end)
                advantages_TE[span, e] = gae(rewards_TE[span, e], values_TE[span, e], c.gamma, c.gae_lambda, rest)
        returns_N = (advantages_TE + values_TE[:-1]).flatten()
        advantages_N, old_N, actions_N = advantages_TE.flatten(), logp_TE.flatten(), torch.cat(chosen)

        # Learn.
        for _ in range(c.epochs):
            for rows in np.array_split(rng.permutation(len(seen)), c.minibatches):
                logp_NA, values_N = network([seen[i] for i in rows])
                logp_N = logp_NA.gather(1, actions_N[rows][:, None])[:, 0]
                centred_N = advantages_N[rows] - advantages_N[rows].mean()
                loss, _ = ppo_loss(logp_N, old_N[rows], normalise(centred_N), c.clip)
                loss = loss - c.entropy * entropy(logp_NA).mean()
                loss = loss + c.value * (values_N - returns_N[rows]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), c.max_grad_norm)
                optimizer.step()
        seconds += time.perf_counter() - clock


def begun(env: TextEnv, task: Task, rng: np.random.Generator) -> Observation:
    """Start a task and return its first observation."""
    _, info = env.reset(seed=int(rng.integers(2**31)), options={"task": task})
    return info["observation"]


def position(encode: Encoder, observation: Observation, action: int) -> int:
    """Return the index of an action among the observation's listed actions."""
    return [encode.actions[name] for name in observation.actions].index(action)


# ---- evaluation ------------------------------------------------------------------------------------------------------


def scores(network: Network, encode: Encoder, envs: Sequence[TextEnv], c: Settings, seed: int) -> dict[str, float]:
    """Return success on training and held-out tasks, sampled and greedy."""
    found = {}
    for name, split in (("train", "train"), ("held_out", c.held_out)):
        tasks = evenly(envs[0].tasks(split, c.stage or None), c.eval_episodes)
        for how, times in (("sampled", math.ceil(c.eval_episodes / len(tasks))), ("greedy", 1)):
            rng = np.random.default_rng(named_seed("evaluate", seed, split, how))
            jobs = tasks * times
            batches = [jobs[start : start + len(envs)] for start in range(0, len(jobs), len(envs))]
            won = [won for batch in batches for won in play(network, encode, envs, batch, how == "greedy", rng)]
            found[f"{name}_{how}"] = fmean(won)
    return found


@torch.no_grad()
def play(
    network: Network,
    encode: Encoder,
    envs: Sequence[TextEnv],
    tasks: Sequence[Task],
    greedy: bool,
    rng: np.random.Generator,
) -> list[bool]:
    """Play the tasks at the same time. Return for each whether it was won."""
    playing = list(envs[: len(tasks)])
    live = [(env, begun(env, task, rng)) for env, task in zip(playing, tasks, strict=True)]
    while live:
        logp_EA = network([encode(observation, False) for _, observation in live])[0].numpy()
        noise_EA = np.zeros_like(logp_EA) if greedy else rng.gumbel(size=logp_EA.shape)  # the greatest sum is a sample
        going = []
        for (env, observation), action in zip(live, (logp_EA + noise_EA).argmax(1), strict=True):
            info = env.step(position(encode, observation, int(action)))[-1]
            if not env.done:
                going.append((env, info["observation"]))
        live = going
    return [env.success for env in playing]


def reached(curve: Sequence[Mapping[str, float]], name: str, goal: float, unit: str) -> float:
    """Return the episodes (or steps) at the first evaluation that reached the goal; infinity if none did."""
    return next((line[unit] for line in curve if line[name] >= goal), math.inf)


def summary(curves: Sequence[Sequence[Mapping[str, float]]], goal: float) -> list[dict[str, Any]]:
    """Return median and range over the seeds: of the episodes and steps to reach the goal, and of the final success."""
    rows = []
    for name in ("train_sampled", "train_greedy", "held_out_sampled", "held_out_greedy"):
        row = {"success": name.replace("_", " ")}
        for unit in ("episodes", "env_steps"):
            row[f"{unit} to {goal:.0%}"] = spread([reached(curve, name, goal, unit) for curve in curves], "{:,.0f}")
        rows.append(row | {"in the end": spread([curve[-1][name] for curve in curves], "{:.0%}")})
    return rows


def spread(values: Sequence[float], form: str) -> str:
    """Format the median and, in brackets, minimum and maximum; "never" if a goal was not reached."""
    middle, low, high = (
        "never" if math.isinf(value) else form.format(value) for value in (median(values), min(values), max(values))
    )
    return f"{middle} ({low} to {high})"


if __name__ == "__main__":
    chosen = tyro.cli(Settings, description=(__doc__ or "").split("\n\n")[0])
    torch.set_num_threads(1)
    trained = [train(chosen, seed) for seed in range(chosen.seeds)]
    table = summary(trained, chosen.goal)
    if chosen.out:
        Path(chosen.out).write_text(json.dumps({"settings": asdict(chosen), "summary": table, "curves": trained}))
    print(report(table, False), end="")
