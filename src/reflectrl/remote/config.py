"""The settings of rollouts on a server: the section [rollouts] of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from reflectrl.config.rules import Count, Natural, NeedsTrust, Positive, Variable
from reflectrl.endpoints.config import EndpointConfig
from reflectrl.types import UserError

if TYPE_CHECKING:
    from reflectrl.config import Recipe


@dataclass(frozen=True)
class RolloutsConfig:
    """Servers that play the rollouts of online RL: vLLM, `reflectrl serve-rollouts`, or others that speak OpenAI's
    completions with log-probabilities and load adapters ([scale.md](scale.md)). Nothing is sent anywhere unless
    `servers` names an address.
    """

    stays_behind = True  # an exported agent asks nobody

    servers: Annotated[tuple[str, ...], NeedsTrust("address")] = ()
    """Where their APIs begin, such as ["http://127.0.0.1:8000/v1"]; requests go to them by turns. They read the run
    folder under the same path as the run."""
    policy: bool = True
    """The policy's choices, while it learns, are computed there."""
    reflector: bool = True
    """The frozen reflector writes there."""
    every: Count = 1
    """Updates after which the servers get the policy's new weights; they get them before every evaluation as well.
    Above 1, episodes come from older weights than those that learn (their lag), so `rl.algorithm` needs a ratio."""
    key_env: Variable = ""
    """Name of the environment variable that holds the servers' key; empty where they ask for none."""
    timeout: Positive = 120.0
    """Seconds that an answer may take."""
    retries: Natural = 4
    """Attempts after the first, where a server is busy or cannot be reached."""
    concurrency: Count = 8
    """Requests under way at a time, per server."""
    prompts: Count = 32
    """Most prompts of a request."""
    logprobs: Count = 20
    """How many log-probabilities are asked for; at least as many as actions are listed, or some may be missing. (vLLM
    gives 20 at most unless started with --max-logprobs.)"""
    tolerance: Positive = 0.5
    """How far the log-probabilities of new weights on a server may be from those computed here, in nats, in some first
    observations. Beyond that they are taken for another model's."""

    def problem(self) -> str | None:
        """What is wrong between the keys, in one line, or None."""
        if found := EndpointConfig(key_env=self.key_env).problem():
            return found
        for address in self.servers:
            if not address.startswith(("http://", "https://")):
                return f"'servers' must hold addresses that begin with http:// or https://, not {address!r:.60}"
            if found := EndpointConfig(address).problem():
                return found.replace("'base_url'", "'servers'")
        return None

    # ---- what the core asks of sections ------------------------------------------------------------------------------

    @property
    def rollouts(self) -> str:
        """What collects episodes in place of `EpisodeRollouts`; "" for nothing."""
        return "reflectrl.remote.rollouts:served_rollouts" if self.servers else ""

    def rl_settings(self, recipe: Recipe) -> tuple[str, ...]:
        """Keys of this section that decide what online RL makes: without lag, none does.

        Raises:
            UserError: the recipe has settings that do not go with a server.
        """
        if not self.servers:
            return ()
        if self.policy and recipe.play.scoring != "enumeration":
            raise UserError(
                f"rollouts.servers: they score labels; play.scoring must be 'enumeration', not {recipe.play.scoring!r}"
            )
        if self.policy and self.every > 1 and recipe.rl.algorithm == "reinforce":
            raise UserError(
                "rollouts.every is above 1, so episodes come from older weights, and rl.algorithm 'reinforce' cannot"
                " correct for that; set it to 'ppo', or rollouts.every to 1"
            )
        return ("rollouts.every",) if self.policy and self.every > 1 else ()


def rollouts_settings(recipe: Recipe) -> RolloutsConfig:
    """The section [rollouts] of a recipe."""
    found: RolloutsConfig = recipe.sections["rollouts"]
    return found
