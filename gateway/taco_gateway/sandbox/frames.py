"""Messages between the gateway and its child processes: frames of bytes, never pickled objects.

A message is the number of frames (4 bytes), the length of each (8 bytes), and the frames.
"""

import socket
import time
from collections.abc import Sequence


def send(connection: socket.socket, frames: Sequence[bytes | bytearray]) -> None:
    """Sends one message. Raises OSError: the other side is gone or does not read in time."""
    sizes = b"".join(len(frame).to_bytes(8, "big") for frame in frames)
    connection.sendall(len(frames).to_bytes(4, "big") + sizes)
    for frame in frames:
        connection.sendall(frame)


def receive(connection: socket.socket, deadline: float | None = None) -> list[bytes]:
    """Receives one message.

    Args:
        deadline: on `time.monotonic()`'s clock; None: no time limit.

    Raises:
        OSError, EOFError: the other side is gone or did not send in time.
    """
    num_frames = int.from_bytes(_receive(connection, 4, deadline), "big")
    sizes = _receive(connection, 8 * num_frames, deadline)
    return [
        bytes(_receive(connection, int.from_bytes(sizes[i : i + 8], "big"), deadline))
        for i in range(0, len(sizes), 8)
    ]


def _receive(connection: socket.socket, num_bytes: int, deadline: float | None) -> bytearray:
    data = bytearray(num_bytes)
    view = memoryview(data)
    while view:
        if deadline is not None:
            connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        received = connection.recv_into(view)
        if not received:
            raise EOFError
        view = view[received:]
    return data
