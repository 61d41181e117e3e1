"""What runs in an actor: the methods that the driver calls."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# A function or a class, its arguments and keywords.
Call = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]


class Worker:
    """A rank's process."""

    def __init__(self) -> None:
        self._executable: Any = None

    def set_variables(self, variables: Mapping[str, str]) -> None:
        """Sets environment variables; called before `hvd.init`."""
        os.environ.update(variables)

    def make_executable(self, call: Call) -> None:
        """Makes the object that `execute` passes on."""
        kind, args, kwargs = call
        self._executable = kind(*args, **kwargs)

    def execute(self, call: Call) -> Any:
        """Calls a function with the executable, which comes before the other arguments."""
        function, args, kwargs = call
        return self.run((function, [self._executable, *args], kwargs))

    def run(self, call: Call) -> Any:
        """Calls a function with arguments and keywords.

        When it raises, this rank leaves the job, so that no other rank waits for it.
        """
        function, args, kwargs = call
        try:
            return function(*args, **kwargs)
        except Exception:
            horovod = sys.modules.get("taco_train.lightcc.horovod.basics")
            if horovod is not None:
                horovod.shutdown()
            raise

    def train(self, call: Call) -> Any:
        """Calls a function of an elastic job, which may end the process where it must leave."""
        try:
            return self.run(call)
        except SystemExit as error:
            if error.code not in (0, None):
                raise RuntimeError(f"exit code {error.code}") from None
            return None
