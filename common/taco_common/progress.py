"""Progress of a download or a load: a bar on a terminal, otherwise a log line every 10 s."""

import logging
import sys
import time
from types import TracebackType
from typing import Any, Self

from taco_common.logging import PROGRESS, event, is_supervised, logs_json

# Seconds until the first log line, and between log lines.
LINE_SECONDS = 10.0
# Seconds between reports to a supervisor.
_EVENT_SECONDS = 0.2

logger = logging.getLogger("taco.progress")


class ProgressDisplay:
    """Shows the progress of one task, as a bar or as log lines.

    Args:
        what: name of the task, such as "loading weights".
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._next_line = time.monotonic() + LINE_SECONDS
        self._has_bar = sys.stderr.isatty() and not logs_json()
        self._bar: Any = None

    def show(self, done: int, total: int) -> None:
        """Shows that `done` of `total` bytes are done; the total may grow."""
        if self._has_bar:
            self._show_bar(done, total)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_SECONDS
            share = 100 * done // total if total else 100
            logger.info("%s: %d%% of %.1f GB", self._what, share, total / 1e9)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            sys.stderr.write("\r")  # tqdm does so only after the bar of the first row

    def _show_bar(self, done: int, total: int) -> None:
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=self._what, unit="B", unit_scale=True, leave=False)
        self._bar.total = total
        self._bar.update(done - self._bar.n)


class Progress:
    """Progress of a task in this process, as a context manager; a supervisor shows it if there is
    one.

    Args:
        what: see `ProgressDisplay`.
        total: bytes in all; 0: unknown until `update`.
    """

    def __init__(self, what: str, total: int = 0) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._next_event = 0.0
        self._display = None if is_supervised() else ProgressDisplay(what)

    def advance(self, num_bytes: int) -> None:
        """Adds `num_bytes` to the finished bytes."""
        self.update(self._done + num_bytes, self._total)

    def update(self, done: int, total: int) -> None:
        """Sets the finished and total bytes; the total may grow."""
        self._done, self._total = done, total
        if self._display is not None:
            self._display.show(done, total)
        elif time.monotonic() >= self._next_event:
            self._next_event = time.monotonic() + _EVENT_SECONDS
            self._tell(finished=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._display is not None:
            self._display.close()
        elif self._total:  # else there was no work
            self._tell(finished=True)

    def _tell(self, *, finished: bool) -> None:
        data = {
            "what": self._what,
            "done": self._done,
            "total": self._total,
            "finished": finished,
        }
        logger.info("%s", self._what, extra=event(PROGRESS, data))
