"""Nodes of a Ray cluster on this machine, with real processes."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from support.patience import wait_until
from support.serving import free_port

# A command runs on the node of its address, so the two need different addresses.
HEAD, OTHER = "127.0.0.1", "127.0.0.2"

# Of this cluster alone; it keeps Ray from leaving one in the home directory.
_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "f3a1" * 16,
    "RAY_USAGE_STATS_ENABLED": "0",
}
# A node that refuses its calls is given up within a second instead of some fifteen.
_IMPATIENT = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_failure_threshold": "2",
}
# Ray makes no processes for tasks that do not come.
THRIFTY = {"RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0"}


class RayNode:
    """`ray start`: a process with Ray's own below it, which die with it.

    Make it in the main thread: it dies with the thread, however that ends.
    """

    def __init__(self, directory: Path, host: str, *flags: str) -> None:
        self._log = directory / f"{host}.log"
        with self._log.open("wb") as log:
            self.process = psutil.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL"),
                    *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
                    *(f"--node-ip-address={host}", "--object-store-memory=80000000"),
                    "--include-log-monitor=false",
                    *flags,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_ENVIRONMENT, **_IMPATIENT, **THRIFTY},
            )

    def wait_started(self) -> None:
        wait_until(
            lambda: (
                "Ray runtime started" in self._log.read_text() or self.process.poll() is not None
            ),
            "the Ray node",
        )
        assert self.process.poll() is None, self._log.read_text()

    def actors(self) -> list[psutil.Process]:
        """The processes of our actors on this node."""
        return [child for child in self._below() if _is_of(child, "ray::ServiceActor")]

    def services(self) -> list[psutil.Process]:
        """The services that they have started."""
        return [child for child in self._below() if _is_of(child, "taco_llm.cli.child")]

    def kill(self) -> None:
        """As a machine that fails: nothing of it ends in order."""
        for process in [*self._below(), self.process]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def _below(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return self.process.children(recursive=True)
        return []


class RayNodes:
    """A cluster of two nodes, the head and another one, with two CPUs each; `stack` ends them."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.address = f"{HEAD}:{free_port()}"
        port = self.address.rpartition(":")[2]
        self.head = RayNode(
            directory,
            HEAD,
            *("--head", f"--port={port}", "--num-cpus=2", f"--temp-dir={directory}"),
            *("--include-dashboard=false", "--no-monitor"),
            f"--ray-client-server-port={free_port()}",
        )
        stack.callback(self.head.kill)
        self.head.wait_started()
        self.other = RayNode(directory, OTHER, f"--address={self.address}", "--num-cpus=2")
        stack.callback(self.other.kill)
        self.other.wait_started()

    @property
    def environment(self) -> Mapping[str, str]:
        """Of a command that is to use it."""
        return {**_ENVIRONMENT, "RAY_ADDRESS": self.address}

    def actors(self) -> list[psutil.Process]:
        return self.head.actors() + self.other.actors()

    def services(self) -> list[psutil.Process]:
        return self.head.services() + self.other.services()


@contextmanager
def ray_nodes() -> Iterator[RayNodes]:
    # Ray has sockets there, whose paths must be short.
    with (
        tempfile.TemporaryDirectory(prefix="taco-ray-", ignore_cleanup_errors=True) as directory,
        ExitStack() as stack,
    ):
        yield RayNodes(Path(directory), stack)


def _is_of(process: psutil.Process, what: str) -> bool:
    """Whether its command line, which Ray sets to what an actor does, is about `what`."""
    with suppress(psutil.NoSuchProcess):
        return what in " ".join(process.cmdline())
    return False
