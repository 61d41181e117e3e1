"""The license client of a worker: leases seats for its GPUs and renews them.

A thread takes the lease and sends heartbeats. `LicenseClient.status` tells whether the worker may
accept new requests, and why not, such as that no seat is free. If the server does not answer, a
granted lease stays valid for a grace period after its end, but never beyond the expiry of the
license. The client needs only the standard library.
"""

import io
import json
import logging
import math
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import (
    HTTPS_PORT,
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
)
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from taco_license.tls import DOMAIN, SERVER_ROLE, TlsFiles, client_context

logger = logging.getLogger("taco.license.client")

START_SECONDS = 30.0
CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 5.0
GRACE_SECONDS = 3600.0

MAX_ANSWER_BYTES = 64 << 10
MAX_REASON_CHARS = 500
RETRY_SECONDS = (1.0, 20.0)  # exponential back-off: after the first failure, and maximum
REJECTION_RETRY_SECONDS = 10.0
MIN_WAIT_SECONDS = 0.05  # clocks of different resolution must not cause a busy loop
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# A server without a license, such as one that lost its disk, does not revoke a lease.
_NO_LICENSE = "no_license"
# The server does not answer, or is not a license server.
_NO_ANSWER = (OSError, HTTPException, ValueError, TypeError, KeyError, RecursionError)


@dataclass(frozen=True, slots=True)
class LicenseStatus:
    """Whether a worker may accept new requests.

    Attributes:
        reason: for people: why the worker has no license, or that the server does not answer.
        is_pending: the worker has no license yet, and the server still has time to answer.
    """

    is_valid: bool
    reason: str
    is_pending: bool = False


@dataclass(frozen=True, slots=True)
class _Granted:
    heartbeat_seconds: float
    good_until: float  # on the client's clock, including the grace period


@dataclass(frozen=True, slots=True)
class _Rejected:
    code: str
    message: str


def boot_seconds() -> float:
    """Seconds since the machine booted, including time in suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_nanoseconds() -> int:
    """`boot_seconds` in nanoseconds. Orders processes of one boot, independent of the date."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def this_instance() -> str:
    """The id of this machine since its last boot. All containers on it have the same id."""
    return _BOOT_ID.read_text().strip()


