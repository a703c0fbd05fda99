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
    """Where teaching episodes come from, and how they are made from training tasks."""

    by: Literal["teacher", "log", "endpoint"] = "teacher"
    """Who teaches: the environment's own teacher, demonstrations that were recorded
    ([demonstrations.md](demonstrations.md)), or a language model behind an address ([endpoints.md](endpoints.md))."""
    log: tuple[str, ...] = ()
    """Files of demonstrations, as `play --record`, `RecordEpisodes` and `import-episodes` write them."""
    check_log: bool = True
    """Play each demonstration again, and refuse it if the environment behaves differently."""
    validation: Annotated[float, Range(above=0, below=1)] = 0.2
    """The share of the demonstrated tasks that is used for validation (at least one task)."""
    reflections: Literal["given", "outcomes"] = "given"
    """What reflectors learn to write: "given" means what the analyst or the demonstrator said; "outcomes" means which
    actions won when a policy without reflections, trained first, tried each of them and played to the end."""
    outcome_episodes: Count = 4
    """How often each action is tried for "outcomes", in each state."""
    outcome_actions: Natural = 4
    """The largest number of actions tried in a state: the one taken, and the policy's most probable ones; 0 tries
    all."""
    tasks: Natural = 0
    """How many training tasks the teacher plays, spread evenly over the environment's list (or how many tasks of the
    log are learned from); 0 means all."""
    validation_tasks: Natural = 0
    """How many validation tasks the teacher plays, spread in the same way. SFT keeps the weights that are best on them;
    0 means all."""
    noise: Annotated[tuple[Share, ...], Listed(distinct=False)] = (0.0, 0.5)
    """Shares of random actions; the teacher plays every task once with each share."""
    negatives: Natural = 2
    """Wrong actions inserted per taught task; each gives one negative example."""
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
    """Supervised fine-tuning (SFT) of either player."""

    steps: Count = 1000
    """The largest number of optimiser steps for the reflector."""
    policy_steps: Natural = 0
    """The same for a policy that reads reflections (0: as many). A policy that reads none gets the sum of both."""
    policy_from: Literal["base", "reflector"] = "base"
    """The model from which a policy that reads reflections starts. "reflector" helps models made from scratch, because
    the reflector has already learned to look things up. Models from the hub can do that anyway, and adapters always
    start from their backbone."""
    reflection_dropout: Share = 0.0
    """The share of the policy's rows whose reflection is left out, so that it learns to read the state as well. Useful
    if the reflector will often be wrong, or sometimes silent (`rl.reflect_probability`)."""
    batch_size: Count = 32
    """Rows per optimiser step."""
    by_episode: bool = False
    """Put all rows of an episode into the same step, so that their common history is encoded once; for long
    histories."""
    text_coef: NonNegative = 0.0
    """The weight of the loss on the prompts' own tokens, by which a model made from scratch learns the environment's
    text."""
    accumulate: Natural = 0
    """Micro-batches per optimiser step. This changes memory use, not the result. 0 takes as many as are needed to keep
    the activations of each within about 4 GiB."""
    optimizer: Literal["adamw", "paged_adamw", "muon"] = "adamw"
    """"adamw" for all weights; "paged_adamw", whose state may be moved off the GPU (the extra `qlora`); or "muon" for
    hidden matrices and AdamW for the rest (for small models made from scratch)."""
    lr: Positive = 2e-3
    """Peak learning rate of AdamW."""
    muon_lr: Positive = 0.02
    """Peak learning rate of Muon."""
    warmup: Share = 0.05
    """The share of the steps in which the learning rate rises linearly; after that, it falls along a cosine to a
    tenth."""
    weight_decay: NonNegative = 0.01
    """Decoupled weight decay."""
    max_grad_norm: Positive = 1.0
    """Gradient-norm clip."""
    eval_every: Count = 200
    """Optimiser steps between evaluations on validation rows."""
    eval_rows: Count = 256
    """Validation rows per evaluation, spread evenly over all rows."""
    patience: Count = 5
    """Evaluations without improvement before training stops early."""
    keep: Literal["loss", "accuracy"] = "loss"
    """Which weights are kept: those of the lowest loss on validation rows, or those that write most of their tokens
    right (of equals, the ones of lower loss). With few demonstrations the loss rises early, since a policy that errs is
    ever more sure of it, while its choices still get better."""
    negatives: bool = True
    """Train on negative examples as well."""

    def problem(self) -> str | None:
        """What is wrong between the keys, in one line, or None."""
        if self.accumulate > self.batch_size:
            return f"'accumulate' is {self.accumulate}; it must be at most 'batch_size' ({self.batch_size})"
        return None


