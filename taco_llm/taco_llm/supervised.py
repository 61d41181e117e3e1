"""A service that the supervisor keeps running, wherever it runs."""

import asyncio
import logging
import re
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

MIN_DELAY_SECONDS = 0.2
MAX_DELAY_SECONDS = 30.0
# A service that ran so long had started well; its next death is not one more failure of its start.
STABLE_SECONDS = 60.0

_ERROR = re.compile(rb" (ERROR|CRITICAL) \[| error: ")
_LOG_PREFIX = re.compile(r"^[\d:]+ [A-Z]+ \[[\w.-]+\] |^taco_llm [\w-]+: error: ")

LOGGER = logging.getLogger("taco.supervisor")


class SupervisedService(ABC):
    """Starts a service again when it has died, stops it, and passes on what it writes.

    Attributes:
        service: which of the services it is.
        name: what tells it from others of its kind; the service itself where there is one only.
    """

    def __init__(self, service: str, name: str | None = None) -> None:
        self.service = service
        self.name = name or service
        self._starting = True
        self._held: bytes | None = None
        self._last_line = b""
        self._num_failures = 0

    @abstractmethod
    async def start(self) -> None:
        """Begins a life of the service, whose end `wait` tells."""

    @abstractmethod
    async def wait(self) -> None:
        """Waits until the service has ended and its output is passed on."""

    @abstractmethod
    def terminate(self) -> None:
        """Asks the service to end; nothing if it does not run."""

    @abstractmethod
    def kill(self) -> None:
        """Ends the service at once; nothing if it does not run."""

    @abstractmethod
    def last_words(self) -> str:
        """Why the service has ended, as far as it is known."""

    @property
    def title(self) -> str:
        """The service in a sentence."""
        return f"the {self.service}" if self.name == self.service else self.name

    async def keep_running(self) -> None:
        """Starts the service again whenever it dies; the delay doubles while it keeps dying."""
        while True:
            started_at = time.monotonic()
            await self.wait()
            if time.monotonic() - started_at > STABLE_SECONDS:
                self._num_failures = 0
            delay = min(MIN_DELAY_SECONDS * 2**self._num_failures, MAX_DELAY_SECONDS)
            self._num_failures += 1
            reason = self.last_words()
            LOGGER.error("%s died (%s); starting it again in %.1f s", self.title, reason, delay)
            await asyncio.sleep(delay)
            await self.start()

    async def stop(self, seconds: float) -> None:
        """Asks the service to end, and kills it when it has not after `seconds`."""
        self.terminate()
        try:
            await asyncio.wait_for(self.wait(), seconds)
        except TimeoutError:
            LOGGER.error("%s did not stop within %.0f s and is killed", self.title, seconds)
            self.kill()
            await self.wait()

    def release(self) -> None:
        """The service has started: from now on its errors are passed on at once."""
        self._starting = False
        self._flush()

    def _exit_reason(self, code: int | None) -> str:
        """What a process says that has ended with `code`."""
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        text = _LOG_PREFIX.sub("", self._last_line.decode(errors="replace")).strip()
        return text or f"exit code {code}"

    async def _forward(self, read: Callable[[], Awaitable[bytes]]) -> None:
        """Passes on whole lines until `read` gives nothing; those of several do not mix."""
        rest = b""
        while chunk := await read():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._pass_on(line)
        if rest:
            self._pass_on(rest)

    def _pass_on(self, line: bytes) -> None:
        self._flush()
        if line.strip():
            self._last_line = line
        # The error that ends a start is told once, by the supervisor.
        if self._starting and _ERROR.search(line):
            self._held = line
        else:
            self._write(line)

    def _flush(self) -> None:
        line, self._held = self._held, None
        if line is not None:
            self._write(line)

    def _write(self, line: bytes) -> None:
        prefix = b"" if self.name == self.service else f"{self.name} | ".encode()
        sys.stderr.buffer.write(prefix + line + b"\n")
        sys.stderr.buffer.flush()
