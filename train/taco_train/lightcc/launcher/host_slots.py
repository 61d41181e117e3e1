"""Which hosts there are, how many ranks each takes, and which rank goes where."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from taco_train.cluster import hosts
from taco_train.cluster.ranks import place
from taco_train.cluster.text_files import read_lines

_ENTRY = re.compile(r"(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:]+\])(:(?P<slots>[0-9]+))?")
_FILE_ENTRY = re.compile(
    r"(?P<name>[^\s=-][^\s=]*?)(\s+slots\s*=\s*(?P<slots>[0-9]+)|:(?P<short>[0-9]+))?"
)


class HostsError(ValueError):
    """The list of hosts is wrong, or has too few slots."""


@dataclass(frozen=True)
class HostSlots:
    """A host, and how many ranks it takes."""

    name: str
    slots: int


def parse_hosts(text: str, default_slots: int = 1) -> list[HostSlots]:
    """Reads `-H a:4,b:4`.

    Raises:
        HostsError: an entry cannot be read, or a host comes twice.
    """
    found = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise HostsError(f"host {entry!r} cannot be read; write name:slots, e.g. gpu1:8")
        found.append(_host(match["name"], match["slots"], default_slots))
    return _checked(found)


def read_host_file(path: Path) -> list[HostSlots]:
    """Reads a file with lines `name slots=4`; the rest of a line after # is a comment.

    Raises:
        HostsError: the file or a line cannot be read.
    """
    try:
        lines = read_lines(path)
    except ValueError as error:
        raise HostsError(f"host file {path} cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        match = _FILE_ENTRY.fullmatch(entry)
        if match is None:
            raise HostsError(f"{path}:{number}: {entry!r} cannot be read; write: name slots=8")
        found.append(_host(match["name"], match["slots"] or match["short"], 1))
    return _checked(found)


def _host(name: str, slots: str | None, default_slots: int) -> HostSlots:
    count = default_slots if slots is None else int(slots)
    if count < 1:
        raise HostsError(f"host {name} has {count} slots; it must have at least 1")
    return HostSlots(name.strip("[]"), count)


def _checked(found: list[HostSlots]) -> list[HostSlots]:
    if not found:
        raise HostsError("the list of hosts is empty")
    names = [host.name for host in found]
    for name in names:
        if names.count(name) > 1:
            raise HostsError(f"host {name} is listed twice; give it one entry with all its slots")
    return found


def assign(available: Sequence[HostSlots], num_ranks: int) -> list[str]:
    """The host of every rank, by rank: each host is filled before the next.

    Raises:
        HostsError: there are fewer slots than ranks.
    """
    num_slots = sum(host.slots for host in available)
    if num_slots < num_ranks:
        listed = ", ".join(f"{host.name}:{host.slots}" for host in available)
        raise HostsError(
            f"{num_ranks} ranks need {num_ranks} slots, but the hosts have {num_slots}: {listed}"
        )
    places = (host.name for host in available for _ in range(host.slots))
    return list(islice(places, num_ranks))


def rank_variables(rank_hosts: Sequence[str]) -> list[dict[str, str]]:
    """Horovod's variables of every rank, by rank, without the address of the store."""
    made = []
    for rank in range(len(rank_hosts)):
        at = place(rank, rank_hosts)
        made.append(
            {
                "HOROVOD_RANK": str(rank),
                "HOROVOD_SIZE": str(at.size),
                "HOROVOD_LOCAL_RANK": str(at.local_rank),
                "HOROVOD_LOCAL_SIZE": str(at.local_size),
                "HOROVOD_CROSS_RANK": str(at.cross_rank),
                "HOROVOD_CROSS_SIZE": str(at.cross_size),
                "HOROVOD_HOSTNAME": at.host,
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
            }
        )
    return made


def store_variables(address: str, port: int) -> dict[str, str]:
    """Where the ranks find the launcher's store."""
    return {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    }


def is_local(name: str) -> bool:
    """Whether a host is this one, where ranks need no ssh."""
    if name in ("localhost", socket.gethostname()):
        return True
    try:
        address = hosts.resolve(name)
    except OSError:
        return False
    return hosts.is_loopback(address) or address in hosts.own_addresses()


def store_address(names: Iterable[str], environment: Mapping[str, str]) -> str:
    """The address of this host that the ranks on these hosts reach."""
    remote = [name for name in dict.fromkeys(names) if not is_local(name)]
    named = hosts.interface_address(environment)
    if named or not remote:
        return named or "127.0.0.1"
    for name in remote:
        try:
            return hosts.address_towards(hosts.resolve(name))
        except OSError:
            continue  # ssh may know the host by another name than the resolver
    return next(iter(hosts.own_addresses()), "127.0.0.1")
