"""`emulate(Fabric(...))`: hosts on this machine, processes on them, and what their links carried.

with emulate(Fabric(hosts=2, rate=200e6)) as hosts:
    process = hosts.start(0, ["python", "script.py"])
    process.wait()
    print(hosts.counters())
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import IO, Any

from taco_train.cluster.emulation import channel
from taco_train.cluster.emulation.fabric import Fabric
from taco_train.cluster.emulation.init import EmulationError
from taco_train.cluster.launch import environments

STORE_PORT = 29500
_END_SECONDS = 10.0


@dataclass(frozen=True)
class HostCounters:
    """What a host's interface has sent and received since the emulation began.

    TCP hands over up to 64 KB in one piece, which count as one packet with one header.

    Attributes:
        paths: bytes that the host has sent over each of its paths.
    """

    host: str
    sent_bytes: int
    sent_packets: int
    received_bytes: int
    received_packets: int
    paths: tuple[int, ...]


class EmulatedProcess:
    """A process on an emulated host.

    Attributes:
        pid: as this process sees it.
        exit_code: negative after a signal; None while it runs.
    """

    def __init__(self, pidfd: int, status: int) -> None:
        self._pidfd = pidfd
        self._status = status
        self.exit_code: int | None = None
        with open(f"/proc/self/fdinfo/{pidfd}") as info:
            lines = dict(line.split(":", 1) for line in info)
        self.pid = int(lines["Pid"])

    def fileno(self) -> int:
        """Readable when the process has ended, for `select`."""
        return self._status

    def poll(self) -> int | None:
        """The exit code, or None while the process runs."""
        return self.exit_code if not select.select([self._status], [], [], 0)[0] else self.wait()

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end, and returns the exit code; negative after a signal.

        Raises:
            TimeoutError: it still runs after `timeout` seconds.
        """
        if self.exit_code is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise TimeoutError(f"process {self.pid} still runs after {timeout} s")
            # Nothing was written where the emulation itself has been killed.
            self.exit_code = int(os.read(self._status, 16) or -signal.SIGKILL)
        return self.exit_code

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal; does nothing where the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        os.close(self._pidfd)
        os.close(self._status)


