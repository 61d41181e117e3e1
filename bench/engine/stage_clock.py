"""Times the stages of a step: CPU time of methods, without the stages that they call.

Measuring costs about a microsecond a call, which counts for the calling stage.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any


class StageClock:
    """Adds up the CPU time of stages, in nanoseconds. Any thread may run them."""

    def __init__(self) -> None:
        self.nanoseconds: Counter[str] = Counter()
        self._local = threading.local()

    def watch(self, owner: Any, name: str, stage: str) -> None:
        """Replaces the function `name` of a class or module by one that counts as `stage`."""
        function = getattr(owner, name)
        setattr(owner, name, self.wrap(function, stage))

    def wrap(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            inner_before = getattr(self._local, "inner", 0)
            self._local.inner = 0
            begun = time.thread_time_ns()
            try:
                return function(*args, **kwargs)
            finally:
                whole = time.thread_time_ns() - begun
                self.nanoseconds[stage] += whole - self._local.inner
                self._local.inner = inner_before + whole

        return timed
