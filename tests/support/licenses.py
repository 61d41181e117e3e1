"""Licenses and their issuer, for tests."""

from datetime import UTC, datetime, timedelta

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from taco_license.document.keys import PublicKeys, key_id
from taco_license.document.license_file import Gpu, License, sign
from taco_license.ledger.local_ledger import LocalLedger
from taco_license.ledger.sqlite_store import Store
from taco_license.server.service import LicenseService

ISSUED = datetime(2026, 1, 1, tzinfo=UTC)
DAY = 86_400.0

ISSUER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
KEYS: PublicKeys = {key_id(ISSUER.public_key()): ISSUER.public_key()}


def gpu_names(count: int) -> list[str]:
    return [f"GPU-{index:08x}-cd33-469b-019f-9af0bb76a073" for index in range(count)]


def make_license(
    gpus: int = 4,
    *,
    access_limit: int = 0,
    serial: int = 1,
    days: float = 365,
    app_id: str = "1234",
) -> License:
    """Issued at `ISSUED`, for the GPUs of `gpu_names(gpus)`."""
    return License(
        serial=serial,
        app_id="1234",
        customer="leolingli",
        access_limit=access_limit,
        issued_time=ISSUED.isoformat(),
        expired_time=(ISSUED + timedelta(days=days)).isoformat(),
        gpus=tuple(Gpu(name, "Tesla T4") for name in gpu_names(gpus)),
    )


def signed(license_: License) -> bytes:
    return sign(license_, ISSUER)


class Clock:
    """Both clocks of a license service, in the test's hands."""

    def __init__(self) -> None:
        self.wall = ISSUED.timestamp() + DAY
        self.monotonic = 1000.0

    def advance(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


def make_service(store: Store, clock: Clock, keys: PublicKeys = KEYS) -> LicenseService:
    def monotonic() -> float:
        return clock.monotonic

    ledger = LocalLedger(store, keys, wall=lambda: clock.wall, monotonic=monotonic)
    return LicenseService(ledger, keys, monotonic=monotonic)
