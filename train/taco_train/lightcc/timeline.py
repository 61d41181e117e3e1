"""A trace of every collective in Chrome's format (chrome://tracing, https://ui.perfetto.dev)."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

logger = logging.getLogger(__name__)


class Timeline:
    """Writes events while it is started; a file that was not stopped can be read too.

    Where the file cannot be written any more, a disk is full for instance, the timeline logs it and
    stops: training continues.

    Args:
        rank: becomes the process number of the events.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._lock = threading.Lock()
        self._file: IO[str] | None = None
        self._marks_cycles = False
        self._threads: dict[str, int] = {}

    def start(self, path: str, *, marks_cycles: bool = False) -> None:
        """Begin a file.

        Raises:
            OSError: it cannot be written.
            ValueError: the timeline is started.
        """
        with self._lock:
            if self._file is not None:
                raise ValueError("the timeline is started; stop it first")
            self._file = Path(path).open("w")  # noqa: SIM115 - closed by stop
            self._file.write("[\n")
            self._marks_cycles = marks_cycles
            self._threads.clear()

    def stop(self) -> None:
        """Complete the file, if the timeline is started."""
        with self._lock:
            if self._file is None:
                return
            try:
                self._file.write("{}]\n")
                self._file.close()
            except OSError as error:
                self._give_up(error)
            self._file = None

    def begin_wait(self, name: str) -> None:
        """A tensor was submitted, and waits for the other ranks."""
        self._event("B", name, "NEGOTIATE")

    def end_wait(self, name: str) -> None:
        """All ranks have submitted it."""
        self._event("E", name, "NEGOTIATE")

    def mark_cycle(self) -> None:
        """A message of the coordinator came."""
        if self._marks_cycles:
            self._event("i", "cycles", "CYCLE")

    @contextmanager
    def span(self, names: list[str], what: str) -> Iterator[None]:
        """Something is done with these tensors."""
        for name in names:
            self._event("B", name, what)
        try:
            yield
        finally:
            for name in names:
                self._event("E", name, what)

    def _event(self, phase: str, row: str, what: str) -> None:
        if self._file is None:
            return
        with self._lock:
            if self._file is None:
                return
            try:
                number = self._threads.get(row)
                if number is None:
                    number = self._threads[row] = len(self._threads)
                    self._write(ph="M", name="thread_name", tid=number, args={"name": row})
                self._write(ph=phase, name=what, tid=number, ts=time.monotonic_ns() / 1000)
            except OSError as error:
                self._give_up(error)

    def _write(self, **event: Any) -> None:
        assert self._file is not None
        self._file.write(json.dumps({"pid": self._rank, **event}) + ",\n")

    def _give_up(self, error: OSError) -> None:
        assert self._file is not None
        logger.warning("the timeline ends: %s cannot be written: %s", self._file.name, error)
        with suppress(OSError):
            self._file.close()
        self._file = None
