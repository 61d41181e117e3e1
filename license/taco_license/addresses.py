"""Addresses of license servers, and whether any of their host names resolves."""

import os
import queue
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

ADDRESS_VARIABLE = "TACO_LS_ADDR"
DEFAULT_HOSTS = (
    "taco-license-server.kube-system.svc.cluster.local:10080",
    "taco-license-server:10080",
)
FIND_SECONDS = 2.0


def server_addresses(
    environ: Mapping[str, str] = os.environ, *, has_tls: bool = False
) -> tuple[str, ...]:
    """Addresses of the license server: the one in `TACO_LS_ADDR`, or the two default addresses.

    An address without a scheme uses https if the worker has TLS files, and http otherwise.

    Raises:
        ValueError: the variable does not contain an HTTP address.
    """
    named = environ.get(ADDRESS_VARIABLE, "").strip()
    scheme = "https" if has_tls else "http"
    if not named:
        return tuple(f"{scheme}://{host}" for host in DEFAULT_HOSTS)
    address = (named if "://" in named else f"{scheme}://{named}").rstrip("/")
    try:
        url = urlsplit(address)
        good = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # such as a port of 70000
        good = False
    if not good:
        raise ValueError(
            f"{ADDRESS_VARIABLE} must be an address such as http://10.0.0.7:10080, got {named!r}"
        )
    return (address,)


def any_host_resolves(addresses: Sequence[str], seconds: float = FIND_SECONDS) -> bool:
    """Whether the host name of any address resolves within `seconds`. Makes no connection."""
    answers: queue.SimpleQueue[bool] = queue.SimpleQueue()
    for address in addresses:
        # A DNS look-up cannot be cancelled, so it runs in a daemon thread.
        threading.Thread(target=_look_up, args=(address, answers), daemon=True).start()
    deadline = time.monotonic() + seconds
    for _ in addresses:
        try:
            if answers.get(timeout=max(0.0, deadline - time.monotonic())):
                return True
        except queue.Empty:
            return False
    return False


def _look_up(address: str, answers: "queue.SimpleQueue[bool]") -> None:
    url = urlsplit(address)
    try:
        answers.put(bool(socket.getaddrinfo(url.hostname, url.port, type=socket.SOCK_STREAM)))
    except (OSError, UnicodeError):  # UnicodeError: a label has more than 63 characters
        answers.put(False)
