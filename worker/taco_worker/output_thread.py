"""A thread that waits for steps, so that the one that launches them need not."""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

logger = logging.getLogger("taco.worker")


class OutputThread:
    """Runs what it is given, in order. It ends with the process."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._run, name="collector", daemon=True).start()

    def put(self, call: Callable[[], None]) -> None:
        self._calls.put(call)

    def join(self) -> None:
        """Wait until all that was put before has run."""
        reached = threading.Event()
        self._calls.put(reached.set)
        reached.wait()

    def _run(self) -> None:
        while True:
            call = self._calls.get()
            try:
                call()
            except Exception:
                logger.exception("an output was not delivered")
