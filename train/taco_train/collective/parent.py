"""How the ranks of a subgroup find each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from taco_train.collective.control import MAX_ENDPOINT_BYTES, Endpoint
from taco_train.collective.handle import Handle

if TYPE_CHECKING:
    from taco_train.collective.communicator import Communicator


class Parent:
    """The communicator that a subgroup is made of; the subgroup's ranks find each other through it.

    So a rank that is lost meanwhile is noticed and named as in every other operation.

    Args:
        communicator: the parent.
        handle: of the parent.
        ranks: of the parent, in the order of the subgroup, with this rank.

    Attributes:
        domain: of the parent: they fail together.
        numbers: of the ranks in the domain.
    """

    def __init__(self, communicator: Communicator, handle: Handle, ranks: Sequence[int]) -> None:
        self._communicator = communicator
        self._ranks = ranks
        self.domain = handle.domain
        self.numbers = [handle.numbers[rank] for rank in ranks]

    def swap(self, own: Endpoint) -> list[Endpoint]:
        """See `connect.EndpointExchange`."""
        data = own.encode().ljust(MAX_ENDPOINT_BYTES)
        received = self._exchange(data)
        return [
            Endpoint.decode(bytes(received[rank])) if rank in received else own
            for rank in self._ranks
        ]

    def wait(self) -> None:
        """See `connect.EndpointExchange`."""
        self._exchange(b"")

    def _exchange(self, data: bytes) -> dict[int, bytearray]:
        others = [rank for rank in self._ranks if rank != self._communicator.rank]
        received = {rank: bytearray(len(data)) for rank in others}
        self._communicator.exchange([(rank, data) for rank in others], list(received.items()))
        return received
