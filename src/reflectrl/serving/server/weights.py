"""Server of models in training: it loads the weights that trainings write, and computes their rollouts."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from reflectrl.core.config import ModelConfig, read_recipe
from reflectrl.core.config.trust import REMOTE_CODE, needing_trust, require
from reflectrl.core.plugins import one_line
from reflectrl.core.types import UserError
from reflectrl.models.adapters import backbone_of, is_adapter
from reflectrl.models.generation import DraftModel
from reflectrl.models.lm import LanguageModel
from reflectrl.models.load import load_model, second_player
from reflectrl.runs.precision import in_run
from reflectrl.serving.server.completions import (
    AT_ONCE,
    CompletionRequest,
    LoadRequest,
    UnloadRequest,
    answer_of,
    completions,
    prompts_of,
    read_body,
)
from reflectrl.serving.server.guard import HANDLERS, Guard, Limits
from reflectrl.serving.server.protocol import Refusal

T = TypeVar("T")
Unwanted = Callable[[], bool]
"""Function that returns True if the client no longer waits for the result."""


class Weights:
    """The loaded models, by name. Adapters on the same backbone share it.

    Args:
        root: folder of weights; nothing outside it is loaded.
        trust: let models run code of their own, if their run's recipe asks for that.
    """

    def __init__(self, root: Path, trust: bool = False) -> None:
        self.root, self.trust = root.resolve(), trust
        self.loaded: dict[str, LanguageModel] = {}
        self.drafts: dict[str, DraftModel] = {}

    def load(self, name: str, path: str) -> None:
        """Load a folder of weights that a training wrote.

        Raises:
            Refusal: the name is taken, or the folder is not below the root.
            UserError: it holds nothing loadable, or the model's code is not trusted.
        """
        if name in self.loaded:
            raise Refusal(400, f"{name[:100]!r} has already been loaded", "already_loaded", "lora_name")
        try:
            folder = Path(path).resolve()
            is_folder = folder.is_dir()
        except (OSError, ValueError, RuntimeError) as error:  # a NUL, a name that is too long, links in a circle
            raise Refusal(400, f"not a path ({one_line(error)[:200]})", "invalid_value", "lora_path") from None
        if not folder.is_relative_to(self.root):
            raise Refusal(400, f"weights are loaded from below {self.root} only", "outside", "lora_path")
        if is_folder and (link := _leading_out(folder, self.root)):
            about = f"{link} is a link; weights are loaded from below {self.root} only"
            raise Refusal(400, about, "outside", "lora_path")
        if not is_folder:
            raise Refusal(404, f"there is no folder {str(folder)[:300]!r} on the server", "not_found", "lora_path")
        config, adapter = self._settings(folder), _adapter_name(name)
        base = backbone_of(folder)
        others = [lm for lm in self.loaded.values() if lm.adapter is not None and lm.base == base]
        if is_adapter(folder) and others:
            self.loaded[name] = second_player(others[0], adapter, folder, config.chat)
        else:
            self.loaded[name] = load_model(folder, config, adapter if is_adapter(folder) else None)
        self.drafts[name] = DraftModel()

    def _settings(self, folder: Path) -> ModelConfig:
        """Return [model] of the run to which a folder belongs; the defaults if it belongs to none."""
        for parent in folder.parents:
            path = parent / "recipe.toml"
            if parent.is_relative_to(self.root) and path.is_file():
                recipe = read_recipe(path)
                code = {key: named for key, named in needing_trust(recipe.plain()).items() if key == REMOTE_CODE}
                require(path, code, self.trust, typed=False)
                return in_run(recipe.model, parent)
        return ModelConfig()

    def unload(self, name: str) -> None:
        """Drop weights. Raise Refusal if no weights have that name."""
        lm = self.find(name)
        del self.loaded[name], self.drafts[name]
        if lm.adapter is not None and any(other.model is lm.model for other in self.loaded.values()):
            lm.model.delete_adapter(lm.adapter)

    def find(self, name: str) -> LanguageModel:
        """Return the model of that name. Raise Refusal if there is none."""
        if name not in self.loaded:
            raise Refusal(404, f"the model {name[:100]!r} is not loaded", "model_not_found", "model")
        return self.loaded[name]


def _leading_out(folder: Path, root: Path) -> str:
    """Return the name of a file in a folder, at any depth, that is a link to somewhere outside the root; "" if none."""
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent) / name
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
                return str(path.relative_to(folder))
    return ""


def _adapter_name(name: str) -> str:
    """Return PEFT's name for an adapter. It is a hash, since a client's name may be no valid name of a torch module."""
    return f"served-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


class WeightsServer(Guard):
    """Completions by models that are loaded and dropped on request, as an ASGI application. One thread owns the models.

    Args:
        root, trust: see `Weights`.
        threads: threads of the models; 0 leaves it to torch.
    """

    def __init__(self, root: Path, limits: Limits, token: str | None, threads: int = 0, trust: bool = False) -> None:
        super().__init__(limits, token)
        self.weights, self.threads = Weights(root, trust), threads
        self.thread = ThreadPoolExecutor(1, "model", initializer=self._begin)

    def _begin(self) -> None:
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        if self.threads:
            torch.set_num_threads(self.threads)

    def app(self) -> Starlette:
        """Return the application. When it ends, the models' thread ends too."""
        routes = [
            Route("/v1/completions", self.complete, methods=["POST"]),
            Route("/v1/load_lora_adapter", self.load, methods=["POST"]),
            Route("/v1/unload_lora_adapter", self.unload, methods=["POST"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
        ]

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            yield
            await asyncio.to_thread(self.thread.shutdown)

        return Starlette(routes=routes, exception_handlers=HANDLERS, lifespan=lifespan)

    async def health(self, request: Request) -> Response:
        """GET /health: needs no token."""
        self.admit(request, open_to_all=True)
        return JSONResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        """GET /v1/models: the weights that are loaded."""
        self.admit(request)
        names = [*self.weights.loaded]
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "reflectrl"} for name in names]
        return JSONResponse({"object": "list", "data": data})

    async def complete(self, request: Request) -> Response:
        """POST /v1/completions."""
        body, deadline = await self._asked(request)
        with self.slot():
            parsed = read_body(CompletionRequest, body)
            completed = await self._completed(parsed, request, deadline)
        about = {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time())}
        return JSONResponse({**about, "model": parsed.model, **completed})

    async def _completed(self, asked: CompletionRequest, request: Request, deadline: float) -> dict[str, Any]:
        """Complete the prompts in parts. Other requests have their turn between two parts."""
        prompts = await self._in_thread(lambda _: prompts_of(self.weights.find(asked.model), asked), request, deadline)
        choices: list[dict[str, Any]] = []
        for start in range(0, len(prompts), AT_ONCE):
            part = range(start, min(start + AT_ONCE, len(prompts)))

            def complete(unwanted: Unwanted, part: range = part) -> list[dict[str, Any]]:
                lm, drafts = self.weights.find(asked.model), self.weights.drafts[asked.model]
                return completions(lm, drafts, asked, prompts, part, unwanted)

            choices += await self._in_thread(complete, request, deadline)
        return answer_of(prompts, choices)

    async def load(self, request: Request) -> Response:
        """POST /v1/load_lora_adapter."""
        body, deadline = await self._asked(request)
        parsed = read_body(LoadRequest, body)
        try:
            await self._in_thread(lambda _: self.weights.load(parsed.lora_name, parsed.lora_path), request, deadline)
        except UserError as error:
            raise Refusal(400, str(error), "not_loadable", "lora_path") from None
        return JSONResponse({"loaded": parsed.lora_name})

    async def unload(self, request: Request) -> Response:
        """POST /v1/unload_lora_adapter."""
        body, deadline = await self._asked(request)
        parsed = read_body(UnloadRequest, body)
        await self._in_thread(lambda _: self.weights.unload(parsed.lora_name), request, deadline)
        return JSONResponse({"unloaded": parsed.lora_name})

    async def _asked(self, request: Request) -> tuple[bytes, float]:
        """Admit a request. Return its body and its deadline."""
        self.admit(request)
        deadline = self.deadline(request)
        return await self.body(request, deadline), deadline

    async def _in_thread(self, work: Callable[[Unwanted], T], request: Request, deadline: float) -> T:
        """Run work in the thread of the models and return its result. The work may ask whether it is still wanted.

        Raises:
            Refusal: it is not done in time.
            ClientDisconnect: the client left first.
        """
        loop, given_up = asyncio.get_running_loop(), threading.Event()
        computing = loop.run_in_executor(self.thread, work, given_up.is_set)
        leaving = asyncio.ensure_future(request.receive())  # after the body, only a disconnect can arrive
        try:
            awaited: set[asyncio.Future[Any]] = {computing, leaving}
            await asyncio.wait(awaited, timeout=deadline - loop.time(), return_when=asyncio.FIRST_COMPLETED)
            if computing.done():
                return computing.result()
            if leaving.done():
                raise ClientDisconnect
            raise Refusal(503, "the model did not answer in time", "timeout", None, {"Retry-After": "1"})
        finally:
            given_up.set()
            computing.cancel()
            leaving.cancel()
