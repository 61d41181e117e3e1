"""The ranks that a launcher has started: their events, and their common end."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from taco_train.lightcc.launcher.guard import GRACE_SECONDS
from taco_train.lightcc.launcher.rank_process import Connection, RankProcess


class JobError(Exception):
    """The job has failed; the message has one line.

    Attributes:
        code: exit code of the launcher.
    """

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Started:
    """The host of a process runs it."""

    number: int


@dataclass(frozen=True)
class Ended:
    """A process has ended."""

    number: int
    code: int


@dataclass(frozen=True)
class Interrupted:
    """The launcher has got SIGINT or SIGTERM, or SIGPIPE: nothing reads its output any more."""

    number: signal.Signals


Event = Started | Ended | Interrupted


class RankGroup:
    """Processes, which have numbers in the order in which they were started.

    Args:
        command: the program of every process, and its arguments.
        output_folder: gets `rank.N/stdout` and `rank.N/stderr`; None: no copies.
    """

    def __init__(
        self, command: Sequence[str], connection: Connection, output_folder: Path | None
    ) -> None:
        self._command = command
        self._connection = connection
        self._output_folder = output_folder
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._processes: list[RankProcess] = []
        self.running: set[int] = set()
        self.started: set[int] = set()

    def start(self, host: str, variables: Mapping[str, str]) -> int:
        """Starts a process on a host, and returns its number."""
        number = len(self._processes)
        folder = None
        if self._output_folder is not None:
            folder = self._output_folder / f"rank.{number}"
        process = RankProcess(
            self._command,
            host,
            variables,
            str(number),
            connection=self._connection,
            folder=folder,
            on_started=lambda: self._events.put(Started(number)),
            on_end=lambda code: self._events.put(Ended(number, code)),
            on_closed=lambda: self._events.put(Interrupted(signal.SIGPIPE)),
        )
        self._processes.append(process)
        self.running.add(number)
        return number

    @property
    def num_started(self) -> int:
        """How many were started: the number of the next."""
        return len(self._processes)

    def host_of(self, number: int) -> str:
        return self._processes[number].host

    def next_event(self, seconds: float | None = None) -> Event | None:
        """The next event; None where no event comes within this time."""
        try:
            event = self._events.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(event, Started):
            self.started.add(event.number)
        elif isinstance(event, Ended):
            self.running.discard(event.number)
        return event

    def stop(self, number: int) -> None:
        """Ends one process; its Ended comes later."""
        self._processes[number].stop()

    def stop_all(self) -> None:
        """Ends all processes, and returns when they have ended."""
        for number in list(self.running):
            self._processes[number].stop()
        deadline = time.monotonic() + 2 * GRACE_SECONDS
        while self.running:
            seconds = deadline - time.monotonic()
            if seconds <= 0:  # a host does not answer any more
                for number in self.running:
                    self._processes[number].kill()
                break
            self.next_event(seconds)

    @contextmanager
    def until_interrupted(self) -> Iterator[None]:
        """Within the block, SIGINT and SIGTERM are events; at its end all processes end."""
        is_main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if is_main else ()
        previous = [signal.signal(number, self._on_signal) for number in numbers]
        try:
            yield
        finally:
            self.stop_all()
            for number, handler in zip(numbers, previous, strict=True):
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._events.put(Interrupted(signal.Signals(number)))


def describe_code(code: int) -> str:
    """An exit code for people: signals by name."""
    if code > 128:
        try:
            return f"exit code {code} ({signal.Signals(code - 128).name})"
        except ValueError:
            pass
    return f"exit code {code}"
