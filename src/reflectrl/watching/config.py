"""The sections [alarms] and [watch] of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from reflectrl.config.rules import Count, Natural, NeedsTrust, NonNegative, Positive, Share

if TYPE_CHECKING:
    from reflectrl.config import Recipe


@dataclass(frozen=True)
class AlarmsConfig:
    """What is done when a training collapses."""

    action: Literal["off", "warn", "stop", "roll-back"] = "off"
    """off; warn: one line, and in the metrics; stop: end the training with the best weights so far; roll-back: go on
    from the best weights with half the learning rate (SFT and offline learning stop)."""
    patience: Count = 5
    """Updates in a row that have to look bad. A number that is not finite is an alarm at once."""
    entropy: NonNegative = 0.01
    """Nats: an alarm where the policy's choices have less, unless it is `solved`."""
    kl: Positive = 0.5
    """Nats: an alarm where one update moves the policy by more (`approx_kl`)."""
    signal: Share = 0.02
    """An alarm where a smaller share of groups has signal, unless it is `solved` (`rl.baseline` with groups)."""
    identical: Count = 1
    """An alarm where no more different actions than this are taken in an update, unless it is `solved`."""
    success_drop: Share = 0.3
    """An alarm where the mean success of the last `patience` updates lies this far below the best such mean of the
    stage."""
    solved: Share = 0.95
    """Success from which a policy may be sure of itself."""
    roll_backs: Natural = 2
    """How often a training goes back; at the next alarm it stops."""

    def rl_settings(self, recipe: Recipe) -> tuple[str, ...]:
        """Keys that decide what online RL makes: none, unless alarms end it or take it back."""
        return ("alarms",) if self.action in ("stop", "roll-back") else ()


@dataclass(frozen=True)
class WatchConfig:
    """Trackers that are told of every line of metrics. Nothing is contacted unless it is named here."""

    trackers: Annotated[
        tuple[Literal["tensorboard", "trackio", "wandb", "mlflow"], ...], NeedsTrust("account", ("tensorboard",))
    ] = ()
    """tensorboard, trackio, wandb, mlflow: as many as you like; each is an extra of its own."""
    project: str = "reflectrl"
    """What the runs are filed under, where a tracker has projects or experiments."""
