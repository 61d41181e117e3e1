"""How a worker asks for its license and keeps it. Only the standard library is needed.

A thread takes a lease for the worker's GPUs and renews it. Whether new requests may be taken is
read from `LicenseClient.standing`, at no cost. Where the server is away, a lease that was granted
is good for a grace period beyond its end, but never longer than the license itself.
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
RETRY_SECONDS = (1.0, 20.0)  # after the first failure, and at most
REFUSED_SECONDS = 10.0
MIN_REST_SECONDS = 0.05  # clocks that tick apart must not make it ask without rest
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# A server without a license, such as one that lost its disk, says nothing of this GPU.
_UNDECIDED = "no_license"
# Nobody is there, or somebody who speaks otherwise.
_NO_ANSWER = (OSError, HTTPException, ValueError, TypeError, KeyError, RecursionError)


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether a worker may take new requests.

    Attributes:
        reason: for people: why not, or that the server is away.
        is_pending: it may not yet: the server has not answered, and still has time to.
    """

    is_valid: bool
    reason: str
    is_pending: bool = False


@dataclass(frozen=True, slots=True)
class _Granted:
    heartbeat_seconds: float
    good_until: float  # of the client's clock, with the grace


@dataclass(frozen=True, slots=True)
class _Refused:
    code: str
    message: str


def boot_seconds() -> float:
    """Seconds since the machine started, those in which it slept included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_nanoseconds() -> int:
    """The same, exactly: orders the processes of one start of a machine, whatever its date."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def this_instance() -> str:
    """Names this start of this machine: where a GPU is. All containers on it have the same name."""
    return _BOOT_ID.read_text().strip()


