"""The settings of endpoints: the sections [endpoint], [teacher] and [players.NAME] of a recipe."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from reflectrl.config.rules import Address, Count, Natural, NonNegative, Positive, Variable
from reflectrl.config.values import FreeSection, from_dict
from reflectrl.types import UserError

if TYPE_CHECKING:
    from reflectrl.config import Recipe

Style = Literal["act", "reason", "react", "pair", "reflector"]
BUDGET = ("max_requests", "max_total_tokens", "max_cost")
"""Keys of the budget, which is that of a whole run."""


@dataclass(frozen=True)
class EndpointConfig:
    """A language model behind an OpenAI-compatible address, and what may be spent on it ([endpoints.md](endpoints.md)).
    Nothing is sent anywhere unless `base_url` names an address.
    """

    stays_behind = True  # an exported agent asks nobody

    base_url: Address = ""
    """Where the API begins, such as "http://127.0.0.1:8000/v1"; of Azure, the resource's address."""
    model: str = ""
    """The server's name for the model; of Azure, the deployment's."""
    key_env: Variable = ""
    """Name of the environment variable that holds the key; empty where the server asks for none."""
    api: Literal["openai", "azure"] = "openai"
    """Which client speaks to it: that for OpenAI and all servers compatible with it, or that for Azure."""
    api_version: str = ""
    """Of Azure: the version of the API, such as "2024-10-21"."""
    newer_parameters: bool = False
    """Send `max_completion_tokens` for `max_tokens`, and no temperature, as OpenAI's reasoning models want it."""
    fold_system: bool = False
    """Put the instructions at the beginning of the user's first message, for servers that know no system role."""
    timeout: Positive = 120.0
    """Seconds that one attempt may take in all, from connecting to the last byte."""
    retries: Natural = 4
    """Attempts after the first, where the server is busy or broken, or its answer cannot be read."""
    concurrency: Count = 8
    """Requests under way at a time."""
    answer_kib: Count = 4096
    """Largest answer that is read, in KiB."""
    price_in: NonNegative = 0.0
    """Price of a million tokens read, in any currency."""
    price_out: NonNegative = 0.0
    """Price of a million tokens written, in the same currency."""
    max_requests: Natural = 0
    """Budget of a run: most requests, retries included; 0 sets no limit."""
    max_total_tokens: Natural = 0
    """Budget of a run: most tokens, read and written; 0 sets no limit."""
    max_cost: NonNegative = 0.0
    """Budget of a run: most money, by the prices given; 0 sets no limit."""
    local: str = ""
    """A model of this machine that is asked in place of one behind an address: a folder, a GGUF file, or a name as of
    `model.source`. It needs a chat template. Nothing is sent anywhere; `concurrency` questions are computed together.
    """

    def problem(self) -> str | None:
        """What is wrong between the keys, in one line, or None. Never shows what might be a key or a password."""
        if self.key_env and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.key_env):
            return "'key_env' must be the name of an environment variable that holds the key, never the key itself"
        if self.base_url and (found := _problem_of(self.base_url)):
            return found
        if self.local and (both := [key for key in ("base_url", "model") if getattr(self, key)]):
            return f"'local' and {both[0]!r} are two models; name one of them"
        if self.api == "azure" and not self.api_version:
            return "'api' is 'azure', which needs 'api_version'"
        if self.max_cost and not (self.price_in or self.price_out):
            return "'max_cost' needs prices: set 'price_in' and 'price_out'"
        return None

    def key(self) -> str:
        """The key, from the environment, without spaces and line breaks around it; "" if none is named.

        Raises:
            UserError: the variable is not set, or holds what no header can.
        """
        if not self.key_env:
            return ""
        key = os.environ.get(self.key_env, "").strip()
        if not key:
            is_name = self.key_env.isupper() and (len(self.key_env) < 20 or "_" in self.key_env)
            name = self.key_env if is_name else "of the name that is given"  # which may be a key, pasted by mistake
            raise UserError(f"key_env: the environment has no variable {name}; export it before the run")
        if not (key.isascii() and key.isprintable()):
            raise UserError("key_env: what that environment variable holds is no key: it is not printable ASCII")
        return key


def _problem_of(address: str) -> str | None:
    """Why an address cannot be where an API begins, in words that do not show it."""
    if not address.startswith(("http://", "https://")):
        return "'base_url' must begin with http:// or https://"
    try:
        parts = urlsplit(address)
        is_address = bool(parts.hostname) and parts.port != 0 and not re.search(r"\s", address)
    except ValueError:
        is_address = False
    if not is_address:
        return "'base_url' is no address, such as http://127.0.0.1:8000/v1"
    if "@" in parts.netloc:
        return "'base_url' holds a user or a password; name a variable with a key in 'key_env' instead"
    if parts.query or parts.fragment:
        return (
            "'base_url' holds a query; name a variable with the key in 'key_env', and Azure's version in 'api_version'"
        )
    return None


@dataclass(frozen=True)
class TeacherConfig:
    """What an endpoint is asked as a teacher (`teach.by = "endpoint"`, and the arm "dagger")."""

    stays_behind = True
    ask: Literal["walks", "explain", "log"] = "walks"
    """"walks": it plays whole episodes with reflections; "explain": the environment's expert plays, and it reflects on
    each step, knowing the best action; "log": it adds reflections to the demonstrations of `teach.log`."""
    walks: Count = 1
    """Walks per task."""
    leak: Literal["source", "action"] = "source"
    """What a reflection must not give away: that the best action was known to its author, or the action's name too."""
    attempts: Count = 3
    """How often it is asked for one thing: what is malformed or leaks is asked for again, then kept aside in a file."""
    longest: Count = 400
    """Longest reflection in characters."""
    max_tokens: Count = 300
    """Longest answer in the server's tokens."""
    temperature: NonNegative = 0.7
    """Of its first answer; repeated questions are answered anew where it is above 0."""
    history: Count = 12_000
    """Most characters of an observation's history that it is shown: the end of it."""
    dagger_episodes: Count = 1
    """Of the arm "dagger": episodes that the student plays per training task, in whose states it is taught."""
    dagger_states: Natural = 0
    """Of the arm "dagger": most states that are labelled, spread over all; 0 labels every one."""


