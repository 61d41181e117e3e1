"""Mutual TLS for gRPC: makes channels and ports from a service's files; see `taco_common.tls`.

Files are read again for each connection, so that a renewed certificate needs no restart.
"""

import logging

import grpc
import grpc.aio

from taco_common.tls import Pem, Role, read_pem
from taco_proto.config import TlsConfig
from taco_proto.errors import ConfigurationError

logger = logging.getLogger("taco.tls")

ChannelOptions = tuple[tuple[str, int | str], ...]


def open_channel(
    address: str, options: ChannelOptions, tls: TlsConfig | None, server: Role
) -> grpc.aio.Channel:
    """A channel to a service, whose certificate must prove the role `server` at any address.

    Args:
        tls: files that are read now; None: a connection without TLS.

    Raises:
        ConfigurationError: a file cannot be read.
    """
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    pem = read_pem(tls)
    credentials = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate)
    name = ("grpc.ssl_target_name_override", server.dns_name)
    return grpc.aio.secure_channel(address, credentials, options=(*options, name))


def add_port(server: grpc.aio.Server, address: str, tls: TlsConfig | None) -> int:
    """Listens without TLS, or only for callers with a certificate; returns the port.

    Raises:
        RuntimeError: the address cannot be bound.
        ConfigurationError: a file cannot be read.
    """
    if tls is None:
        return server.add_insecure_port(address)
    return server.add_secure_port(address, _server_credentials(tls))


def _server_credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    """Credentials that read the files again at each handshake.

    If new files are invalid, the error is logged, here or by gRPC, and the old ones stay in use.
    """
    seen = read_pem(tls)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal seen
        try:
            pem = read_pem(tls)
        except ConfigurationError as error:
            logger.error("the old certificate stays in use: %s", error)
            return None
        if pem == seen:
            return None
        seen = pem
        return _configuration(pem)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(seen),
        renewed,  # type: ignore[arg-type]  # the stubs lack None, which means unchanged
        require_client_authentication=True,
    )


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.ca)
