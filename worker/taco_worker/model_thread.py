"""The one thread in which a model is loaded and runs."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

logger = logging.getLogger("taco.worker")


class ModelThread:
    """Runs what it is given, in order. It ends with the process, whatever it is doing.

    Attributes:
        is_busy: whether it is running something now.
        when_idle: called while there is nothing to run, until it says that it has done nothing.
    """

    def __init__(self) -> None:
        self.is_busy = False
        self.when_idle: Callable[[], bool] = lambda: False
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        threading.Thread(target=self._run, name="model", daemon=True).start()

    @property
    def num_waiting(self) -> int:
        """What has not begun yet."""
        return self._calls.qsize()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """The future can be cancelled until its turn comes."""
        future: Future[T] = Future()
        self._calls.put((future, call))
        return future

    def _run(self) -> None:
        while True:
            future, call = self._next()
            if not future.set_running_or_notify_cancel():
                continue
            self.is_busy = True
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
            self.is_busy = False

    def _next(self) -> tuple[Future[Any], Callable[[], Any]]:
        while True:
            try:
                return self._calls.get_nowait()
            except Empty:
                if not self._do_idle_work():
                    return self._calls.get()

    def _do_idle_work(self) -> bool:
        self.is_busy = True
        try:
            return self.when_idle()
        except Exception:
            logger.exception("what was to make later steps faster failed, and is given up")
            self.when_idle = lambda: False
            return False
        finally:
            self.is_busy = False
