"""A recipe: all settings of a run as dataclasses. How players learn is in `learning.py`, everything else is here.

Each field: its type and range, its default, and what it is for. `docs/recipes.md` is made from these texts, and from
the sections that packages bring (`make docs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal

from reflectrl.config.learning import RLConfig, SFTConfig, TeachConfig
from reflectrl.config.rules import Count, Device, FolderName, Listed, Natural, NonNegative, Positive, Range
from reflectrl.plugins import names, resolve

LORA_RANK = 16
"""`model.lora_rank` of pretrained models where a recipe says nothing of it."""


@dataclass(frozen=True)
class ModelConfig:
    """Which language model the players are."""

    source: str = "scratch"
    """"scratch" (made here); the folder or name of a Hugging Face causal language model; a GGUF file (.gguf); or
    "smollm2-135m" and what else `reflectrl data model` gets ([hub-models.md](hub-models.md))."""
    policy: str = ""
    """Another source for the policy alone, such as the checkpoint of another run; "" takes `source`."""
    reflector: str = ""
    """The same for the reflector."""
    family: Literal["gpt2", "llama", "mistral", "qwen2"] = "gpt2"
    """Architecture of a scratch model."""
    layers: Count = 4
    """Transformer blocks of a scratch model."""
    width: Count = 128
    """Hidden size of a scratch model."""
    heads: Count = 4
    """Attention heads of a scratch model."""
    vocab: Annotated[int, Range(least=16)] = 512
    """Largest vocabulary of a scratch tokenizer."""
    context: Count = 512
    """Longest sequence in tokens; longer prompts lose the oldest part of their history."""
    lora_rank: Natural = 0
    """0 trains every weight, one copy per player; above 0 both players are LoRA adapters on one backbone. Left out, it
    is 16 where `source` is not "scratch"."""
    lora_alpha: Count = 16
    """LoRA scaling numerator (the scale is alpha / rank)."""
    lora_dropout: Annotated[float, Range(least=0, below=1)] = 0.0
    """Dropout on LoRA inputs, active in SFT only."""
    quantisation: Literal["none", "nf4", "int8"] = "none"
    """Linear layers of the backbone in 4 bits (NormalFloat, twice quantised) or in 8, for LoRA: reflectrl[qlora]."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Weights and activations of the backbone; what quantised layers compute in."""
    device: Device = "auto"
    """"auto", "cpu", "cuda", "cuda:1", "mps" ..."""
    backend: Literal["auto", "packed", "plain"] = "auto"
    """"plain" runs Hugging Face's own forward pass, one sequence at a time, "packed" the fast engine; "auto" takes the
    engine where it gives the same numbers."""
    chat: Literal["auto", "on", "off"] = "auto"
    """Speak to the model through its tokenizer's chat template, the environment's instructions in the system prompt;
    "auto" does where there is a template."""
    mixed_precision: Literal["auto", "on", "off"] = "auto"
    """Matrix products of SFT in bfloat16: "auto" on CPUs that turn out faster with it, and GPUs that have it."""
    mixed_play: Literal["auto", "on", "off"] = "off"
    """The same for play and for online RL of agents: 1.2 to 1.7 times as fast; PPO's ratios are off by half a percent
    or so where it is unsure."""
    gradient_checkpointing: bool = False
    """Keep only what enters each layer for the gradient, and compute the layers again on the way back: a fraction of
    the memory for about a third more time."""
    shard: bool = False
    """Divide each model among the processes of a launch by torchrun, for models that do not fit one GPU; all then make
    every pass together ([scale.md](scale.md))."""
    trust_remote_code: bool = False
    """Let a hub model bring code of its own. Off unless you read that code; in a file, it has to be trusted
    ([trust.md](trust.md))."""

    @staticmethod
    def completed(data: Mapping[str, Any]) -> Mapping[str, Any]:
        """The given values, with LoRA for pretrained models where nothing is said of it: two players, one backbone."""
        if "lora_rank" in data or str(data.get("source", "scratch")) == "scratch":
            return data
        return {**data, "lora_rank": LORA_RANK}

    def source_of(self, role: str) -> str:
        """Where the model of a role ("policy", "reflector") comes from, before it has learned anything."""
        return {"policy": self.policy, "reflector": self.reflector}[role] or self.source

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the players come from: one source, or two."""
        return tuple(dict.fromkeys((self.source_of("policy"), self.source_of("reflector"))))

    def problem(self) -> str | None:
        """What is wrong between the keys, in one line, or None."""
        if self.source == "scratch" and self.width % self.heads:
            return f"'width' is {self.width}, which is not a multiple of 'heads' ({self.heads})"
        if self.quantisation != "none" and not self.lora_rank:
            return f"'quantisation' {self.quantisation} freezes the backbone; set 'lora_rank' (QLoRA: 64)"
        if self.shard and self.quantisation != "none":
            return f"'shard' divides whole numbers; with it 'quantisation' must be none, not {self.quantisation}"
        if self.shard and self.backend == "packed":
            return "'shard' runs on the plain backend; with it 'backend' must be auto or plain"
        if self.shard and "on" in (self.mixed_precision, self.mixed_play):
            return "'shard' computes in the precision of the weights: set 'dtype', and no mixed precision"
        return None


@dataclass(frozen=True)
class EvalConfig:
    """How arms are evaluated."""

    splits: Annotated[tuple[str, ...], Listed()] = ("train", "test")
    """Task splits."""
    stages: tuple[str, ...] = ()
    """Stages whose tasks are played; empty means the last one (with the milestones read off it)."""
    sampling: Annotated[tuple[Literal["greedy", "sampled"], ...], Listed()] = ("greedy",)
    """"greedy", "sampled", or both."""
    episodes: Natural = 0
    """Tasks per split; 0 means all of them."""
    repeats: Count = 1
    """How often each task is played; above 1, results show pass@k as well: whether one of k attempts wins."""
    batch: Count = 64
    """Environments in lock-step."""
    confidence: Annotated[float, Range(above=0, below=1)] = 0.95
    """Level of the intervals."""


@dataclass(frozen=True)
class PlayConfig:
    """How the players talk, in training and in evaluation."""

    reflection_tokens: Count = 100
    """Longest reflection in new tokens; it ends earlier at end-of-text."""
    reflection_temperature: NonNegative = 0.0
    """0 reflects greedily (and identical prompts are reflected on once)."""
    scoring: Literal["enumeration", "sum", "token", "word", "trie"] = "enumeration"
    """How the policy chooses: by the labels of listed actions, or by the actions' texts: their probability ("sum"),
    that per "token" or "word", or free writing that only legal actions allow ("trie")."""
    result_cache: Natural = 50_000
    """Greedy reflections, and prompts of the policy, whose results are kept, lest they be computed again."""
    kv_cache_mib: Natural = 4096
    """Most memory (MiB) per player for the KV cache of histories between steps; 0 encodes all anew. A call takes up to
    2048 more."""
    speculative: bool = True
    """Speculative decoding of reflections: guess tokens from those written before, and let the model check several in
    one pass. Faster, with the same result but for rounding."""
    shuffle_labels: bool = False
    """List the actions in a random order at every step, in SFT, RL and evaluation."""


def brought() -> dict[str, type]:
    """Name → type of the sections that installed packages bring: a dataclass, or a `FreeSection`."""
    return {name: resolve("recipe_sections", name) for name in names("recipe_sections")}


@dataclass(frozen=True)
class Recipe:
    """Everything that a run needs to know."""

    name: FolderName = "run"
    """Name of the run folder."""
    seeds: Annotated[tuple[Natural, ...], Listed()] = (0,)
    """One whole training per seed."""
    arms: Annotated[tuple[str, ...], Listed()] = ("random", "expert", "sft", "reflect-rl")
    """Rows of the results table."""
    threads: Natural = 0
    """Threads of a process; 0 leaves it to torch."""
    processes: Count = 1
    """Artifacts (of arms and seeds) made side by side."""
    engine: str = "local"
    """Where processes and environment workers run: "local", or on a cluster of "ray" ([scale.md](scale.md))."""
    rank_timeout: Positive = 1800.0
    """Seconds for which a rank of a run on several ranks waits for the others before it gives up."""
    keep_states: Count = 2
    """Last states that are kept of a training under way, from the latest undamaged of which it goes on; with 1 there is
    none to fall back on."""
    env_workers: Natural = 0
    """Worker processes that step the environments of each artifact being made; 0 steps them in its own process."""
    env: Mapping[str, Any] = field(default_factory=dict)
    """`name` of the environment and the keyword arguments of its class; text tasks need none."""
    model: ModelConfig = field(default_factory=ModelConfig)
    play: PlayConfig = field(default_factory=PlayConfig)
    teach: TeachConfig = field(default_factory=TeachConfig)
    sft: SFTConfig = field(default_factory=SFTConfig)
    rl: RLConfig = field(default_factory=RLConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    sections: Mapping[str, Any] = field(default_factory=lambda: {name: kind() for name, kind in brought().items()})
    """Sections that installed packages bring, by name: `recipe.sections["text"]`. In a file they stand beside the
    others, as [text]."""

    brought_sections = staticmethod(brought)

    def plain(self) -> dict[str, Any]:
        """The recipe as plain values, as a TOML file has them."""
        plain = asdict(self)
        return plain | plain.pop("sections")

    def sft_budget(self, kind: str) -> SFTConfig:
        """SFT settings of a player ("reflector", "policy", "plain"), with its own number of steps."""
        policy_steps = self.sft.policy_steps or self.sft.steps
        steps = {"reflector": self.sft.steps, "policy": policy_steps, "plain": self.sft.steps + policy_steps}
        return replace(self.sft, steps=steps[kind])
