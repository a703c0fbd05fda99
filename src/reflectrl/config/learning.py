"""The settings of a recipe that say how players learn: the sections [teach], [sft] and [rl].

Each field: its type and range, its default, and what it is for. `docs/recipes.md` is made from these texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from reflectrl.config.rules import Count, Listed, Natural, NonNegative, Positive, Range, Share, keys_of

if TYPE_CHECKING:
    PolicyLoss = str
else:
    PolicyLoss = Literal[keys_of("learn/losses.py", "POLICY_LOSSES")]


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
