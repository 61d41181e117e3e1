"""Messages with file descriptors over a Unix socket: how the emulator asks its first process."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

_HEADER = struct.Struct("<I")
_MAX_DESCRIPTORS = 8


def send(channel: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    body = json.dumps(message).encode()
    socket.send_fds(channel, [_HEADER.pack(len(body))], descriptors)
    channel.sendall(body)


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A message and its file descriptors, which the caller closes.

    Raises:
        EOFError: the other process has gone.
    """
    try:
        header, descriptors, _, _ = socket.recv_fds(channel, _HEADER.size, _MAX_DESCRIPTORS)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        if len(header) < _HEADER.size:
            raise EOFError
        body = b""
        missing = _HEADER.unpack(header)[0]
        while len(body) < missing:
            received = channel.recv(missing - len(body))
            if not received:
                raise EOFError
            body += received
    except ConnectionError as error:
        raise EOFError from error
    return json.loads(body), descriptors
