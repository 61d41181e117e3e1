"""The HTTP routes of the license server: lease and release seats, upload and view the license."""

import asyncio
import hmac
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from taco_license.document.license_file import MAX_BYTES, MAX_NUMBER, MAX_TEXT
from taco_license.errors import (
    LeaseRejectedError,
    LedgerUnavailableError,
    LicenseError,
    NotStoredError,
    SettingError,
)
from taco_license.ledger.leases import HEARTBEAT_SECONDS, LEASE_SECONDS
from taco_license.server.metrics import ServiceMetrics
from taco_license.server.role_protocol import EXTENSION
from taco_license.server.service import LicenseService
from taco_license.tls import CLIENT_ROLE, WORKER_ROLE, TlsFiles

logger = logging.getLogger("taco.license")

MAX_UPLOAD_BYTES = MAX_BYTES + (64 << 10)  # including the form around the file
MAX_LEASE_BYTES = 64 << 10
MAX_LEASE_GPUS = 64
BODY_SECONDS = 30.0  # less than REQUEST_SECONDS of the HTTP protocol

_FORBIDDEN = frozenset({"no_license", "expired", "not_licensed"})
_LEASE_FIELDS = {"gpus", "instance", "started"}

TokenReader = Callable[[], str]
_Handler = Callable[[Request], Awaitable[Response]]


def create_app(
    service: LicenseService, admin_token: TokenReader | None = None, tls: TlsFiles | None = None
) -> Starlette:
    """The ASGI application. It runs in the event loop of `service`.

    Args:
        admin_token: reads the bearer token that a client needs to replace the license; raises
            SettingError. None: no token is needed.
        tls: mutual TLS, in which certificates prove roles; each route accepts some roles only.
    """
    handlers = _Handlers(service, admin_token, tls)

    def route(path: str, handler: _Handler, *roles: str, method: str = "GET") -> Route:
        checked = handler if tls is None else _for_roles(handler, *roles)
        return Route(path, checked, methods=[method])

    return Starlette(
        routes=[  # the most frequent route first
            route("/ls/lease", handlers.lease, WORKER_ROLE, method="POST"),
            route("/ls/release", handlers.release, WORKER_ROLE, method="POST"),
            route("/", handlers.root, CLIENT_ROLE, WORKER_ROLE),
            route("/ls", handlers.replace, CLIENT_ROLE, method="POST"),
            route("/ls/view", handlers.view, CLIENT_ROLE),
            route("/metrics", handlers.metrics, CLIENT_ROLE),
        ],
        exception_handlers={_RequestError: _request_error, LedgerUnavailableError: _unavailable},
    )


def _for_roles(handler: _Handler, *roles: str) -> _Handler:
    """Rejects clients without one of the roles. The log names each rejected role once."""
    logged: set[str] = set()

    async def checked(request: Request) -> Response:
        proven: frozenset[str] = request.scope["extensions"][EXTENSION]["roles"]
        if not proven.isdisjoint(roles):
            return await handler(request)
        name = "/".join(sorted(proven)) or "no role"
        message = f"a certificate for {name} may not call {request.url.path}"
        if name not in logged:
            logged.add(name)
            logger.warning("%s: %s", request.client and request.client.host, message)
        return JSONResponse({"error": {"code": "wrong_role", "message": message}}, 403)

    return checked


