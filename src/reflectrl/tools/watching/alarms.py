"""Alarms: detect a collapsed training, and warn, stop it, or roll it back to its best weights."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from reflectrl.learn.trainer import Verdict
from reflectrl.tools.watching.config import AlarmsConfig

LOG = logging.getLogger(__name__)
OF_A_PLAYER = ("loss", "policy_loss", "value_loss", "grad_norm", "entropy", "kl", "approx_kl")
LEARNED = (*OF_A_PLAYER, *(f"reflection_{name}" for name in OF_A_PLAYER), "critic_loss", "eval_loss")
"""Metrics that are finite as long as the weights are: of a policy, a reflector or a critic."""


HARDLY = 0.05
"""Success rate below which hardly any episode is won."""
AT_ONCE = ("finite", "never won", "still")
"""Signs that count without repetition, because they look back by themselves."""
LOSING = ("never won", "main action", "still")
"""Signs of a training that has not begun to win. They only warn: earlier weights are no better."""


class Alarms:
    """Checks the metrics of a single training, line by line.

    Args:
        name: the training's name, for messages.
        earlier: lines that were logged before, so that a killed training continues with the same alarms.
    """

    def __init__(self, config: AlarmsConfig, name: str, earlier: Sequence[Mapping[str, Any]] = ()) -> None:
        self.config, self.name = config, name
        self._bad: dict[str, int] = {}
        self._recent: deque[float] = deque(maxlen=config.patience)
        self._best, self._stage = -math.inf, None
        self._alarms = 0
        self._won_once, self._episodes = False, 0
        self._returns: list[float] = []
        self._warned: set[str] = set()
        for line in earlier:  # counts, bests and roll-backs are not saved: they follow from the lines
            self._judge(line)

    def on_metrics(self, metrics: Mapping[str, Any]) -> tuple[Verdict, str]:
        """Return the recipe's reaction to this line, and the reason; ("", "") if nothing is wrong."""
        sign, why = self._judge(metrics)
        if not why:
            return "", ""
        action = "warn" if sign in LOSING else self.config.action
        if action == "warn" and sign in self._warned:
            return "", why
        self._warned.add(sign)
        if action == "roll-back" and self._alarms > self.config.roll_backs:
            action = "stop"
        ends = {"stop": "it ends with its best weights", "roll-back": "it goes back to its best weights"}
        about = ends.get(action, "it goes on")
        LOG.warning("reflectrl: alarm in %s at step %s: %s; %s", self.name, metrics.get("step"), why, about)
        return ("stop" if action == "stop" else "roll-back" if action == "roll-back" else ""), why

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _judge(self, metrics: Mapping[str, Any]) -> tuple[str, str]:
        """Return the sign that has looked bad for long enough, and its description; ("", "") if none has.

        After an alarm, counting starts again.
        """
        bad = dict(self._signs(metrics))
        self._bad = {sign: self._bad.get(sign, 0) + 1 for sign in bad}
        alarms = [pair for pair in bad.items() if self._bad[pair[0]] >= self.config.patience or pair[0] in AT_ONCE]
        if not alarms:
            return "", ""
        self._alarms += alarms[0][0] not in LOSING
        self._bad.clear()
        self._recent.clear()
        return alarms[0]

    def _signs(self, metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield each sign of collapse in a line: its name, and a description."""
        config = self.config
        broken = [name for name in LEARNED if not math.isfinite(metrics.get(name) or 0.0)]
        if broken:
            yield "finite", f"{broken[0]} is {metrics[broken[0]]}"
        if metrics.get("approx_kl", 0.0) > config.kl:
            yield "kl", f"an update moves the policy by {metrics['approx_kl']:.3g} nats (alarms.kl = {config.kl:g})"
        success = metrics.get("success")
        if success is not None and success < config.solved:
            least = {"entropy": config.entropy, "groups_with_signal": config.signal}
            for name, bound in least.items():
                if metrics.get(name, math.inf) < bound:
                    yield name, f"{name.replace('_', ' ')}: {metrics[name]:.3g}, below {bound:g}"
            if metrics.get("distinct_actions", math.inf) <= config.identical:
                yield "identical", f"all episodes of an update take {metrics['distinct_actions']} different action(s)"
        if success is not None:
            yield from self._signs_of_losing(success, metrics)
        if success is not None and self._has_fallen(success, metrics.get("stage")):
            yield "fallen", f"success fell from {self._best:.0%} to {fmean(self._recent):.0%}"

    def _signs_of_losing(self, success: float, metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield signs of a training that hardly wins: no win at all, a single action, a return that stands still."""
        config = self.config
        before, self._episodes = self._episodes, metrics.get("episodes", 0)
        self._won_once |= success > 0
        self._returns.append(metrics.get("return", 0.0))
        if not self._won_once and before < config.never_won <= self._episodes:
            yield "never won", f"none of {self._episodes} episodes was won"
        if success > HARDLY:
            return
        if metrics.get("main_share", 0.0) > config.main_action:
            share, action = metrics["main_share"], metrics.get("main_action")
            yield "main action", f"{share:.0%} of all steps are {action!r}, and hardly any episode is won"
        recent = self._returns[-2 * config.still :]
        if len(self._returns) % config.still == 0 and len(recent) == 2 * config.still:
            earlier, later = fmean(recent[: config.still]), fmean(recent[config.still :])
            if abs(later - earlier) < 0.02 * max(abs(earlier), abs(later), 1e-9):
                yield "still", f"the return stands still at {later:.3g}"

    def _has_fallen(self, success: float, stage: Any) -> bool:
        """Tell whether success is far below its best mean in this stage of the curriculum."""
        if stage != self._stage:
            self._stage, self._best = stage, -math.inf
            self._recent.clear()
        self._recent.append(success)
        if len(self._recent) < self.config.patience:
            return False
        mean = fmean(self._recent)
        self._best = max(self._best, mean)
        return mean < self._best - self.config.success_drop
