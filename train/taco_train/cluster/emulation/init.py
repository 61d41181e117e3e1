"""The first process of an emulation's process namespace: makes the network, starts the ranks.

    python -m taco_train.cluster.emulation.init CHANNEL OWNER

CHANNEL is a socket to the emulator, OWNER a pidfd of its process. When this process ends, the
kernel kills every process of the namespace, and with them the network namespaces go: nothing is
left to clean up, also where the emulator or this process was killed.
"""

from __future__ import annotations

import functools
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from taco_train.cluster.emulation import channel, namespaces, relay
from taco_train.cluster.emulation.fabric import Fabric
from taco_train.native.build import NativeBuildError

_SYSCTLS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/fib_multipath_hash_policy": "1",  # ports choose a path
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    "net/ipv6/conf/default/disable_ipv6": "1",  # its own messages would be in the counters
}


class EmulationError(Exception):
    """This machine cannot emulate hosts; the message says why in one line."""


def main() -> None:
    """Forks the first process of new namespaces, and ends with it."""
    control, owner = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    os.set_inheritable(control.fileno(), False)
    os.set_inheritable(owner, False)
    try:
        try:
            namespaces.unshare_all()
        except OSError as error:
            raise EmulationError(
                f"the kernel forbids namespaces ({error.strerror}): run as root with "
                "CAP_SYS_ADMIN (in Docker: --privileged), or where users may make them"
            ) from error
    except EmulationError as error:
        channel.send(control, {"error": str(error)})
        sys.exit(1)
    first = os.fork()
    if first:
        control.close()
        os.waitpid(first, 0)
        return
    namespaces.die_with_parent(signal.SIGKILL)
    try:
        message, _ = channel.receive(control)
        emulation = Emulation(Fabric(**message["fabric"]))
    except (EmulationError, OSError) as error:
        channel.send(control, {"error": str(error)})
    except EOFError:
        pass
    else:
        channel.send(control, {})
        emulation.serve(control, owner)
    os._exit(0)


