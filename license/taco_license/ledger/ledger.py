"""What a license server keeps: the license that holds, who has a seat under it, what happened.

One server keeps it in memory and in SQLite (`local_ledger`), several share it in Redis
(`redis_ledger`). The rules are the same, and stand here where they are not a transaction's.
"""

from dataclasses import dataclass
from typing import Protocol

from taco_license.document.keys import PublicKeys
from taco_license.document.license_file import License, verify
from taco_license.errors import LeaseRefusedError, LicenseError

# Of the seats that are granted and released in a minute so many are in the audit log, and of the
# rest their number: nobody may fill the disk, or push out of Redis what happened before.
MAX_AUDITED_CHANGES = 120
LIMITED_EVENTS = frozenset({"granted", "released"})


@dataclass(frozen=True, slots=True)
class Held:
    """A license whose signature was checked, with its file.

    Attributes:
        expires: seconds since the epoch.
        gpus: the ids of those that it names.
    """

    document: bytes
    license: License
    expires: float
    gpus: frozenset[str]


def hold(document: bytes, keys: PublicKeys) -> Held:
    """Raises LicenseError, see `verify`."""
    license_ = verify(document, keys)
    return Held(document, license_, license_.expires, frozenset(gpu.uuid for gpu in license_.gpus))


@dataclass(frozen=True, slots=True)
class Grant:
    """Seats were given.

    Attributes:
        is_new: the holder did not have all of them before.
        license_seconds: so long the license is yet good.
    """

    is_new: bool
    license_seconds: float


@dataclass(frozen=True, slots=True)
class Ask:
    """A worker's request for seats.

    Attributes:
        gpus: one at least, each once.
        instance: who asks; the same instance may ask again and again.
        started: when the asking process began, in nanoseconds since its machine started.
    """

    gpus: tuple[str, ...]
    instance: str
    started: int


class Ledger(Protocol):
    """Belongs to one event loop.

    Methods raise AwayError where what keeps the ledger does not answer; then it is not known
    whether a change was made, and to ask for it again does no harm.

    Attributes:
        held: the license that holds; None: there is none, or none of a trusted issuer.
        num_seats: those that are taken, as far as it is known.
        num_failures: times that something could not be written or asked.
        is_working: that was not so the last time.
        tick_seconds: how often to call `tick`.
    """

    @property
    def held(self) -> Held | None: ...
    @property
    def num_seats(self) -> int: ...
    @property
    def num_failures(self) -> int: ...
    @property
    def is_working(self) -> bool: ...
    @property
    def tick_seconds(self) -> float: ...

    def now(self) -> float:
        """The time by which licenses expire, in seconds since the epoch; it never goes back."""
        ...

    def seconds_behind(self) -> float:
        """How far the clock is behind the latest time that was seen."""
        ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def tick(self) -> None:
        """Frees seats whose holders are silent, and does what else comes with time. Never raises
        AwayError.
        """
        ...

    async def replace(self, new: Held) -> None:
        """Puts a license in the place of the one before, all at once or not at all.

        The seats of GPUs that it does not name are taken back.

        Raises:
            LicenseError: it has expired, or is not newer. The same file again is no harm.
            NotStoredError: it cannot be written.
        """
        ...

    async def take(self, ask: Ask) -> Grant:
        """Gives the seats of all GPUs, or lets the instance keep them; or of none.

        Raises:
            LeaseRefusedError: it may not have them.
        """
        ...

    async def release(self, ask: Ask) -> None:
        """Frees those seats that the instance has.

        A client that has a successor of the same instance frees nothing: in a rolling restart the
        new one asks before the old one leaves.
        """
        ...

    async def note(
        self, event: str, *, detail: str, gpu: str | None = None, instance: str | None = None
    ) -> None:
        """Writes what changed nothing into the audit log."""
        ...


def no_license() -> LeaseRefusedError:
    return LeaseRefusedError("no_license", "no license was imported")


def expired(license_: License) -> LeaseRefusedError:
    return LeaseRefusedError("expired", f"the license expired at {license_.expired_time}")


def not_licensed(gpu: str) -> LeaseRefusedError:
    return LeaseRefusedError("not_licensed", f"{gpu} is not among the licensed GPUs")


def in_use(gpu: str, holder: str) -> LeaseRefusedError:
    return LeaseRefusedError("in_use", f"{gpu} is in use by another instance", holder)


def no_seat(num_taken: int, limit: int, num_new: int) -> LeaseRefusedError:
    return LeaseRefusedError(
        "no_seat", f"{num_taken} of {limit} seats are taken; {num_new} more are asked for"
    )


def not_newer(serial: int, before: int) -> LicenseError:
    return LicenseError(
        f"the license's serial {serial} is not above {before}, that of the license before"
    )


def already_expired(license_: License) -> LicenseError:
    return LicenseError(f"the license expired at {license_.expired_time}")


def more_changes(count: int | str) -> str:
    """For the audit log, of the event `more`."""
    return f"{count} seats more were granted or released"


def summary(license_: License) -> str:
    """For the audit log."""
    return (
        f"serial {license_.serial}, {license_.customer}, {len(license_.gpus)} GPUs, "
        f"access limit {license_.access_limit}, until {license_.expired_time}"
    )
