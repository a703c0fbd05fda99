"""The sections [alarms] and [watch] of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from reflectrl.core.config.rules import Count, Natural, NeedsTrust, NonNegative, Positive, Share

if TYPE_CHECKING:
    from reflectrl.core.config import Recipe


@dataclass(frozen=True)
class AlarmsConfig:
    """Settings of alarms: the reaction to a training that collapses."""

    action: Literal["off", "warn", "stop", "roll-back"] = "warn"
    """Reaction to an alarm. off: none. warn: print a line once per kind of alarm, and note each in the metrics. stop:
    end the training with the best weights so far. roll-back: continue from the best weights with half the learning rate
    (SFT and offline learning stop)."""
    patience: Count = 5
    """Number of bad updates in a row that raise an alarm. A number that is not finite is an alarm at once."""
    entropy: NonNegative = 0.01
    """Raise an alarm if the entropy of the policy's choices (nats) is below this, unless the task is `solved`."""
    kl: Positive = 0.5
    """Raise an alarm if one update moves the policy by more than this (`approx_kl`, nats)."""
    signal: Share = 0.02
    """Raise an alarm if the share of groups with different returns is below this, unless the task is `solved`
    (`rl.baseline` with groups)."""
    identical: Count = 1
    """Raise an alarm if an update's episodes take at most this many different actions, unless the task is `solved`."""
    never_won: Count = 2000
    """Raise an alarm if this many episodes were played and none was won."""
    main_action: Share = 0.8
    """Raise an alarm if hardly any episode is won and a single action takes more than this share of all steps."""
    still: Count = 30
    """Raise an alarm if the mean return of this many updates equals the mean before them, and hardly any episode is
    won."""
    success_drop: Share = 0.3
    """Raise an alarm if the mean success of the last `patience` updates is this far below the stage's best such
    mean."""
    solved: Share = 0.95
    """Success rate from which a task counts as solved, so that a deterministic policy raises no alarm."""
    roll_backs: Natural = 2
    """Largest number of roll-backs of a training. At the next alarm, the training stops."""

    def rl_settings(self, recipe: Recipe) -> tuple[str, ...]:
        """Return the keys that change the result of online RL: none, unless alarms stop it or roll it back."""
        return ("alarms",) if self.action in ("stop", "roll-back") else ()


@dataclass(frozen=True)
class WatchConfig:
    """Settings of trackers, which receive every line of metrics. Nothing is contacted unless it is named here."""

    trackers: Annotated[
        tuple[Literal["tensorboard", "trackio", "wandb", "mlflow"], ...], NeedsTrust("account", ("tensorboard",))
    ] = ()
    """Trackers to use: any of tensorboard, trackio, wandb and mlflow. Each needs an extra of the same name."""
    project: str = "reflectrl"
    """Project or experiment under which a tracker files the runs."""
