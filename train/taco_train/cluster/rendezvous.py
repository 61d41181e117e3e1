"""Rendezvous: every rank learns where all ranks are, and all check what their launcher said.

The store is torch's, made by a function that callers pass in: this package is free of torch. See
`taco_train.collective.store.connect`.
"""

from __future__ import annotations

import json
import secrets
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol

from taco_train.cluster import hosts, pmix
from taco_train.cluster.launch import HOST_VARIABLE, Launch
from taco_train.cluster.ranks import Placement, place
from taco_train.cluster.store import (
    ConfigurationError,
    KeyValueStore,
    LocalStore,
    PrefixedStore,
    RendezvousError,
)

_DIAL_SECONDS = 5.0
_NO_STORE = "{}"  # what rank 0 tells where it cannot serve the store


class OpenStore(Protocol):
    def __call__(
        self, address: str, port: int, *, serves: bool, timeout: float
    ) -> tuple[KeyValueStore, int]:
        """Opens the store at an address, and serves it there if `serves`.

        Returns:
            The store, and its port: a free one where `port` is 0.

        Raises:
            RendezvousError: the store cannot be reached or served within `timeout` seconds.
        """


@dataclass(frozen=True)
class Description:
    """What a rank tells all others.

    Attributes:
        size: number of ranks, as its launcher said.
        key: equal for ranks that share a host (hosts.host_key).
        label: what to call the host.
        local_rank, local_size, cross_rank, cross_size: as the launcher said; None where it did not.
        address: of its sockets; a loopback address where only ranks of its host reach it.
        store_address: IP address at which it reached the store.
        agreed: variables that must be equal on all ranks, as this rank reads them.
    """

    size: int
    key: str
    label: str
    local_rank: int | None
    local_size: int | None
    cross_rank: int | None
    cross_size: int | None
    address: str
    store_address: str
    agreed: Mapping[str, str] = field(default_factory=dict)


def connect(
    launch: Launch,
    environment: Mapping[str, str],
    open_store: OpenStore,
    *,
    timeout: float,
    generation: str = "0",
    agreed: Mapping[str, str] | None = None,
) -> tuple[Placement, KeyValueStore]:
    """Finds the other ranks; all ranks call it together.

    Args:
        launch: what `detect(environment)` found.
        environment: names the network interface to use, if any (hosts.INTERFACE_VARIABLES).
        open_store: opens torch's store.
        timeout: seconds to wait for the other ranks.
        generation: the same on all ranks, and another one each time that ranks connect anew.
        agreed: variables that must be equal on all ranks, as this rank reads them.

    Returns:
        The placement of this rank, and the store, in which no keys of earlier generations are.

    Raises:
        ConfigurationError: what ranks say differs, or the interface does not exist; the message
            says what.
        RendezvousError: a rank does not come, or the store cannot be used.
    """
    hosts.check_interface(environment)
    if launch.size == 1:
        label = hosts.host_label(launch)
        address = hosts.interface_address(environment) or "127.0.0.1"
        return place(0, [label], addresses=[address]), LocalStore()
    store, address = _open(launch, environment, open_store, timeout)
    store = PrefixedStore(f"taco_train/{launch.attempt}/{generation}", store)
    try:
        address = hosts.resolve(address)
        own = hosts.interface_address(environment) or hosts.address_towards(address)
    except OSError as error:
        raise RendezvousError(
            f"rank {launch.rank}: the store's address {address!r} cannot be used: {error}"
        ) from error
    description = Description(
        size=launch.size,
        key=hosts.host_key(launch),
        label=hosts.host_label(launch),
        # A host that the user named has the ranks that say so, whatever the launcher thinks.
        local_rank=None if launch.host else launch.local_rank,
        local_size=None if launch.host else launch.local_size,
        cross_rank=None if launch.host else launch.cross_rank,
        cross_size=None if launch.host else launch.cross_size,
        address=own,
        store_address=address,
        agreed=agreed or {},
    )
    descriptions = _exchange(store, launch, description, timeout)
    return place_all(descriptions)[launch.rank], store


def place_all(descriptions: Sequence[Description]) -> list[Placement]:
    """The placement of every rank, by rank.

    Raises:
        ConfigurationError: what ranks say differs; the message has every difference.
    """
    size = len(descriptions)
    if disagreements := _disagreements([said.agreed for said in descriptions]):
        raise ConfigurationError("; ".join(disagreements))
    names = name_hosts(descriptions)
    addresses = choose_addresses(descriptions)
    local_ranks = [said.local_rank for said in descriptions]
    try:
        placements = [
            place(rank, names, local_ranks=local_ranks, addresses=addresses) for rank in range(size)
        ]
    except ValueError as error:
        raise ConfigurationError(f"{error} ({_ADVICE})") from error
    differences = [
        difference
        for placement, said in zip(placements, descriptions, strict=True)
        for difference in _differences(placement, said)
    ]
    if differences:
        raise ConfigurationError(f"{'; '.join(differences)} ({_ADVICE})")
    return placements


_ADVICE = f"set {HOST_VARIABLE} for each rank to say which ranks share a host"


def name_hosts(descriptions: Sequence[Description]) -> list[str]:
    """The host of every rank: the label of its first rank, with a number where labels repeat."""
    labels: dict[str, str] = {}
    for said in descriptions:
        labels.setdefault(said.key, said.label)
    repeated = {label for label, count in Counter(labels.values()).items() if count > 1}
    numbers: Counter[str] = Counter()
    names = {}
    for key, label in labels.items():
        numbers[label] += 1
        names[key] = f"{label}#{numbers[label]}" if label in repeated else label
    return [names[said.key] for said in descriptions]


