"""The one thread in which a model is loaded and runs."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class ModelThread:
    """Runs what it is given, in order. It ends with the process, whatever it is doing.

    Attributes:
        is_busy: whether it is running something now.
    """

    def __init__(self) -> None:
        self.is_busy = False
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        threading.Thread(target=self._run, name="model", daemon=True).start()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """The future can be cancelled until its turn comes."""
        future: Future[T] = Future()
        self._calls.put((future, call))
        return future

    def _run(self) -> None:
        while True:
            future, call = self._calls.get()
            if not future.set_running_or_notify_cancel():
                continue
            self.is_busy = True
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
            self.is_busy = False
