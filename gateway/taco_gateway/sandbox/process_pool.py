"""Child processes with limits, for what may need time or memory out of proportion: templates and
tokenizers of a checkpoint, large request bodies.

The other side is `limited_loop`. A process that exceeds a limit ends; the pool starts another one.
"""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from taco_gateway.sandbox.frames import receive, send

# The process limits its own processor time; this is for a machine so busy that it gets none.
WALL_SECONDS = 15.0
_MAX_PROCESSES = 4
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "TZ")  # no secrets


class ProcessLostError(Exception):
    """A process gave no answer in time, or ended: it has run into one of its limits.

    The message is what the process said when it could not start, and empty otherwise.

    Attributes:
        was_killed: it was ended by SIGKILL, as by a kernel without memory, and by no limit.
    """

    def __init__(self, message: str = "", *, was_killed: bool = False) -> None:
        super().__init__(message)
        self.was_killed = was_killed


class ProcessPool:
    """Processes that run one module, started as they are needed. Methods block: use a thread.

    Args:
        module: what each process runs; its main calls `limited_loop.serve` or `serve_json`.
        first_request: sent to each new process before any other request; None: nothing is.
        environment: variables that each process has beside those of this process that are allowed.
        max_kept_bytes: a process that holds more memory after an answer is not used again; None: it
            is, whatever it holds.
    """

    def __init__(
        self,
        module: str,
        *,
        first_request: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        max_processes: int = _MAX_PROCESSES,
        max_kept_bytes: int | None = None,
    ) -> None:
        self._module = module
        self._first_request = first_request
        self._environment = environment or {}
        self._max_kept_bytes = max_kept_bytes
        self._idle: list[_LimitedProcess] = []
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(max_processes)
        self._closed = False

    def ask(self, request: dict[str, Any], wall_seconds: float = WALL_SECONDS) -> dict[str, Any]:
        """The answer of one process to a JSON object; raises as `exchange`."""
        return _parsed(self.exchange(_serialised(request), wall_seconds))

    def exchange(self, frames: Sequence[bytes], wall_seconds: float) -> list[bytes]:
        """The answer of one process, which takes one message at a time.

        Raises:
            ProcessLostError: it has not answered within `wall_seconds`, or has ended.
        """
        with self._slots:
            process = self._running() or self._start()
            answer = process.exchange(frames, wall_seconds)
            with self._lock:
                if self._closed or self._is_too_large(process):
                    process.kill()
                else:
                    self._idle.append(process)
        return answer

    def close(self) -> None:
        """Ends the processes; those that are at work end after it."""
        with self._lock:
            self._closed = True
            for process in self._idle:
                process.kill()
            self._idle.clear()

    def _running(self) -> "_LimitedProcess | None":
        """An idle process; those that were killed meanwhile are dropped."""
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.is_running:
                    return process
                process.kill()
        return None

    def _start(self) -> "_LimitedProcess":
        process = _LimitedProcess(self._module, self._environment)
        if self._first_request is not None:
            first = process.exchange(_serialised(self._first_request), WALL_SECONDS * 4)
            if reason := _parsed(first).get("error"):
                process.kill()
                raise ProcessLostError(reason)
        return process

    def _is_too_large(self, process: "_LimitedProcess") -> bool:
        limit = self._max_kept_bytes
        return limit is not None and process.resident_bytes() > limit


class _LimitedProcess:
    def __init__(self, module: str, environment: dict[str, str]) -> None:
        self._connection, theirs = socket.socketpair()
        inherited = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        with theirs:
            self._process = subprocess.Popen(
                # -P: modules of the working directory are not for it.
                [sys.executable, "-P", "-m", module],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=inherited | environment,
            )

    def exchange(self, frames: Sequence[bytes], wall_seconds: float) -> list[bytes]:
        """Raises:
        ProcessLostError: the process does not answer in time, or is gone; it is killed.
        """
        deadline = time.monotonic() + wall_seconds
        try:
            self._connection.settimeout(wall_seconds)
            send(self._connection, frames)
            return receive(self._connection, deadline)
        except TimeoutError:
            self.kill()
            raise ProcessLostError from None
        except (OSError, EOFError):
            raise ProcessLostError(was_killed=self.kill() == -signal.SIGKILL) from None

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def resident_bytes(self) -> int:
        """Memory that it holds; 0 if it has ended."""
        try:
            num_pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        except OSError:
            return 0
        return int(num_pages) * resource.getpagesize()

    def kill(self) -> int:
        """Ends the process. The return code is the process's own if it had ended before."""
        self._connection.close()
        self._process.kill()
        return self._process.wait()


def _serialised(request: dict[str, Any]) -> list[bytes]:
    return [json.dumps(request).encode()]


def _parsed(frames: Sequence[bytes]) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(frames[0])
    return message
