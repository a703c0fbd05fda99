"""`OpenEnvEnv`: an environment behind an OpenEnv server. The package's client is used, and runs no server code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from reflectrl.core.advice import install
from reflectrl.core.envs.adapter import FIRST_SEED
from reflectrl.core.envs.base import SPLITS, TextEnv, require_known
from reflectrl.core.plugins import one_line
from reflectrl.core.types import Outcome, Task, UserError

HERE = ("localhost", "127.0.0.1", "::1")


class OpenEnvEnv(TextEnv):
    """Play an environment that a server hosts: `reset` with the task's seed, then `step` with JSON objects.

    The text is made of the observation's fields. Saved episodes are restored by repeating their actions, so the
    server's environment must do the same for the same seed and actions. If the server's `reset` takes no seed, the seed
    is ignored and does not determine the task.

    Args:
        url: address of a server on this machine ("http://localhost:8000"). Reach another machine through a forwarded
            port (ssh -L 8000:localhost:8000 HOST): no recipe can make this package talk to another machine.
        actions: names, each sent as {field: name}; or a table from names to the JSON objects that are sent.
        field: field of the action in which names are sent.
        listed: field of the observation with the names that are legal now, for environments that list them.
        text: fields of the observation to show, in order, a single one without its name; () shows all.
        horizon: steps per episode.
        win: an episode is won if its last reward is greater than this.
        truncated: field of the observation that is true if the episode was ended by a limit of the server, not by the
            task. OpenEnv itself has one flag for both kinds of end. A missing field counts as false.
        timeout: seconds to wait for an answer.
        train, validation, test: seeds per split.

    Raises:
        UserError: the package is not installed, the address is not on this machine, nothing answers there, or there are
            neither `actions` nor `listed`.
    """

    def __init__(
        self,
        url: str = "http://localhost:8000",
        actions: Sequence[str] | Mapping[str, Any] = (),
        field: str = "message",
        listed: str = "",
        text: tuple[str, ...] = (),
        horizon: int = 100,
        win: float = 0.0,
        timeout: float = 60.0,
        truncated: str = "truncated",
        train: int = 1000,
        validation: int = 100,
        test: int = 200,
    ) -> None:
        if min(horizon, train, validation, test) < 1 or timeout <= 0:
            raise UserError("openenv: horizon, train, validation and test must be at least 1, timeout above 0")
        if urlsplit(url).hostname not in HERE:
            raise UserError(
                f"openenv: {url!r} is not on this machine; forward its port: ssh -L 8000:localhost:8000 HOST"
            )
        if isinstance(actions, str) or not (actions or listed):
            raise UserError(
                "openenv: set 'actions' to the actions, or 'listed' to the field of the observation that lists them"
            )
        super().__init__(horizon)
        self.url, self.field, self.listed, self.text, self.win = url, field, listed, text, win
        self.actions = dict(actions) if isinstance(actions, Mapping) else {name: {field: name} for name in actions}
        self.truncated = truncated
        self.timeout, self.sizes = timeout, {"train": train, "validation": validation, "test": test}
        self._client = self._connect()

    def _connect(self) -> Any:
        try:
            from openenv.core import GenericEnvClient
        except ImportError as error:
            raise UserError(f"environment openenv needs the package; {install('openenv')}") from error
        client = GenericEnvClient(self.url, message_timeout_s=self.timeout).sync()
        try:
            return client.connect()
        except (ConnectionError, OSError) as error:
            raise UserError(f"openenv: nothing answers at {self.url} ({one_line(error)}); start its server") from error

    def _ask(self, what: str, *arguments: Any, **named: Any) -> Any:
        """Return the server's answer. Raise UserError if it refuses or has gone."""
        try:
            return getattr(self._client, what)(*arguments, **named)
        except Exception as error:  # of websockets, asyncio or the client itself
            hint = "; the server needs a session per concurrent episode: raise its max_concurrent_envs"
            closed = "ConnectionClosed" in type(error).__name__ or "CAPACITY" in str(error)
            raise UserError(f"openenv: {self.url}, {what}: {one_line(error)}{hint if closed else ''}") from error

    @property
    def success_rule(self) -> str:  # type: ignore[override]
        """The rule of `win` in words."""
        return f"the episode ends with a reward above {self.win:g} (--env.win sets another bound)"

    # ---- TextEnv ---------------------------------------------------------------------------------------------------

    def tasks(self, split: str, stage: str | None = None) -> Sequence[Task]:
        require_known("openenv", "split", split, SPLITS)
        require_known("openenv", "stage", stage or "full", self.stages)
        seeds = range(FIRST_SEED[split], FIRST_SEED[split] + self.sizes[split])
        return [Task(f"openenv-{seed}", "openenv", {"seed": seed}, split) for seed in seeds]

    def begin(self, task: Task) -> None:
        self._seen = self._ask("reset", seed=task.payload["seed"]).observation

    def apply(self, action: str) -> Outcome:
        answer = self._ask("step", self.actions.get(action, {self.field: action}))
        self._seen = answer.observation
        reward, over = float(answer.reward or 0.0), bool(answer.done)
        truncated = over and self._seen.get(self.truncated) is True
        won = over and not truncated and reward > self.win
        return Outcome(reward, over and not truncated, won, ("won",) if won else (), truncated)

    def state(self) -> str:
        names = self.text or [name for name in self._seen if name not in (self.listed, "metadata")]
        missing = [name for name in names if name not in self._seen]
        if missing:
            raise UserError(f"openenv: the observation has no field {missing[0]!r}; it has {', '.join(self._seen)}")
        if len(names) == 1 and not isinstance(self._seen[names[0]], str | int | float):
            raise UserError(
                f"openenv: the field {names[0]!r} of the observation is no text: {self._seen[names[0]]!r:.60}"
            )
        texts = [str(self._seen[name]).rstrip() for name in names]
        labelled = [f"{name}: {text}" for name, text in zip(names, texts, strict=True)]
        return "".join(f"{line}\n" for line in (texts if len(self.text) == 1 else labelled))

    def legal_actions(self) -> Sequence[str]:
        """Return the actions in the observation's field `listed`; all actions if no such field is set."""
        return tuple(map(str, self._seen[self.listed])) if self.listed else tuple(self.actions)

    def close(self) -> None:
        """Disconnect from the server."""
        with suppress(Exception):  # it may have gone already
            self._client.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the connection. The receiving process connects anew and replays the episode."""
        return {key: value for key, value in self.__dict__.items() if key != "_client"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._client = self._connect()
        if self._task is not None:
            self.restore(self.save())
