"""The settings of endpoints: the sections [endpoint], [teacher] and [players.NAME] of a recipe."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from reflectrl.core.config.rules import Address, Count, Natural, NonNegative, Positive, Share, Variable
from reflectrl.core.config.values import FreeSection, from_dict
from reflectrl.core.types import UserError

if TYPE_CHECKING:
    from reflectrl.core.config import Recipe
    from reflectrl.runs.artifact import Build

Style = Literal["act", "reason", "react", "pair", "reflector", "reflect-rl", "cascade"]
Refused = Literal["lost", "unread", "stop"]
BUDGET = ("max_requests", "max_total_tokens", "max_cost")
"""Keys of the budget, which holds for a whole run."""


@dataclass(frozen=True)
class EndpointConfig:
    """A language model behind an OpenAI-compatible address, and the budget for it ([endpoints.md](endpoints.md)).
    Nothing is sent anywhere unless `base_url` names an address.
    """

    not_exported = True  # an exported agent uses no endpoint

    base_url: Address = ""
    """Address of the API, such as "http://127.0.0.1:8000/v1". For Azure, the resource's address."""
    model: str = ""
    """The server's name for the model. For Azure, the deployment's name."""
    key_env: Variable = ""
    """Name of the environment variable that holds the key. Empty if the server asks for none."""
    api: Literal["openai", "azure"] = "openai"
    """Client for the server: "openai" for OpenAI and all servers compatible with it, "azure" for Azure."""
    api_version: str = ""
    """Version of Azure's API, such as "2024-10-21"."""
    newer_parameters: bool = False
    """Send `max_completion_tokens` instead of `max_tokens`, and no temperature, as OpenAI's reasoning models need."""
    fold_system: bool = False
    """Put the instructions at the beginning of the user's first message, for servers that know no system role."""
    timeout: Positive = 120.0
    """Longest time of an attempt in seconds, from connecting to the last byte."""
    retries: Natural = 4
    """Attempts after the first, if the server is busy or broken, or its answer cannot be read."""
    concurrency: Count = 8
    """Largest number of requests under way at a time."""
    answer_kib: Count = 4096
    """Largest answer that is read, in KiB."""
    refused: Refused = "lost"
    """Episodes in which the server refuses a question, because it is too long or by a content filter. "lost": they
    count as lost. "unread": they are left out of the results. "stop": the run ends. Results name their number.
    """
    price_in: NonNegative = 0.0
    """Price of a million tokens read, in any currency."""
    price_out: NonNegative = 0.0
    """Price of a million tokens written, in the same currency."""
    max_requests: Natural = 0
    """Budget of a run: most requests, retries included. 0 sets no limit."""
    max_total_tokens: Natural = 0
    """Budget of a run: most tokens, read and written. 0 sets no limit."""
    max_cost: NonNegative = 0.0
    """Budget of a run: most money, by the prices given. 0 sets no limit."""
    local: str = ""
    """Model on this machine, used instead of a server: a folder, a GGUF file, or a name as in `model.source`. It needs
    a chat template. Nothing is sent anywhere. `concurrency` questions are computed together.
    """

    def problem(self) -> str | None:
        """Return a conflict between the keys, in one line, or None. It never shows a possible key or password."""
        if self.key_env and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.key_env):
            return "'key_env' must be the name of an environment variable that holds the key, never the key itself"
        if self.base_url and (problem := _problem_of(self.base_url)):
            return problem
        if self.local and (both := [key for key in ("base_url", "model") if getattr(self, key)]):
            return f"'local' and {both[0]!r} are two models; name one of them"
        if self.api == "azure" and not self.api_version:
            return "'api' is 'azure', which needs 'api_version'"
        if self.max_cost and not (self.price_in or self.price_out):
            return "'max_cost' needs prices: set 'price_in' and 'price_out'"
        return None

    def key(self) -> str:
        """Return the key, from the environment, without spaces and line breaks around it; "" if none is named.

        Raises:
            UserError: the variable is not set, or its value cannot be sent in a header.
        """
        if not self.key_env:
            return ""
        key = os.environ.get(self.key_env, "").strip()
        if not key:
            is_name = self.key_env.isupper() and (len(self.key_env) < 20 or "_" in self.key_env)
            name = self.key_env if is_name else "with the name given"  # which may be a key, pasted by mistake
            raise UserError(f"key_env: the environment has no variable {name}; export it before the run")
        if not (key.isascii() and key.isprintable()):
            raise UserError("key_env: the value of that environment variable is not a key: it is not printable ASCII")
        return key