class EmulatedHosts:
    """The hosts of an emulation that runs. Made by `emulate`."""

    def __init__(self, fabric: Fabric, control: socket.socket) -> None:
        self.fabric = fabric
        self._control = control
        self._lock = threading.Lock()  # callers may watch ranks in threads
        self._processes: list[EmulatedProcess] = []

    def start(
        self,
        host: int,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        stdout: IO[Any] | int | None = None,
        stderr: IO[Any] | int | None = None,
    ) -> EmulatedProcess:
        """Starts a process on a host, in this process's folder.

        Args:
            host: its number.
            command: the program and its arguments.
            environment: all of the process's variables; this process's by default.
            stdout, stderr: files or descriptors; those of this process by default.
        """
        status, theirs = os.pipe2(os.O_CLOEXEC)
        try:
            _, (pidfd,) = self._ask(
                {
                    "do": "start",
                    "host": f"host{host}",
                    "command": list(command),
                    "environment": dict(os.environ if environment is None else environment),
                    "folder": os.getcwd(),
                },
                [_descriptor(stdout, 1), _descriptor(stderr, 2), theirs],
            )
        except EmulationError:
            os.close(status)
            raise
        finally:
            os.close(theirs)
        process = EmulatedProcess(pidfd, status)
        self._processes.append(process)
        return process

    def environments(self, ranks_per_host: int) -> list[dict[str, str]]:
        """The variables of every rank, by rank: those of torchrun, and the names of the hosts."""
        hosts = [name for name in self.fabric.names for _ in range(ranks_per_host)]
        made = environments(hosts, self.fabric.addresses[0], STORE_PORT, launcher="emulate")
        common = {
            # Hosts of two emulations have equal names, but other links.
            "TACO_TRAIN_LINK_CACHE": os.environ.get("TACO_TRAIN_LINK_CACHE", ""),
            "GLOO_SOCKET_IFNAME": "eth0",
            "NCCL_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
        return [{**os.environ, **common, **variables} for variables in made]

    def counters(self) -> list[HostCounters]:
        """What every host has sent and received, by host."""
        counted = self._ask({"do": "count"})[0]["counters"]
        found = []
        for host, name in enumerate(self.fabric.names):
            received_bytes, received_packets, sent_bytes, sent_packets = counted[name]["eth0"]
            paths = [counted[f"leaf{host}"][f"path{path}"][2] for path in range(self.fabric.paths)]
            found.append(
                HostCounters(
                    name, sent_bytes, sent_packets, received_bytes, received_packets, tuple(paths)
                )
            )
        return found

    def set_rate(self, rate: float) -> None:
        """Changes the rate of all paths, which must have had one, in bits a second."""
        if self.fabric.rate is None:
            raise ValueError("the links have no shapers, since they were made without a rate")
        self.fabric = replace(self.fabric, rate=rate)
        commands = [
            (name, f"qdisc change dev {interface} root {self.fabric.shaper(rate)}")
            for host in range(self.fabric.hosts)
            for name, interface in self.fabric.shaped(host)
        ]
        self._ask({"do": "run", "tool": "tc", "commands": commands})

    def cut(self, host: int) -> None:
        """Loses all packets from and to a host, as when its cable is pulled."""
        self._lose(host, 1.0, 1.0)

    def restore(self, host: int) -> None:
        """Undoes `cut`."""
        self._lose(host, self.fabric.loss, 0.0)

    def close_processes(self) -> None:
        for process in self._processes:
            process.close()
        self._processes.clear()

    def _lose(self, host: int, up: float, down: float) -> None:
        commands = list(self.fabric.loss_commands(host, up, down))
        self._ask({"do": "run", "tool": "tc", "commands": commands})

    def _ask(
        self, request: dict[str, Any], descriptors: Sequence[int] = ()
    ) -> tuple[dict[str, Any], list[int]]:
        with self._lock:
            return _ask(self._control, request, descriptors)


@contextmanager
def emulate(fabric: Fabric) -> Iterator[EmulatedHosts]:
    """Emulates hosts until the end of the block, which kills the processes on them.

    All ends as well when this process is killed.

    Raises:
        EmulationError: the kernel forbids it, or `ip` or `tc` is missing; the message is one line.
    """
    control, theirs = socket.socketpair()
    owner = os.pidfd_open(os.getpid())
    first = subprocess.Popen(
        [
            *(sys.executable, "-m", "taco_train.cluster.emulation.init"),
            *(str(theirs.fileno()), str(owner)),
        ],
        pass_fds=[theirs.fileno(), owner],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # an interrupt of the terminal is for this process alone
    )
    theirs.close()
    os.close(owner)
    hosts = EmulatedHosts(fabric, control)
    try:
        _ask(control, {"fabric": asdict(fabric)})
        yield hosts
    finally:
        # A process forked from this one may hold the channel open as well.
        with suppress(OSError):
            control.shutdown(socket.SHUT_RDWR)
        control.close()
        try:
            first.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # stopped by a signal
            first.kill()
            first.wait()
        hosts.close_processes()


def _ask(
    control: socket.socket, request: dict[str, Any], descriptors: Sequence[int] = ()
) -> tuple[dict[str, Any], list[int]]:
    with suppress(ConnectionError):  # it may have said why before it ended
        channel.send(control, request, descriptors)
    try:
        answer, received = channel.receive(control)
    except EOFError:
        raise EmulationError("the emulation's first process has been killed") from None
    if "error" in answer:
        raise EmulationError(answer["error"])
    return answer, received


def _descriptor(file: IO[Any] | int | None, default: int) -> int:
    if file is None:
        return default
    return file if isinstance(file, int) else file.fileno()
