"""Sockets that servers accept on: TCP, or Unix with a mode."""

import ipaddress
import os
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager

from taco_proto.errors import ConfigurationError

BACKLOG = 2048
# Hosts of an address on which a server listens on every network.
EVERY_HOST = ("", "0.0.0.0", "::")
UNIX_PREFIX = "unix:"


@contextmanager
def listen(address: str, *, unix_mode: int) -> Generator[socket.socket, None, None]:
    """Listens on `unix:/path`, whose socket gets `unix_mode` and goes in the end, or `host:port`.

    Without a host (`:port`) it is on every network of this machine, over IPv6 as well if there is.

    Raises:
        ConfigurationError: the address is in use, or none of this machine.
    """
    path = unix_path(address)
    try:
        listener = _bind_tcp(address) if path is None else _bind_unix(path, unix_mode)
    except (ValueError, OverflowError):
        raise ConfigurationError(f"cannot listen on {address}: it is no host:port") from None
    except OSError as error:
        where = path or address
        raise ConfigurationError(f"cannot listen on {where}: {error.strerror or error}") from None
    with listener:
        yield listener
    if path is not None:
        make_way(path)


def unix_path(address: str) -> str | None:
    """The path of a Unix socket's address; None: it is another one."""
    return address.removeprefix(UNIX_PREFIX) if address.startswith(UNIX_PREFIX) else None


def is_private(address: str) -> bool:
    """Whether only this machine reaches an address: a Unix socket's, or one of the loopback."""
    host = address.rpartition(":")[0].strip("[]")
    if unix_path(address) is not None or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, or no host at all, which is every network
        return False


def host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def make_way(path: str) -> bool:
    """Removes the socket that a process left behind; never one that is served, or another file.

    Returns:
        Whether nothing is there any more.

    Raises:
        OSError: it is somebody else's, or there is no directory on the way.
    """
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return False
    except FileNotFoundError:
        return True
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            os.unlink(path)
            return True
    return False


@contextmanager
def socket_mode(mode: int) -> Generator[None, None, None]:
    """Sockets are made with their final mode: at no moment may others connect."""
    old_mask = os.umask(0o777 & ~mode)
    try:
        yield
    finally:
        os.umask(old_mask)


def _bind_tcp(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_everywhere = not host and socket.has_dualstack_ipv6()
    return socket.create_server(
        (host, int(port)),
        family=socket.AF_INET6 if ":" in host or is_everywhere else socket.AF_INET,
        backlog=BACKLOG,
        dualstack_ipv6=is_everywhere,
    )


def _bind_unix(path: str, mode: int) -> socket.socket:
    make_way(path)
    listener = socket.socket(socket.AF_UNIX)
    with socket_mode(mode):
        listener.bind(path)
    listener.listen(BACKLOG)
    return listener
