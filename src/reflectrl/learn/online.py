"""Online reinforcement learning of the policy: REINFORCE or PPO, replay, curriculum. One linear loop.

Source: Reflect-RL, section on online RL. Departures from its released code: rewards are reported without the entropy
bonus; the critic reads the hidden state of the whole prompt; dropout is off, so ratios are 1 before the first update;
illegal actions have probability 0; success is an event; everything needed to go on after a kill is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from reflectrl.config import RLConfig
from reflectrl.envs.base import TextEnv
from reflectrl.episodes import from_line, to_line
from reflectrl.learn.batch import Batch, compute_advantages, make_batch, policy_pass
from reflectrl.learn.checkpoint import (
    load_state,
    optimizer_tensors,
    prefixed,
    restore_optimizer,
    save_state,
    without_prefix,
)
from reflectrl.learn.curriculum import Curriculum
from reflectrl.learn.losses import (
    categorical_kl,
    entropy,
    explained_variance,
    normalise,
    ppo_loss,
    reinforce_loss,
    value_loss,
)
from reflectrl.learn.optim import clipped_step
from reflectrl.learn.replay import ReplayBuffer
from reflectrl.learn.value import ValueHead
from reflectrl.models.memory import release_memory
from reflectrl.players.base import Player
from reflectrl.players.policy import Policy
from reflectrl.rollout import Job, rollout
from reflectrl.types import Episode, Sampling, Task, named_seed

Log = Callable[[dict[str, object]], None]


def train_online(
    policy: Policy,
    reflector: Player | None,
    make_env: Callable[[], TextEnv],
    config: RLConfig,
    seed: int,
    log: Log,
    state_folder: Path | None = None,
    logged: Sequence[Episode] = (),
) -> None:
    """Train the policy in place; it ends with the weights that did best on validation tasks.

    Args:
        policy: samples at `config.temperature` here whatever its own setting is.
        reflector: frozen; to the policy it is part of the environment.
        log: receives one flat dictionary per update.
        state_folder: where the learner's state is kept, so that a killed training goes on.
        logged: episodes of an offline log, of which `config.replay_log` successful ones are learned from per update.
    """
    env = make_env()
    policy = policy.with_sampling(Sampling(config.temperature))
    reference = Policy(policy.lm.frozen_copy(), policy.sampling, scoring=policy.scoring) if config.kl_coef else None
    with torch.random.fork_rng():
        torch.manual_seed(named_seed(seed, "critic"))
        critic = ValueHead(policy.lm.hidden_size, config.critic).to(policy.lm.device)
    use_critic = config.baseline == "critic"
    groups = [{"params": policy.lm.parameters(), "lr": config.lr}]
    if use_critic:
        groups.append({"params": list(critic.parameters()), "lr": config.critic_lr})
    optimizer = torch.optim.AdamW(groups, weight_decay=config.weight_decay, fused=True)
    curriculum = Curriculum(env.stages, config.curriculum, config.updates, config.gate)
    replay, old = ReplayBuffer(config.replay), ReplayBuffer(len(logged), logged)
    examined = evenly(env.tasks("validation"), config.eval_episodes)
    update, best, best_weights = 0, (-1.0, 0.0), policy.lm.weights()

    if state_folder is not None and (saved := load_state(state_folder)) is not None:
        tensors, meta = saved
        if reference is not None:  # the policy before RL, not the one that is being resumed
            reference.lm.load_weights(without_prefix("reference", tensors))
        policy.lm.load_weights(without_prefix("weights", tensors))
        critic.load_state_dict(without_prefix("critic", tensors))
        restore_optimizer(optimizer, tensors)
        best_weights = without_prefix("best", tensors)
        curriculum.load(meta["curriculum"])
        replay.add(map(from_line, meta["replay"]))
        update, best = meta["update"], tuple(meta["best"])

    while update <= config.updates:
        metrics: dict[str, object] = {"step": update, "stage": curriculum.stage}

        # ---- judge the present policy on validation tasks, and keep the best -------------------------------------
        if update % config.eval_every == 0 or update == config.updates:
            judge = policy.with_sampling(Sampling(1.0 if config.eval_sampling == "sampled" else 0.0))
            jobs = [Job(task, named_seed(seed, "validation", task.id)) for task in examined]
            judged = list(rollout(jobs, make_env, judge, reflector))
            score = (success_rate(judged), mean_return(judged))
            metrics |= {"eval_success": score[0], "eval_return": score[1]}
            if score > best:
                best, best_weights = score, policy.lm.weights()
            if state_folder is not None:
                tensors = prefixed("weights", policy.lm.weights()) | prefixed("best", best_weights)
                tensors |= prefixed("critic", critic.state_dict()) | optimizer_tensors(optimizer)
                tensors |= prefixed("reference", reference.lm.weights()) if reference is not None else {}
                kept = [to_line(episode) for episode in replay.episodes]
                state = {"update": update, "best": best, "curriculum": curriculum.state(), "replay": kept}
                save_state(state_folder, tensors, state)
        if update == config.updates:
            log(metrics)
            break

        # ---- play ----------------------------------------------------------------------------------------------------
        rng = np.random.default_rng(named_seed(seed, "update", update))
        tasks = draw_tasks(env, curriculum, config.episodes // config.group, config.rehearsal, rng)
        places = [(task, i, k) for i, task in enumerate(tasks) for k in range(config.group)]
        jobs = [Job(task, named_seed(seed, "rollout", update, i, k)) for task, i, k in places]
        order = {job.seed: i for i, job in enumerate(jobs)}
        played = rollout(jobs, make_env, policy, reflector, config.episodes, config.reflect_probability)
        fresh = sorted(played, key=lambda episode: order[episode.seed])
        replay.add(fresh)
        current = [episode for episode in fresh if episode.task.stage == curriculum.stage]
        success = success_rate(current)
        metrics |= {"success": success, "return": mean_return(current)}
        metrics["steps"] = float(np.mean([len(episode.steps) for episode in current]))

        # ---- learn from the fresh batch, then from a sample of past successes --------------------------------------
        batch = make_batch(policy, fresh, config.gamma)
        baseline = float(batch.returns_N.mean())
        passes = config.update_epochs if config.algorithm == "ppo" else 1
        metrics |= learn(policy, reference, critic, optimizer, batch, baseline, config, passes)
        past = replay.sample(config.replay_episodes, rng) + old.sample(config.replay_log, rng)
        if past:
            remembered = make_batch(policy, past, config.gamma)
            replayed = learn(policy, reference, critic, optimizer, remembered, baseline, config, 1)
            metrics["replay_loss"] = replayed["loss"]
        policy.clear_cache()
        release_memory()
        if curriculum.advance(success):
            replay.clear()
        update += 1
        log(metrics)

    policy.lm.load_weights(best_weights)


def learn(
    policy: Policy,
    reference: Policy | None,
    critic: ValueHead,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    baseline: float,
    config: RLConfig,
    passes: int,
) -> dict[str, float]:
    """One optimiser step per pass over the batch, its gradient accumulated over slices of `config.minibatch` steps.

    loss = policy gradient − entropy_coef · entropy + kl_coef · KL(policy ‖ reference) + critic_coef · value error,
    each a mean over the steps. Returns the terms of the last pass.
    """
    use_critic = config.baseline == "critic"
    values_N = _values(policy, critic, batch, config.minibatch) if use_critic else None
    advantages_N = compute_advantages(batch, config, baseline, values_N)
    if config.normalise:
        advantages_N = normalise(advantages_N)
    slices = _slices(batch, config.minibatch)
    with torch.no_grad():  # the reference does not change, so one pass over the batch serves all of the policy's
        ref_logps = [policy_pass(reference, batch, index)[0] for index in slices] if reference is not None else []
    device = policy.lm.device
    for _ in range(passes):
        totals: dict[str, float] = {}
        for number, index in enumerate(slices):
            share = len(index) / len(batch)
            logp_NA, hidden_ND = policy_pass(policy, batch, index)
            chosen_N = logp_NA.gather(1, batch.labels_N[index].to(device)[:, None])[:, 0]
            advantage_N, old_N = advantages_N[index].to(device), batch.old_logp_N[index].to(device)
            old_N = torch.where(old_N.isnan(), chosen_N.detach(), old_N)  # unknown: as if the policy had chosen now
            terms = {"entropy": entropy(logp_NA).mean()}
            if config.algorithm == "ppo":
                terms["policy_loss"], terms["clip_fraction"] = ppo_loss(chosen_N, old_N, advantage_N, config.clip_coef)
            else:
                terms["policy_loss"] = reinforce_loss(chosen_N, advantage_N)
            loss = terms["policy_loss"] - config.entropy_coef * terms["entropy"]
            if reference is not None:
                terms["kl"] = categorical_kl(logp_NA, ref_logps[number]).mean()
                loss = loss + config.kl_coef * terms["kl"]
            if use_critic:
                # The critic reads a detached hidden state, so it never pulls at the policy's backbone.
                terms["value_loss"] = value_loss(critic(hidden_ND.detach()), batch.returns_N[index].to(device))
                loss = loss + config.critic_coef * terms["value_loss"]
            terms["loss"] = loss
            (loss * share).backward()
            for name, term in terms.items():
                totals[name] = totals.get(name, 0.0) + share * float(term.detach())
        totals["grad_norm"] = clipped_step(optimizer, config.max_grad_norm)
    if values_N is not None:
        totals["explained_variance"] = explained_variance(values_N, batch.returns_N)
    return totals


@torch.no_grad()
def _values(policy: Policy, critic: ValueHead, batch: Batch, minibatch: int) -> torch.Tensor:
    """The critic's value (N,) of every step, before this update."""
    slices = [list(range(i, min(i + minibatch, len(batch)))) for i in range(0, len(batch), minibatch)]
    return torch.cat([critic(policy_pass(policy, batch, index)[1]).cpu() for index in slices])


