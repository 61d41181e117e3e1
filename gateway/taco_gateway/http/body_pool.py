"""Processes that parse and validate large request bodies, started as they are needed."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from typing import TypeVar

from taco_gateway.errors import ApiError
from taco_gateway.http import body_frames
from taco_gateway.http.json_body import check_counts, parse_json_object
from taco_gateway.protocol.surfaces import Surface

MAX_LOCAL_BYTES = 2**18  # larger bodies are parsed in another process
MAX_LOCAL_CONTAINERS = 1024  # objects and lists; they are what validation spends its time on
_MAX_PROCESSES = 2
_MAX_WAITING = 64
_MAX_KEPT_BYTES = 2**28  # a process that has grown beyond is not used again
# The process limits its own processor time; this is for a machine so busy that it gets none.
_WALL_SECONDS = 30.0
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "TZ")  # no secrets

T = TypeVar("T")


class BodyPool:
    """Makes requests of bodies: small ones at once, large ones in processes beside this one."""

    def __init__(self) -> None:
        self._idle: list[_BodyProcess] = []
        self._lock = threading.Lock()
        self._slots = asyncio.Semaphore(_MAX_PROCESSES)
        self._num_waiting = 0
        self._closed = False

    async def parse(self, raw: bytes, surface: Surface[T]) -> T:
        """The request in a body.

        Raises:
            ApiError: 400, not a JSON object, or too many values; 503, too many large bodies.
            InvalidParameterError, pydantic.ValidationError: the request is not valid.
        """
        if is_small(raw):
            body = parse_json_object(raw)
            check_counts(body)
            return surface.validate(body)
        if self._num_waiting >= _MAX_WAITING:
            raise ApiError(503, "The server has too many large requests to read.")
        self._num_waiting += 1
        try:
            async with self._slots:
                frames = await asyncio.to_thread(self._exchange, surface.name, raw)
        finally:
            self._num_waiting -= 1
        state, _, *rest = frames
        if state != b"ok":
            raise ApiError(**json.loads(rest[0]))
        # Known to be valid, and bounded: a thread shares the interpreter between its steps.
        return await asyncio.to_thread(lambda: surface.validate(body_frames.unpack(rest)))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for process in self._idle:
                process.kill()
            self._idle.clear()

    def _exchange(self, surface: str, raw: bytes) -> list[bytes]:
        with self._lock:
            process = self._idle.pop() if self._idle else None
        process = process or _BodyProcess()
        try:
            frames = process.exchange([surface.encode(), raw])
        except (OSError, EOFError):
            process.kill()
            raise ApiError(400, "The request body takes too long to read.") from None
        with self._lock:
            if self._closed or int(frames[1]) > _MAX_KEPT_BYTES:
                process.kill()
            else:
                self._idle.append(process)
        return frames


def is_small(raw: bytes) -> bool:
    """Whether a body is parsed and validated within a few milliseconds."""
    if len(raw) > MAX_LOCAL_BYTES:
        return False
    # Those in strings count as well, which costs a message with much code a detour.
    return raw.count(b"{") + raw.count(b"[") <= MAX_LOCAL_CONTAINERS


class _BodyProcess:
    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "taco_gateway.http.body_process"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            )

    def exchange(self, frames: list[bytes]) -> list[bytes]:
        """Raises:
        OSError, EOFError: the process does not answer in time, or is gone.
        """
        deadline = time.monotonic() + _WALL_SECONDS
        self._connection.settimeout(_WALL_SECONDS)
        body_frames.send(self._connection, frames)
        return body_frames.receive(self._connection, deadline)

    def kill(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()
