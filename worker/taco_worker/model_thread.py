"""The one thread that loads and runs the model, with its queue of jobs."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

logger = logging.getLogger("taco.worker")


class ModelThread:
    """Runs calls in order. The thread is a daemon: it never delays the end of the process.

    Attributes:
        is_busy: whether a call is running.
        when_idle: called repeatedly while the queue is empty, until it returns False.
    """

    def __init__(self) -> None:
        self.is_busy = False
        self.when_idle: Callable[[], bool] = lambda: False
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        threading.Thread(target=self._run, name="model", daemon=True).start()

    @property
    def num_waiting(self) -> int:
        """Length of the queue."""
        return self._calls.qsize()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Queue a call. Its future can be cancelled until the call starts."""
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
            logger.exception("idle-time preparation failed; it will not be tried again")
            self.when_idle = lambda: False
            return False
        finally:
            self.is_busy = False
