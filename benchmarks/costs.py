"""Cost of an update of online RL in operations, memory and network: counted where possible, otherwise calculated.

    python -m benchmarks.costs [--counted] [--flops 4e14 --used 0.3 --network 4e11]

With `--counted`, updates of small models run under torch's counter of floating-point operations, rollouts and learning
separately. Model size, batch, horizon and number of actions are varied one at a time, and each count is compared with
the formula. The number of operations does not depend on how busy the machine is. Next come the formulas' values for
larger models on 1, 8 and 16 GPUs: seconds (from a GPU's peak rate and the share of it that is reached), bytes of
weights, gradients and optimiser, and the bytes that an all-reduce sends. These lines are calculated, not measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from reflectrl.core.config import RLConfig
from reflectrl.core.envs.base import Outcome, TextEnv
from reflectrl.core.types import Task
from reflectrl.learn.online import update
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.learn.trainer import Trainer
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import Policy

from .workloads import bench_model, workload

# ---- the formulas ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """Shape of a decoder: layers, width, vocabulary, and the parameters in its layers if they are not 12 L d²."""

    layers: int
    width: int
    vocab: int
    body: int = 0

    @property
    def in_layers(self) -> int:
        """Parameters between the embeddings and the head. Each token is multiplied with every one of them once."""
        return self.body or 12 * self.layers * self.width**2

    @property
    def parameters(self) -> int:
        """Number of parameters; embeddings and head are tied."""
        return self.in_layers + self.vocab * self.width


@dataclass(frozen=True)
class Work:
    """An update of online RL, given by the environment and the recipe.

    Attributes:
        history: tokens that each step adds to the history (0 if prompts have the current state only).
        state: tokens of a step that are read anew each time, without the list of actions.
        per_action: tokens of a listed action.
        reflection: tokens of a step's reflection; 0 without a reflector.
        epochs: passes over the batch in learning.
        distinct: share of distinct prompts. Identical prompts are computed once.
    """

    episodes: int
    steps: int
    actions: int
    history: int = 0
    state: int = 60
    per_action: int = 5
    reflection: int = 0
    epochs: int = 1
    distinct: float = 1.0

    @property
    def prompt(self) -> int:
        """Tokens that a step reads: new history, state and actions. Earlier history is in the cache."""
        return self.history + self.state + self.per_action * self.actions

    @property
    def read(self) -> float:
        """Tokens that players read in an update, with the reflection as a part of the policy's prompt."""
        reflecting = self.history + self.state if self.reflection else 0
        return self.episodes * self.steps * self.distinct * (self.prompt + self.reflection + reflecting)

    @property
    def written(self) -> float:
        """Tokens that the reflector generates."""
        return self.episodes * self.steps * self.distinct * self.reflection

    @property
    def learned(self) -> float:
        """Tokens that the policy reads in learning, in all epochs."""
        return self.epochs * self.episodes * self.steps * self.distinct * (self.prompt + self.reflection)


def forward_flops(shape: Shape, tokens: float, asked: float, pairs: float, rows: float) -> float:
    """Return the operations of a forward pass: 2 per parameter and token, 4 d L per query-key pair, 2 d per logit.

    Args:
        asked: tokens whose last hidden state is needed. The last layer is computed for these only, except for its
            queries, keys and values, which are a quarter of the layer.
        pairs: query-key pairs of attention, per layer and head.
        rows: entries of the head that are computed.
    """
    skipped = 0.75 / shape.layers * (tokens - asked)
    return 2 * shape.in_layers * (tokens - skipped) + 4 * shape.width * shape.layers * pairs + 2 * shape.width * rows


def update_flops(shape: Shape, work: Work) -> tuple[float, float]:
    """Return the operations of playing and of learning. Forward and backward cost three forward passes together."""
    length = work.history * work.steps / 2 + work.prompt + work.reflection  # the middle of an episode
    prompts = work.episodes * work.steps * work.distinct
    rows, tokens = prompts * work.actions + work.written * shape.vocab, work.read + work.written
    play = forward_flops(shape, tokens, prompts + work.written, tokens * length / 2, rows)
    pairs = work.learned * length / 2
    learn = 3 * forward_flops(shape, work.learned, work.epochs * prompts, pairs, work.epochs * prompts * work.actions)
    return play, learn


def state_bytes(shape: Shape, weight: int = 4, reference: bool = False) -> int:
    """Return the bytes on a rank: weights, gradients, AdamW's two moments (4 bytes each), any frozen reference."""
    return shape.parameters * (2 * weight + 8 + (weight if reference else 0))


def sent_bytes(shape: Shape, ranks: int, weight: int = 4) -> float:
    """Return the bytes that a rank sends in one all-reduce of the gradients: 2 (N - 1) / N of their size (ring)."""
    return 2 * (ranks - 1) / ranks * weight * shape.parameters


# ---- counting --------------------------------------------------------------------------------------------------------


class Hall(TextEnv):
    """Environment with a fixed number of steps and actions. Rewards are random, so that there is a gradient."""

    def __init__(self, steps: int, actions: int) -> None:
        super().__init__(horizon=steps)
        self.count = actions

    def tasks(self, split: str, stage: str | None = None) -> list[Task]:
        return [Task(f"{split}-{i}", "hall", {"hall": i}, split) for i in range(64)]

    def begin(self, task: Task) -> None:
        self.place = 0

    def apply(self, action: str) -> Outcome:
        self.place += 1
        return Outcome(float(self.np_random.random()), terminated=self.place == self.horizon, success=False)

    def state(self) -> str:
        return f"The passenger is at {self.place}, the taxi at {self.task.payload['hall']}.\n"

    def legal_actions(self) -> list[str]:
        return [f"go {i}" for i in range(self.count)]