def _problem_of(address: str) -> str | None:
    """Return why an address cannot be an API's, in words that do not show it."""
    if not address.startswith(("http://", "https://")):
        return "'base_url' must begin with http:// or https://"
    try:
        parts = urlsplit(address)
        is_address = bool(parts.hostname) and parts.port != 0 and not re.search(r"\s", address)
    except ValueError:
        is_address = False
    if not is_address:
        return "'base_url' must be an address such as http://127.0.0.1:8000/v1"
    if "@" in parts.netloc:
        return "'base_url' holds a user or a password; name a variable with a key in 'key_env' instead"
    if parts.query or parts.fragment:
        return (
            "'base_url' holds a query; name a variable with the key in 'key_env', and Azure's version in 'api_version'"
        )
    return None


@dataclass(frozen=True)
class TeacherConfig:
    """Settings of an endpoint as teacher (`teach.by = "endpoint"`, and the arm "dagger"). `longest`, `max_tokens` and
    `history` also hold for texts in hindsight (`hindsight.text = "endpoint"`).
    """

    not_exported = True
    ask: Literal["walks", "explain", "log"] = "walks"
    """Task of the teacher. "walks": it plays whole episodes with reflections. "explain": the environment's expert
    plays, and the teacher reflects on each step, knowing the best action. "log": it adds reflections to the
    demonstrations of `teach.log`.
    """
    walks: Count = 1
    """Episodes that the teacher plays per task ("walks")."""
    leak: Literal["source", "action"] = "source"
    """Leaks for which a reflection is rejected. "source": it gives away that its author knew the best action. "action":
    it also names the action.
    """
    attempts: Count = 3
    """Attempts at one reflection. A malformed or leaking one is asked for again; after the last attempt, it is written
    to a file of rejected answers.
    """
    longest: Count = 400
    """Longest reflection in characters."""
    max_tokens: Count = 300
    """Longest answer in the server's tokens."""
    temperature: NonNegative = 0.7
    """Temperature of its answers. Above 0, repeated questions get new answers."""
    history: Count = 12_000
    """Largest number of characters of an observation's history that it reads. The end of the history is kept."""
    dagger_episodes: Count = 1
    """Episodes that the student plays per training task in the arm "dagger", to be labelled by the teacher."""
    dagger_states: Natural = 0
    """Largest number of states labelled in the arm "dagger", spread evenly over all. 0 labels every state."""


@dataclass(frozen=True)
class JudgeConfig:
    """A judge's ranking as a reward of online RL. The model of [endpoint] compares the policy's episodes of a task
    (`rl.group`) in pairs ([endpoints.md](endpoints.md)).
    """

    not_exported = True
    coef: NonNegative = 0.0
    """Reward at the last step of an episode that beats all others of its task; an episode that loses to all gets 0.
    With 0, no judge is asked. Reported returns never include it.
    """
    instead: bool = False
    """Learn from the judge's reward alone, without the environment's rewards."""
    longest: Count = 6000
    """Largest number of characters of an episode that the judge reads: its beginning and its end."""
    max_tokens: Count = 16
    """Longest answer in the model's tokens. Raise it for a model that thinks aloud."""

    @property
    def collects(self) -> bool:
        """True if `rollouts` collects the episodes of online RL, instead of `EpisodeRollouts`."""
        return bool(self.coef)

    def rollouts(self, build: Build, *given: Any) -> Any:
        """Return the rollouts that a judge ranks. `given` are the arguments of `EpisodeRollouts`."""
        from reflectrl.serving.endpoints.judged import judged_rollouts  # brings torch, which a dry run does without

        return judged_rollouts(build, *given)

    def rl_settings(self, recipe: Recipe) -> tuple[str, ...]:
        """Return the keys on which the result of online RL depends.

        Raises:
            UserError: no model is named, or the recipe has settings that a judge cannot be combined with.
        """
        if not self.coef:
            return ()
        require_address(endpoint_settings(recipe), "endpoint")
        if recipe.rl.group < 2:
            raise UserError("judge.coef: a judge compares episodes of one task; set rl.group to at least 2")
        others = [
            name
            for name, section in recipe.sections.items()
            if section is not self and getattr(section, "collects", False)
        ]
        if others:
            raise UserError(f"judge.coef cannot be combined with [{others[0]}]: both collect the episodes")
        return ("judge", *(f"endpoint.{key}" for key in ASKED))


