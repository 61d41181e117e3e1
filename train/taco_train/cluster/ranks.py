"""Where a rank is: its number among all ranks, among those of its host, and among hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """Where this process is among all ranks.

    Attributes:
        rank, size: number of this rank, and of all ranks.
        local_rank, local_size: the same within the host.
        cross_rank, cross_size: this host among the hosts that have this local rank, as in Horovod.
        host: name of this rank's host.
        hosts: host of every rank, by rank. Equal names mean that the ranks can share memory.
        addresses: IP address of every rank, by rank, at which all other hosts reach its sockets.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    host: str
    hosts: tuple[str, ...]
    addresses: tuple[str, ...] = ()

    @property
    def local_ranks(self) -> tuple[int, ...]:
        """The ranks on this host, in the order of their numbers."""
        return tuple(rank for rank, host in enumerate(self.hosts) if host == self.host)


def place(
    rank: int,
    hosts: Sequence[str],
    *,
    local_ranks: Sequence[int | None] = (),
    addresses: Sequence[str] = (),
) -> Placement:
    """Derives a rank's placement from the hosts of all ranks.

    Args:
        rank: the rank to place.
        hosts: host of every rank, by rank.
        local_ranks: what the launcher says, by rank. Ranks of a host are numbered in the order of
            their ranks where it says nothing.
        addresses: IP address of every rank, by rank.

    Raises:
        ValueError: the local ranks of a host are not 0, 1, 2, ...
    """
    numbers = _number_locally(hosts, local_ranks or [None] * len(hosts))
    peers = [other for other, number in enumerate(numbers) if number == numbers[rank]]
    return Placement(
        rank=rank,
        size=len(hosts),
        local_rank=numbers[rank],
        local_size=sum(host == hosts[rank] for host in hosts),
        cross_rank=peers.index(rank),
        cross_size=len(peers),
        host=hosts[rank],
        hosts=tuple(hosts),
        addresses=tuple(addresses),
    )


def _number_locally(hosts: Sequence[str], given: Sequence[int | None]) -> list[int]:
    numbers = [0] * len(hosts)
    for host in dict.fromkeys(hosts):
        ranks = [rank for rank, name in enumerate(hosts) if name == host]
        said = [given[rank] for rank in ranks]
        if None in said:
            said = list(range(len(ranks)))
        if sorted(number for number in said if number is not None) != list(range(len(ranks))):
            raise ValueError(
                f"ranks {_list(ranks)} share host {host}, where the launcher calls them local "
                f"ranks {_list(said)}; they must be 0 to {len(ranks) - 1}, each once"
            )
        for rank, number in zip(ranks, said, strict=True):
            numbers[rank] = number or 0
    return numbers


def _list(numbers: Sequence[int | None]) -> str:
    return ", ".join(map(str, numbers))
