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
from collections.abc import Callable
from typing import Any


def serve(
    answer: Callable[[dict[str, Any]], dict[str, Any]],
    *,
    max_memory_bytes: int,
    cpu_seconds: Callable[[dict[str, Any]], float],
) -> None:
    """Answer the requests on the socket that is standard input until the parent closes it.

    Args:
        answer: raises nothing that the process should survive.
        max_memory_bytes: of address space.
        cpu_seconds: processor time that a request may use.
    """
    # Ctrl-C is for the parent, which closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (max_memory_bytes, max_memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection = socket.socket(fileno=0)
    try:
        while True:
            size = int.from_bytes(_receive(connection, 4), "big")
            request = json.loads(_receive(connection, size))
            signal.setitimer(signal.ITIMER_PROF, cpu_seconds(request))
            try:
                reply = json.dumps(answer(request)).encode()
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            connection.sendall(len(reply).to_bytes(4, "big") + reply)
    except (EOFError, ConnectionError):
        return  # the parent is gone


def _receive(connection: socket.socket, num_bytes: int) -> bytearray:
    data = bytearray()
    while len(data) < num_bytes:
        chunk = connection.recv(min(num_bytes - len(data), 2**20))
        if not chunk:
            raise EOFError
        data += chunk
    return data
