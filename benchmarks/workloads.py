"""Tasks and models of the benchmarks: three workloads of natural length, and the models that play them.

The expert's action is always carried out, whatever the model chooses. So a model with random weights plays full
episodes, and every implementation reads the same text.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from reflectrl.core.config import ModelConfig
from reflectrl.core.envs.base import Outcome, TextEnv
from reflectrl.core.prompts import policy_prompt, reflection_completion
from reflectrl.core.teach import Demonstration, teach
from reflectrl.core.types import Episode, Task, UserError, named_seed
from reflectrl.models.lm import LanguageModel
from reflectrl.models.load import load_model
from reflectrl.models.scratch import make_model, train_tokenizer
from reflectrl.models.sharing import Ids
from reflectrl.models.sources import find_model
from reflectrl.wings.taxi.env import TaxiEnv
from reflectrl.wings.taxi.world import ACTIONS, STANDARD, Ride

from .household import LISTED, Household

TASKS = 80
"""Number of tasks of a workload: enough for the largest batch, and some to play before."""


@dataclass(frozen=True)
class Workload:
    """A workload: environment and tasks, with their limits.

    Attributes:
        make_env: makes an environment; called once for each that plays at the same time.
        horizon: the longest episode in steps.
        context: tokens that hold the longest prompt and its reflection, under any tokenization.
        choices: the largest number of listed actions.
    """

    name: str
    make_env: Callable[[], TextEnv]
    tasks: tuple[Task, ...]
    horizon: int
    context: int
    choices: int


class GuidedTaxi(TaxiEnv):
    """The real taxi on the standard map. The expert's action is carried out instead of the chosen action."""

    def apply(self, action: str) -> Outcome:
        return super().apply(ACTIONS[self.teacher.expert_action(self)])


class GuidedTaxiHistory(GuidedTaxi):
    """The same taxi with past maps and actions in the observation."""

    def __init__(self, horizon: int = 0) -> None:
        super().__init__(history=True, horizon=horizon)


def _longest_rides() -> tuple[Task, ...]:
    """Return the starts whose shortest solutions are longest (15 to 18 actions)."""
    env = TaxiEnv()
    rides = [task for split in ("train", "validation", "test") for task in env.tasks(split)]
    return tuple(sorted(rides, key=lambda task: -STANDARD.actions_left(Ride(*task.payload["ride"])))[:TASKS])


def workload(name: str, horizon: int = 0) -> Workload:
    """Return a workload by name: "taxi", "taxi-history" or "alfworld".

    Args:
        horizon: cut episodes after so many steps; 0 leaves them their natural length.

    Raises:
        UserError: if there is no such workload.
    """
    if name in ("taxi", "taxi-history"):
        taxi, context = (GuidedTaxi, 256) if name == "taxi" else (GuidedTaxiHistory, 2048)
        steps = horizon or 20
        return Workload(name, partial(taxi, horizon=steps), _longest_rides(), steps, context, len(ACTIONS))
    if name == "alfworld":
        steps = horizon or 50
        tasks = tuple(Household().tasks("train"))[:TASKS]
        return Workload(name, partial(Household, horizon=steps), tasks, steps, 2560, LISTED)
    raise UserError(f"unknown workload {name!r}; there are taxi, taxi-history and alfworld")


def records(workload: Workload, episodes: int, seed: int = 0, first: int = 0) -> list[Episode]:
    """Record episodes: at every step the analyst's reflection, the expert's choice and the expert as target.

    The tasks are taken in order from number `first` on, and again from the beginning when they run out.
    """
    env, numbers = workload.make_env(), range(first, first + episodes)
    tasks = ((i, workload.tasks[i % len(workload.tasks)]) for i in numbers)
    return [teach(env, Demonstration(task, named_seed(seed, "records", i), "trajectory")) for i, task in tasks]


# ---- models --------------------------------------------------------------------------------------------------------

SIZES = {
    "tiny": (1, 32, 2),
    "2x64": (2, 64, 4),
    "4x256": (4, 256, 4),
    "gpt2-small": (12, 768, 12),
    "gpt2-xl": (48, 1600, 25),
}
"""Layers, width and heads by size."""
VOCAB = {"tiny": 512, "2x64": 512, "4x256": 512}
"""Rows of the embedding table, if not as in GPT-2."""
GPT2_VOCAB = 50_257
TOKENS = 512
"""Largest number of tokens of the tokenizer at every size, so that prompts have the same length for all models."""