class Emulation:
    """The network namespaces, by name, and the processes in them."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._statuses: dict[int, int] = {}  # by process, where its exit status is written
        _mount(fabric)
        self._namespaces = {name: _make_namespace() for name in fabric.namespaces}
        self._run("ip", fabric.ip_commands())
        self._run("tc", fabric.tc_commands())
        if fabric.relayed:
            self._start_relay()

    def serve(self, control: socket.socket, owner: int) -> None:
        """Answers requests until the emulator closes the channel or ends."""
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._reap()  # children that ended before
        channel_number = control.fileno()
        while True:
            ready, _, _ = select.select([channel_number, owner, woken], [], [])
            if woken in ready:
                os.read(woken, 4096)
                self._reap()
            if owner in ready:
                return
            if channel_number in ready:
                try:
                    request, descriptors = channel.receive(control)
                except EOFError:
                    return
                self._answer(control, request, descriptors)

    def _answer(
        self, control: socket.socket, request: dict[str, Any], descriptors: list[int]
    ) -> None:
        try:
            if request["do"] == "start":
                pid = self._start(request, descriptors)
                pidfd = os.pidfd_open(pid)
                channel.send(control, {}, [pidfd])
                os.close(pidfd)
            elif request["do"] == "count":
                channel.send(control, {"counters": self._count()})
            else:
                self._run(request["tool"], request["commands"])
                channel.send(control, {})
        except (EmulationError, OSError) as error:
            channel.send(control, {"error": str(error)})

    def _start(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """Starts a process on a host; its descriptors are stdout, stderr, and for its status."""
        stdout, stderr, status = descriptors
        namespace, host = self._namespaces[request["host"]], request["host"]

        def prepare() -> None:
            namespaces.enter(namespace)
            namespaces.unshare(namespaces.CLONE_NEWUTS)
            namespaces.set_hostname(host)

        try:
            process = subprocess.Popen(
                request["command"],
                env=request["environment"],
                cwd=request["folder"],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=prepare,
            )
        except (OSError, subprocess.SubprocessError) as error:
            os.close(status)
            raise EmulationError(f"{request['command'][0]} cannot be started: {error}") from error
        finally:
            os.close(stdout)
            os.close(stderr)
        process.returncode = 0  # `_reap` waits for it
        self._statuses[process.pid] = status
        return process.pid

    def _reap(self) -> None:
        while True:
            try:
                pid, result = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            status = self._statuses.pop(pid, None)
            if status is not None:
                with suppress(BrokenPipeError):
                    os.write(status, f"{os.waitstatus_to_exitcode(result)}".encode())
                os.close(status)

    def _count(self) -> dict[str, dict[str, list[int]]]:
        """By namespace and interface: bytes and packets received, then sent."""
        counters = {}
        for name, namespace in self._namespaces.items():
            with namespaces.inside(namespace):
                lines = Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]
            rows = {
                line.partition(":")[0].strip(): line.partition(":")[2].split() for line in lines
            }
            counters[name] = {
                interface: [int(row[index]) for index in (0, 1, 8, 9)]
                for interface, row in rows.items()
            }
        return counters

    def _run(self, tool: str, commands: Iterable[tuple[str, str]]) -> None:
        """Runs commands of `ip` or `tc`, those in a row of one namespace at once."""
        batches: list[tuple[str, list[str]]] = []
        for name, line in commands:
            words = [
                f"/proc/self/fd/{self._namespaces[word[1:]]}" if word.startswith("@") else word
                for word in line.split(" ")
            ]
            if not batches or batches[-1][0] != name:
                batches.append((name, []))
            batches[-1][1].append(" ".join(words))
        for name, lines in batches:
            namespace = self._namespaces[name]
            try:
                result = subprocess.run(
                    [tool, "-batch", "-"],
                    input="\n".join(lines),
                    capture_output=True,
                    text=True,
                    pass_fds=list(self._namespaces.values()),
                    preexec_fn=functools.partial(namespaces.enter, namespace),
                )
            except FileNotFoundError as error:
                raise EmulationError(f"the command {tool} is missing: install iproute2") from error
            if result.returncode:
                reason = " ".join(result.stderr.split())
                raise EmulationError(f"{tool} failed in {name} ({'; '.join(lines)}): {reason}")

    def _start_relay(self) -> None:
        try:
            run = relay.load()
        except NativeBuildError as error:
            raise EmulationError(f"the relay of delays cannot be built: {error}") from error
        with namespaces.inside(self._namespaces["relay"]):
            ports = relay.open_ports(self._fabric.relayed)
        if os.fork() == 0:
            run(ports, self._fabric.delay / 2)  # a packet crosses the links of two hosts
        for near, far in ports:
            near.close()
            far.close()


def _make_namespace() -> int:
    """A new network namespace, which the file descriptor keeps."""
    before = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    namespaces.unshare(namespaces.CLONE_NEWNET)
    made = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    for name, value in _SYSCTLS.items():
        setting = Path("/proc/sys", name)
        if setting.exists():  # a kernel without IPv6 has none of its settings
            setting.write_text(value)
    namespaces.enter(before)
    os.close(before)
    return made


def _mount(fabric: Fabric) -> None:
    """Gives the namespace its own /proc, and names to the hosts' addresses."""
    namespaces.mount("none", "/", None, namespaces.MS_REC | namespaces.MS_PRIVATE)
    with suppress(OSError):  # containers may forbid it: then /proc shows the processes outside
        namespaces.mount("proc", "/proc", "proc", 0)
    lines = ["127.0.0.1 localhost"]
    for address, name in zip(fabric.addresses, fabric.names, strict=True):
        # Sockets of IPv6, which torch's store has, see an IPv4 address so, and seek its name.
        lines += [f"{address} {name}", f"::ffff:{address} {name}.mapped"]
    _replace("/etc/hosts", "\n".join(lines) + "\n")
    # There is no name server behind these networks: asking one would take seconds.
    _replace("/etc/resolv.conf", "")


def _replace(path: str, text: str) -> None:
    """Gives a file another content, for the processes of this mount namespace."""
    if not Path(path).exists():
        return
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(text)
        file.flush()
        os.chmod(file.name, 0o644)
        namespaces.mount(file.name, path, None, namespaces.MS_BIND)


if __name__ == "__main__":
    main()
