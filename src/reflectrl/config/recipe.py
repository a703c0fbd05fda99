"""The settings of a run as dataclasses. Each field: its type and range, its default, and one line that says what it is.

`docs/recipes.md` is made from this file and the sections that packages bring (`make docs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from reflectrl.config.rules import (
    Count,
    Device,
    FolderName,
    Listed,
    Natural,
    NonNegative,
    Positive,
    Range,
    Share,
    keys_of,
)
from reflectrl.plugins import names, resolve

if TYPE_CHECKING:
    PolicyLoss = str
else:
    PolicyLoss = Literal[keys_of("learn/losses.py", "POLICY_LOSSES")]


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
class TeachConfig:
    """Where teaching episodes come from, and how they are made from the training tasks."""

    by: Literal["teacher", "log", "endpoint"] = "teacher"
    """Who teaches: the environment's own teacher, demonstrations that were recorded
    ([demonstrations.md](demonstrations.md)), or a language model behind an address ([endpoints.md](endpoints.md))."""
    log: tuple[str, ...] = ()
    """Files of demonstrations: what `play --record`, `RecordEpisodes` and `import-episodes` write."""
    check_log: bool = True
    """Play the demonstrations again, and refuse one that goes differently in the environment."""
    validation: Annotated[float, Range(above=0, below=1)] = 0.2
    """Share of the demonstrated tasks that serve for validation (at least one does)."""
    reflections: Literal["given", "outcomes"] = "given"
    """What reflectors learn to write: what analyst or demonstrator said, or which actions won when a policy without
    reflections, trained first, played on from each of them."""
    outcome_episodes: Count = 4
    """How often an action is tried for that, in each state."""
    outcome_actions: Natural = 4
    """Most actions that are tried in a state: the one taken and the policy's most probable; 0 tries all."""
    tasks: Natural = 0
    """How many training tasks the teacher plays, spread over the environment's list, or how many of the log's are
    learned from; 0 means all of them."""
    validation_tasks: Natural = 0
    """How many validation tasks the teacher plays, spread likewise, by which SFT keeps its best weights; 0 means all of
    them."""
    noise: Annotated[tuple[Share, ...], Listed(distinct=False)] = (0.0, 0.5)
    """Shares of random actions; every taught task is played once with each share."""
    negatives: Natural = 2
    """Perturbed actions per taught task (each gives one negative example)."""
    unsafe_noise: bool = False
    """Let random actions end the episode (a crash); otherwise noise avoids actions that end it without success."""

    def problem(self) -> str | None:
        """What is wrong between the keys, in one line, or None."""
        if self.by == "log" and not self.log:
            return "'by' is 'log', and 'log' names no file; record one with `reflectrl play ENV --record FILE`"
        if self.log and self.by == "teacher":
            return f"'log' is given, and 'by' is {self.by!r}; set by = \"log\" to learn from it"
        return None


@dataclass(frozen=True)
class SFTConfig:
    """Supervised fine-tuning of either player."""

    steps: Count = 1000
    """Largest number of optimiser steps of the reflector."""
    policy_steps: Natural = 0
    """The same for the policy that reads reflections (0: as many); a policy that reads none gets the sum of both."""
    policy_from: Literal["base", "reflector"] = "base"
    """What the policy that reads reflections starts from. A reflector that was made from scratch has learned to look
    things up by then; a model from the hub could before (and adapters start from their backbone)."""
    reflection_dropout: Share = 0.0
    """Share of the policy's rows whose reflection is left out, so that it learns to read the state as well: where the
    reflector will often be wrong, or is to be silent (`rl.reflect_probability`)."""
    batch_size: Count = 32
    """Rows per optimiser step."""
    by_episode: bool = False
    """Rows of an episode are learned in the same step, which encodes their common history once: for long histories."""
    text_coef: NonNegative = 0.0
    """Weight of the loss on the prompts' own tokens: lets a model made from scratch learn the environment's text."""
    accumulate: Natural = 0
    """Micro-batches per optimiser step: changes memory use, not the result. 0 takes as many as keep the activations of
    each within about 4 GiB."""
    optimizer: Literal["adamw", "paged_adamw", "muon"] = "adamw"
    """"adamw" for every weight, "paged_adamw" whose state may leave the GPU (reflectrl[qlora]), or "muon" for hidden
    matrices and AdamW for the rest (small models from scratch)."""
    lr: Positive = 2e-3
    """Peak learning rate of AdamW."""
    muon_lr: Positive = 0.02
    """Peak learning rate of Muon."""
    warmup: Share = 0.05
    """Share of the steps in which the learning rate rises linearly; it then falls along a cosine to a tenth."""
    weight_decay: NonNegative = 0.01
    """Decoupled weight decay."""
    max_grad_norm: Positive = 1.0
    """Gradient-norm clip."""
    eval_every: Count = 200
    """Optimiser steps between evaluations on validation rows."""
    eval_rows: Count = 256
    """Validation rows per evaluation, spread evenly over all of them."""
    patience: Count = 5
    """Evaluations without improvement before training stops early."""
    negatives: bool = True
    """Train on negative examples too."""

    def problem(self) -> str | None:
        """What is wrong between the keys, in one line, or None."""
        if self.accumulate > self.batch_size:
            return f"'accumulate' is {self.accumulate}; it must be at most 'batch_size' ({self.batch_size})"
        return None