class LicenseClient:
    """Takes and renews the lease of one worker.

    Args:
        gpus: ids of the worker's GPUs as `nvidia-smi -L` shows them, or the id of its host.
        addresses: addresses of the license server, tried in order; see `server_addresses`.
        instance: see `this_instance`.
        grace_seconds: how long a lease stays valid after its end while the server does not answer.
        start_seconds: how long the status is pending while the server gives no first answer.
        rejection_retry_seconds: maximum wait before the next request after a rejection; the actual
            wait is random between half of it and all of it.
        tls: files for mutual TLS with servers at https addresses; None: the server's certificate is
            checked like that of a web server.
        clock: seconds of a clock that never goes back.

    Attributes:
        on_change: called in the client's thread after each change of the status.
    """

    def __init__(
        self,
        gpus: Sequence[str],
        addresses: Sequence[str],
        instance: str,
        *,
        grace_seconds: float = GRACE_SECONDS,
        start_seconds: float = START_SECONDS,
        rejection_retry_seconds: float = REJECTION_RETRY_SECONDS,
        tls: TlsFiles | None = None,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._addresses = addresses
        self._grace_seconds = grace_seconds
        self._start_seconds = start_seconds
        self._rejection_retry_seconds = rejection_retry_seconds
        self._tls = tls
        self._clock = clock
        self._body = json.dumps(
            {"gpus": list(gpus), "instance": instance, "started": boot_nanoseconds()}
        ).encode()
        self._good_until = self._start_deadline = -math.inf
        self._problem = "the license server has not answered yet"
        self._failures = 0
        self._stop = threading.Event()
        self._answered = threading.Event()
        self._reported = self.status()
        self._thread = threading.Thread(target=self._run, name="license", daemon=True)

    def start(self) -> None:
        """Starts the client's thread. It keeps trying until a server answers."""
        self._start_deadline = self._clock() + self._start_seconds
        self._reported = self.status()
        self._thread.start()

    def wait(self) -> LicenseStatus:
        """Waits for the first answer, at most `start_seconds` after the start."""
        self._answered.wait(max(0.0, self._start_deadline - self._clock()))
        return self.status()

    def status(self) -> LicenseStatus:
        """The current status. Thread-safe; makes no request."""
        now = self._clock()
        is_valid = now < self._good_until
        is_pending = not (is_valid or self._answered.is_set()) and now < self._start_deadline
        return LicenseStatus(is_valid, self._problem, is_pending)

    def close(self) -> None:
        """Stops the thread and releases the seats, if the server answers quickly."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(CONNECT_SECONDS)

    def beat(self) -> float:
        """Sends one heartbeat: asks each address in order until one answers.

        Returns:
            Seconds until the next heartbeat.
        """
        self._report_change()
        answer = self._ask()
        match answer:
            case _Granted():
                self._good_until, self._problem, self._failures = answer.good_until, "", 0
                # Jitter spreads workers that started together.
                delay = answer.heartbeat_seconds * random.uniform(0.8, 1.0)
            case _Rejected():
                self._problem = f"{answer.code}: {answer.message}"
                if answer.code != _NO_LICENSE:
                    self._good_until = -math.inf
                delay = self._rejection_retry_seconds * random.uniform(0.5, 1.0)
            case str():
                self._problem = answer
                first, most = RETRY_SECONDS
                delay = min(most, first * 2.0 ** min(self._failures, 8)) * random.uniform(0.5, 1.0)
                self._failures += 1
        if not isinstance(answer, str):
            self._answered.set()
        self._report_change()
        return delay

    def _run(self) -> None:
        while not self._stop.wait(self._seconds_to_wait(self.beat())):
            pass
        if self._clock() < self._good_until:
            self._release()

    def _seconds_to_wait(self, delay: float) -> float:
        """`delay`, but at most the time until the status changes by itself."""
        status = self.status()
        if not (status.is_valid or status.is_pending):
            return delay
        changes_at = self._good_until if status.is_valid else self._start_deadline
        return min(delay, max(MIN_WAIT_SECONDS, changes_at - self._clock()))

    def _ask(self) -> _Granted | _Rejected | str:
        """The server's answer, or a text that says why no server answered."""
        problems: list[str] = []
        for address in self._addresses:
            asked = self._clock()
            try:
                status, body = _post(f"{address}/ls/lease", self._body, self._tls)
                return self._read_answer(status, body, asked)
            except _NO_ANSWER as error:
                problems.append(f"{address}: {error or type(error).__name__}")
        return f"the license server does not answer: {'; '.join(problems)}"

    def _read_answer(self, status: int, data: bytes, asked: float) -> _Granted | _Rejected:
        """Parses an answer. Raises one of `_NO_ANSWER` if no license server has sent it."""
        if status not in (200, 403, 409):
            raise ValueError(f"HTTP status {status}")
        body = json.loads(data)
        if status != 200:
            return _Rejected(_text(body["error"]["code"]), _text(body["error"]["message"]))
        lease = _seconds(body["lease_seconds"])
        license_ = _seconds(body["license_seconds"])
        good_for = min(lease + self._grace_seconds, license_)
        return _Granted(_seconds(body["heartbeat_seconds"]), asked + good_for)

    def _release(self) -> None:
        for address in self._addresses:
            try:
                status, _ = _post(f"{address}/ls/release", self._body, self._tls)
                if status == 200:
                    return
                problem = f"HTTP status {status}"
            except _NO_ANSWER as error:
                problem = str(error)
            logger.info("cannot release the seat at %s: %s", address, problem)

    def _report_change(self) -> None:
        before, after = self._reported, self.status()
        if before != after:
            self._reported = after
            self._log(before, after)
            try:
                self.on_change()
            except Exception:  # an error of the listener must not end the client's thread
                logger.exception("the listener for license changes failed")

    def _log(self, before: LicenseStatus, after: LicenseStatus) -> None:
        if after.is_valid and after.reason:
            seconds = self._good_until - self._clock()
            logger.warning("%s; the license stays valid for %.0f s", after.reason, seconds)
        elif after.is_valid:
            logger.info("the license server answers again" if before.is_valid else "licensed")
        elif not after.is_pending:
            what = "the license has lapsed" if before.is_valid else "not licensed"
            logger.error("%s: %s; the worker rejects new requests", what, after.reason)


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise ValueError("the answer is not from a license server")
    return float(value)


def _text(value: Any) -> str:
    """A text that is safe to log and to send to the scheduler."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError("the answer is not from a license server")
    return value[:MAX_REASON_CHARS]


class _LicenseServerConnection(HTTPConnection):
    """A connection over mutual TLS. The server's certificate must prove the license server role."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=CONNECT_SECONDS)
        self._context = context

    def connect(self) -> None:
        super().connect()
        name = f"{SERVER_ROLE}{DOMAIN}"
        self.sock = self._context.wrap_socket(self.sock, server_hostname=name)


class _UntilDeadline(io.RawIOBase):
    """The received bytes of a connection, with one deadline for the whole answer."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._raw = connection.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(seconds)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimelyResponse(HTTPResponse):
    """A response with one deadline. The timeout of http.client applies to each read only."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        deadline = time.monotonic() + ANSWER_SECONDS
        self.fp = io.BufferedReader(_UntilDeadline(sock, deadline))


def _post(address: str, body: bytes, tls: TlsFiles | None) -> tuple[int, bytes]:
    """Status and body of the answer. Uses no proxy and follows no redirection."""
    connection = _connection(address, tls)
    connection.response_class = _TimelyResponse
    try:
        connection.connect()
        connection.sock.settimeout(ANSWER_SECONDS)
        path = urlsplit(address).path
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read(MAX_ANSWER_BYTES)
    finally:
        connection.close()


def _connection(address: str, tls: TlsFiles | None) -> HTTPConnection:
    """A new connection, not yet open. Reads the TLS files each time, since they may be renewed."""
    url = urlsplit(address)
    assert url.hostname is not None
    if url.scheme == "http":
        return HTTPConnection(url.hostname, url.port, timeout=CONNECT_SECONDS)
    if tls is None:
        return HTTPSConnection(url.hostname, url.port, timeout=CONNECT_SECONDS)
    return _LicenseServerConnection(url.hostname, url.port or HTTPS_PORT, client_context(tls))