class _RequestError(Exception):
    """An error response with an HTTP status and one line of text."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _request_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, _RequestError)
    return _text(str(error), error.status)


def _unavailable(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": {"code": "unavailable", "message": str(error)}}, 503)


class _Handlers:
    def __init__(
        self, service: LicenseService, admin_token: TokenReader | None, tls: TlsFiles | None
    ) -> None:
        self._service = service
        self._admin_token = admin_token
        self._metrics = ServiceMetrics(service, tls)

    async def root(self, _: Request) -> Response:
        return _text("taco license server")

    async def replace(self, request: Request) -> Response:
        self._check_token(request)
        document = await _uploaded_file(request)
        try:
            await self._service.import_license(document)
        except LicenseError as error:
            raise _RequestError(400, str(error)) from None
        except NotStoredError as error:
            raise _RequestError(507, str(error)) from None
        return _text("license file sucessfully uploaded")  # the spelling of TACO's documents

    async def view(self, _: Request) -> Response:
        text = self._service.view()
        if text is None:
            raise _RequestError(404, "no license was imported: upload one to /ls")
        return PlainTextResponse(text)

    async def lease(self, request: Request) -> Response:
        gpus, instance, started = await _lease_body(request)
        try:
            seconds = await self._service.lease(gpus, instance, started)
        except LeaseRejectedError as rejection:
            error = {"code": rejection.code, "message": str(rejection)}
            return JSONResponse({"error": error}, 403 if rejection.code in _FORBIDDEN else 409)
        return JSONResponse(
            {
                "lease_seconds": LEASE_SECONDS,
                "heartbeat_seconds": HEARTBEAT_SECONDS,
                "license_seconds": seconds,
            }
        )

    async def release(self, request: Request) -> Response:
        await self._service.release(*await _lease_body(request))
        return JSONResponse({})

    async def metrics(self, _: Request) -> Response:
        return Response(self._metrics.render(), media_type=CONTENT_TYPE_LATEST)

    def _check_token(self, request: Request) -> None:
        if self._admin_token is None:
            return
        try:
            expected = self._admin_token()
        except SettingError as error:
            logger.error("%s", error)
            raise _RequestError(503, "the server cannot read its admin token now") from None
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        good = hmac.compare_digest(token.strip().encode(), expected.encode())
        if scheme.lower() != "bearer" or not good:
            raise _RequestError(
                401, "replacing the license needs the admin token: Authorization: Bearer TOKEN"
            )


def _text(line: str, status: int = 200) -> Response:
    return PlainTextResponse(line + "\n", status)


class _FormParser(MultiPartParser):
    """Keeps uploaded files in memory, since the file system may be read-only."""

    spool_max_size = MAX_UPLOAD_BYTES


async def _uploaded_file(request: Request) -> bytes:
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise _RequestError(
            415, "send the license as multipart/form-data, in the field file (curl -F file=@PATH)"
        )
    body = await _read_body(request, MAX_UPLOAD_BYTES)
    parser = _FormParser(request.headers, _in_one_piece(body), max_files=1, max_fields=8)
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError) as error:
        raise _RequestError(400, f"the form cannot be read: {error}") from None
    file = form.get("file")
    if not isinstance(file, UploadFile):
        await form.close()
        raise _RequestError(400, "the form must have a field file with the license file")
    try:
        return await file.read()
    finally:
        await form.close()


async def _lease_body(request: Request) -> tuple[list[str], str, int]:
    """Parses the body of a lease request: GPUs, instance, start of the client."""
    data = await _read_body(request, MAX_LEASE_BYTES)
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise _RequestError(400, "the body must be JSON") from None
    if not isinstance(body, dict) or body.keys() != _LEASE_FIELDS:
        raise _RequestError(400, "the body must have exactly the fields gpus, instance and started")
    gpus, instance, started = body["gpus"], body["instance"], body["started"]
    if (
        not isinstance(gpus, list)
        or not 0 < len(gpus) <= MAX_LEASE_GPUS
        or not all(map(_is_name, gpus))
        or len(set(gpus)) < len(gpus)
    ):
        raise _RequestError(400, f"gpus must be 1 to {MAX_LEASE_GPUS} different ids")
    if not _is_name(instance):
        raise _RequestError(400, f"instance must be 1 to {MAX_TEXT} printable characters")
    if type(started) is not int or not 0 <= started <= MAX_NUMBER:
        raise _RequestError(400, f"started must be an integer from 0 to {MAX_NUMBER}")
    return gpus, instance, started


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_TEXT and value.isprintable()


async def _read_body(request: Request, max_bytes: int) -> bytes:
    """Reads a body; rejects one with more than `max_bytes`, or slower than BODY_SECONDS."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > max_bytes:
                    raise _RequestError(413, f"the body is longer than {max_bytes} bytes")
    except TimeoutError:
        raise _RequestError(408, f"the body was not sent within {BODY_SECONDS:g} s") from None
    except ClientDisconnect:
        raise _RequestError(400, "the client closed the connection inside the body") from None
    return bytes(body)


async def _in_one_piece(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body
