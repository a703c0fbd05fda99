"""Settings of offline learning: the section [offline] of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from reflectrl.core.config.learning import Schedule
from reflectrl.core.config.rules import Count, Natural, NonNegative, Positive, Range, Share

if TYPE_CHECKING:
    from reflectrl.core.config import Recipe

Algorithm = Literal[
    "nll", "wbc", "r_gold", "r_lol", "r_lol_kl", "a_lol", "a_lol_ref_free", "a_lol_seq", "a_lol_kl", "dpo",
    "dpo_ref_free", "pro"
]  # fmt: skip
"""Algorithms of offline learning from samples and from episode logs."""
LogAlgorithm = Literal[Algorithm, "archer"]
"""Algorithms of offline learning from episode logs. "archer" is one more, since it needs the state after each step."""


@dataclass(frozen=True)
class OfflineConfig:
    """Offline learning of the policy from a log of episodes, or of any model from samples with rewards."""

    algorithm: LogAlgorithm = "a_lol"
    """Algorithm: likelihood ("nll"), likelihood weighted by rewards ("wbc", "r_gold", "r_lol", "r_lol_kl") or by
    advantages ("a_lol" and its variants; on episode logs also "archer"), or preferences ("dpo", also as "dpo_ref_free"
    without the reference, and "pro"). In a run, each arm sets its own."""
    sampling: Literal["none", "good_priority", "good_random", "all_priority"] = "good_priority"
    """Sampling of the weighted algorithms: "none" draws uniformly from all completions, "good_priority" in proportion
    to the weight, "good_random" uniformly from completions of positive weight. In text tasks, all three leave out
    rejected answers; "all_priority" is "good_priority" with the rejected answers in the same pool, and only differs for
    weights by advantage. "nll", "archer" and preferences always draw uniformly."""
    reference_update: NonNegative = 0.0
    """Gain in the validation score over the reference's above which the weights of an evaluation become the new
    reference: its log-probabilities, its value and the sampling weights are then computed anew. 0 keeps the first
    reference. Only for algorithms that use the reference, and where models are compared by reward or success."""
    clip: Annotated[float, Range(least=0, most=1)] = 0.9
    """Clip range: importance ratios are clamped to [1 - clip, 1 + clip]. 0 does not clip them."""
    beta: NonNegative = 0.1
    """Scale of the margin in DPO."""
    kl_beta: NonNegative = 0.1
    """Weight of the KL penalty in a_lol_kl and r_lol_kl."""
    kl: Literal["difference", "k3"] = "difference"
    """KL penalty of a_lol_kl and r_lol_kl: the difference of log-probabilities, or the k3 estimate, which is never
    negative."""
    gold_floor: Share = 0.1
    """Smallest weight of a token in r_gold."""
    pro_sft: NonNegative = 0.05
    """Weight of the likelihood in PRO, times the square of the number of other completions. It is the likelihood of the
    answer that the row's "sft_index" names, or else of the best answer."""
    pro_logits: bool = False
    """Let PRO rank by the logits of rewards in (0, 1). These are a reward model's raw outputs, which are further apart
    than their sigmoids."""
    steps: Count = 400
    """Optimiser steps over all data. If only some of the data is drawn (good_..., all_priority), the steps are scaled
    by the number of rows drawn from, divided by the number of answers worth imitating."""
    batch_size: Count = 32
    """Completions, pairs or rankings per optimiser step."""
    accumulate: Count = 1
    """Micro-batches into which an optimiser step is cut (memory, not mathematics)."""
    optimizer: Literal["adamw", "paged_adamw", "muon"] = "adamw"
    """Optimiser, with the same choices as in [sft]."""
    lr: Positive = 5e-4
    """Peak learning rate of AdamW."""
    muon_lr: Positive = 5e-3
    """Peak learning rate of Muon."""
    preference_lr_scale: Positive = 1.0
    """Factor on the learning rates for "dpo" and "pro". Preference losses lower the probability of rejected completions
    without a bound, so they diverge at rates that suit imitation."""
    schedule: Schedule = "linear"
    """Learning-rate schedule over the steps: "constant", "linear" to 0, or along a "cosine" to a tenth."""
    warmup: Share = 0.05
    """Share of the steps in which the learning rate rises linearly at first ("linear" and "cosine")."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay."""
    max_grad_norm: Positive = 1.0
    """Gradient-norm clip."""
    eval_every: Count = 50
    """Optimiser steps between evaluations. The best checkpoint is kept."""
    eval_episodes: Count = 30
    """Validation episodes per evaluation in an environment. Without an environment, the held-out loss decides."""
    held_out: Annotated[float, Range(above=0, below=1)] = 0.1
    """Share of the prompts (in an environment, of the tasks) that is held out to compare losses."""
    prompt_tokens: Count = 512
    """Longest prompt of a sample in tokens. Longer prompts lose their beginning."""
    completion_tokens: Count = 128
    """Longest completion of a sample in tokens. Longer completions lose their end, including the end-of-text token."""
    gamma: Share = 1.0
    """Discount factor of the reward-to-go of an episode's steps."""
    value_from: Literal["rollouts", "log"] = "rollouts"
    """Data for fitting the reference's value: episodes that the reference plays, or the logged returns."""
    value_episodes: Count = 4
    """Episodes that the reference plays per training and validation task to learn its value."""
    value_output: Literal["sigmoid", "linear"] = "sigmoid"
    """Output of the value head: "sigmoid" bounds values to [0, max_value], "linear" does not."""
    max_value: NonNegative = 0.0
    """Largest value of the sigmoid output; 0 means the largest reward in the data."""
    value_epochs: Count = 5
    """Training epochs of the value head. The best epoch on held-out prompts is kept."""
    value_lr: Positive = 1e-3
    """Learning rate of AdamW for the value head."""
    value_batch: Count = 64
    """Prompts per step of the value head."""
    expectile: Annotated[float, Range(above=0, below=1)] = 0.8
    """Expectile of archer's critic: V of a state is this expectile of Q over the actions logged there. 0.5 is their
    mean; towards 1 it approaches the best of them."""
    target_rate: Annotated[float, Range(above=0, most=1)] = 0.03
    """Update rate per step of the target network, a slow copy of archer's critic (tau)."""
    critic_steps: Count = 2000
    """Optimiser steps of archer's critic. The critic that is best on held-out tasks is kept."""
    critic_lr: Positive = 1e-3
    """Learning rate of AdamW for archer's critic."""
    critic_batch: Count = 128
    """Logged steps per optimiser step of archer's critic."""
    awr_beta: NonNegative = 10.0
    """Strength of archer's preference for better actions: their weight is exp(awr_beta · advantage), at most 100."""
    reference_steps: Count = 400
    """Steps of behaviour cloning, with the settings of [sft], that train the reference of a run's offline arms."""
    log_episodes: Natural = 4
    """Episodes of the SFT policy per training task that a run's log holds besides the teaching trajectories."""
    rounds: Count = 3
    """Rounds of expert iteration. In each, the policy plays and then learns from its own successes; all rounds together
    take `steps` optimiser steps."""
    round_episodes: Count = 4
    """Episodes per training task and round of expert iteration."""
    target_return: float = 1.0
    """Return that return-conditioned cloning (rvs) conditions on at the start of an episode."""

    def problem(self) -> str | None:
        """Return a one-line error if two keys contradict each other, else None."""
        if self.accumulate > self.batch_size:
            return f"'accumulate' is {self.accumulate}; it must be at most 'batch_size' ({self.batch_size})"
        return None


def offline_settings(recipe: Recipe) -> OfflineConfig:
    """Return the section [offline] of a recipe."""
    settings: OfflineConfig = recipe.sections["offline"]
    return settings
