"""Delays packets between pairs of interfaces, since `netem` is not in every kernel.

Packet sockets carry whole packets with their offload headers (virtio_net_hdr), so that 64 KB that
TCP hands over in one piece stay in one piece. C++ moves them: csrc/emulation/relay.cpp.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable, Sequence

from taco_train.native.build import find

_ETH_P_ALL = 3
# linux/if_packet.h
_SOL_PACKET = 263
_PACKET_VNET_HDR = 15
_PACKET_IGNORE_OUTGOING = 23
_SO_RCVBUFFORCE = 33
_BUFFER_BYTES = 1 << 25


def open_ports(pairs: Sequence[tuple[str, str]]) -> list[tuple[socket.socket, socket.socket]]:
    """The sockets of each pair of interfaces, in the network namespace of the thread."""
    return [(_open(near), _open(far)) for near, far in pairs]


def load() -> Callable[[Sequence[tuple[socket.socket, socket.socket]], float], None]:
    """`relay`, whose library is compiled first if this is a source tree.

    Raises:
        NativeBuildError: it cannot be compiled.
    """
    function = ctypes.CDLL(str(find("emulation"))).taco_emulation_relay
    numbers = ctypes.POINTER(ctypes.c_int32)
    function.restype = ctypes.c_int32
    function.argtypes = [numbers, numbers, ctypes.c_int32, ctypes.c_int64]

    def relay(ports: Sequence[tuple[socket.socket, socket.socket]], delay: float) -> None:
        """Sends each packet to the other interface `delay` seconds after it came.

        It never returns.

        Raises:
            OSError: the sockets cannot be waited for.
        """
        near, far = (
            (ctypes.c_int32 * len(ports))(*(port.fileno() for port in side))
            for side in zip(*ports, strict=True)
        )
        error = function(near, far, len(ports), round(delay * 1e9))
        raise OSError(error, os.strerror(error))

    return relay


def _open(interface: str) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    port.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    try:
        port.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    except PermissionError:
        port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    port.bind((interface, _ETH_P_ALL))
    return port
