"""What is emulated: hosts, and links with a rate, a delay, a loss and equal-cost paths.

    host0 -- leaf0 ==path0== middle ==path0== leaf1 -- host1
                   ==path1==        ==path1==

Every box is a network namespace and every link a veth pair. Shapers are on the leaves and on the
middle, never on hosts: a host sees its link's limits as on a real network, by losses and delays,
not by back pressure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MAX_HOSTS = 200
MAX_PATHS = 60
# How long a switch queues packets at most, and which part of a second it sends at once after a
# pause.
_QUEUE_SECONDS = 0.05
_BURST_SECONDS = 0.001
_MIN_BURST_BYTES = 16_384
_MIN_QUEUE_BYTES = 131_072
# The largest packet before segmentation, which the relay (relay.py) moves in one piece.
_SUPER_PACKET_BYTES = 70_000

_RATE_UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_TIME_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z%]*)")


@dataclass(frozen=True)
class Fabric:
    """The network to emulate.

    Attributes:
        hosts: number of hosts.
        rate: bits a second of each path, in each direction; None is as fast as the machine.
        delay: seconds from one host to another, one way.
        loss: share of the packets between two hosts that are lost, 0 to 1.
        paths: equal-cost paths of each host; a connection's ports choose one.
    """

    hosts: int = 2
    rate: float | None = None
    delay: float = 0.0
    loss: float = 0.0
    paths: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.hosts <= MAX_HOSTS:
            raise ValueError(f"{self.hosts} hosts: 1 to {MAX_HOSTS} can be emulated")
        if not 1 <= self.paths <= MAX_PATHS:
            raise ValueError(f"{self.paths} paths: 1 to {MAX_PATHS} can be emulated")
        if self.rate is not None and not 1e5 <= self.rate <= 1e11:
            raise ValueError(f"a rate of {self.rate:g} bit/s: 100kbit to 100gbit can be emulated")
        if not 0 <= self.delay <= 10:
            raise ValueError(f"a delay of {self.delay:g} s: 0 to 10 s can be emulated")
        if not 0 <= self.loss <= 1:
            raise ValueError(f"a loss of {self.loss:g}: it must be from 0 to 1 (100%)")

    @property
    def names(self) -> list[str]:
        return [f"host{host}" for host in range(self.hosts)]

    @property
    def addresses(self) -> list[str]:
        return [f"10.77.{host}.2" for host in range(self.hosts)]

    @property
    def relayed(self) -> list[tuple[str, str]]:
        """Pairs of interfaces in the namespace `relay` between which packets are delayed."""
        if not self.delay:
            return []
        return [(f"up{h}p{p}", f"down{h}p{p}") for h in range(self.hosts) for p in self._paths]

    @property
    def namespaces(self) -> list[str]:
        leaves = [f"leaf{host}" for host in range(self.hosts)]
        return [*self.names, *leaves, "middle", *(["relay"] if self.delay else [])]

    @property
    def _paths(self) -> range:
        return range(self.paths)

    def ip_commands(self) -> Iterator[tuple[str, str]]:
        """Commands of `ip`, each with the namespace where it runs; `@NAME` is a namespace."""
        for name in self.namespaces:
            yield name, "link set lo up"
        for host in range(self.hosts):
            yield from self._access(host)
            for path in self._paths:
                yield from self._path(host, path)
            routes = [self._hop(host, path, 2, f"path{path}") for path in self._paths]
            yield f"leaf{host}", f"route add default {' '.join(routes)}"
        for host in range(self.hosts):
            routes = [self._hop(host, path, 1, f"host{host}p{path}") for path in self._paths]
            yield "middle", f"route add 10.77.{host}.0/24 {' '.join(routes)}"

    def tc_commands(self) -> Iterator[tuple[str, str]]:
        """Commands of `tc`, likewise."""
        for host in range(self.hosts):
            for name, interface in self.shaped(host):
                if self.rate is not None:
                    yield name, f"qdisc add dev {interface} root {self.shaper(self.rate)}"
            for interface in ("host", *(f"path{path}" for path in self._paths)):
                yield f"leaf{host}", f"qdisc add dev {interface} clsact"
            if self.loss:
                yield from self.loss_commands(host, self.loss, 0.0)

    def shaped(self, host: int) -> Iterator[tuple[str, str]]:
        """The shaped interfaces of a host's paths, with their namespaces."""
        for path in self._paths:
            yield f"leaf{host}", f"path{path}"
            yield "middle", f"host{host}p{path}"

    def shaper(self, rate: float) -> str:
        burst = max(rate / 8 * _BURST_SECONDS, _MIN_BURST_BYTES)
        if self.delay and not self.loss:
            burst = max(burst, _SUPER_PACKET_BYTES)
        limit = max(rate / 8 * _QUEUE_SECONDS, _MIN_QUEUE_BYTES) + burst
        return f"tbf rate {rate:.0f}bit burst {burst:.0f}b limit {limit:.0f}"

    def loss_commands(self, host: int, up: float, down: float) -> Iterator[tuple[str, str]]:
        """Loses shares of the IP packets that come from a host, and that go to it.

        ARP passes: a lost request of the leaf would stop everything behind it for a second.
        """
        interfaces = [("host", down), *((f"path{path}", up) for path in self._paths)]
        for interface, share in interfaces:
            yield (
                f"leaf{host}",
                f"filter replace dev {interface} egress protocol ip pref 1 handle 1 bpf "
                f'direct-action bytecode "{loss_program(share)}"',
            )

    def _access(self, host: int) -> Iterator[tuple[str, str]]:
        yield f"leaf{host}", f"link add host type veth peer name eth0 netns @host{host}"
        yield f"leaf{host}", f"address add 10.77.{host}.1/24 dev host"
        yield f"leaf{host}", "link set host up"
        # Lost packets must be those of the wire, not the 64 KB that a host hands to its interface.
        single = " gso_max_segs 1" if self.loss else ""
        yield f"host{host}", f"link set eth0 up{single}"
        yield f"host{host}", f"address add 10.77.{host}.2/24 dev eth0"
        yield f"host{host}", f"route add default via 10.77.{host}.1"

    def _path(self, host: int, path: int) -> Iterator[tuple[str, str]]:
        leaf, there = f"leaf{host}", f"host{host}p{path}"
        if self.delay:
            up, down = f"up{host}p{path}", f"down{host}p{path}"
            yield leaf, f"link add path{path} type veth peer name {up} netns @relay"
            yield "middle", f"link add {there} type veth peer name {down} netns @relay"
            yield "relay", f"link set {up} up"
            yield "relay", f"link set {down} up"
        else:
            yield leaf, f"link add path{path} type veth peer name {there} netns @middle"
        for name, interface, end in ((leaf, f"path{path}", 1), ("middle", there, 2)):
            yield name, f"address add {self._path_address(host, path, end)}/30 dev {interface}"
            yield name, f"link set {interface} up"

    def _hop(self, host: int, path: int, end: int, interface: str) -> str:
        return f"nexthop via {self._path_address(host, path, end)} dev {interface}"

    def _path_address(self, host: int, path: int, end: int) -> str:
        return f"10.78.{host}.{4 * path + end}"


