"""Arguments of mutual TLS between services: authority, certificate and private key."""

import logging
from dataclasses import dataclass
from pathlib import Path

from taco_common.listener import is_private
from taco_common.tls import Role, check_files
from taco_llm.args.flags import DRAFTER, GATEWAY, SCHEDULER, WORKER, flag
from taco_proto.config import TlsConfig
from taco_proto.errors import ArgumentError

LOGGER = logging.getLogger("taco.cli")

_SERVICES = (GATEWAY, SCHEDULER, WORKER, DRAFTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsArgs:
    """Arguments of mutual TLS between services. Give all three or none.

    Raises:
        ConfigurationError: some of the three are missing.
    """

    tls_ca_file: str | None = flag(
        "File with the certificate authorities (PEM) that sign the certificates of other services. "
        "With this flag and the next two, services talk over mutual TLS only.",
        _SERVICES,
        default=None,
        metavar="FILE",
    )
    tls_cert_file: str | None = flag(
        "File with the certificate of this service (PEM). Its names must include "
        "ROLE.taco.internal. Each new connection reads the file again, so a renewed certificate "
        "needs no restart.",
        _SERVICES,
        default=None,
        metavar="FILE",
    )
    tls_key_file: str | None = flag(
        "File with the private key of --tls-cert-file (PEM, without a password).",
        _SERVICES,
        default=None,
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        missing = [name for name in _NAMES if not getattr(self, name)]
        if 0 < len(missing) < len(_NAMES):
            raise ArgumentError(
                f"{missing[0]} is missing: give {', '.join(_NAMES[:-1])} and {_NAMES[-1]} "
                "together, or none of them"
            )

    def tls_config(self, role: Role, *addresses: str) -> TlsConfig | None:
        """The TLS configuration of a service; None without TLS.

        Args:
            role: the role that the certificate must prove.
            addresses: the addresses that the service listens on or dials.

        Raises:
            ConfigurationError: a file cannot be used, the certificate does not prove the role, or
                an address is a Unix socket, which needs no TLS.
        """
        if self.tls_ca_file is None or self.tls_cert_file is None or self.tls_key_file is None:
            return None
        for address in addresses:
            if address.startswith("unix:"):
                raise ArgumentError(
                    f"{address} is a Unix socket, which has no TLS: leave tls_ca_file, "
                    "tls_cert_file and tls_key_file out, or give host:port"
                )
        config = TlsConfig(
            ca_file=str(Path(self.tls_ca_file).absolute()),
            cert_file=str(Path(self.tls_cert_file).absolute()),
            key_file=str(Path(self.tls_key_file).absolute()),
        )
        check_files(config, role)
        return config


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaintextArgs:
    """Whether the scheduler may listen without TLS on an address that other machines reach."""

    allow_insecure: bool = flag(
        "Allow the scheduler to listen without TLS on an address that other machines can reach. "
        "Anyone who reaches it can then attach a worker and read prompts: use it only behind a "
        "firewall or a network policy.",
        (SCHEDULER,),
        default=False,
    )

    def check(self, listen: str, tls: TlsConfig | None) -> None:
        """Raises ConfigurationError if the scheduler must not listen on this address."""
        if tls is not None or is_private(listen):
            return
        if not self.allow_insecure:
            raise ArgumentError(
                f"the scheduler must not listen on {listen} without TLS: anyone who reaches it "
                "could attach a worker and read prompts. Give --tls-ca-file, --tls-cert-file and "
                "--tls-key-file, an address on 127.0.0.1 or unix:/path, or --allow-insecure"
            )
        LOGGER.warning(
            "the scheduler listens on %s without TLS: anyone who reaches it can attach a worker "
            "and read prompts",
            listen,
        )


_NAMES = ("tls_ca_file", "tls_cert_file", "tls_key_file")


def tls_flags(tls: TlsConfig | None) -> list[str]:
    """The command-line flags for these files."""
    if tls is None:
        return []
    return [
        f"--tls-ca-file={tls.ca_file}",
        f"--tls-cert-file={tls.cert_file}",
        f"--tls-key-file={tls.key_file}",
    ]
