"""Delays packets between pairs of interfaces, since `netem` is not in every kernel.

Packet sockets carry whole packets with their offload headers (virtio_net_hdr), so that 64 KB that
TCP hands over in one piece stay in one piece: the relay handles a few thousand pieces a second.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

_ETH_P_ALL = 3
# linux/if_packet.h
_SOL_PACKET = 263
_PACKET_VNET_HDR = 15
_PACKET_IGNORE_OUTGOING = 23
_SO_RCVBUFFORCE = 33
_BUFFER_BYTES = 1 << 25
_MAX_PACKET_BYTES = 1 << 17
_BATCH = 64


def open_ports(pairs: Sequence[tuple[str, str]]) -> dict[socket.socket, socket.socket]:
    """By the socket of each interface, that of the other one of its pair."""
    ports: dict[socket.socket, socket.socket] = {}
    for pair in pairs:
        near, far = (_open(interface) for interface in pair)
        ports |= {near: far, far: near}
    return ports


def relay(ports: dict[socket.socket, socket.socket], delay: float) -> None:
    """Sends each packet to the other interface `delay` seconds after it came; never returns."""
    waiting: deque[tuple[float, socket.socket, bytes]] = deque()
    buffer = bytearray(_MAX_PACKET_BYTES)
    view = memoryview(buffer)
    while True:
        timeout = None if not waiting else max(0.0, waiting[0][0] - time.monotonic())
        ready, _, _ = select.select(list(ports), [], [], timeout)
        for port in ready:
            for _ in range(_BATCH):
                try:
                    size = port.recv_into(buffer)
                except BlockingIOError:
                    break
                waiting.append((time.monotonic() + delay, ports[port], bytes(view[:size])))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, port, packet = waiting.popleft()
            with suppress(OSError):  # the interface is down, or its queue full: a packet is lost
                port.send(packet)


def _open(interface: str) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    port.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    try:
        port.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    except PermissionError:
        port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    port.bind((interface, _ETH_P_ALL))
    port.setblocking(False)
    return port
