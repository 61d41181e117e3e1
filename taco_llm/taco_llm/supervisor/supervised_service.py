"""Base class of supervised services: restarts with back-off, stop timeout, log forwarding."""

import asyncio
import logging
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from taco_common.logging import (
    MODEL_LOADED,
    PROGRESS,
    REQUEST,
    TEXT,
    Entry,
    LogConfig,
    parse_entry,
    render,
    write_line,
)
from taco_common.progress import ProgressDisplay

MIN_DELAY_SECONDS = 0.2
MAX_DELAY_SECONDS = 30.0
# After running this long, the back-off starts again from the minimum at the next exit.
STABLE_SECONDS = 60.0
# During the start an error line is held back this long: if the service exits, the supervisor
# reports the error itself; if the service continues (for example, it waits for a license), the
# line is logged.
ERROR_HOLD_SECONDS = 3.0

_ERRORS = ("ERROR", "CRITICAL")
_ROUTINE = ("DEBUG", "INFO")

LOGGER = logging.getLogger("taco.supervisor")


class SupervisedService(ABC):
    """A service that the supervisor restarts when it dies, stops, and whose log it forwards.

    The service logs JSON. The supervisor writes its lines in the format of `log`. While the service
    starts or stops, only warnings and request lines are written, unless the level is debug.

    Attributes:
        service: the kind of service.
        name: distinguishes services of one kind; equals `service` for a single one.
        is_stopping: whether the supervisor is stopping the service.
        loaded: the data of a worker's `MODEL_LOADED` event; empty before it.
    """

    def __init__(self, service: str, name: str | None = None, log: LogConfig | None = None) -> None:
        self.service = service
        self.name = name or service
        self.loaded: Mapping[str, Any] = {}
        self._log = log or LogConfig()
        self._starting = True
        self.is_stopping = False
        self._held_error: Entry | None = None
        self._hold_timer: asyncio.TimerHandle | None = None
        self._running_since: float | None = None
        self._last_message = ""
        self._num_failures = 0
        self._progress: dict[str, ProgressDisplay] = {}

    @abstractmethod
    async def start(self) -> None:
        """Starts the service."""

    @abstractmethod
    async def wait(self) -> None:
        """Waits until the service has ended and its log is forwarded."""

    @abstractmethod
    def terminate(self) -> None:
        """Asks the service to end. Does nothing if it does not run."""

    @abstractmethod
    def kill(self) -> None:
        """Kills the service. Does nothing if it does not run."""

    @abstractmethod
    def exit_reason(self) -> str:
        """Why the service has ended, if known."""

    @property
    def title(self) -> str:
        """The name of the service for messages."""
        return f"the {self.service}" if self.name == self.service else self.name

    async def keep_running(self) -> None:
        """Restarts the service whenever it dies, with exponential back-off."""
        what = await self._wait_for_exit()
        while True:
            delay = min(MIN_DELAY_SECONDS * 2**self._num_failures, MAX_DELAY_SECONDS)
            self._num_failures += 1
            LOGGER.error("%s %s; starting it again in %.1f s", self.title, what, delay)
            await asyncio.sleep(delay)
            try:
                await self.start()
            except Exception as error:  # may be temporary, such as too many processes
                what = f"cannot be started ({error})"
            else:
                what = await self._wait_for_exit()

    async def stop(self, seconds: float) -> None:
        """Asks the service to end, and kills it after `seconds`."""
        self.terminate()
        try:
            await asyncio.wait_for(self.wait(), seconds)
        except TimeoutError:
            LOGGER.error("%s did not stop within %.0f s; killing it", self.title, seconds)
            self.kill()
            await self.wait()

    def mark_started(self) -> None:
        """Notes that the service has started. Its errors are logged at once from now on."""
        self._starting = False
        self._flush()

    def _mark_running(self) -> None:
        """Notes that the service runs. Time spent waiting for a node does not count."""
        self._running_since = time.monotonic()

    async def _wait_for_exit(self) -> str:
        await self.wait()
        running_since, self._running_since = self._running_since, None
        if running_since is not None and time.monotonic() - running_since > STABLE_SECONDS:
            self._num_failures = 0
        return f"died ({self.exit_reason()})"

    def _describe_exit(self, code: int | None) -> str:
        """Describes the exit of a process: its last log message, a signal or the exit code."""
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return self._last_message.strip() or f"exit code {code}"

    async def _forward(self, read: Callable[[], Awaitable[bytes]]) -> None:
        """Forwards whole log lines until `read` returns nothing."""
        rest = b""
        while chunk := await read():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._pass_on(line)
        if rest:
            self._pass_on(rest)
        while self._progress:  # the service died while it showed progress
            self._progress.popitem()[1].close()
        if self._hold_timer is not None:  # the last line was held back
            self._hold_timer.cancel()

    def _pass_on(self, line: bytes) -> None:
        self._flush()
        if not line.strip():
            return
        entry = parse_entry(line, self.name)
        entry["service"] = self.name
        if entry.get("event") == PROGRESS:
            self._show_progress(entry["data"])
            return
        self._last_message = entry["message"]
        # The supervisor reports the error that ends a start.
        if self._starting and entry["level"] in _ERRORS:
            self._held_error = entry
            self._hold_timer = asyncio.get_running_loop().call_later(
                ERROR_HOLD_SECONDS, self._flush
            )
            return
        if entry.get("event") == MODEL_LOADED:
            self.loaded = entry["data"]
        self._write(entry)

    def _show_progress(self, data: Mapping[str, Any]) -> None:
        what = data["what"]
        if what not in self._progress:
            label = what if self.name == self.service else f"{self.name}: {what}"
            self._progress[what] = ProgressDisplay(label)
        self._progress[what].show(data["done"], data["total"])
        if data["finished"]:
            self._progress.pop(what).close()

    def _flush(self) -> None:
        if self._hold_timer is not None:
            self._hold_timer.cancel()
        entry, self._held_error = self._held_error, None
        if entry is not None:
            self._write(entry)

    def _write(self, entry: Entry) -> None:
        is_routine = entry["level"] in _ROUTINE and entry.get("event") != REQUEST
        is_quiet = self._log.level != "debug" and (self._starting or self.is_stopping)
        if is_routine and is_quiet:
            return
        prefix = ""
        if self._log.format == TEXT and self.name != self.service:
            prefix = f"{self.name} | "
        write_line(prefix + render(entry, self._log.format))
