"""Who has a seat at this moment. Times are seconds of a clock that never goes back."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

LEASE_SECONDS = 60.0
HEARTBEAT_SECONDS = 20.0


@dataclass(slots=True)
class Lease:
    """The seat of a GPU.

    Attributes:
        instance: who holds it; the same instance may ask again and again.
        started: when the holder's newest client began, in nanoseconds since its machine started.
        deadline: from then on the seat is free.
    """

    gpu: str
    instance: str
    started: int
    deadline: float


class LeaseTable:
    """The leases, by GPU and in the order of their deadlines: all have the same length."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._leases.values())

    def get(self, gpu: str) -> Lease | None:
        return self._leases.get(gpu)

    def extend(self, gpus: Iterable[str], instance: str, started: int, now: float) -> None:
        """Gives the instance, or lets it keep, the seats of `gpus` from `now` on."""
        for gpu in gpus:
            lease = self._leases.pop(gpu, None)  # behind all others, in the order of deadlines
            if lease is None:
                lease = Lease(gpu, instance, started, 0.0)
            lease.started = max(lease.started, started)
            lease.deadline = now + LEASE_SECONDS
            self._leases[gpu] = lease

    def drop(self, gpus: Iterable[str]) -> None:
        for gpu in gpus:
            del self._leases[gpu]

    def take_lapsed(self, now: float) -> Sequence[Lease]:
        """Removes and returns those whose deadline has come."""
        lapsed: list[Lease] = []
        for lease in self._leases.values():
            if lease.deadline > now:
                break
            lapsed.append(lease)
        self.drop(lease.gpu for lease in lapsed)
        return lapsed