@dataclass(frozen=True)
class RLConfig:
    """Online reinforcement learning of the policy. In text tasks, it trains the arm `ppo`, and episodes are
    completions.

    Text tasks ignore the keys for replay, curriculum, exploration and reflections, and those for evaluation except
    `eval_every`.
    """

    algorithm: PolicyLoss = "reinforce"
    """REINFORCE, or PPO with clipped ratios. Text tasks always use PPO."""
    updates: Count = 50
    """Iterations. Each plays a batch of episodes (in text tasks: writes completions) and learns from it."""
    episodes: Count = 16
    """New episodes, or completions, per iteration."""
    group: Count = 1
    """Episodes per task (completions per prompt) in an iteration; must be above 1 for baselines that compare
    episodes."""
    refills: Natural = 0
    """Dynamic sampling: if all episodes of a task have the same return, they are not learned from, and other tasks are
    played instead, in at most this many further rounds per update; 0 turns it off. (Agents only.)"""
    temperature: Positive = 1.0
    """The policy's sampling temperature while it learns; in text tasks, also in sampled evaluation."""
    baseline: Literal["none", "mean", "leave-one-out", "grpo", "dr-grpo", "gigpo", "critic"] = "mean"
    """What returns are compared with: nothing; the mean of the batch; other episodes of the task (leave-one-out, GRPO,
    Dr. GRPO); also other steps from an equal state (GiGPO); or a critic's prediction: [learner.md](learner.md). In text
    tasks, the critic predicts a value at every token; "none", "mean" and "leave-one-out" compare whole completions, all
    of whose tokens get the same advantage; the others are for agents only."""
    step_coef: NonNegative = 1.0
    """The weight of comparing steps, relative to comparing episodes ("gigpo")."""
    gamma: Share = 1.0
    """The discount factor of rewards; in text tasks it is per token, and only the critic uses it."""
    gae_lambda: Share = 0.95
    """Lambda of generalised advantage estimation, over steps or tokens (critic only)."""
    normalise: bool = True
    """Divide advantages by their root mean square over the batch (in text tasks, over its tokens)."""
    clip_coef: Positive = 0.1
    """How far PPO lets the probability ratio move away from 1."""
    clip_high: NonNegative = 0.0
    """The upper clip, if it is to differ from the lower one, as in DAPO's clip-higher; 0 takes `clip_coef`."""
    dual_clip: NonNegative = 0.0
    """Dual clip: a negative advantage counts at most this many times, however far the ratio has moved. Above 1 (3 is
    usual), or 0 for none."""
    update_epochs: Count = 3
    """PPO epochs over a batch."""
    steps_per_epoch: Count = 1
    """Optimiser steps per epoch; each uses an equal, random share of the batch. Above 1 for agents only. With 4 or
    more, small models learn from fewer episodes."""
    deal: Literal["steps", "prompts"] = "steps"
    """How a batch is divided among them: by single steps, or by prompts with all steps that share the prompt. The
    latter computes each prompt once per epoch, not once per optimiser step, and is faster if episodes often visit the
    same states."""
    critic: Literal["linear", "mlp"] = "mlp"
    """The shape of the critic's head."""
    critic_shares: bool = False
    """Let the value loss train the policy's model too, so that it learns from every step's return what matters. For
    models made from scratch that learn from reward alone. (Agents only.)"""
    critic_warmup: Natural = 0
    """The number of updates at the beginning in which only the critic learns, so that an untrained critic cannot ruin a
    good policy."""
    critic_lr: Positive = 3e-3
    """The critic's learning rate."""
    critic_coef: NonNegative = 0.5
    """Weight of the value loss."""
    entropy_coef: NonNegative = 0.01
    """The weight of the entropy bonus. It is part of the loss, never of the reported reward; in text tasks, per
    token."""
    entropy_floor: NonNegative = 0.0
    """Steps whose entropy (nats) is above this get no bonus; 0 gives it to all steps."""
    kl_coef: NonNegative = 0.05
    """The weight of the KL divergence from the policy before RL, over the legal actions. In text tasks, it is a penalty
    on each token's log-ratio to that policy, subtracted from rewards that are divided by their running standard
    deviation. With 0, the policy before RL is not kept in memory."""
    lr: Positive = 2e-4
    """Learning rate of AdamW."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How learning rates fall over the updates: not at all, linearly to 0, or along a cosine to a tenth."""
    warmup: Share = 0.0
    """The share of the updates in which learning rates rise at first ("linear" and "cosine")."""
    target_kl: NonNegative = 0.0
    """The KL divergence (nats) by which an update should move the policy (PPO). Learning rates grow by half after an
    update that moved it by less than half of this, and shrink as much after one that moved it by more than twice this;
    0 leaves them alone."""
    weight_decay: NonNegative = 0.0
    """AdamW weight decay."""
    max_grad_norm: Positive = 0.3
    """Gradient-norm clip."""
    minibatch: Count = 64
    """The most different prompts, or completions, per forward pass; fewer where their activations would take more than
    about 4 GiB. Gradients are accumulated, so this changes memory use, not the result."""
    replay: Natural = 50
    """The size of the replay buffer, which keeps successful episodes; 0 turns replay off."""
    replay_episodes: Natural = 8
    """Episodes drawn from the buffer per iteration."""
    self_imitation: bool = False
    """Self-imitation learning: draw replayed episodes more often if they turned out better than expected, and learn
    only from their good steps, as if the current policy had chosen them."""
    replay_log: Natural = 0
    """How many successful episodes are also drawn per iteration from the log of offline learning; above 0, that log is
    made."""
    curriculum: Literal["none", "equal", "gate"] = "equal"
    """"none": only the last stage; "equal": every stage gets an equal share of the updates; "gate": the next stage
    begins at a success rate."""
    rehearsal: Annotated[float, Range(least=0, below=1)] = 0.25
    """The share of an update's episodes that come from other stages, so that they are not forgotten."""
    gate: Share = 0.9
    """The success rate over the last batches at which the next stage begins ("gate")."""
    draw: Literal["uniform", "by-success"] = "uniform"
    """How the tasks of a stage are drawn: uniformly, or preferring tasks that are sometimes won to those that always or
    never are ([learner.md](learner.md))."""
    first_horizon: Natural = 0
    """The horizon of the first update's episodes, in steps. It grows to the environment's horizon during the first half
    of the updates; 0 always uses the environment's."""
    reverse: Annotated[float, Range(least=0, below=1)] = 0.0
    """The share of an update's groups that start part-way into a winning episode ([exploration.md](exploration.md))."""
    reverse_gate: Share = 0.5
    """The success rate at which this start moves towards the beginning of the episode."""
    reverse_step: Count = 1
    """The number of actions by which the start moves, and by which it precedes the win at first."""
    milestone_coef: NonNegative = 0.0
    """Potential-based shaping: the potential of having reached all milestones and subgoals of the environment. Never
    part of the reported reward."""
    milestone_at_horizon: Literal["lost", "kept"] = "lost"
    """What happens to the potential when the horizon ends an episode. "lost": shaping does not change which policy is
    best, and only a critic learns faster with it. "kept": it helps with every baseline, as long as milestones are worth
    less than winning."""
    count_coef: NonNegative = 0.0
    """A bonus for reaching an observation for the n-th time: this number, divided by the square root of n. Never part
    of the reported reward."""
    eval_every: Count = 10
    """Updates between evaluations on validation tasks (or prompts); the best weights are kept."""
    eval_episodes: Count = 30
    """Validation episodes per evaluation."""
    eval_sampling: Literal["greedy", "sampled"] = "greedy"
    """How the policy plays them: "sampled" measures what RL optimises; "greedy" takes the most probable choices."""
    reflect_probability: Share = 1.0
    """The probability that the reflector writes at a step while the policy learns."""

    def problem(self) -> str | None:
        """What is wrong between the keys, in one line, or None."""
        whole = self.baseline in ("leave-one-out", "grpo", "dr-grpo")  # of whole returns, without any step's own
        compared = whole or self.baseline == "gigpo"
        if (compared or self.refills) and self.group < 2:
            about = f"'baseline' {self.baseline}" if compared else f"'refills' {self.refills}"
            return f"{about} compares episodes of one task; 'group' must be at least 2"
        if 0 < self.dual_clip <= 1:
            return f"'dual_clip' is {self.dual_clip:g}; it must be above 1, or 0 for none"
        if self.refills and not whole:
            about = f"'refills' leaves out episodes with equal returns, from which 'baseline' {self.baseline} learns"
            return f"{about}; set it to leave-one-out, grpo or dr-grpo"
        if self.gamma < 1 and whole:
            return f"'baseline' {self.baseline} compares whole returns, without discount; set 'gamma' to 1"
        if self.algorithm == "reinforce" and (self.target_kl or self.clip_high or self.dual_clip):
            key = "target_kl" if self.target_kl else "clip_high" if self.clip_high else "dual_clip"
            return f"'{key}' is of the ratio that PPO measures; set 'algorithm' to ppo"
        if self.target_kl and self.update_epochs == self.steps_per_epoch == 1:
            return "'target_kl' needs a second optimiser step per update to measure; raise 'update_epochs'"
        if self.self_imitation and not (self.replay and self.replay_episodes) and not self.replay_log:
            return "'self_imitation' learns from replayed episodes; set 'replay' and 'replay_episodes' above 0"
        if self.episodes % self.group:
            return f"'episodes' is {self.episodes}, which is not a multiple of 'group' ({self.group})"
        if self.reverse and self.episodes == self.group:
            return f"'reverse' is {self.reverse} of one group per update; 'episodes' must be at least twice 'group'"
        if self.milestone_coef and self.milestone_at_horizon == "lost" and whole:
            about = f"'milestone_coef' changes nothing with 'baseline' {self.baseline}"
            return f"{about}; set 'milestone_at_horizon' to kept"
        return None
