"""Runs the coordinator on rank 0, in a thread that all ranks connect to."""

from __future__ import annotations

import hmac
import logging
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from taco_train.collective.tuning import tune
from taco_train.lightcc.negotiation.coordinator import Coordinator, Stall
from taco_train.lightcc.negotiation.frames import FrameReader, frame
from taco_train.lightcc.negotiation.messages import Batch, Ready, encode_batches

logger = logging.getLogger(__name__)
TOKEN_BYTES = 32
HELLO = struct.Struct(f"<{TOKEN_BYTES}sI")  # token, rank
_TICK_SECONDS = 0.25
_DEADLOCK_SECONDS = 1.0
_BEATS = 4  # in the time after which a stall is an error


@dataclass(frozen=True, slots=True)
class StallLimits:
    """When names that only some ranks submitted are reported, and when they fail.

    Attributes:
        warn_seconds, fail_seconds: 0: never.
    """

    warn_seconds: float = 60.0
    fail_seconds: float = 0.0


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    reader: FrameReader = field(default_factory=FrameReader)
    unsent: bytearray = field(default_factory=bytearray)
    rank: int = -1  # -1: has not said who it is


class CoordinatorServer:
    """Accepts the ranks' connections and sends each the batches to run.

    Args:
        address: host to listen on; the port is free to choose.
        token: a secret of this job; connections without it are closed.
        clock: seconds; tests give their own.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        size: int,
        *,
        address: str,
        token: bytes,
        limits: StallLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._coordinator = coordinator
        self._size = size
        self._token = token
        self._limits = limits
        beat_seconds = limits.fail_seconds / _BEATS if limits.fail_seconds else _TICK_SECONDS
        self._tick_seconds = min(_TICK_SECONDS, beat_seconds)
        self._clock = clock
        self._listener = socket.create_server((address, 0), backlog=max(size, 16))
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._wake_read, self._wake_write = socket.socketpair()
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._ranks: dict[int, _Connection] = {}
        self._next_beat = 0.0
        self._is_closing = False
        self._thread = threading.Thread(target=self._serve, name="lightcc-coordinator", daemon=True)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and close every connection."""
        self._is_closing = True
        self._wake_write.send(b"x")
        self._thread.join()
        for one in (self._wake_read, self._wake_write, self._listener):
            one.close()

    def _serve(self) -> None:
        try:
            while not self._is_closing:
                for key, events in self._selector.select(self._wait_seconds()):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.data, _Connection):
                        self._progress(key.data, events)
                self._send_all([*self._coordinator.take_batches(self._clock()), *self._overdue()])
                self._beat()
        finally:
            for connection in list(self._selector.get_map().values()):
                if isinstance(connection.data, _Connection):
                    connection.data.socket.close()
            self._selector.close()

    def _wait_seconds(self) -> float:
        due = self._coordinator.next_due
        return _TICK_SECONDS if due is None else min(max(due - self._clock(), 0.0), _TICK_SECONDS)

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError:
            return
        accepted.setblocking(False)
        tune(accepted)
        self._selector.register(accepted, selectors.EVENT_READ, _Connection(accepted))

    def _progress(self, connection: _Connection, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush(connection)
        is_dropped = connection.socket.fileno() < 0  # it could not be written to
        if is_dropped or not events & selectors.EVENT_READ:
            return
        try:
            frames = connection.reader.receive(connection.socket)
            if frames is None:
                self._drop(connection)
                return
            for data in frames:
                self._receive(connection, data)
        except ValueError as error:
            logger.error("the connection of rank %d is closed: %s", connection.rank, error)
            self._drop(connection)

    def _receive(self, connection: _Connection, data: bytes) -> None:
        if connection.rank >= 0:
            self._coordinator.receive(connection.rank, Ready.decode(data), self._clock())
            return
        if len(data) != HELLO.size:
            raise ValueError("the first message is not a hello")
        token, rank = HELLO.unpack(data)
        if not hmac.compare_digest(token, self._token):
            raise ValueError("the connection has another job's token")
        if rank >= self._size or rank in self._ranks:
            raise ValueError(f"rank {rank} is unknown or connected")
        connection.rank = rank
        self._ranks[rank] = connection

    def _drop(self, connection: _Connection) -> None:
        self._selector.unregister(connection.socket)
        connection.socket.close()
        if connection.rank >= 0:
            del self._ranks[connection.rank]
            self._coordinator.lose(connection.rank)

    def _overdue(self) -> list[Batch]:
        """Batches that end what waits for too long; stalls are logged."""
        now, limits = self._clock(), self._limits
        if limits.warn_seconds:
            for stall in self._coordinator.stalls(now, limits.warn_seconds):
                logger.warning("%s", _stall_line(stall))
        batches = self._coordinator.fail_deadlocked(now, _DEADLOCK_SECONDS)
        if limits.fail_seconds:
            batches += self._coordinator.fail_stalled(now, limits.fail_seconds)
        return batches

    def _send_all(self, batches: list[Batch]) -> None:
        if batches:
            self._send_frame(frame(encode_batches(batches)))

    def _beat(self) -> None:
        """Shows ranks that wait that this process lives."""
        if not self._limits.fail_seconds or self._clock() < self._next_beat:
            return
        self._next_beat = self._clock() + self._limits.fail_seconds / _BEATS
        self._send_frame(frame(b""))

    def _send_frame(self, data: bytes) -> None:
        for connection in list(self._ranks.values()):
            connection.unsent += data
            self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        try:
            sent = connection.socket.send(connection.unsent)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._drop(connection)
            return
        del connection.unsent[:sent]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        self._selector.modify(connection.socket, events, connection)


def _stall_line(stall: Stall) -> str:
    ready, missing = (", ".join(map(str, some)) for some in (stall.ready, stall.missing))
    return (
        f"{stall.name} has waited {stall.seconds:.0f} s: submitted by ranks {ready}, "
        f"missing from ranks {missing}"
    )
