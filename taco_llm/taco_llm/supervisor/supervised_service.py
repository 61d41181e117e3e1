"""A service that the supervisor keeps running, wherever it runs."""

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
# A service that ran so long had started well; its next death is not one more failure of its start.
STABLE_SECONDS = 60.0
# An error that ends a start is its last line, and is told by the supervisor; a start that goes on
# after so long, such as one that waits for a license, is one whose error is to be seen.
HELD_SECONDS = 3.0

_ERRORS = ("ERROR", "CRITICAL")
_ROUTINE = ("DEBUG", "INFO")

LOGGER = logging.getLogger("taco.supervisor")


class SupervisedService(ABC):
    """Starts a service again when it has died, stops it, and passes on what it logs.

    The service logs JSON. Its lines are written in the format of `log`; while it starts and stops
    only warnings and events are, unless the level of `log` is debug.

    Attributes:
        service: which of the services it is.
        name: what tells it from others of its kind; the service itself where there is one only.
        is_stopping: it is about to be stopped, whose routine lines are of no interest.
        loaded: what a worker said of itself once it had loaded its model; empty before.
    """

    def __init__(self, service: str, name: str | None = None, log: LogConfig | None = None) -> None:
        self.service = service
        self.name = name or service
        self.loaded: Mapping[str, Any] = {}
        self._log = log or LogConfig()
        self._starting = True
        self.is_stopping = False
        self._held: Entry | None = None
        self._let_go: asyncio.TimerHandle | None = None
        self._begun_at: float | None = None
        self._last_message = ""
        self._num_failures = 0
        self._progress: dict[str, ProgressDisplay] = {}

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
        what = await self._end_of_life()
        while True:
            delay = min(MIN_DELAY_SECONDS * 2**self._num_failures, MAX_DELAY_SECONDS)
            self._num_failures += 1
            LOGGER.error("%s %s; starting it again in %.1f s", self.title, what, delay)
            await asyncio.sleep(delay)
            try:
                await self.start()
            except Exception as error:  # no process is to be had, say: that may pass
                what = f"cannot be started ({error})"
            else:
                what = await self._end_of_life()

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

    def _note_begin(self) -> None:
        """The service runs from now on: the time it waited for a place is no part of its life."""
        self._begun_at = time.monotonic()

    async def _end_of_life(self) -> str:
        await self.wait()
        begun_at, self._begun_at = self._begun_at, None
        if begun_at is not None and time.monotonic() - begun_at > STABLE_SECONDS:
            self._num_failures = 0
        return f"died ({self.last_words()})"

    def _exit_reason(self, code: int | None) -> str:
        """What a process says that has ended with `code`."""
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return self._last_message.strip() or f"exit code {code}"

    async def _forward(self, read: Callable[[], Awaitable[bytes]]) -> None:
        """Passes on whole lines until `read` gives nothing; those of several do not mix."""
        rest = b""
        while chunk := await read():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._pass_on(line)
        if rest:
            self._pass_on(rest)
        while self._progress:  # it died in the middle
            self._progress.popitem()[1].close()
        if self._let_go is not None:  # a line that is held was the last one
            self._let_go.cancel()

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
        # The error that ends a start is told once, by the supervisor.
        if self._starting and entry["level"] in _ERRORS:
            self._held = entry
            self._let_go = asyncio.get_running_loop().call_later(HELD_SECONDS, self._flush)
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
        if self._let_go is not None:
            self._let_go.cancel()
        entry, self._held = self._held, None
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
