"""Issues a license: makes the signed license file for a list of GPUs."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from taco_license.document.license_file import Gpu, License, sign
from taco_license.errors import LicenseError

_DAYS = re.compile(r"(\d{1,5})d")


def issue(
    gpus: Sequence[Gpu],
    key: Ed25519PrivateKey,
    *,
    app_id: str,
    customer: str,
    expires: str,
    access_limit: int,
    now: datetime,
    serial: int | None = None,
) -> bytes:
    """Issues a license; returns the bytes of the license file.

    Args:
        expires: a time with an offset (RFC 3339), a day (until its end, in the time zone of
            `now`), or days from `now` such as `365d`.
        now: the current time with a time zone.
        serial: the serial number; None means `now` in milliseconds since the epoch.

    Raises:
        LicenseError: a value is invalid, or the license would be too large.
    """
    license_ = License(
        serial=int(now.timestamp() * 1000) if serial is None else serial,
        app_id=app_id,
        customer=customer,
        access_limit=access_limit,
        issued_time=now.isoformat(),
        expired_time=_expiry(expires, now),
        gpus=tuple(gpus),
    )
    return sign(license_, key)


def file_name(app_id: str, customer: str, now: datetime) -> str:
    """The default name of a license file: `license-taco_1234-leolingli-20240906104354.dat`."""
    who = "-".join(re.sub(r"[^\w.]+", "_", part) for part in (app_id, customer))
    return f"license-taco_{who}-{now:%Y%m%d%H%M%S}.dat"


def _expiry(text: str, now: datetime) -> str:
    try:
        if match := _DAYS.fullmatch(text):
            return (now + timedelta(days=int(match[1]))).isoformat()
        if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            day = datetime.fromisoformat(text).replace(tzinfo=now.tzinfo)
            return (day + timedelta(days=1)).isoformat()
    except (ValueError, OverflowError):
        raise LicenseError(f"--expires {text!r} is not a valid day or number of days") from None
    return text
