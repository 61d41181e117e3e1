"""Errors that clients see, in OpenAI's error format.

A response never holds a path, an address or a traceback. An unexpected exception becomes a plain
500 and is logged.
"""

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from taco_gateway.engine.engine_client import EngineError
from taco_gateway.request_log import note_failure
from taco_proto.errors import InvalidParameterError
from taco_proto.licenses import LICENSE_INVALID

logger = logging.getLogger("taco.gateway")

INVALID_REQUEST = "invalid_request_error"
RETRY_AFTER_SECONDS = 1
_METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
MAX_MESSAGE_CHARS = 1000

_TYPES = {
    403: "permission_error",
    408: "timeout_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_CODES = {429: "rate_limit_exceeded"}
_MODEL_NOT_FOUND = "model_not_found"
CLIENT_CLOSED_REQUEST = 499  # nginx's number, for metrics and logs: the client is gone


class ApiError(Exception):
    """A request that was rejected or failed.

    Attributes:
        status: HTTP status.
        param: the parameter at fault, as the client wrote it.
        code: OpenAI's machine-readable code, if any.
        headers: additional response headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if len(message) > MAX_MESSAGE_CHARS:  # it quotes what the client sent
            message = f"{message[:MAX_MESSAGE_CHARS]}…"
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code or _CODES.get(status)
        self.headers = dict(headers or {})
        if status in (429, 503) and "x-should-retry" not in self.headers:
            self.headers.setdefault("retry-after", str(RETRY_AFTER_SECONDS))

    @property
    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, INVALID_REQUEST),
                "param": self.param,
                "code": self.code,
            }
        }


def as_api_error(error: Exception) -> ApiError:
    """Turns any exception into an error for clients; logs unexpected ones as a plain 500."""
    match error:
        case ApiError():
            return error
        case InvalidParameterError():
            return ApiError(400, str(error), param=error.param, code=error.code)
        case ValidationError():
            return _from_validation(error)
        case EngineError():
            return _from_engine(error)
        case HTTPException():
            return ApiError(error.status_code, _http_message(error), headers=error.headers)
    logger.error("Unexpected error while serving a request", exc_info=error)
    return ApiError(500, "The server failed to process this request.")


def error_response(error: Exception) -> Response:
    api_error = as_api_error(error)
    return Response(
        error_bytes(api_error),
        status_code=api_error.status,
        headers=api_error.headers,
        media_type="application/json",
    )


def error_bytes(error: ApiError) -> bytes:
    return json.dumps(error.body).encode()


def install_error_handlers(app: FastAPI) -> None:
    async def handle(request: Request, error: Exception) -> Response:
        api_error = as_api_error(error)
        if api_error.status == 405:  # FastAPI names the methods of one route
            api_error.headers = {"allow": _allowed_methods(request)}
        note_failure(request.scope, api_error.status, api_error.message)
        return error_response(api_error)

    for kind in (ApiError, InvalidParameterError, ValidationError, EngineError, HTTPException):
        app.add_exception_handler(kind, handle)


def _allowed_methods(request: Request) -> str:
    """Methods of all routes of the request's path, and HEAD where GET works."""
    routes = request.app.routes
    scopes = {name: {**request.scope, "method": name} for name in _METHODS}
    names = [
        name
        for name, scope in scopes.items()
        if any(route.matches(scope)[0] is Match.FULL for route in routes)
    ]
    if "GET" in names:
        names.append("HEAD")
    return ", ".join(sorted(names))


def _from_engine(error: EngineError) -> ApiError:
    if error.reason == LICENSE_INVALID:
        # Only an operator can fix this: clients must not retry every second.
        headers = {"x-should-retry": "false"}
        return ApiError(error.code, error.message, code=error.reason, headers=headers)
    if error.code == 404:  # workers with other adapters came after the gateway's own check
        return ApiError(404, error.message, param="model", code=_MODEL_NOT_FOUND)
    if not error.retry_after:
        return ApiError(error.code, error.message, param=error.param, code=error.reason or None)
    seconds = str(error.retry_after)
    message = f"{error.message}. Please try again in {seconds}s."
    return ApiError(error.code, message, headers={"retry-after": seconds})


def _from_validation(error: ValidationError) -> ApiError:
    # The branch of a union that was validated furthest is the one the client meant.
    errors = error.errors(include_url=False, include_input=False)
    meant = max(errors, key=lambda details: len(details["loc"]))
    cause = meant.get("ctx", {}).get("error")
    if isinstance(cause, InvalidParameterError):  # raised by a validator of ours
        return as_api_error(cause)
    location = [part for part in meant["loc"] if not _is_union_tag(part)]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    path = path.lstrip(".")[:200]
    message = meant["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{path}: {message}" if path else message, param=path or None)


def _is_union_tag(part: int | str) -> bool:
    """Pydantic names the branch of a union (`str`, `list[TextPart]`) inside a location."""
    return isinstance(part, str) and (part == "str" or not part.isidentifier())


def _http_message(error: HTTPException) -> str:
    match error.status_code:
        case 404:
            return "There is no such route."
        case 405:
            return "This route does not accept that method."
        case _:
            return HTTPStatus(error.status_code).phrase


def model_not_found(name: str) -> ApiError:
    message = f"The model {name[:200]!r} does not exist."
    return ApiError(404, message, param="model", code=_MODEL_NOT_FOUND)
