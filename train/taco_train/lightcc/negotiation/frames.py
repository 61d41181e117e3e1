"""Messages over TCP: a length, then the bytes."""

from __future__ import annotations

import socket
import struct

_LENGTH = struct.Struct("<I")
MAX_FRAME_BYTES = 64 * 2**20
_READ_BYTES = 2**16


class FrameReader:
    """Cuts what a socket received into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def receive(self, connection: socket.socket) -> list[bytes] | None:
        """The messages that are complete after one read; None: the other side has closed.

        Raises:
            ValueError: a message is longer than `MAX_FRAME_BYTES`.
        """
        try:
            data = connection.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            return None
        if not data:
            return None
        self._buffer += data
        return self._complete_frames()

    def _complete_frames(self) -> list[bytes]:
        frames, start = [], 0
        while start + _LENGTH.size <= len(self._buffer):
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a message of {length} bytes")
            end = start + _LENGTH.size + length
            if end > len(self._buffer):
                break
            frames.append(bytes(self._buffer[start + _LENGTH.size : end]))
            start = end
        del self._buffer[:start]
        return frames


def frame(data: bytes) -> bytes:
    """A message as it is sent."""
    return _LENGTH.pack(len(data)) + data
