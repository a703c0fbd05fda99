"""The published description of the API (OpenAPI 3.1), made from the models that read the requests."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import reflectrl
from reflectrl.core.types import Observation
from reflectrl.serving.server.decisions import Decision, DecisionRequest
from reflectrl.serving.server.observations import messages_of
from reflectrl.serving.server.protocol import ChatCompletion, ChatRequest, Error, Health, ModelInfo
from reflectrl.serving.server.questions import ALIAS
from reflectrl.serving.server.systemone import Mistakes, ModelsOfBoth, Problem, SystemOneRequest, SystemOneResponse

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
    422: "The request can be read, but not answered: what is wrong, and where.",
    429: "Too many requests at the same time; `Retry-After` says when to try again.",
    503: "No answer in time, too many connections, or the server is ending; `Retry-After` says when to try again.",
}


def document(name: str, needs_token: bool) -> dict[str, Any]:
    """Return the document for GET /openapi.json.

    Args:
        name: name of the only model that may be asked for.
    """
    published: tuple[type[BaseModel], ...] = (
        ChatRequest, ChatCompletion, ModelsOfBoth, ModelInfo, Health, Error,
        SystemOneRequest, SystemOneResponse, Mistakes, Problem, DecisionRequest, Decision,
    )  # fmt: skip
    _, schemas = models_json_schema(
        [(model, "validation") for model in published], ref_template="#/components/schemas/{model}"
    )
    schemas["$defs"]["ChatRequest"]["properties"]["model"]["enum"] = [name]
    for schema_name in ("SystemOneRequest", "DecisionRequest"):
        schemas["$defs"][schema_name]["properties"]["model"]["enum"] = [name, ALIAS]
    schemas["$defs"]["ServerSentEvent"] = {  # OpenAPI describes a stream by one of its events
        "type": "object",
        "description": "`data` is a chunk of the answer as JSON; that of the last event is `[DONE]`.",
        "properties": {"data": {"type": "string"}},
        "required": ["data"],
    }
    chat = _operation("createChatCompletion", "Choose one of the listed actions.", "ChatCompletion", *REFUSED)
    del chat["responses"]["422"]  # a chat's mistakes are 400, as with OpenAI
    chat["responses"]["200"]["content"]["text/event-stream"] = {"schema": _ref("ServerSentEvent")}
    example = {"model": name, "messages": messages_of(EXAMPLE)}
    chat["requestBody"] = _body("ChatRequest", {"an observation": example})
    model = _operation("retrieveModel", "Describe the agent.", "ModelInfo", 401, 403, 404)
    model["parameters"] = [
        {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "enum": [name]}}
    ]
    paths: dict[str, Any] = {
        "/v1/chat/completions": {"post": chat},
        "/v1/systemone": {"post": _systemone(name)},
        "/v1/decisions": {"post": _decisions(name)},
        "/v1/models": {"get": _operation("listModels", "The agent that is served.", "ModelsOfBoth", 401, 403)},
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


def _systemone(name: str) -> dict[str, Any]:
    """Describe `POST /v1/systemone`, whose errors have a form of their own."""
    operation = _operation("systemOne", "Answer questions about a state.", "SystemOneResponse", *REFUSED)
    for status in REFUSED:
        operation["responses"][str(status)] = _response(REFUSED[status], "Mistakes" if status == 422 else "Problem")
    seen = {"history": EXAMPLE.history, "state": EXAMPLE.state, "actions": list(EXAMPLE.actions)}
    next_action = {"type": "choice", "criteria": dict.fromkeys(EXAMPLE.actions)}
    stranger = {"type": "noul", "instructions": "Is there a key?"}
    operation["requestBody"] = _body(
        "SystemOneRequest",
        {"an observation": {"model": name, "state": seen, "questions": {"next": next_action, "key": stranger}}},
    )
    return operation


def _decisions(name: str) -> dict[str, Any]:
    """Describe `POST /v1/decisions`."""
    operation = _operation("createDecision", "Answer questions about an input.", "Decision", *REFUSED)
    choices = [{"value": action} for action in EXAMPLE.actions]
    question = {"type": "choice", "name": "next", "instructions": "What is next?", "choices": choices}
    example = {"model": name, "input": messages_of(EXAMPLE), "questions": [question]}
    operation["requestBody"] = _body("DecisionRequest", {"an observation": example})
    return operation


def _body(schema: str, examples: dict[str, Any]) -> dict[str, Any]:
    example_objects = {title: {"value": value} for title, value in examples.items()}
    return {"required": True, "content": {"application/json": {"schema": _ref(schema), "examples": example_objects}}}


def _operation(name: str, about: str, answer: str, *refused: int) -> dict[str, Any]:
    responses = {"200": _response("The answer.", answer)}
    responses |= {str(status): _response(REFUSED[status], "Error") for status in refused}
    return {"operationId": name, "summary": about, "responses": responses}


def _response(about: str, schema: str) -> dict[str, Any]:
    return {"description": about, "content": {"application/json": {"schema": _ref(schema)}}}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
