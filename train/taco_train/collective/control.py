"""Control messages between ranks, beside the data: failures, and questions after silent ranks.

Every rank has a listener, at which others also open their data connections. A message is one record
of fixed size, which begins with the listener's token; nothing else is read from a connection.
"""

from __future__ import annotations

import contextlib
import enum
import json
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MAX_ENDPOINT_BYTES = 512  # an address has 253 characters at most
_RECORD = struct.Struct("<8s16sBiiQH400s")
_MAGIC = b"taco-ctl"
_READ_SECONDS = 5.0
_ANSWER_SECONDS = 1.0
_TOLD_SECONDS = 0.5


class Message(enum.IntEnum):
    DATA = 1  # the connection is for data from now on
    FAILURE = 2  # `rank` is gone, silent or disagrees; `text` says how
    QUESTION = 3  # the answer: which rank is awaited, in which operation and stage (`text`)
    FINISHED = 4  # the sender has ended regularly


@dataclass(frozen=True)
class Record:
    """One message.

    Attributes:
        sender: its rank.
        rank: the rank that it is about, -1 if none: as all ranks are numbered, like the sender.
        operation: number of the operation that the sender is in.
        text: at most 400 bytes.
    """

    message: Message
    sender: int
    rank: int = -1
    operation: int = 0
    text: str = ""


@dataclass(frozen=True)
class Endpoint:
    """Where a rank listens: at an abstract Unix socket for its host, and at a TCP port."""

    address: str
    port: int
    unix: str
    token: bytes

    def encode(self) -> bytes:
        """At most `MAX_ENDPOINT_BYTES`."""
        return json.dumps([self.address, self.port, self.unix, self.token.hex()]).encode()

    @staticmethod
    def decode(data: bytes) -> Endpoint:
        """Inverse of `encode`; spaces may follow."""
        address, port, unix, token = json.loads(data)
        return Endpoint(address, port, unix, bytes.fromhex(token))

    def connect(self, is_local: bool, timeout: float) -> socket.socket:
        """Opens a connection.

        Raises:
            OSError: the rank is gone, or out of reach.
        """
        if is_local:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            target: str | tuple[str, int] = f"\0{self.unix}"
        else:
            family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
            connection = socket.socket(family, socket.SOCK_STREAM)
            target = (self.address, self.port)
        try:
            connection.settimeout(timeout)
            connection.connect(target)
        except BaseException:
            connection.close()
            raise
        return connection

    def send(self, connection: socket.socket, record: Record) -> None:
        connection.sendall(_encode(self.token, record))


class Listener:
    """Answers at this rank's endpoint, in a thread, until it is closed.

    Args:
        address: of this host, for the other hosts.
        on_data: takes a data connection and the rank that opened it.
        on_failure: takes a FAILURE record.
        answer: answers a QUESTION.
    """

    def __init__(
        self,
        address: str,
        on_data: Callable[[int, socket.socket], None],
        on_failure: Callable[[Record], object],
        answer: Callable[[], Record],
    ) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._tcp = socket.create_server((address, 0), family=family, backlog=256)
        self._unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = f"taco_train-{secrets.token_hex(12)}"
        self._unix.bind(f"\0{name}")
        self._unix.listen(256)
        self.endpoint = Endpoint(address, self._tcp.getsockname()[1], name, secrets.token_bytes(16))
        self._on_data, self._on_failure, self._answer = on_data, on_failure, answer
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="taco_train-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._wake_writer.fileno() < 0:
            return
        self._wake_writer.send(b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._wake_writer.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            for listening in (self._tcp, self._unix, self._wake_reader):
                selector.register(listening, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._wake_reader:
                        for listening in (self._tcp, self._unix, self._wake_reader):
                            listening.close()
                        return
                    assert isinstance(key.fileobj, socket.socket)
                    with contextlib.suppress(OSError):
                        self._serve_one(key.fileobj.accept()[0])

    def _serve_one(self, connection: socket.socket) -> None:
        connection.settimeout(_READ_SECONDS)
        try:
            record = _decode(self.endpoint.token, _read(connection))
            if record is not None and record.message is Message.DATA:
                self._on_data(record.sender, connection)
                return
            if record is not None and record.message is Message.FAILURE:
                self._on_failure(record)
            elif record is not None and record.message is Message.QUESTION:
                connection.sendall(_encode(self.endpoint.token, self._answer()))
        except OSError:
            pass
        connection.close()


def tell(endpoints: Sequence[tuple[Endpoint, bool]], record: Record) -> None:
    """Sends a record to all endpoints that can be reached within half a second.

    Args:
        endpoints: each with whether it is on this host.
    """

    def tell_one(endpoint: Endpoint, is_local: bool) -> None:
        with (
            contextlib.suppress(OSError),
            endpoint.connect(is_local, _TOLD_SECONDS) as connection,
        ):
            endpoint.send(connection, record)

    threads = [threading.Thread(target=tell_one, args=pair, daemon=True) for pair in endpoints]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + _TOLD_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def ask(endpoint: Endpoint, is_local: bool, sender: int) -> Record | None:
    """What a rank waits for; None: it does not answer within a second."""
    try:
        with endpoint.connect(is_local, _ANSWER_SECONDS) as connection:
            endpoint.send(connection, Record(Message.QUESTION, sender))
            return _decode(endpoint.token, _read(connection))
    except OSError:
        return None


def _encode(token: bytes, record: Record) -> bytes:
    text = record.text.encode(errors="replace")[:400]
    return _RECORD.pack(
        *(_MAGIC, token, record.message, record.sender, record.rank),
        *(record.operation, len(text), text),
    )


def _decode(token: bytes, data: bytes) -> Record | None:
    magic, given, message, sender, rank, operation, length, text = _RECORD.unpack(data)
    if magic != _MAGIC or not secrets.compare_digest(given, token):
        return None
    try:
        kind = Message(message)
    except ValueError:
        return None
    return Record(kind, sender, rank, operation, text[:length].decode(errors="replace"))


def _read(connection: socket.socket) -> bytes:
    data = bytearray()
    while len(data) < _RECORD.size:
        piece = connection.recv(_RECORD.size - len(data))
        if not piece:
            raise ConnectionError("connection closed")
        data += piece
    return bytes(data)
