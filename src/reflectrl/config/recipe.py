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
    """The language models that play."""

    source: str = "scratch"
    """"scratch" (a small model made from scratch); the folder or name of a Hugging Face causal language model; a GGUF
    file (.gguf); or a model that `reflectrl data model` fetches, such as "smollm2-135m"
    ([hub-models.md](hub-models.md))."""
    policy: str = ""
    """A different source for the policy, such as a checkpoint of another run; "" takes `source`."""
    reflector: str = ""
    """A different source for the reflector; "" takes `source`."""
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
    context: Natural = 512
    """Longest sequence in tokens; longer prompts lose the oldest part of their history. 0 lets a scratch model choose:
    half as much again as the longest prompt of the play from which it is made, and the length of a reflection."""
    lora_rank: Natural = 0
    """0 trains all weights, with one copy per player. Above 0, both players are LoRA adapters of this rank on one
    shared model. If it is not set, it is 16 unless `source` is "scratch"."""
    lora_alpha: Count = 16
    """LoRA scaling numerator (the scale is alpha / rank)."""
    lora_dropout: Annotated[float, Range(least=0, below=1)] = 0.0
    """Dropout on LoRA inputs, active in SFT only."""
    frozen_layers: Natural = 0
    """How many of a pretrained model's lowest layers no training changes; above 0, nor does it change the embeddings.
    The layers above learn whole. With half of all layers, a step of training takes a third less time."""
    quantisation: Literal["none", "nf4", "int8"] = "none"
    """Keep the linear layers of the backbone in 4 bits (NormalFloat, double quantisation) or 8 bits; needs LoRA and
    reflectrl[qlora]."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """The precision of the backbone's weights and activations, and of computations in quantised layers."""
    device: Device = "auto"
    """"auto", "cpu", "cuda", "cuda:1", "mps" ..."""
    backend: Literal["auto", "packed", "plain"] = "auto"
    """"plain" runs Hugging Face's own forward pass, one sequence at a time; "packed" is the fast engine; "auto" takes
    the engine if it gives the same numbers."""
    chat: Literal["auto", "on", "off"] = "auto"
    """Whether to use the tokenizer's chat template, with the environment's instructions in the system prompt; "auto"
    does if there is a template."""
    mixed_precision: Literal["auto", "on", "off"] = "auto"
    """Matrix products of SFT in bfloat16. "auto" means: on GPUs that have it, and on CPUs with fast instructions for it
    (AMX, or AVX-512 of AMD; known on Linux only). That is decided once per run and kept; `--dry-run` says which."""
    mixed_play: Literal["auto", "on", "off"] = "off"
    """The same for play and for online RL of agents: 1.2 to 1.7 times as fast, but PPO's ratios are off by half a
    percent or so where the policy is unsure."""
    gradient_checkpointing: bool = False
    """Keep only what enters each layer for the gradient, and compute the layers again on the way back: a fraction of
    the memory for about a third more time."""
    compile: bool = False
    """Let torch.compile fuse what layers do beside attention. Meant for GPUs, where every small operation is a launch;
    on a CPU it takes a minute to begin with and saves nothing."""
    shard: bool = False
    """Divide each model among the processes of a launch by torchrun, for models that do not fit one GPU; all then make
    every pass together ([scale.md](scale.md))."""
    trust_remote_code: bool = False
    """Let a hub model bring code of its own. Off unless you read that code; in a file, it has to be trusted
    ([trust.md](trust.md))."""

    @staticmethod
    def completed(data: Mapping[str, Any]) -> Mapping[str, Any]:
        """The given values. Pretrained models get LoRA unless `lora_rank` is set: two players share one backbone."""
        if "lora_rank" in data or str(data.get("source", "scratch")) == "scratch":
            return data
        return {**data, "lora_rank": LORA_RANK}

    def source_of(self, role: str) -> str:
        """The source of the untrained model of a role ("policy" or "reflector")."""
        return {"policy": self.policy, "reflector": self.reflector}[role] or self.source

    @property
    def sources(self) -> tuple[str, ...]:
        """The players' sources: one, or two different ones."""
        return tuple(dict.fromkeys((self.source_of("policy"), self.source_of("reflector"))))

    def problem(self) -> str | None:
        """Which keys contradict each other, in one line; None if none do."""
        if self.source == "scratch" and self.width % self.heads:
            return f"'width' is {self.width}, which is not a multiple of 'heads' ({self.heads})"
        if not self.context and self.sources != ("scratch",):
            return "'context' 0 is chosen for models made from scratch; a pretrained one needs a number"
        if self.quantisation != "none" and not self.lora_rank:
            return f"'quantisation' {self.quantisation} freezes the backbone; set 'lora_rank' (QLoRA: 64)"
        if self.frozen_layers and (self.lora_rank or "scratch" in self.sources):
            about = "'frozen_layers' is for pretrained models that learn without adapters"
            return f"{about}: set it to 0, or 'lora_rank' to 0 and 'source' to such a model"
        if self.frozen_layers and self.shard:
            return "'shard' trains every weight: with it 'frozen_layers' must be 0"
        if self.shard and self.quantisation != "none":
            return f"'shard' divides whole numbers; with it 'quantisation' must be none, not {self.quantisation}"
        if self.shard and self.backend == "packed":
            return "'shard' runs on the plain backend; with it 'backend' must be auto or plain"
        if self.compile and (self.shard or self.backend == "plain"):
            return "'compile' is for the packed engine; with it 'backend' must be auto or packed, and 'shard' false"
        if self.shard and "on" in (self.mixed_precision, self.mixed_play):
            return "'shard' computes in the precision of the weights: set 'dtype', and no mixed precision"
        return None


