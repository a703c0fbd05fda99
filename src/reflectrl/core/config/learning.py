"""Settings of learning: the recipe sections [teach], [sft] and [rl].

Each field: its type and range, its default, and what it is for. `docs/recipes.md` is made from these texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from reflectrl.core.config.rules import Count, Listed, Natural, NonNegative, Positive, Range, Share
from reflectrl.core.policy_losses import POLICY_LOSSES

if TYPE_CHECKING:
    PolicyLoss = str
else:
    PolicyLoss = Literal[tuple(POLICY_LOSSES)]

Schedule = Literal["constant", "linear", "cosine"]
"""Learning-rate schedules. `learn/trainer.py` defines them."""


@dataclass(frozen=True)
class TeachConfig:
    """Source of teaching episodes, and settings for making them from training tasks."""

    by: Literal["teacher", "log", "endpoint"] = "teacher"
    """Source of the demonstrations: the environment's own "teacher"; a "log" of recorded demonstrations
    ([demonstrations.md](demonstrations.md)); or a language model behind an "endpoint"
    ([endpoints.md](endpoints.md))."""
    log: tuple[str, ...] = ()
    """Files of demonstrations, as `play --record`, `RecordEpisodes` and `import-episodes` write them."""
    check_log: bool = True
    """Replay each demonstration, and refuse it if the environment behaves differently."""
    validation: Annotated[float, Range(above=0, below=1)] = 0.2
    """Share of the demonstrated tasks that is used for validation (at least one task)."""
    reflections: Literal["given", "outcomes"] = "given"
    """Reflections that the reflector learns to write. "given": the words of the analyst or the demonstrator.
    "outcomes": the actions that won when a policy without reflections, trained first, tried each of them and
    played to the end."""
    outcome_episodes: Count = 4
    """Number of times each action is tried in each state ("outcomes")."""
    outcome_actions: Natural = 4
    """Largest number of actions tried in a state: the one taken, and the policy's most probable ones. 0 tries all."""
    tasks: Natural = 0
    """Number of training tasks that the teacher plays, spread evenly over the environment's list. With a log, number of
    its tasks to learn from. 0 means all."""
    validation_tasks: Natural = 0
    """Number of validation tasks that the teacher plays, spread evenly as well. SFT keeps the weights that are best on
    them. 0 means all."""
    noise: Annotated[tuple[Share, ...], Listed(distinct=False)] = (0.0, 0.5)
    """Shares of random actions. The teacher plays every task once with each share."""
    negatives: Natural | Literal["all"] = 2
    """Number of wrong actions inserted per taught task. Each gives one negative example. "all" perturbs every action of
    the expert's path once."""
    unsafe_noise: bool = False
    """Let random actions end the episode (a crash). Otherwise, noise avoids actions that end it without success."""

    def problem(self) -> str | None:
        """Describe the first contradiction between keys, in one line; None if there is none."""
        if self.by == "log" and not self.log:
            return "'by' is 'log', and 'log' names no file; record one with `reflectrl play ENV --record FILE`"
        if self.log and self.by == "teacher":
            return f"'log' is given, and 'by' is {self.by!r}; set by = \"log\" to learn from it"
        return None


