"""Main loop of a sandboxed child process: serves requests with limits on CPU time and memory.

A thread cannot be stopped from outside; a process can. An interval timer of the kernel ends the
process when a request has used its CPU time, and a limit on the address space makes huge
allocations fail. `process_pool` starts these processes.

This module imports only the standard library, so that processes start fast.
"""

import json
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from taco_gateway.sandbox.frames import receive, send


def serve(answer: Callable[[list[bytes]], list[bytes]], *, max_memory_bytes: int) -> None:
    """Answers messages on the socket at standard input until the parent closes it.

    Args:
        answer: an exception that it raises ends the process.
        max_memory_bytes: limit of the address space.
    """
    # Ctrl-C also reaches the parent, which closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (max_memory_bytes, max_memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection = socket.socket(fileno=0)
    try:
        while True:
            send(connection, answer(receive(connection)))
    except (EOFError, ConnectionError):
        return  # the parent is gone


def serve_json(
    answer: Callable[[dict[str, Any]], dict[str, Any]],
    *,
    max_memory_bytes: int,
    cpu_seconds: Callable[[dict[str, Any]], float],
) -> None:
    """Like `serve`, for messages of one JSON object.

    Args:
        cpu_seconds: limit of CPU time for a request.
    """

    def answer_frames(frames: list[bytes]) -> list[bytes]:
        request = json.loads(frames[0])
        with cpu_limit(cpu_seconds(request)):
            return [json.dumps(answer(request)).encode()]

    serve(answer_frames, max_memory_bytes=max_memory_bytes)


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Ends the process if the context uses more CPU time than this."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
