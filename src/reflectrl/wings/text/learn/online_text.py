"""Online PPO on text: write completions for prompts, let them be judged, learn from them; and again. One linear loop.

Source: the online baseline of Baheti et al. 2024, in the form of Ziegler et al. 2019 ("Fine-Tuning Language Models from
Human Preferences", section 2) and Ouyang et al. 2022: every token is an action, the scaled reward stands at the last
one, and each token pays for its distance from the reference. Departures: the critic reads detached hidden states, so no
second backbone is trained; a pass over the batch is one step of the optimiser, as in `online.py`; dropout is off, so
ratios are 1 before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from reflectrl.config import OfflineConfig, RLConfig
from reflectrl.learn.checkpoint import (
    load_state,
    optimizer_tensors,
    prefixed,
    restore_optimizer,
    save_state,
    without_prefix,
)
from reflectrl.learn.losses import entropy, explained_variance, normalise, ppo_loss, value_loss
from reflectrl.learn.optim import clipped_step
from reflectrl.learn.value import ValueHead
from reflectrl.models.lm import LanguageModel
from reflectrl.models.memory import release_memory
from reflectrl.types import Sampling, UserError, named_seed
from reflectrl.wings.text.learn.text_batch import TextBatch, make_batch, token_logp
from reflectrl.wings.text.learn.written import write
from reflectrl.wings.text.samples.sample import Sample

Log = Callable[[dict[str, float]], None]
Label = Callable[[Sequence[Sample]], list[Sample]]
"""The samples with their rewards."""
Judge = Callable[[], dict[str, float]]
"""Judges the model as it is: what matters most comes first, and more is better."""


def train_online_text(
    lm: LanguageModel,
    prompts: Sequence[Sample],
    label: Label,
    judge: Judge,
    config: RLConfig,
    lengths: OfflineConfig,
    seed: int,
    log: Log,
    state_folder: Path | None = None,
) -> None:
    """Train the model in place; it ends with the weights that were judged best.

    Args:
        lm: the reference, also where a training goes on; unless `config.kl_coef` is 0, a copy of it is kept in memory.
        prompts: samples whose prompt, group and meta count; one per prompt.
        config: `config.algorithm` does not matter, this is PPO.
        lengths: its `prompt_tokens` and `completion_tokens` count.
        log: receives one flat dictionary per update.
        state_folder: where the learner's state is kept between judgements, so that a killed training goes on.

    Raises:
        UserError: there are no prompts, or one of them (named) has no room in the model's context.
    """
    if not prompts:
        raise UserError("ppo: no training prompts")
    reference = lm.frozen_copy() if config.kl_coef else None
    with torch.random.fork_rng():
        torch.manual_seed(named_seed(seed, "critic"))
        critic = ValueHead(lm.hidden_size, config.critic).to(lm.device) if config.baseline == "critic" else None
    groups = [{"params": lm.parameters(), "lr": config.lr}]
    if critic is not None:
        groups.append({"params": list(critic.parameters()), "lr": config.critic_lr})
    optimizer = torch.optim.AdamW(groups, weight_decay=config.weight_decay, fused=True)
    update, best, best_weights, scale = 0, tuple[float, ...](), lm.weights(), RunningScale()

    if state_folder is not None and (saved := load_state(state_folder)) is not None:
        tensors, meta = saved
        lm.load_weights(without_prefix("weights", tensors))
        best_weights = without_prefix("best", tensors)
        if critic is not None:
            critic.load_state_dict(without_prefix("critic", tensors))
        restore_optimizer(optimizer, tensors)
        update, best, scale = meta["update"], tuple(meta["best"]), RunningScale(**meta["scale"])

    while True:
        metrics: dict[str, float] = {"step": update, "steps": config.updates}

        # ---- judge the present model, and keep the best ----------------------------------------------------------
        if update % config.eval_every == 0 or update == config.updates:
            found = judge()
            metrics |= found
            if tuple(found.values()) > best:
                best, best_weights = tuple(found.values()), lm.weights()
            if state_folder is not None:
                tensors = prefixed("weights", lm.weights()) | prefixed("best", best_weights)
                tensors |= optimizer_tensors(optimizer)
                tensors |= prefixed("critic", critic.state_dict()) if critic is not None else {}
                save_state(state_folder, tensors, {"update": update, "best": best, "scale": asdict(scale)})
        if update == config.updates:
            log(metrics)
            break

        # ---- write ---------------------------------------------------------------------------------------------------
        chosen = draw_prompts(len(prompts), update, config.episodes // config.group, seed)
        places = [(prompts[row], i, k) for i, row in enumerate(chosen) for k in range(config.group)]
        generators = [np.random.default_rng(named_seed(seed, "write", update, i, k)) for _, i, k in places]
        wanted, how = [sample for sample, _, _ in places], Sampling(config.temperature)
        written = write(lm, wanted, how, generators, lengths.completion_tokens, lengths.prompt_tokens)
        written.sort(key=lambda one: one.example.ids[: one.example.start])  # what begins alike is encoded together
        rewards_K = torch.tensor([sample.reward for sample in label([one.sample for one in written])])
        scaled_K = scale.add(rewards_K)
        metrics |= {"return": float(rewards_K.mean()), "scaled_reward_std": float(scaled_K.std(correction=0))}
        metrics["length"] = float(np.mean([len(one.logprobs) for one in written]))

        # ---- learn ---------------------------------------------------------------------------------------------------
        batch = make_batch(lm, reference, critic, written, scaled_K, config)
        metrics |= learn(lm, critic, optimizer, batch, config)
        release_memory()
        update += 1
        log(metrics)

    lm.load_weights(best_weights)


def draw_prompts(count: int, update: int, size: int, seed: int) -> list[int]:
    """Which of `count` prompts an update writes for: the next `size` of endless epochs, each in an order of its own."""
    places = range(update * size, (update + 1) * size)
    epochs = {place // count for place in places}
    orders = {epoch: np.random.default_rng(named_seed(seed, "epoch", epoch)).permutation(count) for epoch in epochs}
    return [int(orders[place // count][place % count]) for place in places]


@dataclass
class RunningScale:
    """The running standard deviation of all rewards so far, by which they are divided (Chan et al. 1983).

    Attributes:
        squares: sum of the squared distances from the mean.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, rewards_K: Tensor) -> Tensor:
        """Take in further rewards, (K,), and return them scaled; as they are while all rewards are equal."""
        fresh, mean = len(rewards_K), float(rewards_K.double().mean())
        total, step = self.count + fresh, mean - self.mean
        self.squares += float((rewards_K.double() - mean).square().sum()) + step**2 * self.count * fresh / total
        self.mean += step * fresh / total
        self.count = total
        deviation = (self.squares / self.count) ** 0.5
        return rewards_K / (deviation if deviation > 1e-6 else 1.0)


