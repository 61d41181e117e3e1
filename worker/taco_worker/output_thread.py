"""A thread that waits for launched steps, so that the model's thread can launch the next one."""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

logger = logging.getLogger("taco.worker")


class OutputThread:
    """Runs calls in order, until the process ends."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._run, name="collector", daemon=True).start()

    def put(self, call: Callable[[], None]) -> None:
        self._calls.put(call)

    def join(self) -> None:
        """Wait until all earlier calls have run."""
        reached = threading.Event()
        self._calls.put(reached.set)
        reached.wait()

    def _run(self) -> None:
        while True:
            call = self._calls.get()
            try:
                call()
            except Exception:
                logger.exception("delivering a step's output failed")
