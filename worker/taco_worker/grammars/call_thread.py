"""A thread that runs calls in order and returns their results."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class CallThread:
    """The thread starts with the first call. It is a daemon: it never delays the process's end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._has_started = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Queue a call. Call it from one thread only."""
        if not self._has_started:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
            self._has_started = True
        future: Future[T] = Future()
        self._calls.put((future, call))
        return future

    def _run(self) -> None:
        while True:
            future, call = self._calls.get()
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
