"""A rank's connection to the coordinator: sends what is ready once a cycle, receives batches."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from taco_train.collective.tuning import tune
from taco_train.lightcc.negotiation.coordinator_server import HELLO
from taco_train.lightcc.negotiation.frames import FrameReader, frame
from taco_train.lightcc.negotiation.messages import Batch, Ready, decode_batches
from taco_train.lightcc.negotiation.requests import Request


class RankLink:
    """Sends a rank's requests and calls back with batches, in a thread.

    Args:
        connection: to the coordinator, as `connect` makes it.
        cycle_seconds: the shortest time between two messages; requests that come meanwhile share
            one.
        on_batch: called in the thread with each batch, in the coordinator's order, after its
            `ids` are replaced by the rank's requests.
        on_lost: called once if the connection ends before `close`, with the reason.
        silent_seconds: the connection ends when the coordinator sends nothing for this time; 0:
            it may be silent.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        cycle_seconds: float,
        on_batch: Callable[[Batch], None],
        on_lost: Callable[[str], None],
        silent_seconds: float = 0.0,
    ) -> None:
        self._connection = connection
        self._silent_seconds = silent_seconds
        self._heard_at = time.monotonic()
        self._cycle_seconds = cycle_seconds
        self._on_batch, self._on_lost = on_batch, on_lost
        self._reader = FrameReader()
        self._lock = threading.Lock()
        self._unsent: list[Request] = []
        self._flags = Ready()
        self._number_of: dict[Request, int] = {}
        self._numbered: dict[int, Request] = {}
        self._next_send = 0.0
        self._is_closing = False
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name="lightcc-link", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> None:
        """The rank is ready for this; from any thread."""
        with self._lock:
            is_first = not self._unsent
            self._unsent.append(request)
        if is_first:  # the thread sends those that follow with it
            self._wake()

    def join(self) -> None:
        """The rank has no more data."""
        self._say(joined=True)

    def note_blocked(self) -> None:
        """A thread of the rank has waited for a result for a while."""
        self._say(blocked=True)

    def fail(self, reason: str) -> None:
        """The rank cannot compute with others any more: all ranks get this as an error."""
        self._say(failure=reason)

    def close(self) -> None:
        """Tell the coordinator that the rank leaves, and end the thread; safe to repeat."""
        if self._is_closing:
            return
        self._is_closing = True
        self._say(leaving=True)
        self._thread.join()
        for one in (self._connection, self._wake_read, self._wake_write):
            one.close()

    def _say(self, **fields: Any) -> None:
        """Set fields of the next message."""
        with self._lock:
            self._flags = replace(self._flags, **fields)
        self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # enough wake-ups are on their way
            self._wake_write.send(b"x")

    def _serve(self) -> None:
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._connection, selectors.EVENT_READ)
                selector.register(self._wake_read, selectors.EVENT_READ)
                while self._step(selector):
                    pass
        except Exception as error:  # a rank whose thread has ended would wait for ever
            if not self._is_closing:
                self._on_lost(str(error))

    def _step(self, selector: selectors.BaseSelector) -> bool:
        """Wait for something and do it; False: the link has ended."""
        for key, _ in selector.select(self._delay()):
            if key.fileobj is self._wake_read:
                self._wake_read.recv(4096)
            elif not self._receive():
                return False
        if self._has_unsent() and (self._is_closing or time.monotonic() >= self._next_send):
            self._send()
        if self._is_silent(selector):
            self._on_lost(f"nothing came from rank 0 for {self._silent_seconds:g} seconds")
            return False
        return not self._is_closing

    def _is_silent(self, selector: selectors.BaseSelector) -> bool:
        if not self._silent_seconds:
            return False
        if time.monotonic() - self._heard_at <= self._silent_seconds:
            return False
        # If this process was stopped, messages have come meanwhile.
        return all(key.fileobj is not self._connection for key, _ in selector.select(0))

    def _delay(self) -> float | None:
        """Seconds until there is something to do; None: when something comes."""
        times = [self._next_send] if self._has_unsent() else []
        if self._silent_seconds:
            times.append(self._heard_at + self._silent_seconds)
        return max(min(times) - time.monotonic(), 0.0) if times else None

    def _has_unsent(self) -> bool:
        return bool(self._unsent) or self._flags != Ready()

    def _send(self) -> None:
        with self._lock:
            requests, self._unsent = self._unsent, []
            flags, self._flags = self._flags, Ready()
        numbers = [self._number_of.get(one) for one in requests]
        message = replace(
            flags,
            ids=[number for number in numbers if number is not None],
            requests=[one for one, number in zip(requests, numbers, strict=True) if number is None],
        )
        self._next_send = time.monotonic() + self._cycle_seconds
        self._connection.sendall(frame(message.encode()))

    def _receive(self) -> bool:
        frames = self._reader.receive(self._connection)
        if frames is None:
            if not self._is_closing:
                self._on_lost(
                    "rank 0 is gone, with the coordinator: its process has ended, or a link is cut"
                )
            return False
        self._heard_at = time.monotonic()
        for data in frames:
            for batch in decode_batches(data):
                self._on_batch(self._in_full(batch))
        return True

    def _in_full(self, batch: Batch) -> Batch:
        for number, request in zip(batch.new_ids, batch.requests, strict=False):
            self._number_of[request], self._numbered[number] = number, request
        if not batch.ids:
            return batch
        return Batch(requests=[self._numbered[number] for number in batch.ids])


def connect(address: str, port: int, *, token: bytes, rank: int) -> socket.socket:
    """Connect a rank to the coordinator.

    Args:
        token: the job's secret, `TOKEN_BYTES` long.

    Raises:
        OSError: no coordinator answers there.
    """
    connection = socket.create_connection((address, port), timeout=30.0)
    connection.settimeout(None)
    tune(connection)
    connection.sendall(frame(HELLO.pack(token, rank)))
    return connection
