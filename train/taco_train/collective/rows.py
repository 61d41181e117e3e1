"""Collectives that move rows of tensors: all-gather, all-to-all, reduce-scatter.

Ranks of a host exchange rows through shared memory. Between hosts, every row crosses the network
once a host in an all-gather, and once for all ranks of the host that sends it in a reduce-scatter:
one rank of a host acts for each rank elsewhere.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from taco_train.collective import library
from taco_train.collective.buffers import Buffer, Parts
from taco_train.collective.handle import Handle
from taco_train.collective.levels import Layout
from taco_train.collective.library import TYPES, Description, Kind

# Rows of so few bytes from a rank to another travel with their count: one time of waiting, not two.
_EARLY_BYTES = 8 << 10
_COUNT_BYTES = 4 * 8
_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class _Counts:
    """What ranks say of the rows that they send.

    Attributes:
        rows: from each rank.
        most, most_inside: that a rank sends to another; of this host, to one of it.
        early: bytes from each rank, where they came with the count.
    """

    rows: list[int]
    most: int
    most_inside: int
    early: list[Tensor]


class RowMover:
    """The collectives of one rank; several ranks, and arguments that have been checked.

    Args:
        rank, size: of this rank, and number of ranks.
    """

    def __init__(self, handle: Handle, layout: Layout, rank: int, size: int) -> None:
        self._handle = handle
        self._rank = rank
        self._size = size
        self._members = layout.members
        self._domains = layout.domains
        self._remote = [domain for domain in layout.domains if rank not in domain]
        # Equal on all ranks, which count the operations of the library alike.
        self._has_neighbors = any(len(domain) > 1 for domain in layout.domains)
        # By rank of this host: itself, and the ranks elsewhere for which it acts here.
        self._acts_for = {member: [member] for member in self._members}
        for domain in self._remote:
            for other in domain:
                self._acts_for[self._actor(other, self._members)].append(other)

    def all_gather(self, tensor: Tensor) -> Tensor:
        """See Communicator.all_gather."""
        rows = self._exchange_counts(Kind.ALL_GATHER, tensor, [tensor.shape[0]] * self._size).rows
        output = tensor.new_empty(sum(rows), *tensor.shape[1:])
        parts = output.split(rows)
        parts[self._rank].copy_(tensor)
        description = Description(Kind.ALL_GATHER, TYPES[tensor.dtype])
        if self._remote:
            actors = [self._actor(self._rank, domain) for domain in self._remote]
            self.move(
                description,
                [(actor, parts[self._rank]) for actor in actors],
                [(rank, parts[rank]) for rank in self._acts_for[self._rank][1:]],
            )
        if self._has_neighbors:
            streams = {m: [parts[rank] for rank in self._acts_for[m]] for m in self._members}
            self.move(
                description,
                [(self._rank, part) for part in streams[self._rank] if self._neighbors()],
                [(m, part) for m in self._neighbors() for part in streams[m]],
                longest=max(sum(part.nbytes for part in stream) for stream in streams.values()),
                is_shared=True,
            )
        return output

    def all_to_all(self, tensor: Tensor, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """See Communicator.all_to_all.

        Rows of few bytes travel with their count. Others follow, once all ranks know of them.
        """
        row_bytes = _row_elements(tensor) * tensor.element_size()
        data = tensor.contiguous().view(-1).view(torch.uint8)
        sources = data.split([count * row_bytes for count in rows])
        counts = self._exchange_counts(Kind.ALL_TO_ALL, tensor, rows, sources)
        parts = [*counts.early]
        parts[self._rank] = sources[self._rank]
        others = self._others()
        if counts.most * row_bytes <= _EARLY_BYTES:
            output = torch.cat(parts)
        else:
            output = data.new_empty(sum(counts.rows) * row_bytes)
            targets = output.split([count * row_bytes for count in counts.rows])
            for rank, part in enumerate(parts):
                if rank == self._rank or _is_early(targets[rank]):
                    targets[rank].copy_(part)
            self.move(
                Description(Kind.ALL_TO_ALL, TYPES[tensor.dtype]),
                [(rank, sources[rank]) for rank in others if not _is_early(sources[rank])],
                [(rank, targets[rank]) for rank in others if not _is_early(targets[rank])],
                longest=counts.most_inside * row_bytes,
            )
        shape = (sum(counts.rows), *tensor.shape[1:])
        return output.view(tensor.dtype).view(shape), torch.tensor(counts.rows)

    def reduce_scatter(self, tensor: Tensor, reduction: int, *, averages: bool) -> Tensor:
        """See Communicator.reduce_scatter.

        Args:
            reduction: number of the operation in the library.
        """
        quotient, rest = divmod(tensor.shape[0], self._size)
        rows = [quotient + (rank < rest) for rank in range(self._size)]
        partial = dict(enumerate(tensor.contiguous().split(rows)))
        description = Description(
            Kind.REDUCE_SCATTER, TYPES[tensor.dtype], reduction, count=tensor.numel()
        )
        divisor = self._size if averages else 0
        if self._has_neighbors:
            inside = 0 if self._remote else divisor
            partial = self._reduce_inside(description, partial, reduction, inside)
        if self._remote:
            actors = [self._actor(self._rank, domain) for domain in self._domains]
            own = partial[self._rank]
            inputs = [own if actor == self._rank else torch.empty_like(own) for actor in actors]
            self.move(
                description,
                [(rank, partial[rank]) for rank in self._acts_for[self._rank][1:]],
                [
                    (actor, part)
                    for actor, part in zip(actors, inputs, strict=True)
                    if actor != self._rank
                ],
            )
            partial[self._rank] = _reduce(inputs, reduction, divisor)
        return partial[self._rank]

    def _reduce_inside(
        self,
        description: Description,
        sources: dict[int, Tensor],
        reduction: int,
        divisor: int,
    ) -> dict[int, Tensor]:
        """Over the ranks of this host: the rows of ranks for which this one acts, by rank."""
        targets = self._acts_for[self._rank]
        inputs = {
            (rank, m): sources[rank] if m == self._rank else torch.empty_like(sources[rank])
            for rank in targets
            for m in self._members
        }
        streams = {m: [sources[rank] for rank in self._acts_for[m]] for m in self._members}
        self.move(
            description,
            [(m, part) for m in self._neighbors() for part in streams[m]],
            [(m, inputs[rank, m]) for m in self._neighbors() for rank in targets],
            longest=max(sum(part.nbytes for part in stream) for stream in streams.values()),
        )
        return {
            rank: _reduce([inputs[rank, m] for m in self._members], reduction, divisor)
            for rank in targets
        }

    def _exchange_counts(
        self, kind: Kind, tensor: Tensor, rows: Sequence[int], data: Sequence[Tensor] = ()
    ) -> _Counts:
        """Sends every rank how many rows it gets from this one; checks that rows are alike.

        Args:
            data: bytes for each rank, which travel with its count where they are few.
        """
        row, others = _row_elements(tensor), self._others()
        most, inside = max(rows), max(rows[member] for member in self._members)
        sent = torch.tensor([[count, row, most, inside] for count in rows]).view(torch.uint8)
        room = _COUNT_BYTES + (_EARLY_BYTES if data else 0)
        received = torch.empty(self._size, room, dtype=torch.uint8)
        received[self._rank, :_COUNT_BYTES] = sent[self._rank]
        self.move(
            Description(kind, TYPES[tensor.dtype], wire=1),
            [
                (
                    rank,
                    torch.cat((sent[rank], data[rank]))
                    if data and _is_early(data[rank])
                    else sent[rank],
                )
                for rank in others
            ],
            [(rank, received[rank]) for rank in others],
            longest=room,
            may_be_shorter=True,
        )
        found = received[:, :_COUNT_BYTES].contiguous().view(torch.int64).tolist()
        for rank, (_, length, _, _) in enumerate(found):
            if length != row:
                self._handle.fail_mismatch(
                    rank,
                    f"ranks disagree: rows have {length} elements on {self._handle.name_of(rank)}, "
                    f"{row} on {self._handle.name_of(self._rank)}",
                )
        row_bytes = row * tensor.element_size()
        return _Counts(
            [count for count, *_ in found],
            max(one[2] for one in found),
            max(found[member][3] for member in self._members),
            [
                message[_COUNT_BYTES : _COUNT_BYTES + count * row_bytes]
                for message, (count, *_) in zip(received, found, strict=True)
            ]
            if data
            else [],
        )

    def move(
        self,
        description: Description,
        sends: Iterable[tuple[int, Buffer]],
        receives: Iterable[tuple[int, Buffer]],
        *,
        longest: int = 0,
        is_shared: bool = False,
        may_be_shorter: bool = False,
    ) -> None:
        """Sends and receives buffers: all progress together.

        Args:
            longest: bytes of the longest stream between two ranks of this host, the same on all
                its ranks.
            is_shared: all other ranks of this host get what this rank sends to itself.
            may_be_shorter: what comes may be shorter than the buffers for it.
        """
        sent, got = Parts.of(sends), Parts.of(receives, is_written=True)
        arguments = library.MoveArguments(
            description,
            *(len(sent.ranks), len(got.ranks)),
            *(sent.rank_array, got.rank_array),
            *(sent.data_array, got.data_array),
            *(sent.bytes_array, got.bytes_array),
            *(longest, is_shared, may_be_shorter),
        )
        self._handle.call("move", ctypes.byref(arguments))

    @staticmethod
    def _actor(rank: int, domain: Sequence[int]) -> int:
        """The rank of a host that acts there for a rank: the load is divided evenly."""
        return rank if rank in domain else domain[rank % len(domain)]

    def _neighbors(self) -> list[int]:
        return [member for member in self._members if member != self._rank]

    def _others(self) -> list[int]:
        """The other ranks, the next one first: no rank is the first that all send to."""
        return [(self._rank + i) % self._size for i in range(1, self._size)]


def _is_early(rows: Tensor) -> bool:
    return rows.nbytes <= _EARLY_BYTES


def _row_elements(tensor: Tensor) -> int:
    elements = 1
    for extent in tensor.shape[1:]:
        elements *= extent
    return elements


def _reduce(inputs: Sequence[Tensor], reduction: int, divisor: int) -> Tensor:
    """In the order of inputs; sums of 16-bit floats are rounded once."""
    output = torch.empty_like(inputs[0])
    wide = output.float() if output.dtype in _HALVES else output
    library.load().taco_collective_reduce(
        TYPES[output.dtype],
        reduction,
        wide.data_ptr(),
        (ctypes.c_void_p * len(inputs))(*(part.data_ptr() for part in inputs)),
        len(inputs),
        output.numel(),
        divisor,
        output.data_ptr(),
    )
    return output