class LicenseClient:
    """Keeps the license of one worker.

    Args:
        gpus: the ids of its GPUs, as `nvidia-smi -L` names them; or of its host.
        addresses: of the server, tried in turn; see `server_addresses`.
        instance: see `this_instance`.
        grace_seconds: how long beyond a lease's end it is good while the server is away.
        start_seconds: how long a server has for its first answer before it counts as away.
        refused_seconds: after a refusal it is asked again in half that time to all of it.
        tls: how the worker proves to servers at `https` addresses that it is one, and whom it
            believes; None: they are believed as web servers are.
        clock: seconds that never go back.

    Attributes:
        on_change: called in the client's thread whenever the standing has changed.
    """

    def __init__(
        self,
        gpus: Sequence[str],
        addresses: Sequence[str],
        instance: str,
        *,
        grace_seconds: float = GRACE_SECONDS,
        start_seconds: float = START_SECONDS,
        refused_seconds: float = REFUSED_SECONDS,
        tls: TlsFiles | None = None,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._addresses = addresses
        self._grace_seconds = grace_seconds
        self._start_seconds = start_seconds
        self._refused_seconds = refused_seconds
        self._tls = tls
        self._clock = clock
        self._body = json.dumps(
            {"gpus": list(gpus), "instance": instance, "started": boot_nanoseconds()}
        ).encode()
        self._good_until = self._patient_until = -math.inf
        self._trouble = "the license server has not answered yet"
        self._failures = 0
        self._stop = threading.Event()
        self._answered = threading.Event()
        self._told = self.standing()
        self._thread = threading.Thread(target=self._run, name="license", daemon=True)

    def start(self) -> None:
        """Begins to ask, in a thread. A server that comes late is found late."""
        self._patient_until = self._clock() + self._start_seconds
        self._told = self.standing()
        self._thread.start()

    def wait(self) -> Standing:
        """What stands after the first answer, or when the time for it is up."""
        self._answered.wait(max(0.0, self._patient_until - self._clock()))
        return self.standing()

    def standing(self) -> Standing:
        """Of this moment. May be called from any thread."""
        now = self._clock()
        is_valid = now < self._good_until
        is_pending = not (is_valid or self._answered.is_set()) and now < self._patient_until
        return Standing(is_valid, self._trouble, is_pending)

    def close(self) -> None:
        """Gives the seats back, if the server takes them quickly."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(CONNECT_SECONDS)

    def beat(self) -> float:
        """Asks once, at each address in turn until there is an answer.

        Returns:
            After how many seconds to ask again.
        """
        self._tell_change()
        answer = self._ask()
        match answer:
            case _Granted():
                self._good_until, self._trouble, self._failures = answer.good_until, "", 0
                # Many workers that started together spread out.
                delay = answer.heartbeat_seconds * random.uniform(0.8, 1.0)
            case _Refused():
                self._trouble = f"{answer.code}: {answer.message}"
                if answer.code != _UNDECIDED:
                    self._good_until = -math.inf
                delay = self._refused_seconds * random.uniform(0.5, 1.0)
            case str():
                self._trouble = answer
                first, most = RETRY_SECONDS
                delay = min(most, first * 2.0 ** min(self._failures, 8)) * random.uniform(0.5, 1.0)
                self._failures += 1
        if not isinstance(answer, str):
            self._answered.set()
        self._tell_change()
        return delay

    def _run(self) -> None:
        while not self._stop.wait(self._seconds_to_rest(self.beat())):
            pass
        if self._clock() < self._good_until:
            self._release()

    def _seconds_to_rest(self, delay: float) -> float:
        """No longer than until the standing changes by itself."""
        standing = self.standing()
        if not (standing.is_valid or standing.is_pending):
            return delay
        changes_at = self._good_until if standing.is_valid else self._patient_until
        return min(delay, max(MIN_REST_SECONDS, changes_at - self._clock()))

    def _ask(self) -> _Granted | _Refused | str:
        """An answer, or why there is none."""
        troubles: list[str] = []
        for address in self._addresses:
            asked = self._clock()
            try:
                status, body = _post(f"{address}/ls/lease", self._body, self._tls)
                return self._read_answer(status, body, asked)
            except _NO_ANSWER as error:
                troubles.append(f"{address}: {error or type(error).__name__}")
        return f"the license server does not answer: {'; '.join(troubles)}"

    def _read_answer(self, status: int, data: bytes, asked: float) -> _Granted | _Refused:
        """Raises one of `_NO_ANSWER` where that is no license server."""
        if status not in (200, 403, 409):
            raise ValueError(f"HTTP status {status}")
        body = json.loads(data)
        if status != 200:
            return _Refused(_text(body["error"]["code"]), _text(body["error"]["message"]))
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
                trouble = f"HTTP status {status}"
            except _NO_ANSWER as error:
                trouble = str(error)
            logger.info("the seat was not given back to %s: %s", address, trouble)

    def _tell_change(self) -> None:
        before, after = self._told, self.standing()
        if before != after:
            self._told = after
            self._log(before, after)
            try:
                self.on_change()
            except Exception:  # the license is kept whatever a listener does
                logger.exception("a change of the license could not be told")

    def _log(self, before: Standing, after: Standing) -> None:
        if after.is_valid and after.reason:
            seconds = self._good_until - self._clock()
            logger.warning("%s; the license is good for %.0f s more", after.reason, seconds)
        elif after.is_valid:
            logger.info("the license server answers again" if before.is_valid else "licensed")
        elif not after.is_pending:
            what = "the license has lapsed" if before.is_valid else "not licensed"
            logger.error("%s: %s; new requests are refused", what, after.reason)


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise ValueError("the answer is none of a license server")
    return float(value)


def _text(value: Any) -> str:
    """What may be logged, and sent on to a scheduler."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError("the answer is none of a license server")
    return value[:MAX_REASON_CHARS]


class _LicenseServerConnection(HTTPConnection):
    """Over mutual TLS; whoever is at the address must prove to be a license server."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext) -> None:
        super().__init__(host, port, timeout=CONNECT_SECONDS)
        self._context = context

    def connect(self) -> None:
        super().connect()
        name = f"{SERVER_ROLE}{DOMAIN}"
        self.sock = self._context.wrap_socket(self.sock, server_hostname=name)


class _UntilDeadline(io.RawIOBase):
    """What a connection receives, with one deadline for all of it."""

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
    """http.client bounds each piece of an answer alone, however many there are."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        deadline = time.monotonic() + ANSWER_SECONDS
        self.fp = io.BufferedReader(_UntilDeadline(sock, deadline))


def _post(address: str, body: bytes, tls: TlsFiles | None) -> tuple[int, bytes]:
    """Status and body of the answer. No proxy is asked, and no redirection is followed."""
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
    """Not yet connected. The TLS files are read for each, since they are renewed now and then."""
    url = urlsplit(address)
    assert url.hostname is not None
    if url.scheme == "http":
        return HTTPConnection(url.hostname, url.port, timeout=CONNECT_SECONDS)
    if tls is None:
        return HTTPSConnection(url.hostname, url.port, timeout=CONNECT_SECONDS)
    return _LicenseServerConnection(url.hostname, url.port or HTTPS_PORT, client_context(tls))