def choose_addresses(descriptions: Sequence[Description]) -> list[str]:
    """The address of every rank, by rank.

    Ranks beside the store may have reached it by a loopback address. Ranks of other hosts know
    the address of that host.
    """
    seen = [said.store_address for said in descriptions if not hosts.is_loopback(said.address)]
    outside = next((address for address in seen if not hosts.is_loopback(address)), None)
    is_alone = len({said.key for said in descriptions}) == 1
    return [
        outside if outside and hosts.is_loopback(said.address) and not is_alone else said.address
        for said in descriptions
    ]


def _differences(placement: Placement, said: Description) -> list[str]:
    found = []
    for name in ("local_rank", "local_size", "cross_rank", "cross_size"):
        claimed, actual = getattr(said, name), getattr(placement, name)
        if claimed is not None and claimed != actual:
            ranks = ", ".join(map(str, placement.local_ranks))
            found.append(
                f"rank {placement.rank}: the launcher says {name} {claimed}, but it is {actual}, "
                f"since host {placement.host} has ranks {ranks}"
            )
    return found


def _disagreements(agreed: Sequence[Mapping[str, str]]) -> list[str]:
    """The variables that are not equal on all ranks, with the ranks that have each value."""
    found = []
    for name in sorted({name for variables in agreed for name in variables}):
        ranks: dict[str, list[int]] = {}
        for rank, variables in enumerate(agreed):
            ranks.setdefault(variables.get(name, "its default"), []).append(rank)
        if len(ranks) > 1:
            values = "; ".join(
                f"{value} on rank{'s' * (len(some) > 1)} {', '.join(map(str, some))}"
                for value, some in ranks.items()
            )
            found.append(f"{name} must be equal on all ranks, but is {values}")
    return found


def _exchange(
    store: KeyValueStore, launch: Launch, description: Description, timeout: float
) -> list[Description]:
    if store.add(f"arrived/{launch.rank}", 1) != 1:
        raise RendezvousError(
            f"two processes call themselves rank {launch.rank}: every process needs another rank"
        )
    store.set(f"rank/{launch.rank}", json.dumps(asdict(description)))
    descriptions = []
    for rank in range(launch.size):
        try:
            text = store.get(f"rank/{rank}")
        except RendezvousError as error:
            raise RendezvousError(
                f"rank {launch.rank}: rank {rank} of {launch.size} has not come within "
                f"{timeout:g} s: {error}"
            ) from error
        try:
            said = Description(**json.loads(text))
        except TypeError:  # fields that are unknown here, or missing
            raise ConfigurationError(
                f"rank {rank} has another version of taco-train than rank {launch.rank}: install "
                "the same on all hosts"
            ) from None
        if said.size != launch.size:
            raise ConfigurationError(
                f"rank {rank} says that there are {said.size} ranks, "
                f"rank {launch.rank} says {launch.size}"
            )
        descriptions.append(said)
    return descriptions


def _open(
    launch: Launch, environment: Mapping[str, str], open_store: OpenStore, timeout: float
) -> tuple[KeyValueStore, str]:
    """The store, and the address at which this rank reached it."""
    if launch.address is None or launch.port is None:
        return _open_by_pmix(launch, environment, open_store, timeout)
    serves = launch.rank == 0 and not launch.has_store
    store, _ = open_store(launch.address, launch.port, serves=serves, timeout=timeout)
    return store, launch.address


def _open_by_pmix(
    launch: Launch, environment: Mapping[str, str], open_store: OpenStore, timeout: float
) -> tuple[KeyValueStore, str]:
    """Under plain mpirun, rank 0 takes a free port and tells it through PMIx, once in a process."""
    received = pmix.received()
    if received == _NO_STORE:
        raise RendezvousError(f"rank {launch.rank}: rank 0 could not serve the store")
    if launch.rank:
        said = json.loads(received or pmix.exchange(None, environment, timeout))
        return _dial(said, launch, open_store, timeout)
    if received:
        store, _ = open_store("0.0.0.0", json.loads(received)["port"], serves=True, timeout=timeout)
        return store, "127.0.0.1"
    try:
        store, port = open_store("0.0.0.0", 0, serves=True, timeout=timeout)
    except RendezvousError:
        # The others wait for an address, and say that there is no store.
        pmix.exchange(_NO_STORE, environment, timeout)
        raise
    named = hosts.interface_address(environment)
    addresses = [named] if named else hosts.own_addresses()
    nonce = secrets.token_hex(8)
    store.set("nonce", nonce)
    said = {"addresses": addresses, "port": port, "key": hosts.host_key(launch), "nonce": nonce}
    pmix.exchange(json.dumps(said), environment, timeout)
    return store, "127.0.0.1"


def _dial(
    said: dict[str, object], launch: Launch, open_store: OpenStore, timeout: float
) -> tuple[KeyValueStore, str]:
    if not said:
        raise RendezvousError(f"rank {launch.rank}: rank 0 could not serve the store")
    addresses, port = said["addresses"], said["port"]
    assert isinstance(addresses, list)
    assert isinstance(port, int)
    if said["key"] == hosts.host_key(launch):
        addresses = ["127.0.0.1", *addresses]
    for address in addresses:
        # An address that another machine has too (docker0's, say) must not be taken for rank 0.
        try:
            socket.create_connection((address, port), _DIAL_SECONDS).close()
        except OSError:
            continue
        store, _ = open_store(address, port, serves=False, timeout=timeout)
        if store.get("nonce").decode() == said["nonce"]:
            return store, address
    raise RendezvousError(
        f"rank {launch.rank} reaches rank 0 at none of {', '.join(addresses)}, port {port}: "
        "open the ports between the hosts, or name the interface that they share in "
        "TACO_TRAIN_INTERFACE"
    )
