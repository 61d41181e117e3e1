"""Ranks that compute together."""

from __future__ import annotations

import ctypes
import queue
import socket
from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor

from taco_train.cluster.ranks import Placement
from taco_train.cluster.store import KeyValueStore
from taco_train.collective import library
from taco_train.collective.arguments import check_depth, equal_splits, reduction_of, type_of
from taco_train.collective.buffers import Buffer
from taco_train.collective.connect import EndpointExchange, StoreExchange, connect
from taco_train.collective.control import Listener
from taco_train.collective.errors import CommunicationError
from taco_train.collective.failure_domain import FailureDomain, State
from taco_train.collective.handle import Handle
from taco_train.collective.levels import (
    FLAT,
    HOSTS,
    INSIDE,
    Levels,
    make_layout,
    make_tree,
    placement_among,
)
from taco_train.collective.library import Description, Kind
from taco_train.collective.parent import Parent
from taco_train.collective.residuals import Residuals, SparseCall
from taco_train.collective.rows import RowMover
from taco_train.collective.wire import DENSE, FORMATS, Dense, TopK, Wire

# Bytes of a tensor that are in shared memory at once: four slots of this size per rank.
SLOT_BYTES = 1 << 20


class Communicator:
    """Ranks that compute together: through shared memory inside a host, TCP between hosts.

    All ranks call the same operations in the same order, one thread of a rank at a time; `exchange`
    alone concerns only the ranks that it names. Tensors are on the CPU. Where ranks call different
    operations, or a rank is gone or silent, every rank raises CommunicationError, and the
    communicator is of no use afterwards, nor are those that it is a subgroup of and its subgroups.
    Autograd does not see what happens here.

    Args:
        placement: this rank's, with the hosts of all ranks; `addresses` where there are several.
        store: reached by all ranks.
        name: of the communicator: different for those that are made at the same time.
        timeout_seconds: how long a rank waits for another in one operation while nothing moves.
        levels: the groups in which ranks reduce.
        parent: what it is a subgroup of: see `subgroup`.

    Attributes:
        rank, size: of this rank, and number of ranks.
        store: reached by all ranks.
        residuals: what TopK has not sent yet: `state_dict` and `load_state_dict` save it.

    Raises:
        CommunicationError: a rank did not come, or cannot be reached, within the time limit.
    """

    def __init__(
        self,
        placement: Placement,
        store: KeyValueStore,
        *,
        name: str = "world",
        timeout_seconds: float = 60.0,
        levels: Levels | None = None,
        parent: Parent | None = None,
    ) -> None:
        self.placement = placement
        self.rank, self.size = placement.rank, placement.size
        self.levels = levels or Levels()
        self.name = name
        self.timeout_seconds = timeout_seconds
        self.residuals = Residuals()
        self.store = store
        self._layout = make_layout(placement.rank, placement.hosts, self.levels)
        if parent is None:
            self._handle = Handle(placement, FailureDomain(placement), range(placement.size))
        else:
            self._handle = Handle(placement, parent.domain, parent.numbers)
        self._rows = RowMover(self._handle, self._layout, self.rank, self.size)
        self._listener: Listener | None = None
        if placement.size > 1:
            self._open(parent)

    def all_reduce(
        self, tensor: Tensor, op: str = "sum", *, wire: Wire = DENSE, depth: int = HOSTS
    ) -> None:
        """Reduces a tensor in place: the same bits on all ranks and in every run.

        Sums of 16-bit floats accumulate in float32; each level of the hierarchy rounds them once.

        Args:
            tensor: same shape and dtype on all ranks.
            op: sum, average, min, max or product. Averages of integers are rounded towards zero.
            wire: format between hosts. With TopK the result is the sum of what is sent now.
            depth: 1, a ring over all ranks; 2, hosts first (shared memory), then between hosts;
                3, hosts, then the hosts of a rack, then between racks.
        """
        type_of(tensor)
        dense = tensor.detach().contiguous()
        self.bind_all_reduce(dense, op, wire=wire, depth=depth)()
        if dense.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(dense)

    def bind_all_reduce(
        self, tensor: Tensor, op: str = "sum", *, wire: Wire = DENSE, depth: int = HOSTS
    ) -> Callable[[], None]:
        """Check and describe a tensor once that is reduced in many steps.

        Args:
            tensor: contiguous.

        Returns:
            What does as `all_reduce` with these arguments.
        """
        check_depth(depth)
        if not tensor.is_contiguous():
            raise ValueError("bind_all_reduce: the tensor is not contiguous")
        if not isinstance(wire, TopK):
            return self._bind(tensor, op, wire, depth, Kind.ALL_REDUCE)
        if op not in ("sum", "average"):
            raise ValueError(f"all_reduce: op is {op!r}; top-k needs sum or average")
        is_sparse = (
            tensor.dtype == torch.float32 and tensor.numel() and len(self._layout.domains) > 1
        )
        if not is_sparse:
            return self._bind(tensor, op, DENSE, depth, Kind.ALL_REDUCE)
        call = SparseCall(tensor.numel(), op, wire, self.residuals, self._layout, self.rank, depth)
        call.arguments.data = tensor.data_ptr()
        run_step = self._handle.bind("sparse_all_reduce", call.arguments, tensor)

        def run() -> None:
            call.begin_step()
            run_step()

        return run

    def sum_inside(self, tensor: Tensor) -> None:
        """Sums a contiguous tensor in place over the ranks that share memory with this one.

        All ranks call it: an all-reduce without what happens between hosts.
        """
        self._bind(tensor, "sum", DENSE, INSIDE, Kind.ALL_REDUCE)()

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        self._bind(torch.zeros(1, dtype=torch.uint8), "max", DENSE, HOSTS, Kind.BARRIER)()

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Overwrites the tensor, of the same shape and dtype on all ranks, by that of `root`."""
        self._check_rank(root)
        type_number = type_of(tensor)
        if self.size == 1:
            return
        tensor = tensor.detach()
        dense = tensor.contiguous()
        parent, children = make_tree(self.rank, root, self._layout)
        description = Description(Kind.BROADCAST, type_number, count=tensor.numel(), extra=root)
        self._handle.call(
            "broadcast",
            ctypes.byref(description),
            dense.data_ptr(),
            dense.nbytes,
            parent,
            len(children),
            library.int32_array(children),
        )
        if dense.data_ptr() != tensor.data_ptr():
            tensor.copy_(dense)

    def all_gather(self, tensor: Tensor) -> Tensor:
        """All ranks' tensors, in the order of ranks, one after another in the first dimension.

        Args:
            tensor: at least one dimension; only the first may differ between ranks.
        """
        type_of(tensor)
        if tensor.dim() == 0:
            raise ValueError("all_gather: the tensor has no dimension; use tensor.reshape(1)")
        tensor = tensor.detach()
        if self.size == 1:
            return tensor.clone()
        return self._rows.all_gather(tensor)

    def all_to_all(
        self, tensor: Tensor, splits: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Sends a part of the tensor to every rank.

        Args:
            tensor: at least one dimension; only the first may differ between ranks.
            splits: rows for every rank, by rank; equal parts by default.

        Returns:
            the rows from all ranks, in the order of ranks, and an int64 tensor of their numbers.
        """
        type_of(tensor)
        if tensor.dim() == 0:
            raise ValueError("all_to_all: the tensor has no dimension; use tensor.reshape(1)")
        tensor = tensor.detach()
        rows = equal_splits(tensor, self.size) if splits is None else [int(n) for n in splits]
        if len(rows) != self.size or min(rows) < 0 or sum(rows) != tensor.shape[0]:
            raise ValueError(
                f"all_to_all: splits {rows} must be {self.size} numbers whose sum is the first "
                f"dimension, {tensor.shape[0]}"
            )
        if self.size == 1:
            return tensor.clone(), torch.tensor(rows)
        return self._rows.all_to_all(tensor, rows)

    def reduce_scatter(self, tensor: Tensor, op: str = "sum") -> Tensor:
        """This rank's part of the reduced tensor: the same bits in every run.

        Hosts reduce first, each in shared memory, then the hosts' sums are added up. Sums of 16-bit
        floats accumulate in float32; each of both levels rounds them once.

        Args:
            tensor: same shape and dtype on all ranks, at least one dimension, which is divided into
                one part a rank; the first ranks get one row more where it does not divide evenly.
            op: as for all_reduce.
        """
        type_of(tensor)
        reduction = reduction_of(op)
        if tensor.dim() == 0:
            raise ValueError("reduce_scatter: the tensor has no dimension; use tensor.reshape(1)")
        tensor = tensor.detach()
        if self.size == 1:
            return tensor.clone()
        return self._rows.reduce_scatter(tensor, reduction, averages=op == "average")

    def exchange(
        self, sends: Sequence[tuple[int, Buffer]], receives: Sequence[tuple[int, Buffer]]
    ) -> None:
        """Sends and receives buffers: all progress together. Returns when all have been moved.

        Args:
            sends: rank and buffer: a contiguous tensor, or bytes.
            receives: rank and buffer: a contiguous tensor, or a bytearray, of the length that the
                rank sends. Several of one rank arrive in the order in which it lists them.
        """
        for rank, _ in (*sends, *receives):
            self._check_rank(rank)
            if rank == self.rank:
                raise ValueError(f"exchange: rank {rank} cannot send to itself")
        self._rows.move(Description(Kind.EXCHANGE), sends, receives)

    def subgroup(self, ranks: Sequence[int], name: str) -> Communicator | None:
        """A communicator of some ranks, renumbered in the order of `ranks`.

        Only its members need to call it.

        Args:
            ranks: its members, each once.
            name: different for subgroups that are made at the same time.

        Returns:
            None if this rank is no member.
        """
        members = list(ranks)
        for rank in members:
            self._check_rank(rank)
        if len(set(members)) != len(members) or not members:
            raise ValueError(f"subgroup: ranks {members} must be different, and one at least")
        if self.rank not in members:
            return None
        return Communicator(
            placement_among(self.placement, members),
            self.store,
            name=f"{self.name}/{name}",
            timeout_seconds=self.timeout_seconds,
            levels=self.levels,
            parent=Parent(self, self._handle, members),
        )

    def abort(self, reason: str = "the communicator was aborted") -> None:
        """From any thread: the operation in progress and all later ones raise, on all ranks."""
        rank = self._handle.numbers[self.rank]
        self._handle.domain.report(rank, f"rank {rank}: {reason}")

    def state(self) -> State:
        """From any thread: what this rank does in its operation."""
        return self._handle.state()

    def close(self) -> None:
        """Closes connections and memory; other ranks may still be in an earlier operation.

        No thread may be in an operation of this rank: `abort` ends one.
        """
        if self._listener:
            self._listener.close()
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _open(self, parent: Parent | None) -> None:
        domain = self._handle.domain
        arrivals: queue.SimpleQueue[tuple[int, socket.socket]] = queue.SimpleQueue()
        addresses = self.placement.addresses
        listener = Listener(
            addresses[self.rank] if addresses else "127.0.0.1",
            lambda rank, connection: arrivals.put((rank, connection)),
            domain.hear,
            self._handle.answer,
        )
        exchange: EndpointExchange = parent or StoreExchange(self.placement, self.store, self.name)
        try:
            connections = connect(
                self.placement,
                self._handle.numbers,
                exchange,
                self._layout.members,
                SLOT_BYTES,
                listener,
                arrivals,
                self.timeout_seconds,
            )
            if parent is None:
                domain.open(connections.endpoints)
            self._handle.open(connections, self._layout, SLOT_BYTES, self.timeout_seconds)
            if parent is None:
                self._listener = listener
        except CommunicationError as error:
            domain.report(error.rank, str(error))
            raise
        finally:
            if self._listener is None:  # that of the parent answers
                listener.close()

    def _bind(
        self, tensor: Tensor, op: str, wire: Dense, depth: int, kind: Kind
    ) -> Callable[[], None]:
        type_number, reduction = type_of(tensor), reduction_of(op)
        if self.size == 1:
            return lambda: None
        arguments = library.AllReduceArguments(
            data=tensor.data_ptr(),
            count=tensor.numel(),
            kind=kind,
            type=type_number,
            reduction=reduction,
            wire=FORMATS[wire.format],
            schedule=depth - 1,
            uses_stage=depth != FLAT,
            num_shards=self._layout.num_shards,
        )
        return self._handle.bind("all_reduce", arguments, tensor)

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank} does not exist: ranks are 0 to {self.size - 1}")
