"""`GET /openapi.json`, the OpenAPI document, and `GET /docs`, a page to read and try the API.

Both differ between deployments only in their path. They need no API key, because a browser cannot
send one with a page. The files of the page come from the package `fastapi-offline`, not from a
network.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from taco_gateway.api_errors import ApiError
from taco_gateway.api_keys.authentication import is_public, public
from taco_gateway.gateway import gateway_of
from taco_gateway.protocol.chat_request import ChatCompletionRequest
from taco_gateway.protocol.completion_request import CompletionRequest
from taco_gateway.protocol.responses import ChatCompletion, Completion
from taco_gateway.protocol.responses_api.response_object import Response as ResponseObject
from taco_gateway.protocol.responses_api.response_request import ResponsesRequest
from taco_gateway.protocol.tokenize_requests import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeTextRequest,
)
from taco_gateway.routes import health, metrics

router = APIRouter()

# Routes read their requests themselves, so FastAPI's document lacks them.
REQUESTS: Mapping[str, tuple[type[BaseModel], ...]] = {
    "/v1/chat/completions": (ChatCompletionRequest,),
    "/v1/completions": (CompletionRequest,),
    "/v1/responses": (ResponsesRequest,),
    "/tokenize": (TokenizeTextRequest, TokenizeChatRequest),
    "/detokenize": (DetokenizeRequest,),
}
ANSWERS: Mapping[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": Completion,
    "/v1/responses": ResponseObject,
}
_REFERENCE = "#/components/schemas/{model}"
_TOKEN_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_STRINGS = {"type": "array", "items": {"type": "string"}}
# Types that validators accept besides the type of a field.
_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "prompt": {
        "anyOf": [
            {"type": "string"},
            _STRINGS,
            _TOKEN_IDS,
            {"type": "array", "items": _TOKEN_IDS},
        ]
    },
    "tokens": _TOKEN_IDS,
    "stop": {"anyOf": [{"type": "string"}, _STRINGS, {"type": "null"}]},
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}
# Relative addresses also work behind a reverse proxy.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>TACO-LLM</title>
<link rel="icon" href="docs/favicon.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
_START = 'SwaggerUIBundle({url: "openapi.json", dom_id: "#swagger-ui", deepLinking: true});\n'
_POLICY = "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'"


@router.get("/openapi.json", include_in_schema=False)
@public
async def openapi(request: Request) -> Response:
    gateway = gateway_of(request)
    if gateway.openapi is None:
        gateway.openapi = describe(request.app)
    return JSONResponse(gateway.openapi)


@router.get("/docs", include_in_schema=False)
@public
async def docs() -> Response:
    return HTMLResponse(_PAGE, headers={"content-security-policy": _POLICY})


@router.get("/docs/{name}", include_in_schema=False)
@public
async def asset(name: str) -> Response:
    """A file of the page."""
    if name == "start.js":
        return Response(_START, media_type="text/javascript")
    spec = find_spec("fastapi_offline")
    if name not in _ASSETS or spec is None or not spec.submodule_search_locations:
        raise ApiError(404, "There is no such route.")
    path = Path(spec.submodule_search_locations[0], "static", name)
    return FileResponse(path, media_type=_ASSETS[name])


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of the public routes."""
    document = get_openapi(title="TACO-LLM", version=health.VERSION, routes=app.routes)
    if app.root_path:
        document["servers"] = [{"url": app.root_path}]
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas.update(_schemas())
    for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own
        schemas.pop(name, None)
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    public_paths = _public_paths()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _complete(path, operation)
            operation["security"] = [] if path in public_paths else [{"key": []}]
    return document


def _public_paths() -> set[str]:
    routes = [*health.router.routes, *metrics.router.routes]
    return {r.path for r in routes if isinstance(r, APIRoute) and is_public(r.endpoint)}


def _schemas() -> dict[str, Any]:
    models = {*ANSWERS.values(), *(model for group in REQUESTS.values() for model in group)}
    _, definitions = models_json_schema(
        [(model, "validation") for model in sorted(models, key=lambda model: model.__name__)],
        ref_template=_REFERENCE,
    )
    schemas: dict[str, Any] = definitions["$defs"]
    for model in models - {TokenizeTextRequest}:
        properties = schemas[model.__name__]["properties"]
        for name in _FIELDS.keys() & properties.keys():
            properties[name] = {**_described(properties[name]), **_FIELDS[name]}
    return schemas | {"Error": _ERROR}


def _described(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {name: schema[name] for name in ("title", "description", "default") if name in schema}


def _complete(path: str, operation: dict[str, Any]) -> None:
    if models := REQUESTS.get(path):
        references = [_reference(model.__name__) for model in models]
        schema = references[0] if len(references) == 1 else {"anyOf": references}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    responses = operation["responses"]
    if answer := ANSWERS.get(path):
        responses["200"]["content"] = {
            "application/json": {"schema": _reference(answer.__name__)},
            "text/event-stream": {"schema": {"type": "string"}},
        }
    responses.pop("422", None)  # FastAPI's own
    responses["default"] = {
        "description": "Any error",
        "content": {"application/json": {"schema": _reference("Error")}},
    }


def _reference(name: str) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(model=name)}
