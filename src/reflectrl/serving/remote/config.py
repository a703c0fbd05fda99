"""Settings of rollouts on a server: the recipe section [rollouts]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from reflectrl.core.config.rules import Count, Natural, NeedsTrust, Positive, Variable
from reflectrl.core.types import UserError
from reflectrl.serving.endpoints.config import EndpointConfig

if TYPE_CHECKING:
    from reflectrl.core.config import Recipe
    from reflectrl.runs.artifact import Build


@dataclass(frozen=True)
class RolloutsConfig:
    """Servers that play the rollouts of online RL: vLLM, `reflectrl serve-rollouts`, or others that speak OpenAI's
    completions with log-probabilities and load adapters ([scale.md](scale.md)). Nothing is sent anywhere unless
    `servers` names an address.
    """

    not_exported = True  # an exported agent uses no server

    servers: Annotated[tuple[str, ...], NeedsTrust("address")] = ()
    """Base addresses of the servers' APIs, such as ["http://127.0.0.1:8000/v1"]. Requests go to them in turn. The
    servers must see the run folder under the same path as the run."""
    policy: bool = True
    """Let the servers compute the policy's choices during training."""
    reflector: bool = True
    """Let the servers write the frozen reflector's texts."""
    every: Count = 1
    """Updates between two transfers of the policy's weights to the servers. They also receive them before every
    evaluation. Above 1, episodes come from older weights than the weights that are trained (their lag), so
    `rl.algorithm` needs an importance ratio."""
    key_env: Variable = ""
    """Name of the environment variable that holds the servers' key; empty if they need none."""
    timeout: Positive = 120.0
    """Seconds to wait for an answer."""
    retries: Natural = 4
    """Number of further attempts if a server is busy or cannot be reached."""
    concurrency: Count = 8
    """Largest number of simultaneous requests per server."""
    prompts: Count = 32
    """Largest number of prompts per request."""
    logprobs: Count = 20
    """Number of log-probabilities to ask for. With fewer than there are listed actions, some may be missing. (vLLM
    gives at most 20 unless started with --max-logprobs.)"""
    tolerance: Positive = 0.5
    """Largest difference (nats) between log-probabilities of new weights on a server and here, on a few first
    observations. A larger difference means that the server computes another model, and is an error."""

    def problem(self) -> str | None:
        """Describe the first contradiction between keys, in one line; None if there is none."""
        if problem := EndpointConfig(key_env=self.key_env).problem():
            return problem
        for address in self.servers:
            if not address.startswith(("http://", "https://")):
                return f"'servers' must hold addresses that begin with http:// or https://, not {address!r:.60}"
            if problem := EndpointConfig(address).problem():
                return problem.replace("'base_url'", "'servers'")
        return None

    # ---- what the core asks of sections ------------------------------------------------------------------------------

    @property
    def collects(self) -> bool:
        """True if `rollouts` collects the episodes of online RL, instead of `EpisodeRollouts`."""
        return bool(self.servers)

    def rollouts(self, build: Build, *given: Any) -> Any:
        """Return the rollouts that servers play. `given` are the arguments of `EpisodeRollouts`."""
        from reflectrl.serving.remote.rollouts import served_rollouts  # brings torch, which a dry run does without

        return served_rollouts(build, *given)

    def rl_settings(self, recipe: Recipe) -> tuple[str, ...]:
        """Return the keys of this section that change the result of online RL: without lag, none.

        Raises:
            UserError: the recipe has settings that servers do not support.
        """
        if not self.servers:
            return ()
        if self.policy and recipe.play.scoring != "enumeration":
            raise UserError(
                f"rollouts.servers score labels, so play.scoring must be 'enumeration', not {recipe.play.scoring!r}"
            )
        if self.policy and self.every > 1 and recipe.rl.algorithm == "reinforce":
            raise UserError(
                "rollouts.every is above 1, so episodes come from older weights, and rl.algorithm 'reinforce' cannot"
                " correct for that; set it to 'ppo', or rollouts.every to 1"
            )
        return ("rollouts.every",) if self.policy and self.every > 1 else ()


def rollouts_settings(recipe: Recipe) -> RolloutsConfig:
    """Return the section [rollouts] of a recipe."""
    settings: RolloutsConfig = recipe.sections["rollouts"]
    return settings
