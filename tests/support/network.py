"""Two hosts and a router between them: network namespaces of our own, which end with this process.

The machine's own network is neither used nor changed. It takes the right to make namespaces (root
has it, on most systems every user), `unshare` and `nsenter` of util-linux, and `ip` of iproute2.
"""

import subprocess
from types import TracebackType
from typing import Self

NEAR, FAR = "10.77.1.2", "10.77.2.2"


class Network:
    """What the router does with packets is what a firewall on their way would do.

    Attributes:
        near, far: commands' first words that let them run on a host.
    """

    def __init__(self) -> None:
        self._router = _Namespace()
        hosts = [_Namespace(beside=self._router), _Namespace(beside=self._router)]
        self._namespaces = (*hosts, self._router)
        self._lost: dict[str, str] = {}
        self.near, self.far = [host.enter for host in hosts]
        for name, address, host in zip(("near", "far"), (NEAR, FAR), hosts, strict=True):
            gateway = address.rpartition(".")[0] + ".1"
            self._router.ip(f"link add {name} type veth peer name eth0 netns {host.pid}")
            self._router.ip(f"address add {gateway}/30 dev {name}")
            self._router.ip(f"link set {name} up")
            host.ip(f"address add {address}/30 dev eth0")
            host.ip("link set eth0 up")
            host.ip("link set lo up")
            host.ip(f"route add default via {gateway}")
        self._router.run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")

    def drop(self) -> None:
        """Packets vanish."""
        self._treat("blackhole", NEAR, FAR)

    def reject(self) -> None:
        """Packets come to nothing, and the router says so (administratively prohibited)."""
        self._treat("prohibit", NEAR, FAR)

    def lose_what_far_says(self) -> None:
        self._treat("blackhole", NEAR)

    def lose_what_far_is_told(self) -> None:
        self._treat("blackhole", FAR)

    def heal(self) -> None:
        for address, treatment in self._lost.items():
            self._router.ip(f"route delete {treatment} {address}/32")
        self._lost.clear()

    def close(self) -> None:
        for namespace in self._namespaces:
            namespace.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _treat(self, treatment: str, *addresses: str) -> None:
        """A route to one address goes before that to its network."""
        for address in addresses:
            self._router.ip(f"route add {treatment} {address}/32")
            self._lost[address] = treatment


class _Namespace:
    """Held by a process that does nothing, until its standard input ends.

    Args:
        beside: a namespace of the same user namespace, to which its links may lead.
    """

    def __init__(self, beside: "_Namespace | None" = None) -> None:
        make = ["unshare", "--user", "--map-root-user", "--net"]
        if beside is not None:
            make = [*beside._enter_user, "unshare", "--net"]
        self._process = subprocess.Popen(
            [*make, "sh", "-c", "echo; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise OSError("network namespaces are refused here")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def _enter_user(self) -> list[str]:
        return ["nsenter", f"--target={self.pid}", "--user", "--preserve-credentials"]

    @property
    def enter(self) -> list[str]:
        return [*self._enter_user, "--net"]

    def ip(self, arguments: str) -> None:
        self.run("ip", *arguments.split())

    def run(self, *command: str) -> None:
        subprocess.run([*self.enter, *command], check=True)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
