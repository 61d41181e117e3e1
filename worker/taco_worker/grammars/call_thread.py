"""A thread that runs calls in order and returns their results."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class CallThread:
    """The thread starts with the first call. It is a daemon: it never delays the process's end."""

    def __init__(self, name: str, *, niceness: int = 0) -> None:
        """
        Args:
            niceness: added to the process's; on Linux a positive one leaves busy cores to others.
        """
        self._name = name
        self._niceness = niceness
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._last: Future[Any] | None = None

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Queue a call. Call it from one thread only."""
        if self._last is None:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        future: Future[T] = Future()
        self._last = future
        self._calls.put((future, call))
        return future

    def join(self) -> None:
        """Return once no call runs or waits. For the thread that submits."""
        if self._last is not None and not self._last.done():
            wait([self._last])

    def _run(self) -> None:
        if self._niceness and sys.platform == "linux":  # elsewhere an id names a process
            thread_id = threading.get_native_id()
            with suppress(OSError):  # a container may not allow it: the thread works all the same
                usual = os.getpriority(os.PRIO_PROCESS, thread_id)
                os.setpriority(os.PRIO_PROCESS, thread_id, usual + self._niceness)
        while True:
            future, call = self._calls.get()
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
