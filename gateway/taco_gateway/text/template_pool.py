"""Processes that render chat templates, started as they are needed and replaced when they are
lost.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taco_proto.errors import InvalidParameterError

_PROGRAM = Path(__file__).with_name("template_process.py")
# The process limits its own processor time; this is for a machine so busy that it gets none.
_WALL_SECONDS = 15.0
_MAX_PROCESSES = 4
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "TZ")  # no secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateNeeds:
    """What a template says of itself before it runs.

    Attributes:
        reads_parts: it walks through a message's content part by part.
        reads_strings: it takes content that is a string.
        variables: names that it reads and that are given neither by it nor by the sandbox.
    """

    reads_parts: bool
    reads_strings: bool
    variables: frozenset[str]


class TemplatePool:
    """Renders templates in processes beside this one. `render` blocks: call it from a thread."""

    def __init__(self) -> None:
        self._idle: list[_TemplateProcess] = []
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(_MAX_PROCESSES)

    def look(self, template: str) -> TemplateNeeds:
        """Raises:
        InvalidParameterError: the source is no Jinja template.
        """
        reply = self._ask({"template": template})
        if "error" in reply:
            message = f"This is no chat template: {reply['error']}"
            raise InvalidParameterError(message, "chat_template")
        return TemplateNeeds(
            reads_parts=reply["reads_parts"],
            reads_strings=reply["reads_strings"],
            variables=frozenset(reply["variables"]),
        )

    def render(self, template: str, variables: dict[str, Any]) -> str:
        """Raises:
        InvalidParameterError: the template fails, or runs into a limit.
        """
        reply = self._ask({"template": template, "variables": variables})
        if "error" in reply:
            message = f"The chat template fails on these messages: {reply['error']}"
            raise InvalidParameterError(message, "messages", reply.get("code"))
        return reply["text"]

    def close(self) -> None:
        with self._lock:
            for process in self._idle:
                process.kill()
            self._idle.clear()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(request).encode()
        with self._slots:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            process = process or _TemplateProcess()
            try:
                reply = process.exchange(data)
            except (OSError, EOFError):
                process.kill()
                return {"error": "it takes too long"}
            with self._lock:
                self._idle.append(process)
        return reply


class _TemplateProcess:
    def __init__(self) -> None:
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                # -P: the modules beside the program are not for it.
                [sys.executable, "-P", str(_PROGRAM)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            )

    def exchange(self, request: bytes) -> dict[str, Any]:
        """Raises:
        OSError, EOFError: the process does not answer in time, or is gone.
        """
        deadline = time.monotonic() + _WALL_SECONDS
        self._connection.settimeout(_WALL_SECONDS)
        self._connection.sendall(len(request).to_bytes(4, "big") + request)
        size = int.from_bytes(self._receive(4, deadline), "big")
        return json.loads(self._receive(size, deadline))

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
