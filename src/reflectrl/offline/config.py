"""The settings of offline learning: the section [offline] of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from reflectrl.config.rules import Count, Natural, NonNegative, Positive, Range, Share

if TYPE_CHECKING:
    from reflectrl.config import Recipe

Algorithm = Literal[
    "nll", "wbc", "r_gold", "r_lol", "a_lol", "a_lol_ref_free", "a_lol_seq", "a_lol_kl", "dpo", "pro"
]  # fmt: skip
"""Algorithms of offline learning from samples and from episode logs."""
LogAlgorithm = Literal[Algorithm, "archer"]
"""Those from episode logs: "archer" needs to know what followed a step."""


@dataclass(frozen=True)
class OfflineConfig:
    """Offline learning: of the policy from a log of episodes, or of any model from samples with rewards."""

    algorithm: LogAlgorithm = "a_lol"
    """How to learn: by likelihood ("nll"), by likelihood weighted with rewards ("wbc", "r_gold", "r_lol") or with
    advantages ("a_lol" and its variants; from episode logs also "archer"), or from preferences ("dpo", "pro"). An arm
    of a run has its own."""
    sampling: Literal["none", "good_priority", "good_random", "all_priority"] = "good_priority"
    """How weighted algorithms draw: uniformly from all, in proportion to the weight, uniformly from those of positive
    weight, or from all in proportion to the distance between reward and value. "nll", "archer" and preferences draw
    uniformly."""
    clip: Annotated[float, Range(above=0, most=1)] = 0.9
    """Importance ratios are clamped to [1 - clip, 1 + clip]."""
    beta: NonNegative = 0.1
    """Strength of a_lol_kl's penalty; scale of DPO's margin."""
    kl: Literal["difference", "k3"] = "difference"
    """a_lol_kl's penalty: the difference of log-probabilities, or an estimate that is never negative."""
    reference_free: bool = False
    """DPO without the reference."""
    gold_floor: Share = 0.1
    """Least weight of a token in r_gold."""
    pro_sft: NonNegative = 0.05
    """Weight of the likelihood of the best completion in PRO (times the square of the number of the others)."""
    steps: Count = 400
    """Optimiser steps over all data; drawing from a part of it (good_...) takes that part of the steps."""
    batch_size: Count = 32
    """Completions, pairs or rankings per optimiser step."""
    accumulate: Count = 1
    """Micro-batches into which an optimiser step is cut (memory, not mathematics)."""
    optimizer: Literal["adamw", "paged_adamw", "muon"] = "adamw"
    """As that of [sft]."""
    lr: Positive = 5e-4
    """Peak learning rate of AdamW."""
    muon_lr: Positive = 5e-3
    """Peak learning rate of Muon."""
    preference_lr_scale: Positive = 1.0
    """Learning rates of "dpo" and "pro" as a multiple of the others': preferences make what lost less likely without a
    bound, and drift away at rates that serve imitation."""
    warmup: Share = 0.05
    """Share of the steps in which the learning rate rises linearly; it then falls linearly to 0."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay."""
    max_grad_norm: Positive = 1.0
    """Gradient-norm clip."""
    eval_every: Count = 50
    """Optimiser steps between evaluations; the best checkpoint is kept."""
    eval_episodes: Count = 30
    """Validation episodes per evaluation, where there is an environment; without one, the held-out loss decides."""
    held_out: Annotated[float, Range(above=0, below=1)] = 0.1
    """Share of the prompts (of an environment: of the tasks) that is held out where losses are compared."""
    prompt_tokens: Count = 512
    """Longest prompt of a sample in tokens; longer ones lose their beginning."""
    completion_tokens: Count = 128
    """Longest completion of a sample in tokens; longer ones lose their end, the end-of-text token included."""
    gamma: Share = 1.0
    """Discount factor of the reward-to-go of an episode's steps."""
    value_from: Literal["rollouts", "log"] = "rollouts"
    """What the reference's value is fitted to: episodes that the reference plays, or the logged returns."""
    value_episodes: Count = 4
    """Episodes that the reference plays per training and validation task to learn its value."""
    value_output: Literal["sigmoid", "linear"] = "sigmoid"
    """Whether values are bounded."""
    max_value: NonNegative = 0.0
    """Largest value of a bounded output; 0: the largest reward there is."""
    value_epochs: Count = 5
    """Passes over the value's data; the best on held-out prompts is kept."""
    value_lr: Positive = 1e-3
    """Learning rate of AdamW for the value head."""
    value_batch: Count = 64
    """Prompts per step of the value head."""
    expectile: Annotated[float, Range(above=0, below=1)] = 0.8
    """Of archer's critic: a state is worth this expectile of what the actions logged there are worth (0.5: their mean;
    towards 1: the best of them)."""
    polyak: Annotated[float, Range(above=0, most=1)] = 0.03
    """How far the slow copies at which archer's critic aims go towards it per step."""
    critic_steps: Count = 2000
    """Optimiser steps of archer's critic; the best on held-out tasks is kept."""
    critic_lr: Positive = 1e-3
    """Learning rate of AdamW for archer's critic."""
    critic_batch: Count = 128
    """Logged steps per optimiser step of archer's critic."""
    awr_beta: NonNegative = 10.0
    """How much archer prefers the better actions: they are weighed by exp(awr_beta · advantage), at most 100."""
    reference_steps: Count = 400
    """Steps of behaviour cloning (with the settings of [sft]) that make the reference of a run's offline arms."""
    log_episodes: Natural = 4
    """Episodes of the SFT policy per training task in a run's log, beside the teaching trajectories."""
    rounds: Count = 3
    """Rounds of expert iteration, which share the steps: play, then learn from one's own successes."""
    round_episodes: Count = 4
    """Episodes per training task and round of expert iteration."""
    target_return: float = 1.0
    """Return that return-conditioned cloning (rvs) asks for at the start of an episode."""

    def problem(self) -> str | None:
        """What is wrong between the keys, in one line, or None."""
        if self.accumulate > self.batch_size:
            return f"'accumulate' is {self.accumulate}; it must be at most 'batch_size' ({self.batch_size})"
        return None


def offline_settings(recipe: Recipe) -> OfflineConfig:
    """The section [offline] of a recipe."""
    found: OfflineConfig = recipe.sections["offline"]
    return found
