"""Arguments of the admin listener: health probes and metrics of a single service."""

import re
from dataclasses import dataclass

from taco_common.listener import EVERY_HOST, host_port, is_private
from taco_llm.args.flags import DRAFTER, SCHEDULER, WORKER, flag
from taco_proto.errors import ArgumentError

_SERVICES = (SCHEDULER, WORKER, DRAFTER)
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminArgs:
    """Arguments of the admin listener of a scheduler, a worker or a draft worker.

    Raises:
        ConfigurationError: a value is out of range, or both arguments are given.
    """

    admin_port: int | None = flag(
        "TCP port of the admin listener with /livez, /readyz and /metrics, which need no API key. "
        "A scheduler uses the host of --listen. A worker uses the loopback address if the "
        "scheduler is on this machine, and every network otherwise. Default: no admin listener.",
        _SERVICES,
        default=None,
        parse=int,
        metavar="PORT",
    )
    admin_listen: str | None = flag(
        "Address of the admin listener, host:port or unix:/path, instead of --admin-port.",
        _SERVICES,
        default=None,
        metavar="ADDRESS",
    )

    def __post_init__(self) -> None:
        if self.admin_port is not None and not 0 < self.admin_port < 65536:
            raise ArgumentError(f"admin_port must be between 1 and 65535, got {self.admin_port}")
        check_admin_listen(self.admin_listen, self.admin_port)

    def for_listener(self, listen: str) -> str | None:
        """Address of the admin listener of a service that listens on `listen`; None without one.

        A port is opened on the same host, or on the loopback address if `listen` is a Unix socket.
        """
        if self.admin_port is None:
            return self.admin_listen
        if listen.startswith("unix:"):
            return f"{LOOPBACK}:{self.admin_port}"
        host = _host(listen)
        if host in EVERY_HOST:
            return f":{self.admin_port}"  # IPv4 and IPv6
        return host_port(host, self.admin_port)

    def for_worker(self, scheduler: str) -> str | None:
        """Address of the admin listener of a service that dials `scheduler`; None without one.

        A port is opened on the loopback address if the scheduler is certainly on this machine.
        """
        if self.admin_port is None:
            return self.admin_listen
        return f"{LOOPBACK if is_private(scheduler) else ''}:{self.admin_port}"


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def check_admin_listen(admin_listen: str | None, admin_port: int | None) -> None:
    """Raises ConfigurationError if the address is invalid, or both arguments are given."""
    if admin_listen is None:
        return
    if admin_port is not None:
        raise ArgumentError(
            "admin_listen and admin_port both set the admin listener: give one of them"
        )
    match = re.fullmatch(r"unix:.+|(?:\[[^\[\]]+\]|[^:\[\]]*):(?P<port>[0-9]{1,5})", admin_listen)
    if match is None:
        raise ArgumentError(f"admin_listen must be host:port or unix:/path, got {admin_listen!r}")
    if match["port"] is not None and not 0 < int(match["port"]) < 65536:
        raise ArgumentError(
            f"the port of admin_listen must be between 1 and 65535, got {match['port']}"
        )
