"""Reads a JSON body strictly: what two parsers could read in two ways is refused."""

import asyncio
import json
import math
import re
from contextlib import suppress
from typing import Any, NoReturn

from fastapi import Request
from starlette.requests import ClientDisconnect

from taco_gateway.errors import CLIENT_CLOSED_REQUEST, ApiError

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_LARGE_BYTES = 2**18  # takes milliseconds to parse, so that others must run meanwhile
_DISCARD_SECONDS = 1.0
_CLOSE = {"connection": "close"}  # the rest of the body is not worth reading


async def read_json_object(request: Request, *, max_bytes: int, seconds: float) -> dict[str, Any]:
    """The request's body as a JSON object.

    Args:
        max_bytes: largest body.
        seconds: time within which the whole body must have arrived.

    Raises:
        ApiError: 400 not a JSON object, 408 too slow, 413 too large, 415 not JSON by its content
        type.
    """
    _check_content_type(request)
    _check_content_encoding(request)
    try:
        async with asyncio.timeout(seconds):
            raw = await _read(request, max_bytes)
    except ClientDisconnect:
        message = "The client closed the connection."
        raise ApiError(CLIENT_CLOSED_REQUEST, message) from None
    except TimeoutError:
        message = f"The request body did not arrive within {seconds:g} seconds."
        raise ApiError(408, message, headers=_CLOSE) from None
    if len(raw) > _LARGE_BYTES:
        return await asyncio.to_thread(parse_json_object, raw)
    return parse_json_object(raw)


def parse_json_object(raw: bytes) -> dict[str, Any]:
    """Parses one JSON object.

    Beyond RFC 8259's grammar this refuses NaN and infinities (also as 1e400), duplicate keys, lone
    surrogates, and nesting deeper than the interpreter's own limit.

    Raises:
        ApiError: 400.
    """
    if not raw.strip():
        raise _invalid("the body is empty")
    try:
        value = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_object_without_duplicates,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
        )
        if _SURROGATE_ESCAPE.search(raw):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError:
        raise _invalid("the body is not UTF-8") from None
    except UnicodeEncodeError:
        raise _invalid("a string holds a lone surrogate") from None
    except RecursionError:
        raise _invalid("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise _invalid(f"{error.msg} at line {error.lineno} column {error.colno}") from None
    except ValueError:  # an integer of more digits than the interpreter converts
        raise _invalid("a number is too large") from None
    if not isinstance(value, dict):
        raise _invalid("the top level must be an object")
    return value


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


async def _read(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        await _refuse_large(request, max_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            await _refuse_large(request, max_bytes)
    return bytes(body)


async def _refuse_large(request: Request, max_bytes: int) -> NoReturn:
    if "expect" not in request.headers:
        # A connection that is closed on unread data is reset, and the client may never see why.
        with suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_SECONDS):
                async for _ in request.stream():
                    pass
    message = f"The request body is larger than the limit of {max_bytes} bytes."
    raise ApiError(413, message, headers=_CLOSE)


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _invalid("an object has the same key twice")
    return result


def _finite_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _invalid("a number is too large")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise _invalid(f"{name} is not a JSON value")


def _invalid(reason: str) -> ApiError:
    return ApiError(400, f"The request body is not valid JSON: {reason}.", code="invalid_json")
