"""Sandbox: a pool of child processes with limits on CPU time and memory.

They run code of a checkpoint (chat templates, tokenizers) and parse large request bodies, which may
need any amount of time or memory. `child_loop` is the other side. A process that exceeds a limit
ends; the pool starts another one.
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

# The process limits its own CPU time; this limit is for a machine that gives it none.
WALL_SECONDS = 15.0
_MAX_PROCESSES = 4
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "TZ")  # without secrets


class ProcessLostError(Exception):
    """A child process did not answer in time or has ended, usually because of a limit.

    The message is the error of a process that could not start, and empty otherwise.

    Attributes:
        was_killed: SIGKILL ended it, for example when the machine has no memory left, not a limit.
    """

    def __init__(self, message: str = "", *, was_killed: bool = False) -> None:
        super().__init__(message)
        self.was_killed = was_killed


class ProcessPool:
    """Child processes that run one module, started on demand. Methods block: use a thread.

    Args:
        module: the module of each process; its main calls `child_loop.serve` or `serve_json`.
        first_request: sent to each new process before any other request; None: not needed.
        environment: variables of each process, besides the allowed ones of this process.
        max_kept_bytes: a process that holds more memory after an answer is not used again; None:
            no limit.
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
        """The answer of one process to a JSON object; raises like `exchange`."""
        return _parsed(self.exchange(_serialised(request), wall_seconds))

    def exchange(self, frames: Sequence[bytes | bytearray], wall_seconds: float) -> list[bytes]:
        """The answer of one process to a message.

        Raises:
            ProcessLostError: the process did not answer within `wall_seconds`, or has ended.
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
        """Ends the processes; a busy process ends after its answer."""
        with self._lock:
            self._closed = True
            for process in self._idle:
                process.kill()
            self._idle.clear()

    def _running(self) -> "_LimitedProcess | None":
        """An idle process that still runs, or None."""
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
                # -P: do not import from the working directory.
                [sys.executable, "-P", "-m", module],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=inherited | environment,
            )

    def exchange(self, frames: Sequence[bytes | bytearray], wall_seconds: float) -> list[bytes]:
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
        """Resident memory of the process; 0 if it has ended."""
        try:
            num_pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        except OSError:
            return 0
        return int(num_pages) * resource.getpagesize()

    def kill(self) -> int:
        """Kills the process and returns its return code, its own one if it had ended before."""
        self._connection.close()
        self._process.kill()
        return self._process.wait()


def _serialised(request: dict[str, Any]) -> list[bytes]:
    return [json.dumps(request).encode()]


def _parsed(frames: Sequence[bytes]) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(frames[0])
    return message