ASKED = ("base_url", "model", "local", "api", "api_version", "newer_parameters", "fold_system")
"""Keys that decide which model answers, and in which form it is asked."""


@dataclass(frozen=True)
class PlayerConfig(EndpointConfig):
    """A player behind an endpoint: [players.NAME].

    Attributes:
        style: "act" answers with the action; "reason" reasons first, in the same answer; "react" reflects in one turn
            and acts in the next (ReAct, Yao et al. 2022); "pair" acts on the reflections of our trained reflector;
            "reflector" writes reflections for our policy after SFT, and "reflect-rl" also while it learns by online RL;
            "cascade" acts where our trained policy is not sure.
        max_tokens: longest answer, in the model's tokens.
        history: largest number of characters of an observation's history that it reads. The end of the history is kept.
        defer_below: probability of our policy's choice below which the endpoint is asked ("cascade").
    """

    style: Style = "act"
    max_tokens: Count = 300
    history: Count = 12_000
    defer_below: Share = 0.8


class Players(FreeSection):
    """Language models that play, behind endpoints or (`local`) on this machine. Each has a table [players.NAME] with
    `style`, `max_tokens`, `history` and the keys of [endpoint]. A missing key is taken from [endpoint]. NAME is then an
    arm ([endpoints.md](endpoints.md)).
    """

    not_exported = True
    tables = PlayerConfig

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        super().__init__(given or {})
        for name, table in self.items():
            if not re.fullmatch(r"[A-Za-z0-9][\w-]*", name):
                raise UserError(f"players: {name!r} must consist of letters, digits, '-' and '_'")
            if not isinstance(table, Mapping):
                raise UserError(f"players.{name} must be a table: write [players.{name}], then its keys")
            if budget := [key for key in BUDGET if key in table]:
                raise UserError(
                    f"players.{name}.{budget[0]}: the budget holds for the whole run; set endpoint.{budget[0]}"
                )
            from_dict(PlayerConfig, table, "recipe", f"players.{name}.")


WHERE = ("base_url", "key_env", "api", "api_version", "newer_parameters", "fold_system", "price_in", "price_out")
"""Keys that belong to an address. A player with another address takes none of them from [endpoint]."""


def player_settings(recipe: Recipe, name: str) -> PlayerConfig:
    """Return the section [players.NAME], filled up from [endpoint]. A key meant for one server is not sent to another.

    Raises:
        UserError: no address or no model is named.
    """
    table, shared = recipe.sections["players"][name], endpoint_settings(recipe)
    elsewhere = "base_url" in table
    served = elsewhere or "model" in table  # then `local` of [endpoint] does not apply
    inherited = {
        field.name: getattr(shared, field.name)
        for field in fields(shared)
        if field.name not in table
        and not (elsewhere and field.name in WHERE)
        and not (served and field.name == "local")
    }
    config = from_dict(PlayerConfig, table, "recipe", f"players.{name}.")
    if config.local:
        return config
    return require_address(replace(config, **inherited), f"players.{name}")


def require_address(config: Any, section: str) -> Any:
    """Return the settings if they name an address and a model, or a local one. UserError names the missing key."""
    if config.local:
        return config
    for key in ("base_url", "model"):
        if not getattr(config, key):
            raise UserError(f"{section}.{key} is missing; name the server and its model (docs/endpoints.md)")
    return config


def endpoint_settings(recipe: Recipe) -> EndpointConfig:
    """Return the section [endpoint] of a recipe."""
    settings: EndpointConfig = recipe.sections["endpoint"]
    return settings


def teacher_settings(recipe: Recipe) -> TeacherConfig:
    """Return the section [teacher] of a recipe."""
    settings: TeacherConfig = recipe.sections["teacher"]
    return settings
