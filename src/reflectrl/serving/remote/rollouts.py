"""Episodes of online RL that servers play, and the lag of the weights that play them."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import log_softmax

from reflectrl.core.config import RLConfig
from reflectrl.core.players.base import Player
from reflectrl.core.prompts import reflector_prompt, tokenize
from reflectrl.core.types import Observation, UserError
from reflectrl.learn import losses
from reflectrl.learn.batch import Batch
from reflectrl.learn.checkpoint import write_folder
from reflectrl.learn.rollouts import EpisodeRollouts
from reflectrl.learn.starts import Group
from reflectrl.learn.validation import evenly
from reflectrl.learn.value import ValueHead
from reflectrl.models.lm import LanguageModel
from reflectrl.models.players import Policy, Reflector
from reflectrl.runs.artifact import Build
from reflectrl.serving.remote.client import Servers
from reflectrl.serving.remote.config import RolloutsConfig, rollouts_settings
from reflectrl.serving.remote.players import UNREACHABLE, ServedPolicy, ServedReflector, Serving

PROBES = 4
"""Number of first observations on which new weights on a server are compared with the weights here."""
LIKELY = 1e-3
"""Least probability of an action that is compared."""


def served_rollouts(build: Build, *given: Any) -> ServedRollouts:
    """Return the rollouts of a recipe with `rollouts.servers`. `given` are the arguments of `EpisodeRollouts`."""
    return ServedRollouts(rollouts_settings(build.recipe), build.learner.with_suffix(".served").absolute(), *given)


class ServedRollouts(EpisodeRollouts):
    """Rollouts like `EpisodeRollouts`, with policy and reflector computed by servers.

    The servers receive the policy's weights before an update if their own are `settings.every` updates old, and before
    every evaluation. So a training that continues from its saved state (written at evaluations) uses the very same
    weights. The learner corrects for the lag with the recorded log-probabilities of the choices.

    Args:
        settings: the servers.
        folder: folder for weights, which the servers read.
        given: the arguments of `EpisodeRollouts`.

    Raises:
        UserError: as `client.Servers`. Also if the loss has no importance ratio, which older weights need.
    """

    policy: Policy

    def __init__(
        self, settings: RolloutsConfig, folder: Path, policy: Policy, reflector: Player | None, *given: Any
    ) -> None:
        config: RLConfig = given[1]
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
        """Number of updates between the servers' weights and the weights that are trained."""
        return self.updates - self.sent if self.settings.policy else 0

    def refresh(self, most: int) -> None:
        """Send the current weights to the servers, if theirs are more than `most` updates old."""
        if self.sent < 0:
            self.team.first(lambda: self.servers.unload(self.prefix))  # weights that a killed run left there
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
        """Write weights, let the servers load them, and return their name there. Only the first rank does so."""

        def send() -> str:
            folder, name = self.folder / what, f"{self.prefix}-{what}"
            write_folder(folder, lambda path: lm.save(path))
            self.servers.load(name, str(folder))
            return name

        return self.team.first(send)

    def _drop_older(self, name: str) -> None:
        """Unload all of the policy's weights except the current ones, and remove the folder of the previous ones."""

        def drop() -> None:
            self.servers.unload(f"{self.prefix}-policy-", spared=self.choosing.name)
            if name not in ("", self.choosing.name):
                shutil.rmtree(self.folder / name.removeprefix(f"{self.prefix}-"), ignore_errors=True)

        self.team.first(drop)

    @cached_property
    def _observations(self) -> list[Observation]:
        """First observations of some validation tasks."""
        observations = []
        for task in evenly(self.env.tasks("validation"), PROBES):
            _, info = self.env.reset(seed=0, options={"task": task})
            observations.append(info["observation"])
        return observations

    def _compare_choices(self, policy: ServedPolicy) -> None:
        """Refuse servers whose probabilities of choices differ from this model's."""
        questions = [(policy.prompt(seen, None), seen.actions) for seen in self._observations]
        far = 0.0
        for here_A, there_A in zip(policy.local(questions), policy.served(questions), strict=True):
            both_A = (np.exp(here_A) > LIKELY) & (there_A > UNREACHABLE / 2)
            differences = np.abs(log_softmax(here_A[both_A]) - log_softmax(there_A[both_A]))
            far = max(far, float(differences.max(initial=0.0)))
        self._require_near(far, self.choosing.name)

    def _compare_texts(self, reflector: ServedReflector) -> None:
        """Refuse servers whose log-probability of a text's first token differs from this model's."""
        prompts = [tokenize(reflector.lm, reflector_prompt(seen), reserve=1) for seen in self._observations]
        pairs = zip(reflector.local(prompts, 1), reflector.served(prompts, 1), strict=True)
        far = [abs(here[0] - there[0]) for (_, here), (_, there) in pairs if here and there]
        self._require_near(max(far, default=0.0), self.writing.name)

    def _require_near(self, far: float, name: str) -> None:
        if far > self.settings.tolerance:
            raise UserError(
                f"rollouts.servers serve, as {name}, a model that differs from this run's: log-probabilities are"
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
        counts = {name: self.team.total(value - before[name]) for name, value in self._counts().items()}
        batch.metrics |= self._lags() | importance_ratios(batch, self.config)
        batch.metrics["labels_missing"] = counts["missing"] / max(1, counts["asked"])
        # All processes ask at the same time, so the seconds are those of one process.
        seconds = counts["seconds"] / self.team.size
        batch.metrics["requests_per_second"] = counts["requests"] / max(1e-9, seconds)
        return batch

    def groups(self, count: int, rng: np.random.Generator) -> list[Group]:
        """Return groups whose episodes record the weights that play them, as the number of updates of these weights."""
        drawn = super().groups(count, rng)
        return [group._replace(provenance={**group.provenance, "weights": self.sent}) for group in drawn]

    def end_update(self) -> dict[str, float]:
        self.updates += 1
        return super().end_update()

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self.updates = int(state["step"])

    def close(self) -> None:
        """Unload all weights from the servers, and close the connections."""

        def drop() -> None:
            self.servers.unload(self.prefix)
            shutil.rmtree(self.folder, ignore_errors=True)

        self.team.first(drop)
        self.servers.close()

    def _counts(self) -> dict[str, float]:
        """Return this process's counts so far."""
        return {
            "requests": self.servers.requests, "seconds": self.servers.seconds,
            "asked": self.choosing.asked, "missing": self.choosing.missing,
        }  # fmt: skip

    def _lags(self) -> dict[str, float]:
        """Return the lag, in updates, of the weights that played the episodes of this batch: mean and largest."""
        if not self.settings.policy:
            return {}
        lags = [self.updates - int(episode.provenance["weights"]) for episode in self.latest.learned]
        return {"lag": sum(lags) / len(lags), "lag_max": float(max(lags))}


@torch.no_grad()
def importance_ratios(batch: Batch, config: RLConfig) -> dict[str, float]:
    """Return importance ratios of the choices before an update: the mean, the largest, and the share that is clipped.

    A ratio compares the current probability of a choice with its probability when it was made. Without lag, ratios
    differ from 1 only as far as servers and learner compute differently.
    """
    ratios = []
    for part in chain.from_iterable(batch.minibatches):
        logp_NA, _ = part.read()
        logp_N = logp_NA.gather(1, batch.labels_N[part.units].to(logp_NA.device)[:, None])[:, 0].cpu()
        ratios.append((logp_N - batch.old_logp_N[part.units]).exp())
    ratio_N = torch.cat(ratios)
    ratio_N = ratio_N[~ratio_N.isnan()]
    outside_N = (ratio_N < 1 - config.clip_coef) | (ratio_N > 1 + (config.clip_high or config.clip_coef))
    return {
        "ratio_mean": float(ratio_N.mean()), "ratio_max": float(ratio_N.max()),
        "ratio_clipped": float(outside_N.float().mean()),
    }  # fmt: skip
