"""Listening sockets: TCP, or Unix sockets with permissions."""

import errno
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
    """Listens on `host:port` or `unix:/path` while the context lasts.

    A Unix socket gets `unix_mode` and is removed at the end. Without a host (`:port`) it listens on
    all networks of this machine, over IPv6 too if available.

    Raises:
        ConfigurationError: the address is in use, or does not belong to this machine.
    """
    path = unix_path(address)
    try:
        listener = _bind_tcp(address) if path is None else _bind_unix(path, unix_mode)
    except (ValueError, OverflowError):
        raise ConfigurationError(f"cannot listen on {address}: it is not host:port") from None
    except OSError as error:
        # `socket.create_server` repeats the address at the end.
        reason = (error.strerror or str(error)).partition(" (while attempting")[0]
        if error.errno == errno.EADDRINUSE:
            other = "port" if path is None else "path"
            reason += f"; stop the process that uses it, or give another {other}"
        raise ConfigurationError(f"cannot listen on {path or address}: {reason}") from None
    with listener:
        yield listener
    if path is not None:
        remove_stale_socket(path)


def unix_path(address: str) -> str | None:
    """The path of a Unix socket address; None: it is another address."""
    return address.removeprefix(UNIX_PREFIX) if address.startswith(UNIX_PREFIX) else None


def is_private(address: str) -> bool:
    """Whether only this machine reaches an address: a Unix socket or a loopback address."""
    host = address.rpartition(":")[0].strip("[]")
    if unix_path(address) is not None or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, or no host, which means all networks
        return False


def host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def remove_stale_socket(path: str) -> bool:
    """Removes a socket file without a listening process; never another file.

    Returns:
        Whether the path is free now.

    Raises:
        OSError: another user owns it, or its directory does not exist.
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
    """Creates sockets with their final mode, so that other users can never connect."""
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
    remove_stale_socket(path)
    listener = socket.socket(socket.AF_UNIX)
    with socket_mode(mode):
        listener.bind(path)
    listener.listen(BACKLOG)
    return listener
