"""The ledger of a license server: the current license, the seats under it, and the audit log.

A single server keeps its ledger in memory and SQLite (`local_ledger`). Several servers share one in
Redis (`redis_ledger`). This module contains the interface and the rules that both implementations
share.
"""

from dataclasses import dataclass
from typing import Protocol

from taco_license.document.keys import PublicKeys
from taco_license.document.license_file import License, verify
from taco_license.errors import LeaseRejectedError, LicenseError

# Rate limit of the audit log, in entries per minute for LIMITED_EVENTS. The log records only the
# number of further events, so that no client can fill the disk or push older entries out of Redis.
MAX_AUDITED_CHANGES = 120
LIMITED_EVENTS = frozenset({"granted", "released"})


@dataclass(frozen=True, slots=True)
class VerifiedLicense:
    """A license whose signature was verified, and its file.

    Attributes:
        document: the bytes of the license file.
        expires: seconds since the epoch.
        gpus: the ids of the licensed GPUs.
    """

    document: bytes
    license: License
    expires: float
    gpus: frozenset[str]


def verify_document(document: bytes, keys: PublicKeys) -> VerifiedLicense:
    """Verifies the bytes of a license file.

    Raises:
        LicenseError: see `verify`.
    """
    license_ = verify(document, keys)
    return VerifiedLicense(
        document, license_, license_.expires, frozenset(gpu.uuid for gpu in license_.gpus)
    )


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer to a request whose seats were granted or renewed.

    Attributes:
        is_new: whether the holder did not have all of the seats before.
        license_seconds: seconds until the license expires.
    """

    is_new: bool
    license_seconds: float


@dataclass(frozen=True, slots=True)
class SeatRequest:
    """A worker's request to take, renew or release seats.

    Attributes:
        gpus: at least one, without duplicates.
        instance: the requesting instance. It may repeat the request.
        started: start of the requesting process, in nanoseconds since its machine booted.
    """

    gpus: tuple[str, ...]
    instance: str
    started: int


class Ledger(Protocol):
    """The interface of both ledgers. A ledger belongs to one event loop.

    Methods raise LedgerUnavailableError if the storage does not answer. It is then unknown whether
    the change was made; the caller can safely repeat the request.

    Attributes:
        current: the current license; None without a license of a trusted issuer.
        num_seats: seats taken, as far as the server knows.
        num_failures: number of failed writes and queries.
        is_working: whether the last write or query succeeded.
        tick_seconds: interval between calls of `tick`.
    """

    @property
    def current(self) -> VerifiedLicense | None: ...
    @property
    def num_seats(self) -> int: ...
    @property
    def num_failures(self) -> int: ...
    @property
    def is_working(self) -> bool: ...
    @property
    def tick_seconds(self) -> float: ...

    def now(self) -> float:
        """The time for license expiry, in seconds since the epoch. It never goes back."""
        ...

    def clock_lag_seconds(self) -> float:
        """Seconds by which the clock is behind the latest time seen."""
        ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def tick(self) -> None:
        """Frees seats whose lease has timed out, and does other periodic work.

        Never raises LedgerUnavailableError.
        """
        ...

    async def replace(self, new: VerifiedLicense) -> None:
        """Replaces the current license atomically.

        Seats of GPUs that the new license does not name are dropped. Importing the same file again
        changes nothing.

        Raises:
            LicenseError: the new license has expired, or is not newer than the current one.
            NotStoredError: the new license cannot be written.
        """
        ...

    async def take(self, request: SeatRequest) -> Grant:
        """Grants or renews the seats of all GPUs of the request, or of none.

        Raises:
            LeaseRejectedError: the instance may not have the seats.
        """
        ...

    async def release(self, request: SeatRequest) -> None:
        """Frees the seats of the request that the instance holds.

        If a newer client of the same instance has renewed the lease, an older client frees nothing:
        in a rolling restart the new client takes the seat before the old one stops.
        """
        ...

    async def record_event(
        self, event: str, *, detail: str, gpu: str | None = None, instance: str | None = None
    ) -> None:
        """Writes an event that changed no seat to the audit log."""
        ...


def no_license() -> LeaseRejectedError:
    return LeaseRejectedError("no_license", "the license server has no license: upload one to /ls")


def expired(license_: License) -> LeaseRejectedError:
    return LeaseRejectedError(
        "expired", f"the license expired at {license_.expired_time}: upload a new one"
    )


def not_licensed(gpu: str) -> LeaseRejectedError:
    return LeaseRejectedError("not_licensed", f"the license does not contain {gpu}")


def in_use(gpu: str, holder: str) -> LeaseRejectedError:
    return LeaseRejectedError("in_use", f"{gpu} is in use by another instance", holder)


def no_seat(num_taken: int, limit: int, num_new: int) -> LeaseRejectedError:
    return LeaseRejectedError(
        "no_seat", f"{num_taken} of {limit} seats are taken; {num_new} more were requested"
    )


def not_newer(serial: int, before: int) -> LicenseError:
    return LicenseError(
        f"the license's serial {serial} is not above {before}, the serial of the current license: "
        "issue a license with a higher serial"
    )


def already_expired(license_: License) -> LicenseError:
    return LicenseError(f"the license expired at {license_.expired_time}")


def unrecorded_changes(count: int | str) -> str:
    """Detail of the audit event `more`."""
    return f"{count} more seats were granted or released"


def summary(license_: License) -> str:
    """One line about a license, for logs."""
    return (
        f"serial {license_.serial}, {license_.customer}, {len(license_.gpus)} GPUs, "
        f"access limit {license_.access_limit}, until {license_.expired_time}"
    )
