"""The certificate by which a service knows others and is known, for services that run alone."""

from dataclasses import dataclass
from pathlib import Path

from taco_llm.flags import DRAFTER, GATEWAY, SCHEDULER, WORKER, flag
from taco_proto.config import TlsConfig
from taco_proto.errors import ConfigurationError
from taco_proto.tls import Role, check_files

_SERVICES = (GATEWAY, SCHEDULER, WORKER, DRAFTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsArgs:
    """Arguments of mutual TLS between services: all of them or none.

    Raises:
        ConfigurationError: some are given and some are not.
    """

    tls_ca_file: str | None = flag(
        "File with the authorities (PEM) whose certificates prove who other services are. With "
        "this flag and the next two, services meet over mutual TLS and no other way.",
        _SERVICES,
        default=None,
        metavar="FILE",
    )
    tls_cert_file: str | None = flag(
        "File with this service's own certificate (PEM), which must name ROLE.taco.internal. It is "
        "read again for every link, so that it may be renewed.",
        _SERVICES,
        default=None,
        metavar="FILE",
    )
    tls_key_file: str | None = flag(
        "File with the key (PEM, without a password) of that certificate.",
        _SERVICES,
        default=None,
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        missing = [name for name in _NAMES if not getattr(self, name)]
        if 0 < len(missing) < len(_NAMES):
            raise ConfigurationError(
                f"{', '.join(_NAMES)} are given together or not at all: {missing[0]} is missing"
            )

    def tls_config(self, role: Role, *addresses: str) -> TlsConfig | None:
        """The configuration of a service that proves a role; None: it speaks in plaintext.

        Args:
            addresses: those that it listens on or dials.

        Raises:
            ConfigurationError: a file cannot be used, does not prove the role, or an address is a
                Unix socket, which needs no TLS.
        """
        if self.tls_ca_file is None or self.tls_cert_file is None or self.tls_key_file is None:
            return None
        for address in addresses:
            if address.startswith("unix:"):
                raise ConfigurationError(
                    f"{address} is a Unix socket, on which there is no TLS: leave tls_ca_file, "
                    "tls_cert_file and tls_key_file out, or give host:port"
                )
        config = TlsConfig(
            ca_file=str(Path(self.tls_ca_file).absolute()),
            cert_file=str(Path(self.tls_cert_file).absolute()),
            key_file=str(Path(self.tls_key_file).absolute()),
        )
        check_files(config, role)
        return config


_NAMES = ("tls_ca_file", "tls_cert_file", "tls_key_file")


def tls_flags(tls: TlsConfig | None) -> list[str]:
    """The flags of a service that is started with these files."""
    if tls is None:
        return []
    return [
        f"--tls-ca-file={tls.ca_file}",
        f"--tls-cert-file={tls.cert_file}",
        f"--tls-key-file={tls.key_file}",
    ]
