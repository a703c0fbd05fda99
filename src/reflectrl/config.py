"""Recipes: the settings of a run as dataclasses, read from TOML, overridden by dotted keys, validated by name.

The resolved recipe is written into the run folder; reading it back gives an equal recipe.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
import types as pytypes
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from reflectrl.plugins import suggestion
from reflectrl.types import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class ModelConfig:
    """Which language model the players are."""

    source: str = "scratch"
    """"scratch" (made here), or the name or folder of a Hugging Face causal language model."""
    family: Literal["gpt2", "llama", "mistral", "qwen2"] = "gpt2"
    """Architecture of a scratch model."""
    layers: int = 4
    """Transformer blocks of a scratch model."""
    width: int = 128
    """Hidden size of a scratch model."""
    heads: int = 4
    """Attention heads of a scratch model."""
    vocab: int = 512
    """Largest vocabulary of a scratch tokenizer."""
    context: int = 512
    """Longest sequence in tokens; longer prompts lose the oldest part of their history."""
    lora_rank: int = 0
    """0 trains every weight, one copy per player; above 0 both players are LoRA adapters on one backbone."""
    lora_alpha: int = 16
    """LoRA scaling numerator (the scale is alpha / rank)."""
    lora_dropout: float = 0.0
    """Dropout on LoRA inputs, active in SFT only."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Weights and activations of the backbone."""
    device: str = "auto"
    """"auto", "cpu", "cuda", "cuda:1", "mps" ..."""
    trust_remote_code: bool = False
    """Let a hub model bring code of its own. Off unless you read that code."""


@dataclass(frozen=True)
class TeachConfig:
    """How teaching episodes are made from the training tasks."""

    tasks: int = 0
    """How many training tasks the teacher plays; 0 means all of them."""
    noise: tuple[float, ...] = (0.0, 0.5)
    """Shares of random actions; every taught task is played once with each share."""
    negatives: int = 2
    """Perturbed actions per taught task (each gives one negative example)."""
    unsafe_noise: bool = False
    """Let random actions end the episode (a crash); otherwise noise avoids actions that end it without success."""


@dataclass(frozen=True)
class SFTConfig:
    """Supervised fine-tuning of either player."""

    steps: int = 1000
    """Largest number of optimiser steps."""
    batch_size: int = 32
    """Rows per optimiser step."""
    accumulate: int = 1
    """Micro-batches into which an optimiser step is cut (memory, not mathematics)."""
    lr: float = 2e-3
    """Peak learning rate of AdamW."""
    warmup: float = 0.05
    """Share of the steps in which the learning rate rises linearly; it then falls along a cosine to a tenth."""
    weight_decay: float = 0.01
    """AdamW weight decay."""
    max_grad_norm: float = 1.0
    """Gradient-norm clip."""
    eval_every: int = 200
    """Optimiser steps between evaluations on validation rows."""
    patience: int = 5
    """Evaluations without improvement before training stops early."""
    negatives: bool = True
    """Train on negative examples too."""


@dataclass(frozen=True)
class RLConfig:
    """Online reinforcement learning of the policy."""

    algorithm: Literal["reinforce", "ppo"] = "reinforce"
    """REINFORCE, or PPO with a clipped ratio."""
    updates: int = 50
    """Iterations; each plays a batch of episodes and learns from it."""
    episodes: int = 16
    """Fresh episodes per iteration."""
    group: int = 1
    """Episodes per task within an iteration (above 1 for the leave-one-out baseline)."""
    temperature: float = 1.0
    """Sampling temperature of the policy while it learns."""
    baseline: Literal["none", "mean", "leave-one-out", "critic"] = "mean"
    """What is subtracted from the reward-to-go."""
    gamma: float = 1.0
    """Discount factor of the reward-to-go."""
    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation (critic only)."""
    normalise: bool = True
    """Divide advantages by their standard deviation over the batch."""
    clip_coef: float = 0.1
    """PPO ratio clip."""
    passes: int = 3
    """PPO passes over a batch."""
    critic: Literal["linear", "mlp"] = "mlp"
    """Shape of the value head."""
    critic_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus (in the loss; never in the reported reward)."""
    kl_coef: float = 0.05
    """Weight of the KL divergence from the policy before RL, over the legal actions."""
    lr: float = 2e-4
    """Learning rate of AdamW."""
    weight_decay: float = 0.0
    """AdamW weight decay."""
    max_grad_norm: float = 0.3
    """Gradient-norm clip."""
    minibatch: int = 64
    """Steps per gradient accumulation slice."""
    replay: int = 50
    """Slots of the buffer of successful episodes; 0 turns replay off."""
    replay_episodes: int = 8
    """Episodes drawn from the buffer per iteration."""
    curriculum: Literal["none", "thirds", "gate"] = "thirds"
    """"none": the last stage only; "thirds": equal shares of the updates per stage; "gate": on at a success rate."""
    gate: float = 0.9
    """Success rate over the last batches that opens the next stage."""
    milestones: bool = True
    """Pay milestone rewards (environments that have them)."""
    eval_every: int = 10
    """Updates between evaluations on validation tasks; the best checkpoint is kept."""
    eval_episodes: int = 30
    """Validation episodes per evaluation."""
    shuffle_labels: bool = False
    """List the actions in a random order at every step."""
    reflect_probability: float = 1.0
    """Probability that the reflector speaks at a step while the policy learns."""