@dataclass(frozen=True)
class JudgeConfig:
    """A judge's ranking as a reward of online RL: the model of [endpoint] compares the episodes that a policy played of
    the same task (`rl.group`), in pairs ([endpoints.md](endpoints.md)).
    """

    stays_behind = True
    coef: NonNegative = 0.0
    """Reward, at its last step, of an episode that beats all others of its task; one that loses to all gets none. 0
    asks nobody. Never a part of the reported reward."""
    instead: bool = False
    """Learn from that alone, without the environment's rewards."""
    longest: Count = 6000
    """Most characters of an episode that the judge is shown: its beginning and its end."""
    max_tokens: Count = 16
    """Longest answer in the model's tokens; more for one that thinks aloud."""

    @property
    def rollouts(self) -> str:
        """What collects episodes in place of `EpisodeRollouts`; "" for nothing."""
        return "reflectrl.endpoints.judged:judged_rollouts" if self.coef else ""

    def rl_settings(self, recipe: Recipe) -> tuple[str, ...]:
        """Keys that decide what online RL makes.

        Raises:
            UserError: no model is named, or the recipe has settings that do not go with a judge.
        """
        if not self.coef:
            return ()
        require_address(endpoint_settings(recipe), "endpoint")
        if recipe.rl.group < 2:
            raise UserError("judge.coef: a judge compares episodes of one task; set rl.group to at least 2")
        others = [name for name, one in recipe.sections.items() if one is not self and getattr(one, "rollouts", None)]
        if others:
            raise UserError(f"judge.coef does not go with [{others[0]}]: both collect the episodes")
        return ("judge", *(f"endpoint.{key}" for key in ASKED))


ASKED = ("base_url", "model", "local", "api", "api_version", "newer_parameters", "fold_system")
"""Keys that decide who answers."""


@dataclass(frozen=True)
class PlayerConfig(EndpointConfig):
    """A player behind an endpoint: [players.NAME].

    Attributes:
        style: "act" answers with the action; "reason" thinks first, in the same answer; "react" reflects in one turn
            and acts in the next (ReAct, Yao et al. 2022); "pair" acts on the reflections of our trained reflector;
            "reflector" writes reflections for our trained policy.
        max_tokens: longest answer, in the model's tokens.
        history: most characters of an observation's history that it is shown: the end of it.
    """

    style: Style = "act"
    max_tokens: Count = 300
    history: Count = 12_000


class Players(FreeSection):
    """Language models that play, behind endpoints or (`local`) on this machine: a table [players.NAME] each, with the
    keys of [endpoint] (what it lacks is taken from there), `style`, `max_tokens` and `history`. NAME is then an arm
    ([endpoints.md](endpoints.md)).
    """

    stays_behind = True
    tables = PlayerConfig

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        super().__init__(given or {})
        for name, table in self.items():
            if not re.fullmatch(r"[A-Za-z0-9][\w-]*", name):
                raise UserError(f"players: {name!r} must consist of letters, digits, '-' and '_'")
            if not isinstance(table, Mapping):
                raise UserError(f"players.{name} is a table with keys of its own: write [players.{name}]")
            if budget := [key for key in BUDGET if key in table]:
                raise UserError(
                    f"players.{name}.{budget[0]}: the budget is that of the whole run; set endpoint.{budget[0]}"
                )
            from_dict(PlayerConfig, table, "recipe", f"players.{name}.")


WHERE = ("base_url", "key_env", "api", "api_version", "newer_parameters", "fold_system", "price_in", "price_out")
"""What belongs to an address: a player that has another one takes none of this from [endpoint]."""


def player_settings(recipe: Recipe, name: str) -> PlayerConfig:
    """The section [players.NAME], filled up from [endpoint]. A key meant for one server is not sent to another.

    Raises:
        UserError: no address or no model is named.
    """
    table, shared = recipe.sections["players"][name], endpoint_settings(recipe)
    elsewhere = "base_url" in table
    served = elsewhere or "model" in table  # so a model that [endpoint] names by `local` is not meant
    inherited = {
        field.name: getattr(shared, field.name)
        for field in fields(shared)
        if field.name not in table
        and not (elsewhere and field.name in WHERE)
        and not (served and field.name == "local")
    }
    made = from_dict(PlayerConfig, table, "recipe", f"players.{name}.")
    if made.local:
        return made
    return require_address(replace(made, **inherited), f"players.{name}")


def require_address(config: Any, section: str) -> Any:
    """The settings, which name an address and a model, or one of this machine; UserError names the missing key."""
    if config.local:
        return config
    for key in ("base_url", "model"):
        if not getattr(config, key):
            raise UserError(f"{section}.{key} is missing; name the server and its model (docs/endpoints.md)")
    return config


def endpoint_settings(recipe: Recipe) -> EndpointConfig:
    """The section [endpoint] of a recipe."""
    found: EndpointConfig = recipe.sections["endpoint"]
    return found


def teacher_settings(recipe: Recipe) -> TeacherConfig:
    """The section [teacher] of a recipe."""
    found: TeacherConfig = recipe.sections["teacher"]
    return found
