"""`taco_llm serve` as a real process, for end-to-end tests."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from support.patience import PATIENCE_SECONDS, wait_until

# A service that hangs is killed, so that no stream keeps its reader waiting for ever. It may serve
# all tests of a module.
LIFETIME_SECONDS = 900.0


def free_port() -> int:
    """The kernel reserves it for a minute, and servers may bind it.

    A connection that its server has closed lingers there, as in Yelp's ephemeral-port-reserve.
    Tests run beside each other, so a port must not be merely free at the moment.
    """
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        with socket.create_connection(server.getsockname()) as client:
            server.accept()[0].close()
            client.recv(1)
        return int(server.getsockname()[1])


class Serving:
    """The command `taco_llm serve MODEL FLAGS`, with its output in files of `directory`."""

    def __init__(self, directory: Path, model: Path | str, *flags: str) -> None:
        self.port = free_port()
        # A killed command leaves its directory. Sockets are in it, whose paths must be short.
        self._temporary = tempfile.TemporaryDirectory(prefix="taco-")
        self._out, self._err = directory / "serve.out", directory / "serve.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            command = [sys.executable, "-m", "taco_llm.cli.main", "serve", str(model)]
            address = ["--host", "127.0.0.1", "--port", str(self.port)]
            self.process = subprocess.Popen(
                [*command, *address, "--num-threads", "1", *flags],
                stdout=out,
                stderr=err,
                cwd=directory,
                env=os.environ | {"TMPDIR": self._temporary.name},
            )
        self._watchdog = threading.Timer(LIFETIME_SECONDS, self.process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    def wait_ready(self) -> Self:
        def has_started() -> bool:
            said = self.stdout + self.stderr  # a start line in JSON is on standard error
            return "ready in " in said or self.process.poll() is not None

        wait_until(has_started, "the start")
        assert self.process.poll() is None, self.stderr
        return self

    def wait_ended(self) -> int:
        """The exit code of a command that ends by itself."""
        return self.process.wait(PATIENCE_SECONDS)

    def children(self) -> dict[str, psutil.Process]:
        """The services that run, by name."""
        services = {}
        for child in psutil.Process(self.process.pid).children():
            arguments = child.cmdline()
            if "taco_llm.cli.child" in arguments:
                services[arguments[-1]] = child
        return services

    def metric(self, name: str) -> float:
        """The sum of a metric of /metrics over its labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=PATIENCE_SECONDS) as response:
            text = response.read().decode()
        values = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
        assert values, f"no metric {name}"
        return sum(map(float, values))

    def is_idle(self) -> bool:
        """No request is there, and every KV block is free or can be evicted."""
        return all(
            self.metric(f"vllm:{name}") == 0
            for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        )

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        finally:
            self._watchdog.cancel()
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self._temporary.cleanup()
