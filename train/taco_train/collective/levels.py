"""Levels: in which groups, one inside the other, the ranks reduce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from taco_train.cluster.ranks import Placement, place

FLAT, HOSTS, RACKS = 1, 2, 3
INSIDE = 4  # hosts alone, and nothing between them: a part of an all-reduce, to be measured


@dataclass(frozen=True)
class Levels:
    """How ranks are divided into groups, one inside the other.

    Attributes:
        intra_size: largest number of ranks that share memory; all of a host if None.
        racks: rack by host; hosts that are not listed are in one rack.
    """

    intra_size: int | None = None
    racks: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.intra_size is not None and self.intra_size < 1:
            raise ValueError(f"levels: intra_size is {self.intra_size}; it must be 1 or more")

    def num_racks(self, hosts: Sequence[str]) -> int:
        """Racks in which these hosts are."""
        return len({self.rack_of(host) for host in hosts})

    def rack_of(self, host: str) -> str:
        return self.racks.get(host, "")


@dataclass(frozen=True)
class Group:
    """Ranks that exchange parts of a shard; the first `num_owners` own one part each."""

    ranks: tuple[int, ...]
    num_owners: int


@dataclass(frozen=True)
class Schedule:
    """The groups of one rank, from the innermost to the outermost, between hosts."""

    is_ring: bool = False
    groups: tuple[Group, ...] = ()


@dataclass(frozen=True)
class Layout:
    """Which ranks share memory, and what a rank exchanges with others at each depth.

    Attributes:
        members: ranks that share memory with this one, itself included, ascending.
        num_shards: owners of a shard among them: their first ranks.
        schedules: by depth - 1.
        domains: all groups that share memory.
    """

    members: tuple[int, ...]
    num_shards: int
    schedules: tuple[Schedule, ...]
    domains: tuple[tuple[int, ...], ...]


def make_layout(rank: int, hosts: Sequence[str], levels: Levels) -> Layout:
    """Derives the layout of a rank from the hosts of all ranks, which may differ in size."""
    domains = _domains(hosts, levels.intra_size)
    members = next(domain for domain in domains if rank in domain)
    num_shards = min(map(len, domains))
    index = members.index(rank)
    schedules = [Schedule()] * INSIDE
    if len(domains) > 1:
        everyone = tuple(other for domain in domains for other in domain)
        schedules[FLAT - 1] = Schedule(is_ring=True, groups=(Group(everyone, len(everyone)),))
        if index < num_shards:
            peers = tuple(domain[index] for domain in domains)
            schedules[HOSTS - 1] = Schedule(groups=(Group(peers, len(peers)),))
            schedules[RACKS - 1] = _by_rack(rank, peers, hosts, levels)
    return Layout(members, num_shards, tuple(schedules), domains)


def _domains(hosts: Sequence[str], intra_size: int | None) -> tuple[tuple[int, ...], ...]:
    domains: list[tuple[int, ...]] = []
    for host in dict.fromkeys(hosts):
        ranks = [rank for rank, name in enumerate(hosts) if name == host]
        size = intra_size or len(ranks)
        domains += [tuple(ranks[i : i + size]) for i in range(0, len(ranks), size)]
    return tuple(domains)


def _by_rack(rank: int, peers: Sequence[int], hosts: Sequence[str], levels: Levels) -> Schedule:
    racks: dict[str, list[int]] = {}
    for peer in peers:
        racks.setdefault(levels.rack_of(hosts[peer]), []).append(peer)
    num_owners = min(map(len, racks.values()))
    own = racks[levels.rack_of(hosts[rank])]
    groups = [Group(tuple(own), num_owners)]
    if own.index(rank) < num_owners:
        across = tuple(ranks[own.index(rank)] for ranks in racks.values())
        groups.append(Group(across, len(across)))
    return Schedule(groups=tuple(groups))


def make_tree(rank: int, root: int, layout: Layout) -> tuple[int, list[int]]:
    """Parent (-1 at the root) and children: root, then one rank per host, then its others."""
    members = layout.members
    head = root if root in members else members[0]
    children = [member for member in members if member != head] if rank == head else []
    if rank == root:
        heads = [domain[0] for domain in layout.domains if root not in domain]
        return -1, heads + children
    return (root if rank == head else head), children


def placement_among(placement: Placement, members: Sequence[int]) -> Placement:
    """The placement of the same rank among some of the ranks, renumbered in their order."""
    hosts = [placement.hosts[rank] for rank in members]
    addresses = [placement.addresses[rank] for rank in members] if placement.addresses else []
    return place(members.index(placement.rank), hosts, addresses=addresses)
