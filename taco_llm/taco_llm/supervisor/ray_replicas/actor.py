"""What runs inside a Ray cluster: an actor that has one service as its child.

The service is the same process as anywhere else: Ray finds it a place, and is not in it. The actor
is given a command line and gives bytes and numbers, so that nothing of ours is ever pickled.
"""

import asyncio
import os
import socket

from taco_llm.supervisor.child_message import encode_command
from taco_llm.supervisor.child_process import READ_BYTES, start_child


class ServiceActor:
    """One life of a service. When the actor ends, however it ends, so does the service."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, argv: list[str]) -> str:
        """Starts `taco_llm ARGV`; returns the name of the host.

        It is a coroutine like all methods, so that the child's parent is the thread of the event
        loop, which lives as long as the actor: a child dies with the thread that started it.
        """
        self._process = await start_child(argv[0], encode_command(argv, os.getpid()))
        return socket.gethostname()

    async def read(self) -> bytes:
        """What it has written to standard error since the last call; empty when it has ended."""
        assert self._process is not None
        assert self._process.stderr is not None
        return await self._process.stderr.read(READ_BYTES)

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        assert self._process is not None
        return await self._process.wait()

    async def terminate(self) -> None:
        """Asks it to end."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
