"""Mutual TLS between services: the roles that certificates prove, and checks of the files.

A certificate proves a role by a DNS name, `<role>.taco.internal`. Both sides of a connection trust
one certificate authority. `taco_common.grpc_tls` makes gRPC channels and ports of the files.
"""

import ssl
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from taco_proto.config import TlsConfig
from taco_proto.errors import ConfigurationError

DOMAIN = ".taco.internal"


class Role(StrEnum):
    """A role that a certificate proves.

    `CLIENT` is for outside callers, such as operators. Redis is identified by its host name; its
    role only prevents its certificate from proving another one.
    """

    GATEWAY = "gateway"
    SCHEDULER = "scheduler"
    WORKER = "worker"
    DRAFT_WORKER = "draft-worker"
    LICENSE_SERVER = "license-server"
    CLIENT = "client"
    REDIS = "redis"

    @property
    def dns_name(self) -> str:
        return self + DOMAIN


@dataclass(frozen=True, slots=True)
class Pem:
    """Contents of the three files."""

    ca: bytes
    certificate: bytes
    key: bytes = field(repr=False)


def read_pem(tls: TlsConfig) -> Pem:
    """Raises ConfigurationError: a file cannot be read."""
    return Pem(*map(_read_file, (tls.ca_file, tls.cert_file, tls.key_file)))


def _read_file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None


def check_files(tls: TlsConfig, role: Role) -> None:
    """Checks that a service can use its files.

    Raises:
        ConfigurationError: a file is invalid, or the certificate does not prove the role, for
            instance because it has expired.
    """
    _shake_hands(tls, role)


def certificate_end(tls: TlsConfig, role: Role) -> float:
    """When the certificate expires, in seconds since 1970; raises what `check_files` does."""
    certificate = _shake_hands(tls, role).getpeercert()
    assert certificate is not None
    return float(ssl.cert_time_to_seconds(str(certificate["notAfter"])))


def _shake_hands(tls: TlsConfig, role: Role) -> ssl.SSLObject:
    """Runs a TLS handshake of the service with itself, in memory; returns the client's side."""
    read_pem(tls)
    server = _context(tls, ssl.PROTOCOL_TLS_SERVER)
    client = _context(tls, ssl.PROTOCOL_TLS_CLIENT)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = client.wrap_bio(to_client, to_server, server_hostname=role.dns_name)
    sides = [caller, server.wrap_bio(to_server, to_client, server_side=True)]
    try:
        while sides:
            sides = [side for side in sides if not _is_done(side)]
    except ssl.SSLCertVerificationError as error:
        raise ConfigurationError(
            f"{tls.cert_file} does not prove the role {role}: {error.verify_message}"
        ) from None
    except ssl.SSLError as error:
        raise ConfigurationError(f"{tls.cert_file} cannot be used: {error.reason}") from None
    return caller


def _context(tls: TlsConfig, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(tls.ca_file)
    except ssl.SSLError:
        raise ConfigurationError(f"{tls.ca_file} holds no certificate in PEM") from None
    try:
        # An empty password prevents a prompt on the terminal.
        context.load_cert_chain(tls.cert_file, tls.key_file, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            reason = f"{tls.key_file} is not the key of {tls.cert_file}"
        else:
            reason = (
                f"{tls.cert_file} must hold a certificate in PEM, and {tls.key_file} its key, "
                "without a password"
            )
        raise ConfigurationError(reason) from None
    return context


def _is_done(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