@dataclass(frozen=True)
class SFTConfig:
    """Supervised fine-tuning (SFT) of either player."""

    steps: Count = 1000
    """Largest number of optimiser steps for the reflector."""
    policy_steps: Natural = 0
    """Largest number of optimiser steps for a policy that reads reflections; 0 takes `steps`. A policy that reads none
    gets the sum of both."""
    policy_from: Literal["base", "reflector"] = "base"
    """Initial weights of a policy that reads reflections. "reflector" helps models made from scratch, because the
    reflector has already learned to look things up. Pretrained models can do that anyway, and adapters always start
    from their backbone."""
    reflection_dropout: Share = 0.0
    """Share of the policy's rows whose reflection is left out, so that the policy also learns to read the state. Useful
    if the reflector will often be wrong, or sometimes silent (`rl.reflect_probability`)."""
    distinct_reflections: bool = False
    """Train the reflector on each distinct pair of prompt and reflection once per epoch, however often the pair occurs
    in the episodes. Useful where one text is right in most states, or where an episode has the same text in all
    states."""
    batch_size: Count = 32
    """Rows per optimiser step."""
    by_episode: bool = False
    """Put all rows of an episode into the same optimiser step, so that their common history is encoded once. Useful for
    long histories."""
    text_coef: NonNegative = 0.0
    """Weight of the loss on the prompt tokens. With it, a model made from scratch learns the environment's text."""
    accumulate: Natural = 0
    """Micro-batches per optimiser step. This changes memory use, not the result. 0 takes as many as are needed to keep
    the activations of each micro-batch within about 4 GiB, or within a quarter of a GPU's memory."""
    optimizer: Literal["adamw", "paged_adamw", "muon"] = "adamw"
    """"adamw" for all weights; "paged_adamw", whose state can be moved off the GPU (needs the extra `qlora`); or "muon"
    for hidden matrices and AdamW for the rest (for small models made from scratch)."""
    lr: Positive = 2e-3
    """Peak learning rate of AdamW."""
    muon_lr: Positive = 0.02
    """Peak learning rate of Muon."""
    schedule: Schedule = "cosine"
    """Learning-rate schedule over the steps: "constant", "linear" to 0, or along a "cosine" to a tenth."""
    warmup: Share = 0.05
    """Share of the steps in which the learning rate rises linearly at first ("linear" and "cosine")."""
    weight_decay: NonNegative = 0.01
    """Decoupled weight decay."""
    max_grad_norm: Positive = 1.0
    """Largest norm of the gradient; a larger gradient is scaled down to it."""
    eval_every: Count = 200
    """Optimiser steps between evaluations on validation rows."""
    eval_epochs: Natural = 20
    """Epochs after which to evaluate if that comes before `eval_every` steps. With few demonstrations, the best weights
    come early, and `patience` counts evaluations. 0 evaluates every `eval_every` steps only."""
    eval_rows: Count = 256
    """Validation rows per evaluation, spread evenly over all rows."""
    patience: Count = 5
    """Number of evaluations without improvement after which training stops early."""
    keep: Literal["loss", "accuracy"] = "loss"
    """Weights to keep: the lowest "loss" on validation rows, or the highest "accuracy" (share of correct tokens; ties
    go to the lower loss). With few demonstrations, validation loss starts to rise early, because the policy grows
    overconfident in its errors, while accuracy still improves. Use "accuracy" there."""
    negatives: bool = True
    """Train on negative examples as well (`teach.negatives`)."""
    auxiliary_coef: NonNegative = 1.0
    """Weight of the teacher's further questions about a state (`Teacher.questions`), if it asks any and the policy
    scores options (`play.scoring`). The mean loss of a state's questions is added to the loss of its choice."""

    def problem(self) -> str | None:
        """Describe the first contradiction between keys, in one line; None if there is none."""
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
    """"reinforce", or "ppo" with clipped ratios. Text tasks always use PPO."""
    updates: Count = 50
    """Number of iterations. Each plays a batch of episodes (in text tasks: samples completions) and learns from it."""
    episodes: Count = 16
    """New episodes, or completions, per iteration."""
    group: Count = 1
    """Episodes per task (completions per prompt) in an iteration. It must be above 1 for baselines that compare
    episodes."""
    refills: Natural = 0
    """Dynamic sampling: if all episodes of a task have the same return, skip them, and play other tasks instead. This
    is the largest number of such extra rounds per update; 0 turns it off. (Agents only.)"""
    temperature: Positive = 1.0
    """Sampling temperature of the policy during training; in text tasks, also in sampled evaluation."""
    baseline: Literal["none", "mean", "leave-one-out", "grpo", "dr-grpo", "gigpo", "critic"] = "mean"
    """Baseline that is subtracted from returns: "none"; the "mean" of the batch; other episodes of the same task
    ("leave-one-out", "grpo", "dr-grpo"); also other steps from an equal state ("gigpo"); or the prediction of a
    "critic" ([learner.md](learner.md)). In text tasks, the critic predicts a value at every token; "none", "mean" and
    "leave-one-out" compare whole completions and give all their tokens the same advantage; the others are for agents
    only."""
    step_coef: NonNegative = 1.0
    """Weight of the comparison of steps, relative to the comparison of episodes ("gigpo")."""
    gamma: Share = 1.0
    """Discount factor of rewards. In text tasks, it is per token, and only the critic uses it."""
    gae_lambda: Share = 0.95
    """Lambda of generalised advantage estimation, over steps or tokens (critic only)."""
    normalise: bool = True
    """Divide advantages by their root mean square over the batch (in text tasks, over its tokens)."""
    centre: bool = False
    """Subtract the batch's mean from the advantages first, as TRL does. It can change their signs."""
    clip_coef: Positive = 0.1
    """PPO clip range: the probability ratio is clipped to 1 ± this."""
    clip_high: NonNegative = 0.0
    """Upper clip of the ratio if it differs from the lower one, as in DAPO's clip-higher; 0 takes `clip_coef`."""
    dual_clip: NonNegative = 0.0
    """Dual clip: a negative advantage counts at most this many times, however far the ratio has moved. It must be above
    1 (3 is usual); 0 turns it off."""
    update_epochs: Count = 3
    """Number of PPO epochs over a batch."""
    steps_per_epoch: Count = 1
    """Optimiser steps per epoch. Each uses an equal, random share of the batch. With 4 or more, small models learn from
    fewer episodes."""
    deal: Literal["steps", "prompts"] = "steps"
    """Split of a batch into minibatches: by single "steps" (in text tasks: by completions), or by "prompts", so that
    all steps with the same prompt stay together. "prompts" computes each prompt once per epoch instead of once per
    optimiser step, and is faster if episodes often visit the same states."""
    critic: Literal["linear", "mlp"] = "mlp"
    """Architecture of the critic's head."""
    critic_shares: bool = False
    """Let the value loss train the policy's model too, so that the model also learns from every step's return. For
    models made from scratch that learn from reward alone."""
    critic_warmup: Natural = 0
    """Number of initial updates in which only the critic learns, so that an untrained critic cannot ruin a good
    policy."""
    critic_lr: Positive = 3e-3
    """Learning rate of the critic."""
    critic_every: Count = 1
    """Number of updates per update of the critic. Above 1, the critic keeps its weights in the updates between."""
    critic_epochs: Natural = 0
    """0: the critic learns together with the policy, from the same batch. Above 0: it learns alone after every
    `critic_every` updates, in this many epochs over the batches of all these updates. (Agents only.)"""
    hold: Natural = 20
    """Number of updates over which `hold_kl` falls to 0, after a warm-up of the critic (`hold_warmup`). This protects a
    policy that was taught by imitation while its critic is still inaccurate (baseline "critic" only). 0 turns it off,
    together with `hold_warmup` and `hold_lr`."""
    hold_warmup: Natural = 5
    """Smallest `critic_warmup` after imitation (`hold`)."""
    hold_kl: NonNegative = 0.5
    """Weight of the KL divergence from the imitated policy, added to `kl_coef` when the policy begins to learn
    (`hold`)."""
    hold_lr: Positive = 0.4
    """Factor of `lr` after imitation (`hold`)."""
    critic_coef: NonNegative = 0.5
    """Weight of the value loss."""
    value_clip: NonNegative = 0.0
    """Clip range of the critic's predictions (reward units) around those before the update, as in PPO's first
    implementations and in TRL; 0 is none. A reflector's critic is not clipped, nor is any with `critic_epochs`."""
    entropy_coef: NonNegative = 0.01
    """Weight of the entropy bonus. It is part of the loss, never of the reported reward. In text tasks, it is per
    token."""
    entropy_floor: NonNegative = 0.0
    """Entropy (nats) up to which a step gets the entropy bonus; 0 gives it to all steps."""
    entropy_in: Literal["loss", "returns"] = "loss"
    """Place of the entropy bonus: a term of the "loss", or part of the learner's rewards, so that the "returns" of a
    step include the bonuses of all later steps. (Agents only.)"""
    brier_coef: NonNegative = 0.0
    """Weight of the Brier score of each choice: the squared difference between its probability and 1 or 0, for an
    episode that was won or not. It keeps probabilities honest, since reward alone makes them extreme, and costs some
    success ([calibration.md](calibration.md)). (Agents only.)"""
    kl_coef: NonNegative = 0.05
    """Weight of the KL divergence from the policy before RL, over the legal actions. In text tasks, it is a penalty on
    each token's log-ratio to that policy, subtracted from rewards that are divided by their running standard deviation.
    With 0, the policy before RL is not kept in memory."""
    adaptive_kl: NonNegative = 0.0
    """Target KL divergence (nats per completion) from the policy before RL. After an update, `kl_coef` grows if the
    divergence was above the target, and shrinks if it was below. 0 leaves `kl_coef` as it is. (Text tasks only.)"""
    adaptive_kl_horizon: Count = 10_000
    """Slowness of `adaptive_kl`: over this many completions, `kl_coef` changes by the relative distance of the
    divergence from its target, at most by a fifth."""
    lr: Positive = 2e-4
    """Learning rate of AdamW."""
    optimizer: Literal["adamw", "adam"] = "adamw"
    """Optimiser: "adamw", or "adam", whose weight decay is a penalty in the gradient (L2)."""
    schedule: Schedule = "constant"
    """Learning-rate schedule over the updates: "constant", "linear" to 0, or along a "cosine" to a tenth."""
    warmup: Share = 0.0
    """Share of the updates in which the learning rate rises at first ("linear" and "cosine")."""
    target_kl: NonNegative = 0.0
    """Target KL divergence (nats) between the policy before and after an update (PPO). The learning rates are
    multiplied by 1.5 after an update that moved the policy by less than half the target, and divided by 1.5 after one
    with more than twice the target. 0 turns this off."""
    weight_decay: NonNegative = 0.0
    """Weight decay: decoupled for AdamW, an L2 penalty for Adam."""
    max_grad_norm: Positive = 0.3
    """Largest norm of the gradient; a larger gradient is scaled down to it."""
    minibatch: Count = 64
    """Largest number of different prompts, or completions, per forward pass. It is lowered where their activations
    would take more than about 4 GiB, or a quarter of a GPU's memory. Gradients are accumulated, so this changes memory
    use, not the result."""
    replay: Natural = 50
    """Size of the replay buffer, which keeps successful episodes; 0 turns replay off."""
    replay_episodes: Natural = 8
    """Episodes drawn from the replay buffer per iteration."""
    replay_repeats: bool = False
    """Draw replayed episodes with replacement, so a buffer with fewer episodes gives each of them several times."""
    self_imitation: bool = False
    """Self-imitation learning: draw replayed episodes more often if they turned out better than expected, and learn
    only from their good steps, as if the current policy had chosen them."""
    replay_log: Natural = 0
    """Number of successful episodes per iteration that are drawn from the log of offline learning, in addition to new
    ones. If it is above 0, the run makes that log."""
    curriculum: Literal["none", "equal", "by-tasks", "gate"] = "equal"
    """"none": only the last stage. "equal": every stage gets an equal share of the updates. "by-tasks": its share is
    proportional to the number of its tasks that no earlier stage has. "gate": the next stage begins at a success rate
    (`gate`)."""
    stages: tuple[str, ...] = ()
    """Stages to train on, in this order; empty means all stages of the environment. "a+b" merges two stages into one
    with the tasks of both."""
    rehearsal: Annotated[float, Range(least=0, below=1)] = 0.25
    """Share of an update's episodes that come from other stages, so that those are not forgotten."""
    gate: Share = 0.9
    """Success rate over the last batches at which the next stage begins ("gate")."""
    draw: Literal["uniform", "by-success"] = "uniform"
    """Sampling of a stage's tasks: "uniform", or "by-success", which prefers tasks that are sometimes won to tasks that
    are always or never won ([learner.md](learner.md))."""
    first_horizon: Natural = 0
    """Horizon (steps) of the first update's episodes. It grows to the environment's horizon during the first half of
    the updates. 0 always uses the environment's horizon."""
    reverse: Annotated[float, Range(least=0, below=1)] = 0.0
    """Share of an update's groups that start part-way into a winning episode ([exploration.md](exploration.md))."""
    reverse_gate: Share = 0.5
    """Success rate at which this start moves towards the beginning of the episode."""
    reverse_step: Count = 1
    """Number of actions by which the start moves each time. At first, the start is this many actions before the win."""
    milestone_coef: NonNegative = 0.0
    """Weight of potential-based shaping: the potential of having reached all milestones and subgoals of the
    environment. It is never part of the reported reward."""
    milestone_at_horizon: Literal["lost", "kept"] = "lost"
    """Treatment of the potential when the horizon ends an episode. "lost": shaping does not change the best policy, but
    only a critic learns faster with it. "kept": shaping helps with every baseline, as long as milestones are worth less
    than winning. A critic estimates what would have followed the horizon, so with one the potential is always kept."""
    count_coef: NonNegative = 0.0
    """Bonus for reaching an observation for the n-th time: this number, divided by the square root of n. It is never
    part of the reported reward."""
    own_wins: Natural = 0
    """Number of training tasks for which a search in the environment looks for a win to imitate before RL
    ([exploration.md](exploration.md)), if the policy is untrained or has imitated recorded episodes only. There is no
    search if the effects of actions are random, or if random play wins half of its episodes. 0 turns this off."""
    own_wins_steps: Count = 200_000
    """Environment steps after which the search for wins ends. A single task gets a tenth of them at most."""
    own_wins_detours: Natural = 3
    """Number of copies of each win with random actions in between. The policy imitates the copies too, except for the
    random actions. A win that goes straight to the goal does not show how to go on after a mistake; these copies do."""
    own_wins_updates: Count = 3000
    """Largest number of optimiser steps for imitating the wins that were found. Imitation ends earlier if the loss on
    held-out wins has stopped falling (`sft.patience`)."""
    minutes: NonNegative = 0.0
    """Time limit of a training in minutes, after which it ends with its best weights; 0 for none. With a limit, results
    depend on the machine's speed."""
    patience: Natural = 0
    """Number of evaluations without improvement after which training ends, if it has won any validation task. If it has
    won all of them, three evaluations are enough. 0 turns this off."""
    eval_every: Count = 10
    """Updates between evaluations on validation tasks (or prompts). The best weights are kept."""
    eval_episodes: Count = 30
    """Validation episodes per evaluation."""
    eval_sampling: Literal["greedy", "sampled"] = "greedy"
    """Decoding of validation episodes, or completions, in every training that plays or writes them: "sampled" measures
    the objective of RL; "greedy" takes the most probable choices."""
    reflect_probability: Share = 1.0
    """Probability that the reflector writes at a step during training."""

    def problem(self) -> str | None:
        """Describe the first contradiction between keys, in one line; None if there is none."""
        # These compare whole returns, and give no step an advantage of its own.
        whole_returns = self.baseline in ("leave-one-out", "grpo", "dr-grpo")
        compared = whole_returns or self.baseline == "gigpo"
        if (compared or self.refills) and self.group < 2:
            subject = f"'baseline' {self.baseline}" if compared else f"'refills' {self.refills}"
            return f"{subject} compares episodes of one task; 'group' must be at least 2"
        if self.critic_epochs and self.critic_shares:
            return "'critic_epochs' trains the critic's head alone; set it to 0, or 'critic_shares' to false"
        if 0 < self.dual_clip <= 1:
            return f"'dual_clip' is {self.dual_clip:g}; it must be above 1, or 0 for none"
        if self.refills and not whole_returns:
            subject = f"'refills' leaves out episodes with equal returns, from which 'baseline' {self.baseline} learns"
            return f"{subject}; set 'baseline' to leave-one-out, grpo or dr-grpo"
        if self.gamma < 1 and whole_returns:
            return f"'baseline' {self.baseline} compares whole returns, without discount; set 'gamma' to 1"
        if self.algorithm == "reinforce" and (self.target_kl or self.clip_high or self.dual_clip):
            key = "target_kl" if self.target_kl else "clip_high" if self.clip_high else "dual_clip"
            return f"'{key}' needs the probability ratio that only PPO computes; set 'algorithm' to ppo"
        if self.target_kl and self.update_epochs == self.steps_per_epoch == 1:
            return "'target_kl' needs a second optimiser step per update to measure; raise 'update_epochs'"
        if self.adaptive_kl and not self.kl_coef:
            return "'adaptive_kl' multiplies 'kl_coef', which is 0; set 'kl_coef' above 0"
        if self.adaptive_kl and self.adaptive_kl_horizon < self.episodes:
            horizon, least = self.adaptive_kl_horizon, self.episodes
            return f"'adaptive_kl_horizon' is {horizon}; it must be at least 'episodes' ({least})"
        if self.self_imitation and not (self.replay and self.replay_episodes) and not self.replay_log:
            return "'self_imitation' learns from replayed episodes; set 'replay' and 'replay_episodes' above 0"
        if self.episodes % self.group:
            return f"'episodes' is {self.episodes}, which is not a multiple of 'group' ({self.group})"
        if self.reverse and self.episodes == self.group:
            return "'reverse' needs at least two groups per update; set 'episodes' to at least twice 'group'"
        if self.milestone_coef and self.milestone_at_horizon == "lost" and whole_returns:
            subject = f"'milestone_coef' changes nothing with 'baseline' {self.baseline}"
            return f"{subject}; set 'milestone_at_horizon' to kept"
        return None