@dataclass(frozen=True)
class EvalConfig:
    """How arms are judged."""

    splits: tuple[str, ...] = ("train", "test")
    """Task splits."""
    stages: tuple[str, ...] = ()
    """Stages whose tasks are played; empty means the last one (with the milestones read off it)."""
    sampling: tuple[str, ...] = ("greedy",)
    """"greedy", "sampled", or both."""
    episodes: int = 0
    """Tasks per split; 0 means all of them."""
    batch: int = 64
    """Environments in lock-step."""
    confidence: float = 0.95
    """Level of the intervals."""


@dataclass(frozen=True)
class PlayConfig:
    """How the players talk, in training and in evaluation."""

    reflection_tokens: int = 100
    """Longest reflection in new tokens; it ends earlier at end-of-text."""
    reflection_temperature: float = 0.0
    """0 reflects greedily (and identical prompts are reflected on once)."""
    memory: int = 50_000
    """Greedy reflections kept in memory."""


@dataclass(frozen=True)
class Recipe:
    """Everything that a run needs to know."""

    name: str = "run"
    """Name of the run folder."""
    seeds: tuple[int, ...] = (0,)
    """One whole training per seed."""
    arms: tuple[str, ...] = ("random", "expert", "sft", "reflect-rl")
    """Rows of the results table."""
    threads: int = 0
    """Threads of a process; 0 leaves it to torch."""
    processes: int = 1
    """Arms and seeds trained side by side."""
    env: Mapping[str, Any] = field(default_factory=lambda: {"name": "taxi"})
    """`name` of the environment and the keyword arguments of its class."""
    model: ModelConfig = field(default_factory=ModelConfig)
    play: PlayConfig = field(default_factory=PlayConfig)
    teach: TeachConfig = field(default_factory=TeachConfig)
    sft: SFTConfig = field(default_factory=SFTConfig)
    rl: RLConfig = field(default_factory=RLConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a TOML recipe and apply overrides such as `["--rl.lr", "1e-4"]` or `["rl.lr=1e-4"]`.

    Raises:
        UserError: the file is missing or no TOML, a key is unknown, or a value has the wrong type.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"recipe {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"recipe {path}: not valid TOML: {error}") from error
    for key, value in parse_overrides(overrides):
        _assign(data, key, value)
    return from_dict(Recipe, data, where=str(path))


def parse_overrides(words: Sequence[str]) -> list[tuple[str, str]]:
    """`--a.b value`, `--a.b=value` and `a.b=value` → [("a.b", "value")]; UserError names a word that is none of them."""
    pairs: list[tuple[str, str]] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        key, equals, value = word.removeprefix("--").partition("=")
        if not equals:
            if not word.startswith("--") or not rest:
                raise UserError(f"override {word!r} needs a value (write --key value)")
            value = rest.pop(0)
        pairs.append((key.replace("-", "_"), value))
    return pairs


def from_dict(kind: type[T], data: Mapping[str, Any], where: str, prefix: str = "") -> T:
    """Build a dataclass from plain values; strings are converted where the field asks for something else.

    Raises:
        UserError: names the file, the dotted key, and the nearest known key or the expected type.
    """
    hints = typing.get_type_hints(kind)
    known = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    values = {}
    for key, value in data.items():
        if key not in known:
            raise UserError(f"{where}: unknown key {prefix + key!r}{suggestion(key, known)}")
        values[key] = _convert(hints[key], value, where, prefix + key)
    return kind(**values)


def to_toml(recipe: Recipe) -> str:
    """The recipe as TOML; `from_dict` of it gives an equal recipe."""
    plain = dataclasses.asdict(recipe)
    tables = {key: value for key, value in plain.items() if isinstance(value, Mapping)}
    lines = [f"{key} = {_toml(value)}" for key, value in plain.items() if key not in tables]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _assign(data: dict[str, Any], dotted: str, value: str) -> None:
    *parents, last = dotted.split(".")
    for parent in parents:
        data = data.setdefault(parent, {})
        if not isinstance(data, dict):
            raise UserError(f"override {dotted!r}: {parent!r} is not a section")
    data[last] = value


def _convert(hint: Any, value: Any, where: str, key: str) -> Any:
    """`value` as the type that a field asks for; the types are those that the recipe dataclasses use."""
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise UserError(f"{where}: {key!r} is a section, not {value!r}")
        return from_dict(typing.cast(type, hint), value, where, key + ".")
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        if value not in arguments:
            raise UserError(f"{where}: {key!r} is {value!r}; it must be one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        items = _split(value) if isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            raise UserError(f"{where}: {key!r} must be a list, not {value!r}")
        return tuple(_convert(arguments[0], item, where, f"{key}[{i}]") for i, item in enumerate(items))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise UserError(f"{where}: {key!r} is a section, not {value!r}")
        return {k: _guess(v) for k, v in value.items()}
    return _scalar(hint, value, where, key)


def _scalar(hint: Any, value: Any, where: str, key: str) -> Any:
    if isinstance(hint, pytypes.UnionType):
        raise TypeError(f"{key}: unions are not used in recipes")
    parsed = _guess(value) if hint is not str else value
    if hint is float and isinstance(parsed, int) and not isinstance(parsed, bool):
        return float(parsed)
    if type(parsed) is not hint:
        raise UserError(f"{where}: {key!r} must be {_article(hint)}, not {value!r}")
    return parsed


def _guess(value: Any) -> Any:
    """A command-line string as the TOML value it looks like; anything else unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        return value


def _split(value: str) -> list[Any]:
    """"[1, 2]", "1,2" or "1" as a list of strings or TOML values."""
    guessed = _guess(value)
    if isinstance(guessed, list):
        return guessed
    return [item.strip() for item in value.split(",") if item.strip()]


def _article(hint: type) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[hint]


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)
