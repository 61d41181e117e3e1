"""Child processes with limits that run what a checkpoint brings: its template, its tokenizer.

Each exchanges messages with this process over a socket: 4 bytes of length, then JSON. The other
side is `limited_loop`. A process that exceeds a limit ends; the pool starts another one.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from typing import Any

# The process limits its own processor time; this is for a machine so busy that it gets none.
WALL_SECONDS = 15.0
_MAX_PROCESSES = 4
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "TZ")  # no secrets


class ProcessLostError(Exception):
    """A process gave no answer in time, or ended: it has run into one of its limits."""


class ProcessPool:
    """Processes that run one module, started as they are needed. Methods block: use a thread.

    Args:
        module: what each process runs; its main calls `limited_loop.serve`.
        first_request: sent to each new process before any other request; None: nothing is.
        environment: variables that each process has beside those of this process that are allowed.
    """

    def __init__(
        self,
        module: str,
        *,
        first_request: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        max_processes: int = _MAX_PROCESSES,
    ) -> None:
        self._module = module
        self._first_request = first_request
        self._environment = environment or {}
        self._idle: list[_LimitedProcess] = []
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(max_processes)

    def ask(self, request: dict[str, Any], wall_seconds: float = WALL_SECONDS) -> dict[str, Any]:
        """The answer of one process, which takes one request at a time.

        Raises:
            ProcessLostError: it has not answered within `wall_seconds`, or has ended.
        """
        with self._slots:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            process = process or self._start()
            reply = self._exchange(process, request, wall_seconds)
            with self._lock:
                self._idle.append(process)
        return reply

    def close(self) -> None:
        with self._lock:
            for process in self._idle:
                process.kill()
            self._idle.clear()

    def _start(self) -> "_LimitedProcess":
        process = _LimitedProcess(self._module, self._environment)
        if self._first_request is not None:
            self._exchange(process, self._first_request, WALL_SECONDS * 4)
        return process

    def _exchange(
        self, process: "_LimitedProcess", request: dict[str, Any], wall_seconds: float
    ) -> dict[str, Any]:
        try:
            return process.exchange(json.dumps(request).encode(), wall_seconds)
        except (OSError, EOFError):
            process.kill()
            raise ProcessLostError from None


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

    def exchange(self, request: bytes, wall_seconds: float) -> dict[str, Any]:
        """Raises:
        OSError, EOFError: the process does not answer in time, or is gone.
        """
        deadline = time.monotonic() + wall_seconds
        self._connection.settimeout(wall_seconds)
        self._connection.sendall(len(request).to_bytes(4, "big") + request)
        size = int.from_bytes(self._receive(4, deadline), "big")
        reply: dict[str, Any] = json.loads(self._receive(size, deadline))
        return reply

    def kill(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def _receive(self, num_bytes: int, deadline: float) -> bytearray:
        data = bytearray()
        while len(data) < num_bytes:
            self._connection.settimeout(max(deadline - time.monotonic(), 1e-3))
            chunk = self._connection.recv(min(num_bytes - len(data), 2**20))
            if not chunk:
                raise EOFError
            data += chunk
        return data
