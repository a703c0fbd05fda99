"""`serve` and `serve-rollouts`: agents, and models in training, behind an HTTP API for OpenAI's clients."""

from __future__ import annotations

import math
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from reflectrl.core.advice import install
from reflectrl.core.config.trust import is_loopback
from reflectrl.core.plugins import suggestion
from reflectrl.core.terminal import printable_line
from reflectrl.core.types import UserError

if TYPE_CHECKING:
    from reflectrl.api import Agent


@dataclass(frozen=True)
class Serve:
    """Serve a trained agent over an OpenAI-compatible HTTP API, until Ctrl-C. The reflection goes out as reasoning
    text, and the content of an answer is one of the actions that the request lists. The protocols of decision models,
    /v1/systemone and /v1/decisions, are served as well.
    """

    agent: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|AGENT")]
    """Run folder, or an agent's folder as `export-agent` writes it."""
    arm: Annotated[str, tyro.conf.arg(metavar="ARM")] = ""
    """Arm of a run to serve. Default: the last trained arm of the recipe."""
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Seed of the training, for a run."""
    host: Annotated[str, tyro.conf.arg(metavar="HOST")] = "127.0.0.1"
    """Host to listen on. Any host but this machine's loopback needs --token-env."""
    port: Annotated[int, tyro.conf.arg(metavar="N")] = 8000
    """Port to listen on; 0 takes a free one."""
    token_env: Annotated[str, tyro.conf.arg(metavar="NAME")] = ""
    """Environment variable with the token that clients have to send (as their API key)."""
    body_kib: Annotated[int, tyro.conf.arg(metavar="N")] = 1024
    """Largest request, in KiB."""
    concurrent: Annotated[int, tyro.conf.arg(metavar="N")] = 64
    """Largest number of requests at the same time, waiting ones included. Further requests are refused (429) and may be
    sent again later."""
    connections: Annotated[int, tyro.conf.arg(metavar="N")] = 512
    """Largest number of open connections. Further ones are refused (503)."""
    batch: Annotated[int, tyro.conf.arg(metavar="N")] = 32
    """Largest number of requests that the model computes together."""
    timeout: Annotated[float, tyro.conf.arg(metavar="SECONDS")] = 60.0
    """Longest time for a request, from its first byte to the end of its answer."""
    strangers: Annotated[Literal["answer", "refuse"], tyro.conf.arg(metavar="answer|refuse")] = "answer"
    """Questions to a decision model that the agent was never trained for: answer with low confidence, or refuse."""
    trust: bool = False
    """Let the run's models bring code of their own, if its recipe wants that, now and from now on."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Load the agent and serve it until Ctrl-C or SIGTERM."""
        self._check(settings)
        token = token_in(self.token_env)
        try:
            from reflectrl.serving.server.app import Limits, Server
        except ImportError as error:
            raise UserError(f"the server needs an extra; {install('serve')}") from error
        with bound(self.host, self.port, token is not None) as listening:
            limits = Limits(self.body_kib * 1024, self.concurrent, self.batch, self.timeout)
            name, about, agent = self._loaded()
            changed = min(
                (self.agent / "recipe.toml").stat().st_mtime, datetime.max.replace(tzinfo=UTC).timestamp() - 1
            )
            released = datetime.fromtimestamp(max(changed, 0), UTC).date().isoformat()
            refuses = self.strangers == "refuse"
            server = Server(
                agent, name, about, limits, token,
                released=released, read_question=question_reader(about["environment"]), refuses_strangers=refuses,
            )  # fmt: skip
            serve_until_told(server.app(), f"serving {name}", listening, self.connections, self.timeout)

    def _check(self, settings: Sequence[str]) -> None:
        refuse_settings(type(self), settings)
        if min(self.body_kib, self.concurrent, self.connections, self.batch) < 1 or not 0 < self.timeout < math.inf:
            raise UserError("--body-kib, --concurrent, --connections and --batch must be at least 1, --timeout above 0")

    def _loaded(self) -> tuple[str, dict[str, Any], Agent]:
        """Load the agent. Return its name for clients, its public description, and the agent itself."""
        import transformers

        from reflectrl.api import load_agent
        from reflectrl.core.config import read_recipe
        from reflectrl.runs.arms import select_arms

        transformers.utils.logging.disable_progress_bar()
        agent = load_agent(self.agent, self.arm, self.seed, trust=self.trust)
        if select_arms([agent.name])[agent.name].player != "policy":
            raise UserError(f"the arm {agent.name!r} plays without a model; there is nothing to serve")
        recipe = read_recipe(self.agent / "recipe.toml")
        about = {
            "arm": agent.name,
            "environment": printable_line(str(recipe.env["name"])),
            "reflects": agent.reflector is not None,
        }
        return printable_line(f"{recipe.name}:{agent.name}"), about, agent


