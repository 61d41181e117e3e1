"""The license file: its contents, its signed format, signing and verification.

A license file is one header line, `taco-license/1 KEY_ID SIGNATURE`, followed by the payload: one
JSON object in UTF-8 up to the end of the file. The Ed25519 signature covers the exact bytes of the
payload, so verification serialises nothing. Key id and signature are lower-case hexadecimal digits:
base64 would allow several texts for the same bytes.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from taco_license.document.keys import PublicKeys, key_id
from taco_license.errors import LicenseError

MAX_BYTES = 4 << 20
MAX_TEXT = 256  # characters of a name
MAX_NUMBER = 2**63 - 1

_HEADER = re.compile(rb"taco-license/1 ([0-9a-f]{16}) ([0-9a-f]{128})\n")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")
_FIELDS = ("serial", "appid", "customer", "accesslimit", "issuedtime", "expiredtime", "gpuinfos")
_GPU_FIELDS = ("uuid", "brand")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A licensed GPU, MIG instance, or host of a CPU worker.

    Attributes:
        uuid: the id that `nvidia-smi -L` shows, or any text for a host.
    """

    uuid: str
    brand: str


@dataclass(frozen=True, slots=True, kw_only=True)
class License:
    """A license: which GPUs may serve, how many at the same time, and until when.

    Attributes:
        serial: increases with each license, so that a server can reject an older one.
        access_limit: number of seats: maximum GPUs at the same time; 0 means no limit.
        issued_time: RFC 3339 with the issuer's offset from UTC, like `expired_time`.
        gpus: at least one; each uuid occurs once.
    """

    serial: int
    app_id: str
    customer: str
    access_limit: int
    issued_time: str
    expired_time: str
    gpus: tuple[Gpu, ...]

    @property
    def issued(self) -> float:
        """Seconds since the epoch."""
        return _seconds("issuedtime", self.issued_time)

    @property
    def expires(self) -> float:
        """Seconds since the epoch; the license is invalid from this time."""
        return _seconds("expiredtime", self.expired_time)


def sign(license_: License, key: Ed25519PrivateKey) -> bytes:
    """Signs a license; returns the bytes of the license file.

    Raises:
        LicenseError: a field is invalid, or the file is larger than a server accepts.
    """
    content = {
        "serial": license_.serial,
        "appid": license_.app_id,
        "customer": license_.customer,
        "accesslimit": license_.access_limit,
        "issuedtime": license_.issued_time,
        "expiredtime": license_.expired_time,
        "gpuinfos": [{"uuid": gpu.uuid, "brand": gpu.brand} for gpu in license_.gpus],
    }
    payload = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    _read_payload(payload)
    name = key_id(key.public_key())
    data = b"taco-license/1 %s %s\n" % (name.encode(), key.sign(payload).hex().encode()) + payload
    _check_size(data)
    return data


def verify(data: bytes, keys: PublicKeys) -> License:
    """Verifies the bytes of a license file and returns the license.

    The payload is parsed only after its signature is verified.

    Raises:
        LicenseError: the file is too large, not a license file, signed by a key that is not in
            `keys`, changed after it was signed, or contains an invalid field.
    """
    _check_size(data)
    header = _HEADER.match(data)
    if header is None:
        raise LicenseError(
            "not a license file: its first line must be taco-license/1 KEY_ID SIGNATURE"
        )
    name, signature = header[1].decode(), bytes.fromhex(header[2].decode())
    payload = data[header.end() :]
    if name not in keys:
        raise LicenseError(
            f"the license is signed with the key {name}, which is not trusted here: give the "
            "issuer's public key with --public-key"
        )
    try:
        keys[name].verify(signature, payload)
    except InvalidSignature:
        raise LicenseError(
            "the license was changed after it was signed: use the file exactly as it was issued"
        ) from None
    return _read_payload(payload)


def _check_size(data: bytes) -> None:
    if len(data) > MAX_BYTES:
        raise LicenseError(f"the license has {len(data)} bytes; at most {MAX_BYTES} are allowed")


def _read_payload(payload: bytes) -> License:
    try:
        content = json.loads(
            payload.decode(), object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError:
        raise LicenseError("the license is not UTF-8") from None
    except (json.JSONDecodeError, RecursionError):
        raise LicenseError("the license's payload is not one JSON object") from None
    _check_fields("the license", content, _FIELDS)
    license_ = License(
        serial=_number("serial", content["serial"], 1),
        app_id=_text("appid", content["appid"]),
        customer=_text("customer", content["customer"]),
        access_limit=_number("accesslimit", content["accesslimit"], 0),
        issued_time=_text("issuedtime", content["issuedtime"]),
        expired_time=_text("expiredtime", content["expiredtime"]),
        gpus=tuple(_gpus(content["gpuinfos"])),
    )
    if license_.issued >= license_.expires:
        raise LicenseError("expiredtime must be later than issuedtime")
    return license_


def _gpus(entries: object) -> Iterable[Gpu]:
    if not isinstance(entries, list) or not entries:
        raise LicenseError("gpuinfos must be a list of GPUs, at least one")
    seen: set[str] = set()
    for entry in entries:
        _check_fields("an entry of gpuinfos", entry, _GPU_FIELDS)
        gpu = Gpu(_text("uuid", entry["uuid"]), _text("brand", entry["brand"]))
        if gpu.uuid in seen:
            raise LicenseError(f"the license contains the GPU {gpu.uuid} twice")
        seen.add(gpu.uuid)
        yield gpu


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise LicenseError("an object of the license contains the same key twice")
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise LicenseError(f"a license must not contain {name}")


def _check_fields(what: str, value: object, names: tuple[str, ...]) -> None:
    if not isinstance(value, dict) or value.keys() != set(names):
        raise LicenseError(f"{what} must have exactly these fields: {', '.join(names)}")


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT or not value.isprintable():
        raise LicenseError(f"{name} must be a text of 1 to {MAX_TEXT} printable characters")
    return value


def _number(name: str, value: object, least: int) -> int:
    if type(value) is not int or not least <= value <= MAX_NUMBER:
        raise LicenseError(f"{name} must be an integer from {least} to {MAX_NUMBER}")
    return value


def _seconds(name: str, text: str) -> float:
    try:
        if not _TIME.fullmatch(text):
            raise ValueError
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise LicenseError(
            f"{name} must be a time with an offset from UTC, such as 2026-01-31T12:00:00+08:00"
        ) from None
