"""Reads the bytes of a request's JSON body, with limits on size and time."""

import asyncio
from contextlib import suppress
from typing import NoReturn

from fastapi import Request
from starlette.requests import ClientDisconnect

from taco_gateway.api_errors import CLIENT_CLOSED_REQUEST, ApiError

_DISCARD_SECONDS = 1.0
_CLOSE = {"connection": "close"}  # the rest of the body is not read


async def read_json_bytes(request: Request, *, max_bytes: int, seconds: float) -> bytearray:
    """Reads the body of a request whose content type is JSON.

    The array grows in place: a copy of 32 MB would hold the event loop for tens of milliseconds.

    Args:
        max_bytes: size limit of the body.
        seconds: time limit for the whole body.

    Raises:
        ApiError: 408 too slow, 413 too large, 415 not JSON by its content type, or compressed.
    """
    _check_content_type(request)
    _check_content_encoding(request)
    try:
        async with asyncio.timeout(seconds):
            return await _read(request, max_bytes)
    except ClientDisconnect:
        message = "The client closed the connection."
        raise ApiError(CLIENT_CLOSED_REQUEST, message) from None
    except TimeoutError:
        message = f"The request body did not arrive within {seconds:g} seconds."
        raise ApiError(408, message, headers=_CLOSE) from None


def _check_content_type(request: Request) -> None:
    media_type = request.headers.get("content-type", "application/json").partition(";")[0]
    media_type = media_type.strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise ApiError(415, "The content type must be application/json.", headers=_CLOSE)


def _check_content_encoding(request: Request) -> None:
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        message = f"The content encoding {coding[:40]!r} is not supported; send the body as it is."
        raise ApiError(415, message, headers=_CLOSE | {"accept-encoding": "identity"})


async def _read(request: Request, max_bytes: int) -> bytearray:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        await _refuse_large(request, max_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            await _refuse_large(request, max_bytes)
    return body


async def _refuse_large(request: Request, max_bytes: int) -> NoReturn:
    if "expect" not in request.headers:
        # Closing with unread data resets the connection: the client may not see the answer.
        with suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                async for _ in request.stream():
                    pass
    message = f"The request body is larger than the limit of {max_bytes} bytes."
    raise ApiError(413, message, headers=_CLOSE)
