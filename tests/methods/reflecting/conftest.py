"""A toy in which the reflection alone tells the policy what to do, and a tiny reflector that names any way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from reflectrl.core.config import ModelConfig
from reflectrl.core.envs.base import Outcome, TextEnv
from reflectrl.core.envs.teacher import Teacher
from reflectrl.core.prompts import reflector_prompt, tokenize
from reflectrl.core.types import Sampling, Task
from reflectrl.learn.examples import Example, summed_nll
from reflectrl.models.load import LanguageModel, load_model
from reflectrl.models.players import Policy, Reflector
from reflectrl.models.scratch import save_scratch
from reflectrl.models.sharing import pack

WAYS = ("left", "right")
SIGNS = {"red": "left", "blue": "right"}
"""Which way is right, by the colour of the sign."""


class OnlyExpert(Teacher):
    """Knows the way, and has nothing to say about it."""

    def expert_action(self, env: Any) -> int:
        return WAYS.index(SIGNS[env.task.payload["walk"][env.at]])


class Signs(TextEnv):
    """Two crossings with a sign each; only the reflector knows colours from each other."""

    stages: ClassVar[tuple[str, ...]] = ("full",)

    def __init__(self) -> None:
        super().__init__(horizon=3)

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        walks = [(one, other) for one in SIGNS for other in SIGNS]
        return [Task(f"{split}-{'-'.join(walk)}", "signs", {"walk": list(walk)}, split, "full") for walk in walks]

    def begin(self, task: Task) -> None:
        self.at = 0

    def apply(self, action: str) -> Outcome:
        if action != SIGNS[self.task.payload["walk"][self.at]]:
            return Outcome(-0.5, terminated=True)
        self.at += 1
        return Outcome(0.5, terminated=self.at == 2, success=self.at == 2)

    def state(self) -> str:
        return f"Crossing {self.at}: a {self.task.payload['walk'][min(self.at, 1)]} sign.\n"

    def legal_actions(self) -> Sequence[str]:
        return WAYS

    def get_state(self) -> Any:
        return self.at

    def set_state(self, state: Any) -> None:
        self.at = state


class Obedient(Policy):
    """Goes the way that the reflection names, nearly always; without one it has no idea."""

    def with_sampling(self, sampling: Sampling) -> Obedient:
        return Obedient(self.lm, sampling, memory=self.memory)

    def logits(self, prompts: Any, actions: Any) -> tuple[Tensor, Tensor]:
        said = [self.lm.tokenizer.decode(ids).partition("Reflection:")[2].partition("Actions:")[0] for ids in prompts]
        logits = [[4.0 * (way in text) for way in listed] for text, listed in zip(said, actions, strict=True)]
        return torch.tensor(logits), torch.zeros(len(said), self.lm.hidden_size)

    def _compute(self, keys: Any, episodes: Any, caches: Any) -> Any:
        return list(self.logits(*zip(*keys, strict=True))[0].double().numpy())


def observations() -> list[Any]:
    env, found = Signs(), []
    for task in env.tasks("train"):
        env.reset(seed=0, options={"task": task})
        found.append(env.observe())
        env.step(WAYS.index(SIGNS[task.payload["walk"][0]]))
        found.append(env.observe())
    return list(dict.fromkeys(found))


@pytest.fixture(scope="session")
def undecided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model that has learned to name a way, either of them, at every sign."""
    start, folder = (tmp_path_factory.mktemp("undecided") / name for name in ("start", "taught"))
    config = ModelConfig(layers=1, width=32, heads=2, context=96, vocab=300)
    texts = [
        f"{seen.text}Reflection: Go {way}.\nActions: 1: left; 2: right\nChoice: 1"
        for seen in observations()
        for way in WAYS
    ]
    save_scratch(start, config, texts, 2, seed=1)
    lm = load_model(start, ModelConfig(mixed_precision="off"), "reflector")
    rows = []
    for seen in observations():
        prompt = tokenize(lm, reflector_prompt(seen), reserve=8)
        rows += [Example((*prompt, *lm.encode(f" Go {way}."), lm.tokenizer.eos_token_id), len(prompt)) for way in WAYS]
    optimizer = torch.optim.AdamW(lm.parameters(), lr=3e-2)
    for _ in range(40):
        optimizer.zero_grad()
        (summed_nll(lm, rows, pack) / len(rows)).backward()
        optimizer.step()
    lm.save(folder)
    return folder


@pytest.fixture
def pair(undecided: Path) -> Callable[..., tuple[Policy, Reflector]]:
    """`pair()`: the obedient policy and a reflector that learns; settings are those of [model]."""

    def make(policy: type[Policy] = Obedient, **settings: Any) -> tuple[Policy, Reflector]:
        reader, writer = (load(undecided, role, **settings) for role in ("policy", "reflector"))
        if settings.get("lora_rank"):
            from reflectrl.models.lm import fresh_adapter

            writer = fresh_adapter(reader, "reflector")
        return policy(reader), Reflector(writer, max_new_tokens=6)

    return make


def load(folder: Path, role: str, **settings: Any) -> LanguageModel:
    return load_model(folder, ModelConfig(mixed_precision="off", **settings), role)


@pytest.fixture
def make_signs() -> Callable[[], TextEnv]:
    return Signs
