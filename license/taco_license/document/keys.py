"""Ed25519 keys (RFC 8032) of license issuers: trusted public keys, key pairs, PEM files."""

import os
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from taco_license.errors import LicenseError

PublicKeys = Mapping[str, Ed25519PublicKey]

# Public keys of the TACO project: one signs licenses, the other replaces it if needed. No
# repository contains their private keys. Other issuers give license servers their own public key.
PROJECT_KEYS = (
    "024675ca8ab57e933c75795d096a8e3b6eb7876cf858dc3c1637a645e2f53532",
    "1e2a8776a52ace42b28c5aa058688ee9f8b85a4f354e99b68ecbaf834523848c",
)

PRIVATE_MODE = 0o600
PUBLIC_MODE = 0o644


def key_id(key: Ed25519PublicKey) -> str:
    """The id of a key: the first 16 hexadecimal digits of its SHA-256."""
    return sha256(key.public_bytes_raw()).hexdigest()[:16]


def project_keys() -> PublicKeys:
    """The keys that a license server trusts by default."""
    return _by_id(Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)) for key in PROJECT_KEYS)


def read_public_keys(paths: Iterable[str | Path]) -> PublicKeys:
    """Reads public keys from PEM files.

    Raises:
        LicenseError: a file cannot be read, or contains no Ed25519 public key.
    """
    return _by_id(map(_read_public_key, paths))


def read_private_key(path: str | Path) -> Ed25519PrivateKey:
    """Reads a private key from a PEM file.

    Raises:
        LicenseError: the file cannot be read, or contains no Ed25519 private key.
    """
    data = _read(path)
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise LicenseError(
            f"{path} contains no Ed25519 private key (PEM, without a password); make one with "
            "taco_llm license keygen"
        )
    return key


def write_key_pair(private_path: str | Path, public_path: str | Path) -> str:
    """Makes a key pair and returns its id. Existing files are never overwritten.

    Raises:
        LicenseError: a file already exists or cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    if os.path.lexists(public_path):
        raise _already_exists(public_path)
    _write_new(private_path, private, PRIVATE_MODE)
    _write_new(public_path, public, PUBLIC_MODE)
    return key_id(key.public_key())


def _already_exists(path: str | Path) -> LicenseError:
    return LicenseError(f"{path} already exists: remove it, or choose another file name")


def _by_id(keys: Iterable[Ed25519PublicKey]) -> PublicKeys:
    return {key_id(key): key for key in keys}


def _read_public_key(path: str | Path) -> Ed25519PublicKey:
    data = _read(path)
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise LicenseError(f"{path} contains no Ed25519 public key (PEM)")
    return key


def _read(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise LicenseError(f"cannot read {path}: {error.strerror}") from None


def _write_new(path: str | Path, data: bytes, mode: int) -> None:
    """Creates the file with its final mode, so that other users can never read a private key."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise _already_exists(path) from None
    except OSError as error:
        raise LicenseError(f"cannot write {path}: {error.strerror}") from None
    with open(descriptor, "wb") as file:
        file.write(data)
