"""Parses and validates request bodies: small ones here, large ones in child processes."""

import asyncio
import json
from typing import TypeVar

from taco_gateway.api_errors import ApiError
from taco_gateway.http import body_frames
from taco_gateway.http.strict_json import check_counts, parse_json_object
from taco_gateway.protocol.request_schemas import RequestSchema
from taco_gateway.sandbox.process_pool import ProcessLostError, ProcessPool

MAX_LOCAL_BYTES = 2**18  # larger bodies are parsed in another process
MAX_LOCAL_CONTAINERS = 1024  # objects and lists, which dominate the time of validation
_MAX_PROCESSES = 2
_MAX_WAITING = 64
_MAX_KEPT_BYTES = 2**28  # a larger process is not used again
# The process limits its own CPU time; this limit is for a machine that gives it none.
_WALL_SECONDS = 30.0

T = TypeVar("T")


class BodyPool:
    """Turns bodies into requests: small ones at once, large ones in child processes."""

    def __init__(self) -> None:
        self._processes = ProcessPool(
            "taco_gateway.http.body_parser_process",
            max_processes=_MAX_PROCESSES,
            max_kept_bytes=_MAX_KEPT_BYTES,
        )
        self._slots = asyncio.Semaphore(_MAX_PROCESSES)
        self._num_waiting = 0

    async def parse(self, raw: bytes | bytearray, schema: RequestSchema[T]) -> T:
        """Parses and validates a body.

        Raises:
            ApiError: 400, not a JSON object, or too many values; 503, too many large bodies, or the
                process was killed.
            InvalidParameterError, pydantic.ValidationError: the request is not valid.
        """
        if is_small(raw):
            body = parse_json_object(raw)
            check_counts(body)
            return schema.validate(body)
        if self._num_waiting >= _MAX_WAITING:
            raise ApiError(503, "The server is reading too many large requests.")
        self._num_waiting += 1
        try:
            async with self._slots:
                frames = await asyncio.to_thread(self._exchange, schema.name, raw)
        finally:
            self._num_waiting -= 1
        state, *rest = frames
        if state != b"ok":
            raise ApiError(**json.loads(rest[0]))
        # The body is valid and its size limited, so a thread does not hold the interpreter long.
        return await asyncio.to_thread(lambda: schema.validate(body_frames.unpack(rest)))

    def close(self) -> None:
        self._processes.close()

    def _exchange(self, schema: str, raw: bytes | bytearray) -> list[bytes]:
        try:
            return self._processes.exchange([schema.encode(), raw], _WALL_SECONDS)
        except ProcessLostError as lost:
            if lost.was_killed:  # the body may be valid
                message = "The process that read the request body was killed."
                raise ApiError(503, message) from None
            raise ApiError(400, "The request body takes too long to parse.") from None


def is_small(raw: bytes | bytearray) -> bool:
    """Whether a body is parsed and validated within a few milliseconds."""
    if len(raw) > MAX_LOCAL_BYTES:
        return False
    # Brackets in strings count as well: a message with much code takes the longer path.
    return raw.count(b"{") + raw.count(b"[") <= MAX_LOCAL_CONTAINERS
