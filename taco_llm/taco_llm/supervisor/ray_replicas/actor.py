"""The Ray actor that runs one service as a child process on a node of the cluster.

The service is the same process as without Ray; Ray only chooses the node. The actor takes a command
line and returns bytes and numbers, so that Ray pickles none of TACO's classes.
"""

import asyncio
import os
import socket

from taco_llm.supervisor.child_message import encode_command
from taco_llm.supervisor.child_process import READ_BYTES, start_child


class ServiceActor:
    """Runs a service once. The service ends with the actor, even if that is killed."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, argv: list[str]) -> str:
        """Starts `taco_llm ARGV`; returns the host name of the node.

        All methods are coroutines, so that the event loop's thread starts the child. A child dies
        with the thread that started it, and this thread lives as long as the actor.
        """
        self._process = await start_child(argv[0], encode_command(argv, os.getpid()))
        return socket.gethostname()

    async def read(self) -> bytes:
        """The service's output on standard error since the last call; empty after its end."""
        assert self._process is not None
        assert self._process.stderr is not None
        return await self._process.stderr.read(READ_BYTES)

    async def wait(self) -> int:
        """Waits for the end of the service; returns its exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def terminate(self) -> None:
        """Asks the service to end."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