def learn(
    lm: LanguageModel, critic: ValueHead | None, optimizer: torch.optim.Optimizer, batch: TextBatch, config: RLConfig
) -> dict[str, float]:
    """One optimiser step per pass over the batch, its gradient gathered from `config.minibatch` completions at a time.

    loss = PPO's − entropy_coef · entropy + critic_coef · value error, each a mean over the tokens. Returns the terms of
    the last pass, and how the batch looked before the first.
    """
    advantages_N = normalise(batch.advantages_N) if config.normalise else batch.advantages_N
    for _ in range(config.update_epochs):
        totals: dict[str, float] = {}
        for rows, span in batch.slices(config.minibatch):
            share = (span.stop - span.start) / len(batch)
            logp_NV, chosen_N, hidden_ND = token_logp(lm, rows, config.temperature)
            terms = {}
            terms["policy_loss"], terms["clipped_share"] = ppo_loss(
                chosen_N, batch.old_logp_N[span], advantages_N[span], config.clip_coef
            )
            with torch.set_grad_enabled(config.entropy_coef > 0):
                terms["entropy"] = entropy(logp_NV).mean()
            loss = terms["policy_loss"] - config.entropy_coef * terms["entropy"]
            if critic is not None:  # it reads a detached hidden state, so it never pulls at the policy's backbone
                terms["value_loss"] = value_loss(critic(hidden_ND.detach()), batch.returns_N[span])
                loss = loss + config.critic_coef * terms["value_loss"]
            terms["loss"] = loss
            (loss * share).backward()
            for name, term in terms.items():
                totals[name] = totals.get(name, 0.0) + share * float(term.detach())
        totals["grad_norm"] = clipped_step(optimizer, config.max_grad_norm)
    if batch.values_N is not None:
        totals["explained_variance"] = explained_variance(batch.values_N, batch.returns_N)
    return totals | ({} if batch.kl is None else {"kl": batch.kl})
