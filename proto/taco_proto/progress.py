"""Progress of a download or a load: a bar on a terminal, elsewhere a log line now and then."""

import logging
import sys
import time
from types import TracebackType
from typing import Any, Self

from taco_proto.logging import PROGRESS, event, is_supervised, logs_json

# Work that takes less is not logged; a line follows each time.
LINE_SECONDS = 10.0
# How often a supervisor is told.
_EVENT_SECONDS = 0.2

logger = logging.getLogger("taco.progress")


class ProgressDisplay:
    """Shows how far one piece of work is: see the module.

    Args:
        what: the work, such as "loading weights".
        total: bytes in all.
    """

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._next_line = time.monotonic() + LINE_SECONDS
        self._bar: Any = None
        if sys.stderr.isatty() and not logs_json():
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=what, unit="B", unit_scale=True, leave=False)

    def show(self, done: int) -> None:
        """`done` bytes of the total are done."""
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_SECONDS
            share = 100 * done // self._total if self._total else 100
            logger.info("%s: %d%% of %.1f GB", self._what, share, self._total / 1e9)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class Progress:
    """Progress of work in this process, as a context manager; a supervisor shows it where there is
    one.

    Args:
        what, total: as those of `ProgressDisplay`.
    """

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._next_event = 0.0
        self._display = None if is_supervised() else ProgressDisplay(what, total)

    def advance(self, num_bytes: int) -> None:
        """`num_bytes` more of the total are done."""
        self._done += num_bytes
        if self._display is not None:
            self._display.show(self._done)
        elif time.monotonic() >= self._next_event:
            self._next_event = time.monotonic() + _EVENT_SECONDS
            self._tell(self._done)

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
        else:
            self._tell(self._total)

    def _tell(self, done: int) -> None:
        data = {"what": self._what, "done": done, "total": self._total}
        logger.info("%s", self._what, extra=event(PROGRESS, data))