@dataclass(frozen=True)
class RLConfig:
    """Online reinforcement learning of the policy; in text tasks, of the arm `ppo`, whose episodes are completions.

    Text tasks ignore the keys of replay, curriculum, exploration and reflections, and those of evaluation except
    `eval_every`.
    """

    algorithm: PolicyLoss = "reinforce"
    """REINFORCE, or PPO with a clipped ratio. Text tasks always use PPO."""
    updates: Count = 50
    """Iterations; each plays a batch of episodes (in text tasks: writes completions) and learns from it."""
    episodes: Count = 16
    """Fresh episodes, or completions, per iteration."""
    group: Count = 1
    """Episodes per task (completions per prompt) within an iteration; above 1 for baselines that compare episodes."""
    refills: Natural = 0
    """Dynamic sampling: tasks all of whose episodes returned the same are not learned from, and further ones played in
    their place, at most this many times per update; 0 turns it off. (Agents only.)"""
    temperature: Positive = 1.0
    """Sampling temperature of the policy while it learns; in text tasks, of sampled evaluation too."""
    baseline: Literal["none", "mean", "leave-one-out", "grpo", "dr-grpo", "gigpo", "critic"] = "mean"
    """What a reward-to-go is compared with: nothing, the mean of the batch, other episodes of the task (leave-one-out,
    GRPO, Dr. GRPO), also other steps from an equal state (GiGPO), or what a critic expects: [learner.md](learner.md).
    In text tasks, the critic predicts a value at every token; the first three compare the returns of whole completions,
    and all tokens of a completion get the same advantage; the others are for agents only."""
    step_coef: NonNegative = 1.0
    """Weight of the comparison of steps beside that of episodes ("gigpo")."""
    gamma: Share = 1.0
    """Discount factor of the reward-to-go; in text tasks per token, and used by the critic only."""
    gae_lambda: Share = 0.95
    """Lambda of generalised advantage estimation (critic only), over steps or tokens."""
    normalise: bool = True
    """Divide advantages by their root mean square over the batch (in text tasks, over its tokens)."""
    clip_coef: Positive = 0.1
    """PPO ratio clip."""
    clip_high: NonNegative = 0.0
    """The upper clip where it differs from the lower, as in DAPO's clip-higher; 0 takes `clip_coef`."""
    dual_clip: NonNegative = 0.0
    """Dual clip: at most this many times a negative advantage counts, however far the ratio has moved; above 1 (3 is
    usual), or 0 for none."""
    update_epochs: Count = 3
    """PPO epochs over a batch."""
    steps_per_epoch: Count = 1
    """Optimiser steps of an epoch, each along the gradient of an equal share of the batch, dealt out at random. Above 1
    for agents only; small models learn from fewer episodes with 4 or more."""
    deal: Literal["steps", "prompts"] = "steps"
    """What is dealt out to them: single steps, or prompts with all the steps that have them. The latter computes a
    prompt once per epoch, not once per optimiser step: faster where episodes often come by the same states."""
    critic: Literal["linear", "mlp"] = "mlp"
    """Shape of the value head."""
    critic_shares: bool = False
    """Let the value loss train the policy's model as well, which then learns what matters from every step's return: for
    models from scratch that learn from reward alone. (Agents only.)"""
    critic_warmup: Natural = 0
    """Updates at the beginning in which the critic learns alone, so that a good policy is not led astray by one that
    knows nothing yet."""
    critic_lr: Positive = 3e-3
    """Learning rate of the value head."""
    critic_coef: NonNegative = 0.5
    """Weight of the value loss."""
    entropy_coef: NonNegative = 0.01
    """Weight of the entropy bonus, a part of the loss and never of the reported reward; per token in text tasks."""
    entropy_floor: NonNegative = 0.0
    """Entropy in nats above which a step gets no bonus; 0 gives it everywhere."""
    kl_coef: NonNegative = 0.05
    """Weight of the KL divergence from the policy before RL, over the legal actions. In text tasks it is a penalty on
    each token's log-ratio to the reference, taken from rewards that were divided by their running standard deviation.
    With 0, no reference model is kept in memory."""
    lr: Positive = 2e-4
    """Learning rate of AdamW."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How learning rates fall over the updates: not at all, to 0, or to a tenth."""
    warmup: Share = 0.0
    """Share of the updates in which they rise first ("linear" and "cosine")."""
    target_kl: NonNegative = 0.0
    """Divergence in nats by which an update is to move the policy (PPO): learning rates grow by half after an update
    that moved it by less than half of that, and shrink as much after one that moved it by more than twice; 0 leaves
    them alone."""
    weight_decay: NonNegative = 0.0
    """AdamW weight decay."""
    max_grad_norm: Positive = 0.3
    """Gradient-norm clip."""
    minibatch: Count = 64
    """Different prompts, or completions, per forward pass. Gradients are accumulated: it changes memory use, not the
    result."""
    replay: Natural = 50
    """Slots of the buffer of successful episodes; 0 turns replay off."""
    replay_episodes: Natural = 8
    """Episodes drawn from the buffer per iteration."""
    self_imitation: bool = False
    """Draw those the more often the better they turned out than expected, and learn from their good steps only, as if
    they had been chosen now (self-imitation learning)."""
    replay_log: Natural = 0
    """Successful episodes of a log (that of offline learning) that are drawn beside them; above 0, it is made."""
    curriculum: Literal["none", "equal", "gate"] = "equal"
    """"none": the last stage only; "equal": equal shares of the updates per stage; "gate": on at a success rate."""
    rehearsal: Annotated[float, Range(least=0, below=1)] = 0.25
    """Share of an update's episodes that come from the other stages, lest they be forgotten."""
    gate: Share = 0.9
    """Success rate over the last batches that opens the next stage."""
    draw: Literal["uniform", "by-success"] = "uniform"
    """How tasks of a stage are drawn: all alike, or those that are sometimes won more than those that always or never
    are ([learner.md](learner.md))."""
    first_horizon: Natural = 0
    """Horizon of the first update's episodes, in steps, that grows to the environment's during the first half of the
    updates; 0 leaves that alone."""
    reverse: Annotated[float, Range(least=0, below=1)] = 0.0
    """Share of an update's groups that begin part-way into a winning episode ([exploration.md](exploration.md))."""
    reverse_gate: Share = 0.5
    """Success rate from there at which their start moves towards the beginning of the episode."""
    reverse_step: Count = 1
    """By how many actions it moves; also how many actions before the win it lies at first."""
    milestone_coef: NonNegative = 0.0
    """Potential of having reached all of the environment's milestones, for potential-based shaping; never a part of the
    reported reward."""
    milestone_at_horizon: Literal["lost", "kept"] = "lost"
    """What becomes of it when the horizon ends an episode. "lost": shaping ranks no policy otherwise, and only a critic
    learns sooner; "kept": helps with every baseline, as long as milestones are worth less than winning."""
    count_coef: NonNegative = 0.0
    """Bonus for reaching an observation for the n-th time: this, divided by the square root of n; never a part of the
    reported reward."""
    eval_every: Count = 10
    """Updates between evaluations on validation tasks (or prompts); the best checkpoint is kept."""
    eval_episodes: Count = 30
    """Validation episodes per evaluation."""
    eval_sampling: Literal["greedy", "sampled"] = "greedy"
    """How the policy plays them: "sampled" measures what RL optimises, "greedy" its most probable choices."""
    reflect_probability: Share = 1.0
    """Probability that the reflector speaks at a step while the policy learns."""

    def problem(self) -> str | None:
        """What is wrong between the keys, in one line, or None."""
        compared = self.baseline in ("leave-one-out", "grpo", "dr-grpo", "gigpo")
        if (compared or self.refills) and self.group < 2:
            about = f"'baseline' {self.baseline}" if compared else f"'refills' {self.refills}"
            return f"{about} compares episodes of one task; 'group' must be at least 2"
        if 0 < self.dual_clip <= 1:
            return f"'dual_clip' is {self.dual_clip:g}; it must be above 1, or 0 for none"
        if self.target_kl and self.algorithm in ("reinforce",):
            return "'target_kl' is the divergence that PPO measures; set 'algorithm' to ppo"
        if self.episodes % self.group:
            return f"'episodes' is {self.episodes}, which is not a multiple of 'group' ({self.group})"
        if self.reverse and self.episodes == self.group:
            return f"'reverse' is {self.reverse} of one group per update; 'episodes' must be at least twice 'group'"
        if self.milestone_coef and self.milestone_at_horizon == "lost" and compared and self.baseline != "gigpo":
            about = f"'milestone_coef' changes nothing with 'baseline' {self.baseline}"
            return f"{about}; set 'milestone_at_horizon' to kept"
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
