"""Options of connections between ranks: short messages at once, and an end where a link is cut."""

from __future__ import annotations

import socket

# A host that does not acknowledge for this long is out of reach: its link is cut.
LINK_TIMEOUT_SECONDS = 8
_IDLE_SECONDS = 2


def tune(connection: socket.socket) -> None:
    """Sets the options; a connection over a cut link fails within `LINK_TIMEOUT_SECONDS`."""
    if connection.family == socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        return
    for level, option, value in (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_SECONDS),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, LINK_TIMEOUT_SECONDS - _IDLE_SECONDS),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LINK_TIMEOUT_SECONDS * 1000),
    ):
        connection.setsockopt(level, option, value)
