"""The loop of a process that `process_pool` starts: one request after the other, within limits.

No thread can be stopped from outside, but a process can. The kernel ends this one by an interval
timer when a request has used its share of processor time, whatever it is doing, and a limit on the
address space makes an allocation fail that is out of all proportion.

Imports nothing but the standard library, so that processes start fast.
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
    """Answer the messages on the socket that is standard input until the parent closes it.

    Args:
        answer: raises nothing that the process should survive.
        max_memory_bytes: of address space.
    """
    # Ctrl-C is for the parent, which closes the socket.
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
    """As `serve`, for messages of one JSON object.

    Args:
        cpu_seconds: processor time that a request may use.
    """

    def answer_frames(frames: list[bytes]) -> list[bytes]:
        request = json.loads(frames[0])
        with cpu_limit(cpu_seconds(request)):
            return [json.dumps(answer(request)).encode()]

    serve(answer_frames, max_memory_bytes=max_memory_bytes)


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Ends the process when the context has used this much processor time."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