@dataclass(frozen=True)
class ServeRollouts:
    """Serve models in training to their own rollouts (`rollouts.servers`), until Ctrl-C. It answers with completions
    and log-probabilities. It loads the weights that the trainings name, if they lie below FOLDER.
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")] = Path("runs")
    """The folder that contains the run folders, or one run folder. Trainings must see it under the same path."""
    host: Annotated[str, tyro.conf.arg(metavar="HOST")] = "127.0.0.1"
    """Host to listen on. Any host but this machine's loopback needs --token-env."""
    port: Annotated[int, tyro.conf.arg(metavar="N")] = 8000
    """Port to listen on; 0 takes a free one."""
    token_env: Annotated[str, tyro.conf.arg(metavar="NAME")] = ""
    """Environment variable with the token that the trainings have to send (their rollouts.key_env)."""
    body_kib: Annotated[int, tyro.conf.arg(metavar="N")] = 16 * 1024
    """Largest request, in KiB."""
    connections: Annotated[int, tyro.conf.arg(metavar="N")] = 512
    """Largest number of open connections. Further ones are refused (503)."""
    timeout: Annotated[float, tyro.conf.arg(metavar="SECONDS")] = 600.0
    """Longest time for a request, from its first byte to the end of its answer."""
    threads: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """Number of threads of the model; 0 leaves it to torch."""
    trust: bool = False
    """Let models bring code of their own, if their run's recipe wants that, now and from now on."""

    def __call__(self, settings: Sequence[str]) -> None:
        """Listen, load the weights that trainings ask for, and serve until Ctrl-C or SIGTERM."""
        refuse_settings(type(self), settings)
        if min(self.body_kib, self.connections) < 1 or self.threads < 0 or not 0 < self.timeout < math.inf:
            raise UserError("--body-kib and --connections must be at least 1, --threads at least 0, --timeout above 0")
        token = token_in(self.token_env)
        try:
            from reflectrl.serving.server.guard import Limits
            from reflectrl.serving.server.weights import WeightsServer
        except ImportError as error:
            raise UserError(f"the server needs an extra; {install('serve')}") from error
        with bound(self.host, self.port, token is not None) as listening:
            limits = Limits(self.body_kib * 1024, concurrent=1024, seconds=self.timeout)
            server = WeightsServer(self.folder, limits, token, self.threads, self.trust)
            serve_until_told(
                server.app(), f"serving rollouts of {self.folder}", listening, self.connections, self.timeout
            )


def question_reader(env: str) -> Any:
    """Return an environment's translation of clients' questions.

    Only an installed package's environment is imported. Any other would be code that the run's recipe names.
    """
    from reflectrl.core.envs.base import TextEnv
    from reflectrl.core.plugins import announced, resolve_class

    try:
        return resolve_class("envs", env if env in announced("envs") else "", TextEnv).read_question
    except UserError:  # not installed, or not usable here: an agent can be served without its environment
        return TextEnv.read_question


def refuse_settings(verb: type, settings: Sequence[str]) -> None:
    """Raise UserError for options that a verb does not have."""
    from reflectrl.cli.run import flags

    if settings:
        option = settings[0].partition("=")[0]
        raise UserError(f"unknown option {option!r}{suggestion(option, [f'--{flag}' for flag in flags(verb)])}")


def token_in(variable: str) -> str | None:
    """Return the token in an environment variable; None if no variable is named."""
    if not variable:
        return None
    token = os.environ.get(variable, "").strip()
    if len(token) < 8 or not token.isascii() or not token.isprintable():
        raise UserError(f"--token-env {variable}: it must hold a token of 8 or more ASCII characters")
    return token


def serve_until_told(app: Any, about: str, listening: socket.socket, connections: int, timeout: float) -> None:
    """Run an ASGI application at a socket until Ctrl-C or SIGTERM, and print its address.

    Args:
        connections, timeout: see `Serve`.
    """
    import uvicorn

    from reflectrl.serving.server.connections import bounded_connection

    config = uvicorn.Config(
        app, http=bounded_connection(connections, timeout), log_config=None, access_log=False, server_header=False,
        log_level="error",  # lower levels report clients' invalid HTTP
        ws="none", lifespan="on", timeout_graceful_shutdown=math.ceil(timeout),
    )  # fmt: skip
    for signum in (signal.SIGINT, signal.SIGTERM):  # uvicorn handles them, and raises them again in the end
        signal.signal(signum, lambda *_: None)
    host, port = listening.getsockname()[:2]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    print(f"{about} at http://{address}/v1 (Ctrl-C ends)", flush=True)
    uvicorn.Server(config).run(sockets=[listening])
    print("stopped")


def bound(host: str, port: int, has_token: bool) -> socket.socket:
    """Return a listening socket. Raise UserError if the address cannot be used, or would open the agent to others."""
    if not 0 <= port < 2**16:
        raise UserError(f"--port must be from 0 to 65535, not {port}")
    if not (has_token or is_loopback(host)):
        raise UserError(f"--host {host}: others could reach it; name the variable that holds a token: --token-env NAME")
    try:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)
        listening = socket.create_server(address[:2], family=family)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each answer waits 40 ms for an ACK
    except (OSError, UnicodeError) as error:
        reason = (
            os.strerror(error.errno) if isinstance(error, OSError) and error.errno and error.errno > 0 else str(error)
        )
        raise UserError(f"--host {host} --port {port}: cannot listen there: {reason}") from error
    return listening
