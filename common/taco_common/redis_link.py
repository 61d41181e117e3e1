"""The connection to Redis, with a circuit breaker: no request waits for Redis or fails with it.

Redis is trusted while it answers every command in time (circuit breaker: Nygard, "Release It!").
After a timeout or an error the breaker is open: calls return None at once, and the callers use
their local knowledge. The link probes Redis in the background, with back-off, until it answers in
time again.
"""

import asyncio
import contextlib
import hashlib
import logging
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import redis.asyncio as redis_client
from redis.asyncio.connection import SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import (
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from taco_proto.config import RedisConfig
from taco_proto.errors import ConfigurationError

CONNECT_SECONDS = 1.0
FIRST_BACKOFF_SECONDS = 0.1
# Together with CONNECT_SECONDS, the maximum delay until a recovered Redis is noticed.
MAX_BACKOFF_SECONDS = 2.0
# If trust lasted less than this number of seconds, the next probe waits for the back-off.
STABLE_SECONDS = 5.0
MAX_CONNECTIONS = 16
# Turns of the event loop from bytes in a socket to a reply.
GRACE_TURNS = 5

# Errors after which this server cannot serve the link now.
_UNFIT = (NoPermissionError, NoScriptError, OutOfMemoryError, ReadOnlyError)

# Errors of the connection. ValueError: an invalid host name, or a reply that is not Redis protocol;
# ConfigurationError: the password file.
_TROUBLE = (RedisError, OSError, TimeoutError, ConfigurationError, ValueError)

# A command and its arguments, as on the wire: ("SET", "key", b"value", "PX", 5000).
Command: TypeAlias = tuple[str | bytes | int | float, ...]

_log = logging.getLogger("taco.redis")


@dataclass(slots=True)
class LinkCounts:
    """Counts for metrics.

    Attributes:
        num_batches: times that commands were sent.
        num_failures: batches that were not answered in time.
    """

    num_batches: int = 0
    num_failures: int = 0


class RedisLink:
    """Sends commands to Redis while it is trusted. Belongs to one event loop.

    Attributes:
        trusted: Redis answers in time; False until the first probe succeeded.
        counts: for metrics.

    Raises:
        ConfigurationError: the URL or the password file is invalid. The text has no password.
    """

    def __init__(self, config: RedisConfig) -> None:
        self.trusted = False
        self.counts = LinkCounts()
        self._config = config
        self._where = shown_url(config.url)
        self._pool = _make_pool(config)
        self._client = redis_client.Redis(connection_pool=self._pool)
        self._scripts: list[str] = []
        self._listeners: list[Callable[[], None]] = []
        self._suspect = asyncio.Event()
        self._suspect.set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts connecting in the background."""
        self._task = asyncio.create_task(self._keep_trust())

    async def close(self) -> None:
        self.trusted = False
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        with contextlib.suppress(RedisError, OSError):
            await self._pool.disconnect()

    def on_trust(self, listener: Callable[[], None]) -> None:
        """Calls `listener` when Redis becomes trusted: it may have lost its data."""
        self._listeners.append(listener)

    def add_script(self, text: str) -> str:
        """Registers a Lua script, to be loaded at each connection; returns its name for EVALSHA.

        Call it before `start`.
        """
        self._scripts.append(text)
        return hashlib.sha1(text.encode()).hexdigest()  # as Redis names it

    async def run(
        self, *commands: Command, seconds: float | None = None, atomic: bool = False
    ) -> list[Any] | None:
        """Sends commands together and returns the replies; None: Redis is not trusted.

        Replies are those of redis-py (HGETALL gives a dict of bytes). The reply of a rejected
        command is a `redis.exceptions.ResponseError`, which is not raised.

        Args:
            seconds: timeout, after which Redis is not trusted; None: the configured timeout, which
                bounds the wait of a request.
            atomic: as one transaction (MULTI).
        """
        if not self.trusted:
            return None
        self.counts.num_batches += 1
        try:
            seconds = self._config.timeout if seconds is None else seconds
            replies = await _within(seconds, self._send(commands, atomic))
        except _TROUBLE as error:
            self._distrust(_reason(error))
            return None
        unfit = [reply for reply in replies if isinstance(reply, _UNFIT)]
        if unfit:
            self._distrust(_reason(unfit[0]))
            return None
        return replies

    async def _send(self, commands: tuple[Command, ...], atomic: bool = False) -> list[Any]:
        async with self._client.pipeline(transaction=atomic) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            return await pipeline.execute(raise_on_error=False)

    # ------------------------------------------------------------------- trust

    def _distrust(self, reason: str) -> None:
        self.counts.num_failures += 1
        if self.trusted:  # another call may have failed before
            _log.warning("Redis at %s is not trusted now: %s", self._where, reason)
            self.trusted = False
            self._suspect.set()

    async def _keep_trust(self) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        trusted_since = time.monotonic() - STABLE_SECONDS  # the first try is made at once
        last_reason: str | None = None
        while True:
            await self._suspect.wait()
            if time.monotonic() - trusted_since >= STABLE_SECONDS:
                backoff = FIRST_BACKOFF_SECONDS
            else:
                await asyncio.sleep(backoff * random.uniform(0.5, 1.0))
                backoff = min(2 * backoff, MAX_BACKOFF_SECONDS)
            trusted_since = time.monotonic()
            reason = await self._probe()
            if reason is not None:
                if reason != last_reason:
                    _log.warning("waiting for Redis at %s: %s", self._where, reason)
                last_reason = reason
                continue
            last_reason = None
            self._suspect.clear()
            self.trusted = True
            _log.info("Redis at %s is trusted", self._where)
            for listener in self._listeners:
                listener()

    async def _probe(self) -> str | None:
        """Connects again and probes Redis; returns the reason of a failure, or None."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._pool.disconnect(inuse_connections=False)
                replies = await self._send(
                    (("PING",), *(("SCRIPT", "LOAD", text) for text in self._scripts))
                )
            replies += await _within(self._config.timeout, self._send((("PING",),)))
        except _TROUBLE as error:
            return _reason(error)
        refusal = next((reply for reply in replies if isinstance(reply, ResponseError)), None)
        return None if refusal is None else _reason(refusal)


async def _within(seconds: float, work: Coroutine[Any, Any, list[Any]]) -> list[Any]:
    """The result of `work`, with a timeout.

    If this process was busy meanwhile, a reply that has arrived by then still counts.

    Raises:
        TimeoutError: no result within `seconds`.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        for _ in range(GRACE_TURNS):
            if task.done():
                return task.result()
            await asyncio.sleep(0)
        raise TimeoutError
    finally:
        task.cancel()
        task.add_done_callback(lambda task: task.cancelled() or task.exception())


def _make_pool(config: RedisConfig) -> redis_client.ConnectionPool:
    if config.password_file is not None:
        read_password(config.password_file)
    try:
        pool = redis_client.BlockingConnectionPool.from_url(
            config.url,
            max_connections=MAX_CONNECTIONS,
            timeout=None,  # the link bounds every wait
            socket_timeout=None,
            socket_connect_timeout=None,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            driver_info=None,
        )
        if config.password_file is not None:
            user = pool.connection_kwargs.pop("username", None)
            provider = _PasswordFile(user, config.password_file)
            pool.connection_kwargs["credential_provider"] = provider
        if pool.connection_class is SSLConnection:
            pool.connection_class = _TlsConnection
        pool.make_connection()
    except (TypeError, ValueError, AttributeError, RedisError):  # its text may quote the URL
        raise ConfigurationError(
            f"redis_url is invalid: {shown_url(config.url)} has an unknown option or an invalid "
            "value"
        ) from None
    return pool


class _TlsConnection(SSLConnection):
    """Reads its certificate at each connection, so that a renewed one is used."""

    async def connect(self) -> None:
        if not self.is_connected:
            self.ssl_context.context = None  # else the first one would be kept
        await super().connect()


class _PasswordFile(CredentialProvider):
    """Reads the password at each connection, so that it may change."""

    def __init__(self, user: str | None, path: str) -> None:
        self._user = user
        self._path = path

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        password = read_password(self._path)
        return (password,) if self._user is None else (self._user, password)


def read_password(path: str) -> str:
    """The password in a file, without the line end.

    Raises:
        ConfigurationError: the file cannot be read or is empty.
    """
    try:
        password = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigurationError(f"cannot read {path}: {reason}") from None
    if not password:
        raise ConfigurationError(f"{path} holds no password")
    return password


def shown_url(url: str) -> str:
    """A Redis URL without user, password and options, for logs."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    return str(error) or type(error).__name__