def _slices(batch: Batch, minibatch: int) -> list[list[int]]:
    """Step indices in slices; prompts that begin alike stand together, so that what they share is encoded once."""
    order = sorted(range(len(batch)), key=lambda i: batch.prompts[i])
    return [order[start : start + minibatch] for start in range(0, len(order), minibatch)]


def draw_tasks(
    env: TextEnv, curriculum: Curriculum, count: int, rehearsal: float, rng: np.random.Generator
) -> list[Task]:
    """Training tasks of an update: those of the curriculum's stage, and a share `rehearsal` from the other stages.

    A stage shows only a part of the whole task, and a policy trained on nothing else forgets the rest within a few
    updates: on the pickup stage of taxi it soon tries to pick up where it should drop off.
    """
    rehearsed = int(rehearsal * count) if curriculum.others else 0
    tasks = _draw(env.tasks("train", curriculum.stage), count - rehearsed, rng)
    for i in range(rehearsed):
        tasks += _draw(env.tasks("train", curriculum.others[i % len(curriculum.others)]), 1, rng)
    return tasks


def _draw(tasks: Sequence[Task], count: int, rng: np.random.Generator) -> list[Task]:
    """`count` tasks drawn without replacement (with, where there are fewer)."""
    chosen = rng.choice(len(tasks), size=count, replace=count > len(tasks))
    return [tasks[int(i)] for i in chosen]


def evenly(tasks: Sequence[Task], count: int) -> list[Task]:
    """`count` tasks spread evenly over the list, or all of them."""
    if count >= len(tasks):
        return list(tasks)
    return [tasks[i * len(tasks) // count] for i in range(count)]


def success_rate(episodes: Sequence[Episode]) -> float:
    """Share of episodes that won their stage."""
    return sum(episode.success for episode in episodes) / len(episodes)


def mean_return(episodes: Sequence[Episode]) -> float:
    """Mean undiscounted return, without any bonus of the learner."""
    return sum(episode.total_reward for episode in episodes) / len(episodes)
