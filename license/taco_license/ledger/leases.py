"""The table of current leases: which instance holds the seat of which GPU, and until when.

Times are seconds of a clock that never goes back.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

LEASE_SECONDS = 60.0
HEARTBEAT_SECONDS = 20.0
# Servers tick at least twice in this time. After a longer gap (no server ran, its host was paused,
# or the clock of Redis was set) holders had no chance to renew, so all leases are extended.
UNSEEN_SECONDS = 10.0


@dataclass(slots=True)
class Lease:
    """The lease of one GPU's seat.

    Attributes:
        instance: the holder. The same instance may renew the lease.
        started: start of the holder's newest client, in nanoseconds since its machine booted.
        deadline: the seat is free from this time.
    """

    gpu: str
    instance: str
    started: int
    deadline: float


class LeaseTable:
    """The leases by GPU, ordered by deadline. All leases have the same length."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases.values())

    def get(self, gpu: str) -> Lease | None:
        return self._leases.get(gpu)

    def extend(self, gpus: Iterable[str], instance: str, started: int, now: float) -> None:
        """Grants the seats of `gpus` to `instance`, or renews them, from `now`."""
        for gpu in gpus:
            lease = self._leases.pop(gpu, None)  # reinserted last: the latest deadline
            if lease is None:
                lease = Lease(gpu, instance, started, 0.0)
            lease.started = max(lease.started, started)
            lease.deadline = now + LEASE_SECONDS
            self._leases[gpu] = lease

    def extend_all(self, now: float) -> None:
        """Renews all leases from `now`."""
        for lease in self:
            lease.deadline = now + LEASE_SECONDS

    def drop(self, gpus: Iterable[str]) -> None:
        for gpu in gpus:
            del self._leases[gpu]

    def pop_lapsed(self, now: float) -> Sequence[Lease]:
        """Removes and returns the leases whose deadline has passed (lease timeout)."""
        lapsed: list[Lease] = []
        for lease in self._leases.values():
            if lease.deadline > now:
                break
            lapsed.append(lease)
        self.drop(lease.gpu for lease in lapsed)
        return lapsed