@dataclass(frozen=True)
class EvalConfig:
    """How arms are evaluated."""

    splits: Annotated[tuple[str, ...], Listed()] = ("train", "test")
    """The splits whose tasks are played."""
    stages: tuple[str, ...] = ()
    """The stages whose tasks are played; empty means the last one (its episodes also show the milestones)."""
    sampling: Annotated[tuple[Literal["greedy", "sampled"], ...], Listed()] = ("greedy",)
    """"greedy", "sampled", or both."""
    episodes: Natural = 0
    """Tasks per split; 0 means all of them."""
    repeats: Count = 1
    """How often each task is played. Above 1, results also show pass@k: the chance that one of k attempts wins."""
    batch: Count = 64
    """How many environments are played side by side."""
    confidence: Annotated[float, Range(above=0, below=1)] = 0.95
    """The level of the confidence intervals."""


@dataclass(frozen=True)
class PlayConfig:
    """How the players write and choose, in training and in evaluation."""

    reflection_tokens: Count = 100
    """The longest reflection, in tokens; a reflection ends earlier at end-of-text."""
    reflection_temperature: NonNegative = 0.0
    """The sampling temperature of reflections; 0 is greedy (then identical prompts are computed only once)."""
    scoring: Literal["enumeration", "sum", "token", "word", "trie"] = "enumeration"
    """How the policy chooses: by the labels of the listed actions ("enumeration"); by the probability of the actions'
    texts ("sum"), per "token" or per "word"; or by writing freely, constrained to legal actions ("trie")."""
    result_cache: Natural = 50_000
    """How many results (greedy reflections, choices of the policy) are cached, so that they need not be computed
    again."""
    kv_cache_mib: Natural = 4096
    """The largest KV cache (MiB) per player for keeping histories between steps; 0 encodes everything again at each
    step. During a call, up to 2048 MiB more are used."""
    speculative: bool = True
    """Speculative decoding of reflections: guess tokens from earlier texts, and let the model check several in one
    pass. Faster, with the same result apart from rounding."""
    shuffle_labels: bool = False
    """List the actions in a random order at every step: in SFT, RL and evaluation."""


def brought() -> dict[str, type]:
    """Name → type of the sections that installed packages bring: a dataclass, or a `FreeSection`."""
    return {name: resolve("recipe_sections", name) for name in names("recipe_sections")}


@dataclass(frozen=True)
class Recipe:
    """All settings of a run."""

    name: FolderName = "run"
    """The name of the run folder."""
    seeds: Annotated[tuple[Natural, ...], Listed()] = (0,)
    """One complete training is done per seed."""
    arms: Annotated[tuple[str, ...], Listed()] = ("random", "expert", "sft", "reflect-rl")
    """The rows of the results table (`reflectrl list arms`)."""
    threads: Natural = 0
    """Threads per process; 0 leaves it to torch."""
    processes: Count = 1
    """How many artifacts (of arms and seeds) are made side by side."""
    engine: str = "local"
    """Where processes and environment workers run: "local", or on a cluster of "ray" ([scale.md](scale.md))."""
    rank_timeout: Positive = 1800.0
    """If several processes train together: the seconds for which one waits for the others before it gives up."""
    keep_states: Count = 2
    """How many states of an unfinished training are kept. It continues from the latest undamaged one; with 1, there is
    none to fall back on."""
    env_workers: Natural = 0
    """Worker processes for the environments of each artifact that is being made; 0 uses the artifact's own process."""
    env: Mapping[str, Any] = field(default_factory=dict)
    """The environment: its `name`, and the keyword arguments of its class. Text tasks need none."""
    model: ModelConfig = field(default_factory=ModelConfig)
    play: PlayConfig = field(default_factory=PlayConfig)
    teach: TeachConfig = field(default_factory=TeachConfig)
    sft: SFTConfig = field(default_factory=SFTConfig)
    rl: RLConfig = field(default_factory=RLConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    sections: Mapping[str, Any] = field(default_factory=lambda: {name: kind() for name, kind in brought().items()})
    """Sections that installed packages bring, by name: `recipe.sections["text"]`. In a file, they are written like the
    others: [text]."""

    brought_sections = staticmethod(brought)

    def plain(self) -> dict[str, Any]:
        """The recipe as plain values, in the form of a TOML file."""
        plain = asdict(self)
        return plain | plain.pop("sections")

    def sft_budget(self, kind: str) -> SFTConfig:
        """The SFT settings for a player ("reflector", "policy", "plain"), with its own number of steps."""
        policy_steps = self.sft.policy_steps or self.sft.steps
        steps = {"reflector": self.sft.steps, "policy": policy_steps, "plain": self.sft.steps + policy_steps}
        return replace(self.sft, steps=steps[kind])