def bench_model(
    size: str,
    workload: Workload,
    vocab: int | None = None,
    context: int | None = None,
    family: str = "gpt2",
    seed: int = 0,
    adapter: str | None = None,
    **settings: Any,
) -> LanguageModel:
    """Make a model with random weights in evaluation mode, loaded as usual: float32, with the attention of CPUs.

    Args:
        size: "tiny", "4x256", "gpt2-small" or "gpt2-xl"; or a pretrained model, by folder or short name. A pretrained
            model keeps its weights, vocabulary and tokenizer. It gets no chat template, as on the plain side.
        workload: the tokenizer is trained on its text.
        vocab: rows of the embedding table. Rows beyond the tokenizer's tokens cost time and memory, as in a model that
            was not made for this text. None: 512 for "tiny" and "4x256", else GPT-2's 50257.
        context: positions; None takes the workload's, or all of a pretrained model's.
        adapter: the player's name, if `settings` ask for LoRA.
        settings: further fields of `ModelConfig` (`lora_rank`, `dtype`, `device`, `mixed_precision` ...).

    Raises:
        UserError: if there is no such size, if `vocab` is less than the tokenizer's tokens, or if it is given with a
            pretrained model.
    """
    plain = {"device": "cpu", "mixed_precision": "off"}
    if size not in SIZES:
        source = find_model(size)
        if not Path(source).is_dir() or vocab is not None:
            raise UserError(f"unknown size {size!r}; there are {', '.join(SIZES)}, and folders of models")
        pretrained = ModelConfig(**({"context": context or 2**30, "chat": "off"} | plain | settings))  # type: ignore[arg-type]
        return load_model(source, pretrained, adapter, seed)
    layers, width, heads = SIZES[size]
    vocab, context = vocab or VOCAB.get(size, GPT2_VOCAB), context or workload.context
    shape = {"family": family, "layers": layers, "width": width, "heads": heads, "context": context}
    config = ModelConfig(**shape, **(plain | settings))  # type: ignore[arg-type]
    return make_bench_model(config, workload, vocab, seed, adapter)


def make_bench_model(
    config: ModelConfig, workload: Workload, vocab: int, seed: int = 0, adapter: str | None = None
) -> LanguageModel:
    """Make such a model of any shape; `config` gives family, layers, width, heads and context."""
    tokenizer = make_tokenizer(workload.name)
    if vocab < len(tokenizer):
        raise UserError(f"a vocabulary of {vocab} is too small for the tokenizer's {len(tokenizer)} tokens")
    model = make_model(replace(config, vocab=len(tokenizer)), tokenizer, seed)
    model.resize_token_embeddings(vocab, mean_resizing=False)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        del model
        return load_model(Path(folder), config, adapter, seed)


@lru_cache(maxsize=8)
def make_tokenizer(name: str) -> Any:
    """Train the tokenizer of a workload. It has at most `TOKENS` tokens, and each choice label is a single token."""
    work = workload(name)
    return train_tokenizer(texts_of(work), TOKENS - work.choices, work.choices)


def texts_of(made: Workload) -> Iterator[str]:
    """Yield all text that the players of a few episodes read and write."""
    labels = [str(i) for i in range(1, made.choices + 1)]
    for episode in records(made, 8):
        yield episode.steps[-1].observation.history
        for step in islice(episode.steps, made.horizon):
            prompt = policy_prompt(step.observation, step.reflection, labels)
            yield f"{prompt.rest} {labels[step.action]}"


def reflection_ids(lm: LanguageModel, reflections: Sequence[str]) -> list[Ids]:
    """Return the tokens of each reflection, end-of-text included."""
    return [(*lm.encode(reflection_completion(text)), lm.tokenizer.eos_token_id) for text in reflections]


def reflection_lengths(lm: LanguageModel, reflections: Sequence[str]) -> list[int]:
    """Return the number of tokens of each reflection, end-of-text included."""
    return [len(ids) for ids in reflection_ids(lm, reflections)]
