"""Episodes of online RL that servers play, and how old the weights are by which they do."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import log_softmax

from reflectrl import distributed
from reflectrl.config import RLConfig
from reflectrl.learn import losses
from reflectrl.learn.batch import Batch
from reflectrl.learn.checkpoint import write_folder
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.learn.validation import evenly
from reflectrl.learn.value import ValueHead
from reflectrl.models.lm import LanguageModel
from reflectrl.pipeline.artifacts import Artifact
from reflectrl.pipeline.folder import Context
from reflectrl.players.base import Player
from reflectrl.players.policy import Policy, Reflector
from reflectrl.prompts import reflector_prompt, tokenize
from reflectrl.remote.client import Servers
from reflectrl.remote.config import RolloutsConfig, rollouts_settings
from reflectrl.remote.players import UNREACHABLE, ServedPolicy, ServedReflector, Serving
from reflectrl.rollout import Start
from reflectrl.types import Observation, Task, UserError

PROBES = 4
"""First observations by which new weights on a server are compared with those here."""
LIKELY = 1e-3
"""Only actions with so much probability are compared."""


def served_rollouts(context: Context, artifact: Artifact, *given: Any) -> ServedRollouts:
    """The rollouts of a recipe with `rollouts.servers`; `given` are the arguments of `EpisodeRollouts`."""
    learner = context.run.learner(artifact.seed, f"rl-{artifact.name}")
    return ServedRollouts(rollouts_settings(context.recipe), learner.with_suffix(".served").absolute(), *given)


class ServedRollouts(EpisodeRollouts):
    """As `EpisodeRollouts`, but servers compute what policy and reflector do.

    The servers get the policy's weights before an update where those that they have are `settings.every` updates old,
    and before every evaluation, so that a training which goes on from its saved state (written there) does so with the
    very same weights. The learner corrects for what lags behind by the recorded log-probabilities of the choices.

    Args:
        settings: the servers.
        folder: where weights are written for them to read.
        given: the arguments of `EpisodeRollouts`.

    Raises:
        UserError: as `client.Servers`; or the loss has no importance ratio, which older weights need.
    """

    policy: Policy

    def __init__(
        self, settings: RolloutsConfig, folder: Path, policy: Policy, reflector: Player | None, *given: Any
    ) -> None:
        config: RLConfig = given[1]
        if policy.lm.shards is not None and policy.lm.adapter is None:
            raise UserError("rollouts.servers: with model.shard they take adapters only; set model.lora_rank")
        if settings.policy and settings.every > 1 and config.algorithm in losses.SINGLE_EPOCH:
            raise UserError(f"rollouts.every is above 1; rl.algorithm {config.algorithm!r} has no ratio to correct by")
        self.settings, self.folder, self.servers = settings, folder, Servers(settings)
        self.prefix = f"reflectrl-{hashlib.sha256(str(folder).encode()).hexdigest()[:10]}"
        self.choosing, self.writing = Serving(self.servers), Serving(self.servers)
        served = ServedPolicy(policy, self.choosing) if settings.policy else policy
        if settings.reflector and isinstance(reflector, Reflector):
            reflector = ServedReflector(reflector, self.writing)
        super().__init__(served, reflector, *given)
        self.updates, self.sent = 0, -1

    # ---- the weights on the servers ----------------------------------------------------------------------------------

    @property
    def lag(self) -> int:
        """Updates between the weights by which the servers act and those that learn."""
        return self.updates - self.sent if self.settings.policy else 0

    def refresh(self, most: int) -> None:
        """Give the servers the present weights, if those that they have are more than `most` updates old."""
        if self.sent < 0:
            distributed.first(lambda: self.servers.unload(self.prefix))  # what a killed run has left there
            if isinstance(self.reflector, ServedReflector):
                self.writing.name = self._send(self.reflector.lm, "reflector")
                self._compare_texts(self.reflector)
        if self.sent >= 0 and self.lag <= most:
            return
        self.sent = self.updates
        if isinstance(self.policy, ServedPolicy):
            before, self.choosing.name = self.choosing.name, self._send(self.policy.lm, f"policy-{self.updates}")
            self.policy.clear_cache()
            self._compare_choices(self.policy)
            self._drop_older(before)

    def _send(self, lm: LanguageModel, what: str) -> str:
        """Write weights, and have the servers load them; returns their name there. Of several ranks the first does."""

        def send() -> str:
            folder, name = self.folder / what, f"{self.prefix}-{what}"
            write_folder(folder, lambda path: lm.save(path))
            self.servers.load(name, str(folder))
            return name

        return distributed.first(send)

    def _drop_older(self, name: str) -> None:
        """Drop all weights of the policy from the servers but the present ones, and the folder of those before."""

        def drop() -> None:
            self.servers.unload(f"{self.prefix}-policy-", kept=self.choosing.name)
            if name not in ("", self.choosing.name):
                shutil.rmtree(self.folder / name.removeprefix(f"{self.prefix}-"), ignore_errors=True)

        distributed.first(drop)

    @cached_property
    def _observations(self) -> list[Observation]:
        """The first observations of some validation tasks."""
        found = []
        for task in evenly(self.env.tasks("validation"), PROBES):
            _, info = self.env.reset(seed=0, options={"task": task})
            found.append(info["observation"])
        return found

    def _compare_choices(self, policy: ServedPolicy) -> None:
        """Refuse servers that compute something else than this model."""
        questions = [(policy.prompt(seen, None), seen.actions) for seen in self._observations]
        far = 0.0
        for here_A, there_A in zip(policy.local(questions), policy.served(questions), strict=True):
            both_A = (np.exp(here_A) > LIKELY) & (there_A > UNREACHABLE / 2)
            apart = np.abs(log_softmax(here_A[both_A]) - log_softmax(there_A[both_A]))
            far = max(far, float(apart.max(initial=0.0)))
        self._require_near(far, self.choosing.name)

    def _compare_texts(self, reflector: ServedReflector) -> None:
        """The same, by the first token of what is written."""
        prompts = [tokenize(reflector.lm, reflector_prompt(seen), reserve=1) for seen in self._observations]
        pairs = zip(reflector.local(prompts, 1), reflector.served(prompts, 1), strict=True)
        far = [abs(here[0] - there[0]) for (_, here), (_, there) in pairs if here and there]
        self._require_near(max(far, default=0.0), self.writing.name)

    def _require_near(self, far: float, name: str) -> None:
        if far > self.settings.tolerance:
            raise UserError(
                f"rollouts.servers compute another model than this run's under the name {name}: log-probabilities are"
                f" {far:.3g} nats apart (rollouts.tolerance = {self.settings.tolerance:g}); is its base model the same?"
            )

    # ---- what the learner asks for -----------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, float]:
        self.refresh(most=0)
        return super().evaluate()

    def collect(self, update: int, critic: ValueHead | None) -> Batch:
        self.updates = update
        self.refresh(most=self.settings.every - 1)
        before = self._counts()
        batch = super().collect(update, critic)
        counts = {name: distributed.total(value - before[name]) for name, value in self._counts().items()}
        batch.metrics |= self._lags() | ratios(batch, self.config)
        batch.metrics["labels_missing"] = counts["missing"] / max(1, counts["asked"])
        ranks = 1 if distributed.team is None else distributed.team.size  # which ask at the same time
        batch.metrics["requests_per_second"] = counts["requests"] * ranks / max(1e-9, counts["seconds"])
        return batch

    def groups(self, count: int) -> list[tuple[Task, Mapping[str, Any], Start | None]]:
        """Episodes say by which weights they were played: how many updates these had learned from."""
        return [(task, {**about, "weights": self.sent}, start) for task, about, start in super().groups(count)]

    def end_update(self) -> dict[str, float]:
        self.updates += 1
        return super().end_update()

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self.updates = int(state["step"])

    def close(self) -> None:
        """Drop all weights from the servers, and close the connections."""

        def drop() -> None:
            self.servers.unload(self.prefix)
            shutil.rmtree(self.folder, ignore_errors=True)

        distributed.first(drop)
        self.servers.close()

    def _counts(self) -> dict[str, float]:
        """What has been counted so far by this process."""
        return {
            "requests": self.servers.requests, "seconds": self.servers.seconds,
            "asked": self.choosing.asked, "missing": self.choosing.missing,
        }  # fmt: skip

    def _lags(self) -> dict[str, float]:
        """How old the weights were that played the episodes that are learned from, in updates."""
        if not self.settings.policy:
            return {}
        lags = [self.updates - int(episode.provenance["weights"]) for episode in self.learned]
        return {"lag": sum(lags) / len(lags), "lag_max": float(max(lags))}


@torch.no_grad()
def ratios(batch: Batch, config: RLConfig) -> dict[str, float]:
    """How probable choices have become since they were made, before the update learns from them: the mean and the
    greatest importance ratio, and the share of those that the loss clips. Without lag they differ from 1 as far as the
    servers compute otherwise than the learner.
    """
    found = []
    for slices in batch.minibatches:
        for rows, index in slices:
            logp_NA, _ = batch.read(rows)
            chosen_N = logp_NA.gather(1, batch.labels_N[index].to(logp_NA.device)[:, None])[:, 0].cpu()
            found.append((chosen_N - batch.old_logp_N[index]).exp())
    ratio_N = torch.cat(found)
    ratio_N = ratio_N[~ratio_N.isnan()]
    outside_N = (ratio_N < 1 - config.clip_coef) | (ratio_N > 1 + (config.clip_high or config.clip_coef))
    return {
        "ratio_mean": float(ratio_N.mean()), "ratio_max": float(ratio_N.max()),
        "ratio_clipped": float(outside_N.float().mean()),
    }  # fmt: skip
