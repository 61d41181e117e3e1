"""Connects every rank with every other, and lets the ranks of a host share memory."""

from __future__ import annotations

import os
import queue
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from taco_train.cluster.ranks import Placement
from taco_train.cluster.store import KeyValueStore, RendezvousError
from taco_train.collective import library
from taco_train.collective.control import Endpoint, Listener, Message, Record
from taco_train.collective.errors import CommunicationError
from taco_train.collective.tuning import tune


@dataclass
class Connections:
    """Descriptors, which the C++ library takes over.

    Attributes:
        sockets: by rank; -1 at this rank.
        bells: eventfds of the ranks that share memory.
        memory: descriptor of what they share, -1 if the rank is alone.
        endpoints: of all ranks, by rank.
    """

    sockets: list[int]
    bells: list[int]
    memory: int
    endpoints: list[Endpoint] = field(default_factory=list)

    def close(self) -> None:
        for descriptor in (*self.sockets, *self.bells, self.memory):
            if descriptor >= 0:
                os.close(descriptor)


class EndpointExchange(Protocol):
    """How the ranks of a communicator learn each other's endpoints before they are connected."""

    def swap(self, own: Endpoint) -> list[Endpoint]:
        """The endpoints of all ranks, by rank; `own` is this one's."""
        ...

    def wait(self) -> None:
        """Called when this rank has connected to those below it; those above it may have, too."""
        ...


class StoreExchange:
    """Exchanges endpoints through a store, for ranks that are not connected in any other way.

    Args:
        name: of the communicator. It may be used again: every rank counts how often it has.
    """

    def __init__(self, placement: Placement, store: KeyValueStore, name: str) -> None:
        self._placement, self._store, self._name = placement, store, name

    def swap(self, own: Endpoint) -> list[Endpoint]:
        placement, store = self._placement, self._store
        name = f"taco_train/communicator/{self._name}"
        prefix = f"{name}/{store.add(f'{name}/{placement.rank}/uses', 1)}"
        store.set(f"{prefix}/{placement.rank}", own.encode())
        found = []
        for other in range(placement.size):
            try:
                found.append(Endpoint.decode(store.get(f"{prefix}/{other}")))
            except (RendezvousError, RuntimeError) as error:
                raise _missing(placement, range(placement.size), [other], "has not come") from error
        return found

    def wait(self) -> None:
        """The ranks above this one have as long as connecting may take."""


def connect(
    placement: Placement,
    numbers: Sequence[int],
    exchange: EndpointExchange,
    members: Sequence[int],
    slot_bytes: int,
    listener: Listener,
    arrivals: queue.SimpleQueue[tuple[int, socket.socket]],
    timeout_seconds: float,
) -> Connections:
    """Opens the connections of this rank. All ranks call it at the same time.

    Args:
        numbers: of the ranks, as messages name them.
        members: ranks that share memory with this one, ascending.
        arrivals: where `listener` puts the data connections of higher ranks.

    Raises:
        CommunicationError: a rank cannot be reached, or did not come within the time limit.
    """
    rank = placement.rank
    deadline = time.monotonic() + timeout_seconds
    endpoints = exchange.swap(listener.endpoint)
    connections: dict[int, socket.socket] = {}
    made = Connections([-1] * placement.size, [-1] * len(members), -1, endpoints)
    try:
        for other in range(rank):
            is_local = placement.hosts[other] == placement.host
            try:
                connections[other] = _open(endpoints[other], is_local, rank, deadline)
            except OSError as error:
                raise _missing(
                    placement, numbers, [other], f"cannot be reached ({error})"
                ) from error
        exchange.wait()
        while len(connections) < placement.size - 1:
            try:
                other, connection = arrivals.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                missing = [
                    other
                    for other in range(placement.size)
                    if other != rank and other not in connections
                ]
                raise _missing(placement, numbers, missing, "has not connected") from None
            connections[other] = connection
        for connection in connections.values():
            tune(connection)
        if len(members) > 1:
            _share_memory(made, rank, numbers, members, slot_bytes, connections)
    except BaseException:
        made.close()
        for connection in connections.values():
            connection.close()
        raise
    for other, connection in connections.items():
        connection.setblocking(False)
        made.sockets[other] = connection.detach()
    return made


def _open(endpoint: Endpoint, is_local: bool, rank: int, deadline: float) -> socket.socket:
    connection = endpoint.connect(is_local, max(0.1, deadline - time.monotonic()))
    endpoint.send(connection, Record(Message.DATA, rank))
    return connection


def _missing(
    placement: Placement, numbers: Sequence[int], ranks: Sequence[int], what: str
) -> CommunicationError:
    names = ", ".join(f"rank {numbers[rank]} on host {placement.hosts[rank]}" for rank in ranks)
    return CommunicationError(
        f"rank {numbers[placement.rank]} cannot connect: {names} {what}",
        rank=numbers[ranks[0]],
        host=placement.hosts[ranks[0]],
        stage="connecting",
    )


def _share_memory(
    made: Connections,
    rank: int,
    numbers: Sequence[int],
    members: Sequence[int],
    slot_bytes: int,
    connections: dict[int, socket.socket],
) -> None:
    """The first rank makes the memory; each hands out a descriptor that wakes it up."""
    own = members.index(rank)
    made.bells[own] = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    descriptors = [made.bells[own]]
    if own == 0:
        made.memory = os.memfd_create("taco_train", os.MFD_CLOEXEC)
        os.ftruncate(
            made.memory, library.load().taco_collective_memory_bytes(len(members), slot_bytes)
        )
        descriptors.append(made.memory)
    others = [(index, member) for index, member in enumerate(members) if member != rank]
    for _, member in others:
        socket.send_fds(connections[member], [b"f"], descriptors)
    for index, member in others:
        _, received, _, _ = socket.recv_fds(connections[member], 1, 2, socket.MSG_CMSG_CLOEXEC)
        if len(received) != (2 if index == 0 else 1):
            for descriptor in received:
                os.close(descriptor)
            raise CommunicationError(
                f"rank {numbers[member]} did not share its memory: it has ended, or has no "
                "descriptors left",
                rank=numbers[member],
                stage="connecting",
            )
        made.bells[index] = received[0]
        if index == 0:
            made.memory = received[1]