def counted(size: str, episodes: int, steps: int, actions: int) -> dict[str, Any]:
    """Count the operations of an update with torch, and compare them with the formula for the same tokens.

    Torch does not count the CPU's attention, so the formula is compared without its query-key pairs.
    """
    lm = bench_model(size, workload("taxi"), context=1024)
    config = RLConfig(updates=1, episodes=episodes, eval_episodes=1, curriculum="none", kl_coef=0.0, minibatch=10**6)
    rollouts = EpisodeRollouts(Policy(lm), None, lambda: Hall(steps, actions), config, 0)
    optimizer = torch.optim.AdamW(lm.parameters(), lr=1e-4)
    trainer = Trainer(lm, [optimizer], keep_best=False)
    played, before = counting(lm, lambda: rollouts.collect(0, None))
    learned, after = counting(lm, lambda: update(trainer, None, played[1], config, 1))
    shape = shape_of(lm)
    play, learn = (
        forward_flops(shape, counts["encoded"], counts["logits"] / actions, 0, counts["logits"])
        for counts in (before, after)
    )
    counted_play, counted_learn = played[0], learned[0]
    return {
        "size": size, "episodes": episodes, "steps": steps, "actions": actions,
        "tokens read": before["encoded"], "play": counted_play, "formula/count, play": play / counted_play,
        "learn": counted_learn, "formula/count, learn": 3 * learn / counted_learn,
    }  # fmt: skip


def counting(lm: LanguageModel, work: Any) -> tuple[tuple[float, Any], dict[str, int]]:
    """Run `work`. Return its operations and its result, and what the model's own counters add up."""
    before = lm.counters.copy()
    with FlopCounterMode(display=False) as counter:
        result = work()
    done = lm.counters.since(before)
    return (float(counter.get_total_flops()), result), {name: getattr(done, name) for name in ("encoded", "logits")}


def shape_of(lm: LanguageModel) -> Shape:
    """Return the shape of a benchmark model."""
    config: Any = lm.core.config
    return Shape(config.n_layer, config.n_embd, config.vocab_size)


BASE = {"size": "4x256", "episodes": 4, "steps": 4, "actions": 4}
VARIED: dict[str, list[Any]] = {
    "size": ["tiny"],
    "episodes": [8],
    "steps": [8],
    "actions": [8, 12],
}


def rows_counted() -> Iterator[dict[str, Any]]:
    """Yield the base case, then each case with one quantity changed."""
    yield counted(**BASE)  # type: ignore[arg-type]
    for name, values in VARIED.items():
        for value in values:
            yield counted(**(BASE | {name: value}))


# ---- calculating -----------------------------------------------------------------------------------------------------

MODELS = {
    "0.9M (taxi)": Shape(4, 128, 512),
    "135M": Shape(30, 576, 49_152, 106_000_000),
    "1.5B": Shape(28, 1536, 151_936, 1_310_000_000),
    "7B": Shape(28, 3584, 152_064, 6_530_000_000),
}
TYPICAL = Work(episodes=64, steps=16, actions=6, state=120, reflection=40, epochs=2)


def rows_calculated(flops: float, used: float, network: float) -> Iterator[dict[str, Any]]:
    """Yield the cost of an update of `TYPICAL` work: seconds on one GPU, and on several with their all-reduces."""
    for name, shape in MODELS.items():
        play, learn = update_flops(shape, TYPICAL)
        for ranks in (1, 8, 16):
            sending = TYPICAL.epochs * sent_bytes(shape, ranks) / network
            seconds = (play + learn) / ranks / (flops * used) + sending
            yield {
                "model": name, "GPUs": ranks, "play": play, "learn": learn,
                "GiB per GPU": state_bytes(shape) / 2**30, "GB sent": sent_bytes(shape, ranks) / 1e9,
                "s computing": (play + learn) / ranks / (flops * used), "s sending": sending,
                "efficiency": (play + learn) / (flops * used) / ranks / seconds,
            }  # fmt: skip
    for name in ("episodes", "steps", "actions", "reflection"):
        doubled = replace(TYPICAL, **{name: 2 * getattr(TYPICAL, name)})
        grown = sum(update_flops(MODELS["135M"], doubled)) / sum(update_flops(MODELS["135M"], TYPICAL))
        yield {"model": f"135M, twice the {name}", "operations": f"{grown:.2f} times"}


def table(rows: list[dict[str, Any]]) -> str:
    """Format rows as a Markdown table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    body = [[_shown(row.get(name, "")) for name in names] for row in rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [names, ["---"] * len(names), *body])


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.costs", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--counted", action="store_true", help="count the operations of small updates first")
    parser.add_argument("--flops", type=float, default=4e14, help="a GPU's peak, operations per second (bfloat16)")
    parser.add_argument("--used", type=float, default=0.3, help="the share of the peak that is reached")
    parser.add_argument(
        "--network", type=float, default=4e11, help="bytes per second between GPUs (5e10 over a network)"
    )
    options = parser.parse_args()
    if options.counted:
        print(table(list(rows_counted())), "\n")
    rows = list(rows_calculated(options.flops, options.used, options.network))
    print(table([row for row in rows if "GPUs" in row]), "\n")
    print(table([row for row in rows if "GPUs" not in row]))


if __name__ == "__main__":
    main()