def loss_program(share: float) -> str:
    """Classic BPF that drops a random share of the packets, as `tc ... bpf bytecode` reads it.

    Classic, since loading eBPF takes rights that root of a user namespace has not. Instructions
    are `code jt jf k` (linux/filter.h); results are those of direct action (linux/pkt_cls.h).
    """
    load_random = "32 0 0 4294963256"  # BPF_LD|BPF_W|BPF_ABS at SKF_AD_OFF + SKF_AD_RANDOM
    keep, drop = "6 0 0 0", "6 0 0 2"  # BPF_RET: TC_ACT_OK, TC_ACT_SHOT
    if share in (0, 1):
        return f"1,{drop if share else keep}"
    skip_unless_at_least = f"53 0 1 {round(share * 2**32)}"  # BPF_JMP|BPF_JGE|BPF_K
    return f"4,{load_random},{skip_unless_at_least},{keep},{drop}"


def parse_rate(text: str) -> float:
    """Bits a second of `200mbit`, as `tc` writes it (bit, kbit, mbit, gbit)."""
    return _parse(text, _RATE_UNITS, "a rate such as 200mbit or 1gbit")


def parse_delay(text: str) -> float:
    """Seconds of `5ms` (us, ms, s)."""
    return _parse(text, _TIME_UNITS, "a time such as 500us or 5ms")


def parse_loss(text: str) -> float:
    """The share of `1%`, from 0 to 1."""
    return _parse(text, {"%": 0.01}, "a percentage such as 1%")


def _parse(text: str, units: dict[str, float] | dict[str, int], what: str) -> float:
    match = _NUMBER.fullmatch(text.strip().lower())
    if match is None or match[2] not in units:
        raise ValueError(f"{text!r} is not {what}")
    return float(match[1]) * units[match[2]]
