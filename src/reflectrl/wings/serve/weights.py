"""A server of models in training: it loads the weights that trainings write, and computes their rollouts."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from reflectrl.config import ModelConfig, read_recipe
from reflectrl.config.trust import REMOTE_CODE, code_in, require
from reflectrl.models.generation import DraftModel
from reflectrl.models.lm import LanguageModel
from reflectrl.models.load import backbone_of, is_adapter, load_model, second_player
from reflectrl.pipeline.precision import in_run
from reflectrl.wings.serve.completions import CompletionRequest, LoadRequest, UnloadRequest, completions, read_body
from reflectrl.wings.serve.guard import HANDLERS, Guard, Limits
from reflectrl.wings.serve.protocol import Refusal

T = TypeVar("T")


class Weights:
    """The models that are loaded, by name. Adapters on one backbone share it.

    Args:
        root: only what lies below this folder is loaded.
        trust: let models bring code of their own, where their run's recipe wants that.
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
        folder = Path(path).resolve()
        if not folder.is_relative_to(self.root):
            raise Refusal(400, f"weights are loaded from below {self.root} only", "outside", "lora_path")
        if not folder.is_dir():
            raise Refusal(404, f"there is no folder {str(folder)[:300]!r} on the server", "not_found", "lora_path")
        config, adapter = self._settings(folder), name.replace(".", "-")
        base = backbone_of(folder)
        others = [lm for lm in self.loaded.values() if lm.adapter is not None and lm.base == base]
        if is_adapter(folder) and others:
            self.loaded[name] = second_player(others[0], adapter, folder, config.chat)
        else:
            self.loaded[name] = load_model(folder, config, adapter if is_adapter(folder) else None)
        self.drafts[name] = DraftModel()

    def _settings(self, folder: Path) -> ModelConfig:
        """[model] of the run to which a folder belongs; the defaults where it belongs to none."""
        for parent in folder.parents:
            path = parent / "recipe.toml"
            if parent.is_relative_to(self.root) and path.is_file():
                recipe = read_recipe(path)
                code = {key: value for key, value in code_in(recipe.plain()).items() if key == REMOTE_CODE}
                require(path, code, self.trust, typed=False)
                return in_run(recipe.model, parent)
        return ModelConfig()

    def unload(self, name: str) -> None:
        """Drop weights; a Refusal where none go by that name."""
        lm = self.find(name)
        del self.loaded[name], self.drafts[name]
        if lm.adapter is not None and any(other.model is lm.model for other in self.loaded.values()):
            lm.model.delete_adapter(lm.adapter)

    def find(self, name: str) -> LanguageModel:
        """The model of that name; a Refusal where there is none."""
        if name not in self.loaded:
            raise Refusal(404, f"the model {name[:100]!r} is not loaded", "model_not_found", "model")
        return self.loaded[name]


class WeightsServer(Guard):
    """Completions by models that come and go, as an ASGI application. One thread owns the models.

    Args:
        root, trust: see `Weights`.
        threads: of the models; 0 leaves it to torch.
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
        """The application; when it ends, so does the thread of the models."""
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
        with self.place():
            asked = read_body(CompletionRequest, body)
            found = await self._in_thread(lambda: self._completed(asked), deadline)
        about = {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time())}
        return JSONResponse({**about, "model": asked.model, **found})

    def _completed(self, asked: CompletionRequest) -> dict[str, Any]:
        lm = self.weights.find(asked.model)
        return completions(lm, self.weights.drafts[asked.model], asked)

    async def load(self, request: Request) -> Response:
        """POST /v1/load_lora_adapter."""
        body, deadline = await self._asked(request)
        asked = read_body(LoadRequest, body)
        await self._in_thread(lambda: self.weights.load(asked.lora_name, asked.lora_path), deadline)
        return JSONResponse({"loaded": asked.lora_name})

    async def unload(self, request: Request) -> Response:
        """POST /v1/unload_lora_adapter."""
        body, deadline = await self._asked(request)
        asked = read_body(UnloadRequest, body)
        await self._in_thread(lambda: self.weights.unload(asked.lora_name), deadline)
        return JSONResponse({"unloaded": asked.lora_name})

    async def _asked(self, request: Request) -> tuple[bytes, float]:
        """The body of a request that may ask, and when its answer has to be there."""
        self.admit(request)
        deadline = asyncio.get_running_loop().time() + self.limits.seconds
        return await self.body(request, deadline), deadline

    async def _in_thread(self, work: Callable[[], T], deadline: float) -> T:
        """What some work returns that the thread of the models does; a Refusal where it is not done in time."""
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.get_running_loop().run_in_executor(self.thread, work)
        except TimeoutError:
            raise Refusal(503, "the model did not answer in time", "timeout", None, {"Retry-After": "1"}) from None
