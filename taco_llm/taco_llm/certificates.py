"""Makes a certificate authority and certificates for mutual TLS between services.

The certificates are X.509 (RFC 5280) with keys on the curve P-256. A certificate proves a role by a
DNS name; see `taco_common.tls`.
"""

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from taco_common.tls import Role
from taco_proto.errors import ConfigurationError

AUTHORITY = "ca"
AUTHORITY_DAYS = 3650
_KEY_MODE, _CERTIFICATE_MODE, _DIRECTORY_MODE = 0o600, 0o644, 0o700
_SKEW = timedelta(minutes=5)  # tolerated clock skew of other machines


def make_authority(directory: Path) -> None:
    """Writes ca.crt, which every service needs, and ca.key, which signs certificates.

    Raises:
        ConfigurationError: the authority already exists, or a file cannot be written.
    """
    certificate_path, key_path = _paths(directory, AUTHORITY)
    for path in (certificate_path, key_path):
        if os.path.lexists(path):
            raise ConfigurationError(
                f"{path} already exists: use this authority, or choose another directory"
            )
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("TACO authority")
    builder = _builder(name, name, key.public_key(), key.public_key(), timedelta(AUTHORITY_DAYS))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    _write_pair(directory, AUTHORITY, builder.sign(key, hashes.SHA256()), key)


def issue(directory: Path, role: Role, lifetime: timedelta, hosts: Sequence[str] = ()) -> datetime:
    """Writes ROLE.crt and ROLE.key, signed by the authority in the directory. Replaces older ones.

    Args:
        hosts: further host names and IP addresses of the certificate, besides the role's name.

    Returns:
        The end of the certificate's validity.

    Raises:
        ConfigurationError: there is no authority, it expires earlier, a host is invalid, or a file
            cannot be written.
    """
    authority, authority_key = _read_authority(directory)
    names = [x509.DNSName(role.dns_name), *map(_host_name, hosts)]
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(
        _name(role), authority.subject, key.public_key(), authority_key.public_key(), lifetime
    )
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    # Some services are both server and client, so every certificate allows both.
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
    certificate = builder.sign(authority_key, hashes.SHA256())
    if certificate.not_valid_after_utc > authority.not_valid_after_utc:
        end = authority.not_valid_after_utc
        raise ConfigurationError(
            f"the authority expires earlier, on {end:%Y-%m-%d}: give fewer --days"
        )
    _write_pair(directory, role, certificate, key)
    return certificate.not_valid_after_utc


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    lifetime: timedelta,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False
        )
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        if host and not host.endswith(".") and " " not in host:
            return x509.DNSName(host)
    except ValueError:  # not ASCII
        pass
    raise ConfigurationError(f"--host {host!r} is not a host name or an IP address")


# ------------------------------------------------------------------- files


def _paths(directory: Path, name: str) -> tuple[Path, Path]:
    return directory / f"{name}.crt", directory / f"{name}.key"


def _read_authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate_path, key_path = _paths(directory, AUTHORITY)
    try:
        certificate = x509.load_pem_x509_certificate(certificate_path.read_bytes())
        key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{error.filename} does not exist: make an authority with taco_llm certificates init"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"cannot read {error.filename}: {error.strerror}") from None
    except (ValueError, TypeError):
        raise ConfigurationError(
            f"{certificate_path} and {key_path} are not a certificate and its key (PEM)"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != (
        certificate.public_key()
    ):
        raise ConfigurationError(f"{key_path} is not the key of {certificate_path}")
    return certificate, key


def _write_pair(
    directory: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    certificate_path, key_path = _paths(directory, name)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        directory.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        _replace(key_path, private, _KEY_MODE)
        public = certificate.public_bytes(serialization.Encoding.PEM)
        _replace(certificate_path, public, _CERTIFICATE_MODE)
    except OSError as error:
        raise ConfigurationError(f"cannot write {error.filename}: {error.strerror}") from None


def _replace(path: Path, data: bytes, mode: int) -> None:
    """Replaces a file atomically. Other users can never read a private key."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    new.replace(path)
