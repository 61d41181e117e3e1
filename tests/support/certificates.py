"""An authority and certificates of every role, as `taco_llm certificates` makes them."""

from datetime import timedelta
from pathlib import Path

from taco_common.tls import Role
from taco_llm.certificates import issue, make_authority
from taco_proto.config import TlsConfig

LIFETIME = timedelta(days=1)
EXPIRED = timedelta(seconds=-1)


def make_certificates(directory: Path, *roles: Role) -> Path:
    """Files of a new authority in a new directory."""
    make_authority(directory)
    for role in roles:
        issue(directory, role, LIFETIME)
    return directory


def tls_config(directory: Path, role: Role, *, authority: Path | None = None) -> TlsConfig:
    """Of a service with that role.

    Args:
        authority: directory of the authority that it trusts; None: its own.
    """
    return TlsConfig(
        ca_file=str((authority or directory) / "ca.crt"),
        cert_file=str(directory / f"{role}.crt"),
        key_file=str(directory / f"{role}.key"),
    )
