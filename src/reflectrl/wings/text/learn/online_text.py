"""Online PPO on text: generate completions for prompts, score them, learn from them, in the loop of `learn/online.py`.

Source: the online baseline of Baheti et al. 2024, in the form of Ziegler et al. 2019 ("Fine-Tuning Language Models from
Human Preferences", section 2) and Ouyang et al. 2022. Every token is an action. The scaled reward is given at the last
token, and each token has a penalty for its divergence from the reference. The weight of that penalty may adapt to a
target. Departures from the released code, which uses TRL 0.7: completions are drawn from the whole distribution, since
ratios need it; rewards are divided by their deviation, and advantages by their root mean square, but neither is
centred; the value loss is not clipped; minibatches stay the same in all epochs of an update; and dropout is off, so
ratios are 1 before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reflectrl.core.config import RLConfig
from reflectrl.core.types import Sampling, UserError, named_seed
from reflectrl.learn.batch import Batch, Rollouts
from reflectrl.learn.online import train_online
from reflectrl.learn.trainer import Log
from reflectrl.learn.value import ValueHead
from reflectrl.methods.offline import Evaluate
from reflectrl.methods.shared.offline.config import OfflineConfig
from reflectrl.models.lm import LanguageModel
from reflectrl.wings.text.learn.text_batch import make_batch
from reflectrl.wings.text.learn.written import write
from reflectrl.wings.text.samples.sample import Sample

Label = Callable[[Sequence[Sample]], list[Sample]]
"""Function that returns the samples with their rewards."""


def train_online_text(
    lm: LanguageModel,
    prompts: Sequence[Sample],
    label: Label,
    evaluate: Evaluate,
    config: RLConfig,
    lengths: OfflineConfig,
    seed: int,
    log: Log,
    state_folder: Path | None = None,
) -> None:
    """Train the model in place. It ends with the weights that scored best.

    Args:
        lm: the reference model, also when a training resumes. A copy is kept in memory unless `config.kl_coef` is 0.
        prompts: one sample per prompt; only prompt, group and meta are used.
        config: settings of RL. The algorithm is always PPO, whatever `config.algorithm` says.
        lengths: provides `prompt_tokens` and `completion_tokens`; its other settings are ignored.
        log: receives one flat dictionary per update.
        state_folder: folder in which every evaluation saves the state, so that a killed training can resume.

    Raises:
        UserError: there are no prompts, or a prompt (named in the error) does not fit the model's context.
    """
    if not prompts:
        raise UserError("ppo: no training prompts")
    config = replace(config, algorithm="ppo")
    rollouts = TextRollouts(lm, prompts, label, evaluate, config, lengths, seed)
    train_online(rollouts, config, seed, log, state_folder)


class TextRollouts(Rollouts):
    """Source of batches of completions with rewards. `train_online_text` describes the arguments."""

    def __init__(
        self,
        lm: LanguageModel,
        prompts: Sequence[Sample],
        label: Label,
        scores: Evaluate,
        config: RLConfig,
        lengths: OfflineConfig,
        seed: int,
    ) -> None:
        super().__init__(lm, config, seed)
        self.prompts, self.label, self.scores, self.lengths = prompts, label, scores, lengths
        self.scale = RunningScale()
        self.kl_coef = config.kl_coef

    def about(self) -> dict[str, object]:
        return {"steps": self.config.updates}

    def evaluate(self) -> dict[str, float]:
        return self.scores()

    def collect(self, update: int, critic: ValueHead | None) -> Batch:
        config, lengths, seed = self.config, self.lengths, self.seed
        rows = draw_prompts(len(self.prompts), update, config.episodes // config.group, seed)
        draws = [(self.prompts[row], i, k) for i, row in enumerate(rows) for k in range(config.group)]
        generators = [np.random.default_rng(named_seed(seed, "write", update, i, k)) for _, i, k in draws]
        prompts, sampling = [sample for sample, _, _ in draws], Sampling(config.temperature)
        written = write(self.lm, prompts, sampling, generators, lengths.completion_tokens, lengths.prompt_tokens)
        written.sort(key=lambda text: text.example.ids[: text.example.start])  # shared prefixes are encoded once
        rewards_K = torch.tensor(
            [sample.reward for sample in self.label([completion.sample for completion in written])]
        )
        scaled_K = self.scale.add(rewards_K)
        penalised = replace(config, kl_coef=self.kl_coef)
        rng = np.random.default_rng(named_seed(seed, "minibatches", update))
        batch = make_batch(self.lm, self.reference, critic, written, scaled_K, penalised, rng)
        if config.adaptive_kl:
            batch.metrics["kl_coef"] = self.kl_coef
            self.kl_coef = adapted_kl_coef(self.kl_coef, batch.metrics["kl"], len(written), config)
        batch.metrics |= {"return": float(rewards_K.mean()), "scaled_reward_std": float(scaled_K.std(correction=0))}
        batch.metrics["length"] = float(np.mean([len(completion.logprobs) for completion in written]))
        return batch

    def state(self) -> dict[str, Any]:
        return {"scale": asdict(self.scale), "kl_coef": self.kl_coef}

    def load(self, state: Mapping[str, Any]) -> None:
        self.scale = RunningScale(**state["scale"])
        self.kl_coef = state.get("kl_coef", self.kl_coef)  # a state of an older version has none


def draw_prompts(count: int, update: int, size: int, seed: int) -> list[int]:
    """Return the indices of an update's prompts: the next `size` of an endless series of shuffled epochs."""
    positions = range(update * size, (update + 1) * size)
    epochs = {position // count for position in positions}
    orders = {epoch: np.random.default_rng(named_seed(seed, "epoch", epoch)).permutation(count) for epoch in epochs}
    return [int(orders[position // count][position % count]) for position in positions]


def adapted_kl_coef(coef: float, kl: float, count: int, config: RLConfig) -> float:
    """Adapt the weight of the KL penalty: coef · (1 + clip(kl / target - 1, -0.2, 0.2) · count / horizon).

    Args:
        coef: weight of the penalty in an update.
        kl: divergence of its completions from the reference (nats per completion).
        count: number of its completions.
        config: provides the target (`adaptive_kl`) and the horizon (`adaptive_kl_horizon`).

    Source: Ziegler et al. 2019, section 2.2.
    """
    error = min(max(kl / config.adaptive_kl - 1, -0.2), 0.2)
    return coef * (1 + error * count / config.adaptive_kl_horizon)


@dataclass
class RunningScale:
    """Running standard deviation of all rewards so far, by which rewards are divided (Chan et al. 1983).

    Attributes:
        squares: sum of the squared distances from the mean.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, rewards_K: Tensor) -> Tensor:
        """Add new rewards, (K,), and return them scaled. While all rewards so far are equal, they stay unscaled."""
        new_count, mean = len(rewards_K), float(rewards_K.double().mean())
        total, step = self.count + new_count, mean - self.mean
        self.squares += float((rewards_K.double() - mean).square().sum()) + step**2 * self.count * new_count / total
        self.mean += step * new_count / total
        self.count = total
        deviation = (self.squares / self.count) ** 0.5
        return rewards_K / (deviation if deviation > 1e-6 else 1.0)
