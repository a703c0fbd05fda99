"""Time a pass of learning on prompts of small environments: blocks of a prompt one by one, or in padded batches.

    python -m benchmarks.short_prompts
    python -m benchmarks.short_prompts --names fusebox castle --rows 32 --scoring enumeration

The prompts are what random play meets in the strangers (`benchmarks/strangers`). A pass scores the listed actions of
`--rows` different prompts, and goes back from the loss of the actions taken, with a random model as large as the one
that `init` writes: two layers of width 64. Both methods take turns. Times are processor time, so the other core may be
busy.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import torch
from torch.nn import functional
from transformers.utils import logging

from benchmarks.strangers import STRANGERS, make
from reflectrl.core.config import ModelConfig
from reflectrl.core.types import Step
from reflectrl.learn.reward_check import random_play
from reflectrl.models import packed
from reflectrl.models.load import load_model
from reflectrl.models.players import Policy
from reflectrl.models.scratch import save_scratch
from reflectrl.models.sharing import Ids

MODEL = ModelConfig(layers=2, width=64, heads=4, vocab=512, mixed_precision="off")
STEPS = 600
"""Steps of random play."""


def distinct_steps(name: str, rows: int) -> list[Step]:
    """Return up to `rows` steps of random play that differ in what the policy sees."""
    env = make(name)
    played = chain.from_iterable(random_play(env.tasks("train"), partial(make, name), 0, 16, STEPS))
    steps = {step.observation: step for episode in played for step in episode.steps}
    return list(steps.values())[:rows]


def random_policy(steps: Sequence[Step], scoring: str) -> Policy:
    """Return a policy with random weights whose tokenizer was trained on the steps' text."""
    texts = [f"{step.observation.history}{step.observation.state}" for step in steps]
    texts += ["\n".join(step.observation.actions) for step in steps]
    choices = max(len(step.observation.actions) for step in steps)
    with tempfile.TemporaryDirectory() as folder:
        save_scratch(Path(folder), MODEL, texts, choices, 0, 0)
        lm = load_model(folder, MODEL)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        lm.ensure_option_head().normal_(generator=generator)
    return Policy(lm, scoring=scoring)


def prompt_of(policy: Policy, step: Step) -> Ids:
    """Return the tokens of a step's prompt, with the actions in the environment's order."""
    return policy.prompt(step.observation, None, tuple(range(len(step.observation.actions))))


def learn(policy: Policy, steps: Sequence[Step]) -> None:
    """Go forward and backward through the choices of the steps."""
    prompts = [prompt_of(policy, step) for step in steps]
    logits_NA, _ = policy.logits(prompts, [step.observation.actions for step in steps])
    chosen_N = torch.tensor([step.action for step in steps])
    functional.cross_entropy(logits_NA.float(), chosen_N).backward()  # type: ignore[no-untyped-call]


def spent(policy: Policy, steps: Sequence[Step], small: int) -> float:
    """Return the processor seconds of a pass, with the limit of small blocks set to `small`."""
    policy.lm.model.zero_grad(set_to_none=True)
    packed.SMALL = small
    began = time.process_time()
    learn(policy, steps)
    return time.process_time() - began


def main() -> None:
    """Print a line per environment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", default=list(STRANGERS), choices=STRANGERS)
    parser.add_argument("--rows", type=int, default=64, help="prompts of a pass")
    parser.add_argument("--scoring", default="options", choices=["options", "enumeration"])
    parser.add_argument("--repetitions", type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    limit = packed.SMALL
    print("| environment | prompts | tokens of a prompt | one by one (ms) | batched (ms) | batched / one by one |")
    print("|---|---|---|---|---|---|")
    for name in args.names:
        steps = distinct_steps(name, args.rows)
        policy = random_policy(steps, args.scoring)
        length = statistics.fmean(len(prompt_of(policy, step)) for step in steps)
        pairs = [[spent(policy, steps, small) for small in (0, limit)] for _ in range(1 + args.repetitions)][1:]
        ratio = statistics.median(batched / alone for alone, batched in pairs)
        alone, batched = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(
            f"| {name} | {len(steps)} | {length:.0f} | {1000 * alone:.0f} | {1000 * batched:.0f} | {ratio:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
