"""A service in a process of its own, as the supervisor sees it."""

import asyncio
import logging
import os
import re
import signal
import sys
import time
from contextlib import suppress

from taco_llm.child import ServiceConfig, encode_config

READ_BYTES = 1 << 16
MIN_DELAY_SECONDS = 0.2
MAX_DELAY_SECONDS = 30.0
# A child that ran so long had started well; its next death is not another failure of the same kind.
STABLE_SECONDS = 60.0

_ERROR = re.compile(rb" (ERROR|CRITICAL) \[| error: ")
_LOG_PREFIX = re.compile(r"^[\d:]+ [A-Z]+ \[[\w.]+\] |^taco_llm \w+: error: ")

LOGGER = logging.getLogger("taco.supervisor")


class ChildProcess:
    """Starts, restarts and stops one service; passes on what it writes to standard error.

    It runs in a session of its own, so that Ctrl-C reaches the supervisor alone, which then stops
    its children in order. It dies with the supervisor all the same (see `child.die_with_parent`).
    """

    def __init__(self, service: str, config: ServiceConfig) -> None:
        self.service = service
        self._config = config
        self._process: asyncio.subprocess.Process | None = None
        self._forwarder: asyncio.Task[None] | None = None
        self._starting = True
        self._held: bytes | None = None
        self._last_line = b""
        self._started_at = 0.0
        self._num_failures = 0

    async def start(self) -> None:
        self._started_at = time.monotonic()
        # -P: a folder or a file of the working directory must not stand in for a package.
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "taco_llm.child",
            self.service,
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._process = process
        assert process.stdin is not None
        assert process.stderr is not None
        self._forwarder = asyncio.create_task(self._forward(process.stderr))
        with suppress(ConnectionError):  # it is dead already, which wait() will tell
            process.stdin.write(encode_config(self._config, os.getpid()))
            await process.stdin.drain()
        process.stdin.close()

    async def wait(self) -> int:
        """Waits until the process has ended and its output is passed on; gives its exit code."""
        assert self._process is not None
        assert self._forwarder is not None
        code = await self._process.wait()
        await asyncio.shield(self._forwarder)
        return code

    def last_words(self) -> str:
        """Why it died, as far as it said."""
        assert self._process is not None
        code = self._process.returncode
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        text = _LOG_PREFIX.sub("", self._last_line.decode(errors="replace")).strip()
        return text or f"exit code {code}"

    async def keep_running(self) -> None:
        """Starts the service again whenever it dies; the delay doubles while it keeps dying."""
        while True:
            await self.wait()
            if time.monotonic() - self._started_at > STABLE_SECONDS:
                self._num_failures = 0
            delay = min(MIN_DELAY_SECONDS * 2**self._num_failures, MAX_DELAY_SECONDS)
            self._num_failures += 1
            LOGGER.error(
                "the %s died (%s); starting it again in %.1f s",
                self.service,
                self.last_words(),
                delay,
            )
            await asyncio.sleep(delay)
            await self.start()

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    def hang_up(self) -> None:
        """Tells the service to read its files again."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGHUP)

    async def stop(self, seconds: float) -> None:
        """Asks the service to end, and kills it when it has not after `seconds`."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self.wait(), seconds)
        except TimeoutError:
            LOGGER.error("the %s did not stop within %.0f s and is killed", self.service, seconds)
            self.kill()
            await self.wait()

    def release(self) -> None:
        """The service has started: from now on its errors are passed on at once."""
        self._starting = False
        self._flush()

    async def _forward(self, stream: asyncio.StreamReader) -> None:
        """Passes on whole lines, so that those of several children do not mix."""
        rest = b""
        while chunk := await stream.read(READ_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._pass_on(line)
        if rest:
            self._pass_on(rest)

    def _pass_on(self, line: bytes) -> None:
        self._flush()
        if line.strip():
            self._last_line = line
        # The error that ends a start is told once, by the supervisor.
        if self._starting and _ERROR.search(line):
            self._held = line
        else:
            _write(line)

    def _flush(self) -> None:
        line, self._held = self._held, None
        if line is not None:
            _write(line)


def _write(line: bytes) -> None:
    sys.stderr.buffer.write(line + b"\n")
    sys.stderr.buffer.flush()
