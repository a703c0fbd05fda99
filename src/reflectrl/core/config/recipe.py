"""A recipe: all settings of a run as dataclasses. The settings of learning are in `learning.py`, all others here.

Each field: its type and range, its default, and what it is for. `docs/recipes.md` is made from these texts, and from
the sections that packages bring (`make docs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal

from reflectrl.core.config.learning import RLConfig, SFTConfig, TeachConfig
from reflectrl.core.config.rules import (
    Count,
    Device,
    FolderName,
    Listed,
    Natural,
    NeedsTrust,
    NonNegative,
    Positive,
    Range,
)
from reflectrl.core.plugins import names, resolve, table_modules

LEAST_CONTEXT = 32
"""Shortest context that a model may have, in tokens. The fixed words of a prompt and two actions need this much."""
LORA_RANK = 16
"""Default of `model.lora_rank` for pretrained models."""


@dataclass(frozen=True)
class ModelConfig:
    """The language models that play."""

    source: str = "scratch"
    """Model that both players start from: "scratch" (a small model made from scratch); the folder or name of a Hugging
    Face causal language model (in text tasks, also of an encoder-decoder model); a GGUF file (.gguf); or a model that
    `reflectrl data model` fetches, such as "smollm2-135m" ([hub-models.md](hub-models.md))."""
    policy: str = ""
    """Different source for the policy, such as a checkpoint of another run; "" takes `source`."""
    reflector: str = ""
    """Different source for the reflector; "" takes `source`."""
    family: Literal["gpt2", "llama", "mistral", "qwen2", "canon_llama"] = "gpt2"
    """Architecture of a scratch model. "canon_llama" has short convolutions, and learns to compare and to copy words
    ([results/reading.md](results/reading.md)); its folders load only where this package is installed."""
    layers: Count = 4
    """Transformer blocks of a scratch model."""
    width: Count = 128
    """Hidden size of a scratch model."""
    heads: Count = 4
    """Attention heads of a scratch model."""
    vocab: Annotated[int, Range(least=16)] = 512
    """Largest vocabulary of the tokenizer of a scratch model."""
    context: Natural = 512
    """Longest sequence in tokens, at least 32. Longer prompts lose the oldest part of their history. 0, for models made
    from scratch only, means one and a half times the longest prompt in the episodes that the model is made from, plus
    the length of a reflection."""
    lora_rank: Natural = 0
    """Rank of the LoRA adapters. 0 trains all weights, with one copy per player. Above 0, both players are adapters on
    one shared model. If it is not set, it is 16 unless `source` is "scratch"."""
    lora_alpha: Count = 16
    """LoRA scaling numerator (the scale is alpha / rank)."""
    lora_dropout: Annotated[float, Range(least=0, below=1)] = 0.0
    """Dropout on LoRA inputs, active in SFT only."""
    frozen_layers: Natural = 0
    """Number of a pretrained model's lowest layers that stay frozen in every training, together with the embeddings; 0
    freezes nothing. All weights of the layers above are trained. With half of the layers frozen, a training step takes
    a third less time."""
    quantisation: Literal["none", "nf4", "int8"] = "none"
    """Keep the linear layers of the backbone in 4 bits (NormalFloat, double quantisation) or 8 bits; needs LoRA and the
    extra `qlora`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the backbone's weights and activations, and of computations in quantised layers."""
    device: Device = "auto"
    """Torch device: "auto", "cpu", "cuda", "cuda:1", "mps" ..."""
    backend: Literal["auto", "packed", "plain"] = "auto"
    """Forward pass: "plain" is Hugging Face's own, one sequence at a time; "packed" is the fast engine; "auto" takes
    the fast engine if it gives the same numbers."""
    chat: Literal["auto", "on", "off"] = "auto"
    """Use the tokenizer's chat template, with the environment's instructions in the system prompt. "auto" uses it if
    the tokenizer has one."""
    mixed_precision: Literal["auto", "on", "off"] = "auto"
    """Compute the matrix products of SFT in bfloat16. "auto" does so on GPUs that support it, and on CPUs with fast
    instructions for it (AMX, or AVX-512 of AMD; known on Linux only). It is decided once per run and kept; `--dry-run`
    shows the decision."""
    mixed_play: Literal["auto", "on", "off"] = "off"
    """Compute the matrix products of play and of online RL of agents in bfloat16. This is 1.2 to 1.7 times as fast, but
    PPO's ratios are off by about half a percent where the policy is unsure."""
    gradient_checkpointing: bool = False
    """Keep only the input of each layer for the gradient, and recompute the layers in the backward pass. Takes a
    fraction of the memory and about a third more time."""
    compile: bool = False
    """Let torch.compile fuse the operations of layers other than attention. Meant for GPUs, where every small operation
    is a kernel launch. On a CPU, it takes a minute at the start and saves nothing."""
    trust_remote_code: Annotated[bool, NeedsTrust("code")] = False
    """Let a hub model bring code of its own. Leave it off unless you have read that code. In a file, it has to be
    trusted ([trust.md](trust.md))."""

    @staticmethod
    def completed(data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the given values, completed by defaults that depend on other keys.

        Pretrained models get LoRA unless `lora_rank` is set, because two players share one backbone.
        """
        # An explicit 0 counts as well: it asks for all weights to be trained.
        if "lora_rank" in data or str(data.get("source", "scratch")) == "scratch":
            return data
        return {**data, "lora_rank": LORA_RANK}

    def source_of(self, role: str) -> str:
        """Return the source of the untrained model of a role ("policy" or "reflector")."""
        return {"policy": self.policy, "reflector": self.reflector}[role] or self.source

    @property
    def sources(self) -> tuple[str, ...]:
        """Sources of the players: one, or two different ones."""
        return tuple(dict.fromkeys((self.source_of("policy"), self.source_of("reflector"))))

    def problem(self) -> str | None:
        """Describe the first contradiction between keys, in one line; None if there is none."""
        if self.source == "scratch" and self.width % self.heads:
            return f"'width' is {self.width}, which is not a multiple of 'heads' ({self.heads})"
        # 0 is not too short: it leaves the choice to the model that is made.
        if 0 < self.context < LEAST_CONTEXT:
            message = f"'context' is {self.context}, too short for any prompt; it must be at least {LEAST_CONTEXT}"
            return f"{message}, or 0 for models made from scratch, which then choose it"
        if not self.context and self.sources != ("scratch",):
            return "'context' is 0, which is for models made from scratch only; set a length for a pretrained model"
        # Quantised weights cannot be trained, so without adapters there would be nothing left to learn.
        if self.quantisation != "none" and not self.lora_rank:
            return f"'quantisation' {self.quantisation} freezes the backbone; set 'lora_rank' (QLoRA: 64)"
        if self.frozen_layers and (self.lora_rank or "scratch" in self.sources):
            message = "'frozen_layers' is for pretrained models that learn without adapters"
            return f"{message}: set it to 0, or 'lora_rank' to 0 and 'source' to such a model"
        if self.compile and self.backend == "plain":
            return "'compile' is for the packed engine; with it 'backend' must be auto or packed"
        return None


@dataclass(frozen=True)
class EvalConfig:
    """Settings of the evaluation of arms."""

    splits: Annotated[tuple[str, ...], Listed()] = ("train", "test")
    """Splits whose tasks are played."""
    stages: tuple[str, ...] = ()
    """Stages whose tasks are played; empty means the last one (its episodes also show the milestones)."""
    sampling: Annotated[tuple[Literal["greedy", "sampled"], ...], Listed()] = ("greedy",)
    """Decoding of evaluation episodes: "greedy", "sampled", or both."""
    episodes: Natural = 0
    """Tasks per split; 0 means all of them."""
    repeats: Count = 1
    """Number of times each task is played, or sampled completions per prompt of a text task. Above 1, results also show
    pass@k, the probability that one of k attempts wins, and maj@k, the probability that the most frequent answer among
    k attempts wins."""
    pass_reward: float = 1.0
    """Reward from which a completion of a text task counts as won, in pass@k and maj@k. The default suits rewards of at
    most 1, as in "orders": only a faultless completion wins."""
    batch: Count = 64
    """Number of environments that are played in parallel."""
    confidence: Annotated[float, Range(above=0, below=1)] = 0.95
    """Level of the confidence intervals."""
    calibration: bool = True
    """Report how well probabilities fit what happens: expected calibration error and Brier score of the arms' choices
    ([calibration.md](calibration.md)). For this, the environment's expert is asked again in the states that the arms
    reached."""
    temperature: Literal["none", "fitted"] = "none"
    """Calibration of the probabilities that greedy policies report: "none"; or "fitted": a temperature, then
    a correction of the choice's own probability ([calibration.md](calibration.md)). Both are fitted to the choices that
    an arm makes in validation tasks, as the environment's expert judges them. They change no choice."""


@dataclass(frozen=True)
class PlayConfig:
    """Settings of writing and choosing, both in training and in evaluation."""

    reflection: Literal["fresh", "carried"] = "fresh"
    """Memory of the reflector: it reads the observation alone ("fresh"), or its previous reflection of the episode too
    ("carried"), so that it can keep notes about what is no longer shown ([memory.md](memory.md))."""
    reflection_tokens: Count = 100
    """Longest reflection, in tokens. A reflection ends earlier at end-of-text."""
    reflection_temperature: NonNegative = 0.0
    """Sampling temperature of reflections. 0 is greedy, and then identical prompts are computed only once."""
    top_k: Natural = 0
    """Number of the most probable actions, or tokens of a reflection, to sample from; 0 samples from all. With 1,
    sampling is greedy, so RL learns nothing."""
    top_p: Annotated[float, Range(above=0, most=1)] = 1.0
    """Nucleus sampling: sample from the fewest of the most probable actions, or tokens of a reflection, whose total
    probability (after `top_k`) reaches this. Both keys hold in training and in sampled evaluation, and RL learns the
    probabilities that remain ([learner.md](learner.md))."""
    scoring: Literal["enumeration", "sum", "token", "word", "trie", "options"] = "enumeration"
    """Scoring of actions by the policy: by the labels of the listed actions ("enumeration"); by the probability of the
    actions' texts ("sum"), per "token" or per "word"; by free decoding, constrained to legal actions ("trie"); or by a
    learned head that reads each action's text ("options"), for long texts and for hundreds of actions. Models that read
    (`model.family`) add the log-probability of "trie" to the head's score."""
    result_cache: Natural = 50_000
    """Number of results (greedy reflections, choices of the policy) that are cached to avoid computing them again."""
    kv_cache_mib: Natural = 4096
    """Largest KV cache (MiB) per player for keeping histories between steps; 0 encodes the whole prompt again at each
    step. During a call, up to 2048 MiB more are used."""
    speculative: bool = True
    """Speculative decoding of reflections: guess tokens from earlier texts, and let the model check several in one
    pass. This is faster, with the same result apart from rounding."""
    shuffle_labels: bool = False
    """List the actions in a random order at every step: in SFT, RL and evaluation."""


def installed_sections() -> dict[str, type]:
    """Return the sections of our own modules and of installed packages: name → a dataclass or a `FreeSection`."""
    sections = {name: resolve("recipe_sections", name) for name in names("recipe_sections")}
    for module in table_modules():
        sections |= getattr(module, "SECTIONS", {})
    # Sorted, so that the order of installation changes neither `--help` nor a written recipe.
    return dict(sorted(sections.items()))


@dataclass(frozen=True)
class Recipe:
    """All settings of a run."""

    name: FolderName = "run"
    """Name of the run folder."""
    seeds: Annotated[tuple[Natural, ...], Listed()] = (0,)
    """Random seeds. One complete training is done per seed."""
    arms: Annotated[tuple[str, ...], Listed()] = ("random", "expert", "sft", "reflect-rl")
    """Arms to train and evaluate: the rows of the results table (`reflectrl list arms`)."""
    threads: Natural = 0
    """Threads per process; 0 leaves the number to torch. A run keeps the number with which it began, since another one
    rounds differently."""
    processes: Count = 1
    """Number of artifacts (of arms and seeds) that are made in parallel."""
    engine: Annotated[str, NeedsTrust("code", ("local",))] = "local"
    """Engine for processes and environment workers: "local"; a cluster of "ray" ([scale.md](scale.md)); or your own
    class, as "package.module:Class"."""
    rank_timeout: Positive = 1800.0
    """Seconds that a process waits for the others before it gives up, if several processes train together."""
    keep_states: Count = 2
    """Number of saved states of an unfinished training. Training continues from the latest undamaged one; with 1, there
    is no other to fall back on."""
    env_workers: Natural = 0
    """Worker processes for the environments of each artifact that is being made; 0 uses the artifact's own process."""
    env: Annotated[Mapping[str, Any], NeedsTrust("code")] = field(default_factory=dict)
    """The environment: its `name`, and the keyword arguments of its class. Text tasks need none."""
    model: ModelConfig = field(default_factory=ModelConfig)
    play: PlayConfig = field(default_factory=PlayConfig)
    teach: TeachConfig = field(default_factory=TeachConfig)
    sft: SFTConfig = field(default_factory=SFTConfig)
    rl: RLConfig = field(default_factory=RLConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    # Packages import this module, so their sections are looked up when a recipe is made, not when a class is.
    sections: Mapping[str, Any] = field(
        default_factory=lambda: {name: kind() for name, kind in installed_sections().items()}
    )
    """Sections that installed packages bring, by name: `recipe.sections["text"]`. In a file, they are written like the
    other sections: [text]."""

    # The reader of TOML files (`values.py`) knows no recipe. It asks any dataclass for a method of this name.
    further_sections = staticmethod(installed_sections)

    def plain(self) -> dict[str, Any]:
        """Return the recipe as plain values, in the form of a TOML file."""
        plain = asdict(self)
        return plain | plain.pop("sections")

    def sft_budget(self, kind: str) -> SFTConfig:
        """Return the SFT settings for a player ("reflector", "policy", "plain"), with its own number of steps."""
        policy_steps = self.sft.policy_steps or self.sft.steps
        # A policy without a reflector gets the steps of both players, so that arms are compared at equal training.
        steps = {"reflector": self.sft.steps, "policy": policy_steps, "plain": self.sft.steps + policy_steps}
        return replace(self.sft, steps=steps[kind])
