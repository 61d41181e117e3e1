"""What a host is, and which of its addresses other hosts reach."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import re
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

from taco_train.cluster.launch import Launch
from taco_train.cluster.store import ConfigurationError

# Variables in which users name the interface of their fast network, ours first.
INTERFACE_VARIABLES = (
    "TACO_TRAIN_INTERFACE",
    "HOROVOD_GLOO_IFACE",
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "OMPI_MCA_btl_tcp_if_include",
)
_SIOCGIFADDR = 0x8915  # linux/sockios.h


def host_key(launch: Launch) -> str:
    """Equal for ranks that share a host, whatever hostname their containers have.

    Ranks of one kernel and one network namespace reach each other's abstract Unix sockets, and so
    share memory. The launcher's name of the host splits that further: two torchrun agents on one
    machine number their local ranks for themselves. TACO_TRAIN_HOST replaces all of it.
    """
    if launch.host:
        return f"named {launch.host}"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}/{launch.group}"


def host_label(launch: Launch) -> str:
    """What logs and errors call this rank's host."""
    group = launch.group if launch.launcher == "horovodrun" else ""
    return launch.host or group or socket.gethostname()


def interface_address(environment: Mapping[str, str]) -> str | None:
    """Address of the first interface of this host that a variable of INTERFACE_VARIABLES names.

    Lists and NCCL's `=eth0` are read; patterns that exclude interfaces, and networks, are not.
    """
    for variable in INTERFACE_VARIABLES:
        for name in re.split(r"[,\s]+", environment.get(variable, "")):
            address = address_of(name.removeprefix("="))
            if address is not None:
                return address
    return None


def check_interface(environment: Mapping[str, str]) -> None:
    """Raises ConfigurationError where a variable for this package names no interface of this host.

    The other variables may hold patterns and networks, and what is not found there is passed over.
    """
    for variable in INTERFACE_VARIABLES[:2]:
        given = environment.get(variable, "")
        if given and interface_address({variable: given}) is None:
            there = [name for _, name in socket.if_nameindex() if address_of(name)]
            raise ConfigurationError(
                f"{variable} is {given!r}; it must be an interface of {socket.gethostname()} with "
                f"an IPv4 address: {', '.join(there)}"
            )


def address_of(interface: str) -> str | None:
    """IPv4 address of an interface; None where there is no such interface, or it has none."""
    if not interface or len(interface) > 15:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query:
        try:
            answer = fcntl.ioctl(
                query.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode())
            )
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def own_addresses() -> list[str]:
    """Addresses of this host's interfaces at which others may reach it: IPv4, then IPv6."""
    names = [name for _, name in socket.if_nameindex()]
    found = [address for name in names if (address := address_of(name)) is not None]
    return [address for address in found if not is_loopback(address)] + _ipv6_addresses()


def address_towards(address: str) -> str:
    """The address of this host from which packets to `address` go."""
    family, _, _, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # sends nothing
        return str(probe.getsockname()[0])


def resolve(address: str) -> str:
    """The IP address that a host's name has here.

    Raises:
        OSError: it has none.
    """
    try:
        return str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0])
    except UnicodeError as error:  # an empty part, or one of more than 63 characters
        raise OSError(f"{address!r} is not the name of a host") from error


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _ipv6_addresses() -> list[str]:
    table = Path("/proc/net/if_inet6")
    if not table.exists():
        return []
    rows = [line.split() for line in table.read_text().splitlines()]
    is_global = "00"
    return [
        str(ipaddress.IPv6Address(bytes.fromhex(row[0]))) for row in rows if row[3] == is_global
    ]
