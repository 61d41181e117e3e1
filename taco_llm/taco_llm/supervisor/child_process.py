"""A supervised service in a child process on this machine."""

import asyncio
import os
import signal
import sys
from contextlib import suppress

from taco_common.logging import LogConfig
from taco_llm.supervisor.child_message import ServiceConfig, encode_config
from taco_llm.supervisor.supervised_service import SupervisedService

READ_BYTES = 1 << 16


class ChildProcess(SupervisedService):
    """A child process. It dies with the supervisor, even if that is killed (see `cli.child`)."""

    def __init__(
        self,
        service: str,
        config: ServiceConfig,
        name: str | None = None,
        log: LogConfig | None = None,
    ) -> None:
        super().__init__(service, name, log)
        self._config = config
        self._process: asyncio.subprocess.Process | None = None
        self._forwarder: asyncio.Task[None] | None = None

    async def start(self) -> None:
        process = await start_child(
            self.service, encode_config(self._config, os.getpid(), self._log.level)
        )
        assert process.stderr is not None
        stderr = process.stderr
        self._process = process
        self._mark_running()
        self._forwarder = asyncio.create_task(self._forward(lambda: stderr.read(READ_BYTES)))

    async def wait(self) -> None:
        if self._process is None or self._forwarder is None:
            return
        await self._process.wait()
        await asyncio.shield(self._forwarder)

    def exit_reason(self) -> str:
        assert self._process is not None
        return self._describe_exit(self._process.returncode)

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def reload(self) -> None:
        """Makes the service reload its files (SIGHUP)."""
        self._send(signal.SIGHUP)

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


async def start_child(service: str, message: bytes) -> asyncio.subprocess.Process:
    """Starts a process of `taco_llm.cli.child` and sends it `message`. Its stderr is a pipe.

    The process runs in its own session, so that Ctrl-C reaches only the supervisor, which then
    stops its children in order.
    """
    # -P: files in the working directory must not shadow packages.
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "taco_llm.cli.child", service),
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    with suppress(ConnectionError):  # the process has died already; wait() reports it
        process.stdin.write(message)
        await process.stdin.drain()
    process.stdin.close()
    return process
