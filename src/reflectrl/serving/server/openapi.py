"""The published description of the API (OpenAPI 3.1), made from the models that read the requests."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

import reflectrl
from reflectrl.core.types import Observation
from reflectrl.serving.server.observations import messages_of
from reflectrl.serving.server.protocol import ChatCompletion, ChatRequest, Error, Health, ModelInfo, ModelList

EXAMPLE = Observation("> go to hall\n", "You are in the hall. There is a key.\n", ("take key", "go to kitchen"))
"""Example of an observation in a request. An agent answers any text."""
REFUSED = {
    400: "The request cannot be read, or does not fit the model; `param` names the field.",
    401: "The token is missing or wrong.",
    403: "The request was meant for another host.",
    404: "There is no such model.",
    408: "The headers or the body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is not `application/json`.",
    429: "Too many requests at the same time; `Retry-After` says when to come again.",
    503: "No answer in time, too many connections, or the server is ending; `Retry-After` says when to come again.",
}


def document(name: str, needs_token: bool) -> dict[str, Any]:
    """Return the document for GET /openapi.json.

    Args:
        name: name of the only model that may be asked for.
    """
    published = (ChatRequest, ChatCompletion, ModelList, ModelInfo, Health, Error)
    _, schemas = models_json_schema(
        [(model, "validation") for model in published], ref_template="#/components/schemas/{model}"
    )
    schemas["$defs"]["ChatRequest"]["properties"]["model"]["enum"] = [name]
    schemas["$defs"]["ServerSentEvent"] = {  # OpenAPI describes a stream by one of its events
        "type": "object",
        "description": "`data` is a chunk of the answer as JSON; that of the last event is `[DONE]`.",
        "properties": {"data": {"type": "string"}},
        "required": ["data"],
    }
    chat = _operation("createChatCompletion", "Choose one of the listed actions.", "ChatCompletion", *REFUSED)
    chat["responses"]["200"]["content"]["text/event-stream"] = {"schema": _ref("ServerSentEvent")}
    shown = {"model": name, "messages": messages_of(EXAMPLE)}
    asked = {"schema": _ref("ChatRequest"), "examples": {"an observation": {"value": shown}}}
    chat["requestBody"] = {"required": True, "content": {"application/json": asked}}
    model = _operation("retrieveModel", "What is known of the agent.", "ModelInfo", 401, 403, 404)
    model["parameters"] = [
        {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "enum": [name]}}
    ]
    paths: dict[str, Any] = {
        "/v1/chat/completions": {"post": chat},
        "/v1/models": {"get": _operation("listModels", "The agent that is served.", "ModelList", 401, 403)},
        "/v1/models/{model}": {"get": model},
        "/health": {"get": _operation("health", "Whether the server is up; needs no token.", "Health", 403)},
    }
    components: dict[str, Any] = {"schemas": schemas["$defs"]}
    if needs_token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, operations in paths.items():
            for operation in operations.values():
                operation["security"] = [] if path == "/health" else [{"token": []}]
    info = {"title": "A reflectrl agent", "version": reflectrl.__version__, "license": {"name": "Apache-2.0"}}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}


def _operation(name: str, about: str, answer: str, *refused: int) -> dict[str, Any]:
    responses = {"200": _response("The answer.", answer)}
    responses |= {str(status): _response(REFUSED[status], "Error") for status in refused}
    return {"operationId": name, "summary": about, "responses": responses}


def _response(about: str, schema: str) -> dict[str, Any]:
    return {"description": about, "content": {"application/json": {"schema": _ref(schema)}}}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
