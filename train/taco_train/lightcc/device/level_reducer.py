"""All-reduces over process groups in two levels: hosts first, then peers of all hosts.

What crosses hosts may be float16 or TopK; inside a host all values travel as they are. The bits of
a result are those that the owner of a shard has computed, so that they are equal on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    ReduceOp,
    ReduceScatterOptions,
)

from taco_train.collective.residuals import Residuals
from taco_train.collective.wire import DENSE, TopK, Wire
from taco_train.lightcc.device import sparse
from taco_train.lightcc.device.groups import Group, LevelGroups

# Chunks of one buffer are in both levels at the same time.
CHUNK_BYTES = 8 << 20
_OPS = {
    "sum": ReduceOp(ReduceOp.SUM),
    "min": ReduceOp(ReduceOp.MIN),
    "max": ReduceOp(ReduceOp.MAX),
    "product": ReduceOp(ReduceOp.PRODUCT),
}
_TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_OPS_OF_BOOLEANS = {"sum": "max", "average": "max", "product": "min"}


class LevelReducer:
    """Reduces buffers of one device.

    Args:
        groups: of the ranks.
        residuals: what TopK has not sent.
        chunk_bytes: of the pieces that are pipelined.
    """

    def __init__(
        self, groups: LevelGroups, residuals: Residuals, *, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self._groups = groups
        self._residuals = residuals
        self._chunk_bytes = chunk_bytes

    def all_reduce(self, buffer: Tensor, op: str, *, wire: Wire, two_level: bool) -> None:
        """Reduces a contiguous buffer of one dimension in place.

        Args:
            op: sum, average, min, max or product; TopK and float16 need a sum or an average of
                float32.
            wire: format between hosts.
            two_level: whether each value crosses hosts once a host; else one group of all ranks.
        """
        if buffer.dtype == torch.bool:
            buffer, op = buffer.view(torch.uint8), _OPS_OF_BOOLEANS.get(op, op)
        groups = self._groups
        if not buffer.numel():
            return
        if op == "average":
            self.all_reduce(buffer, "sum", wire=wire, two_level=two_level)
            rounds = None if buffer.dtype.is_floating_point else "trunc"
            buffer.copy_(torch.div(buffer, self._groups.size, rounding_mode=rounds))
            return
        if groups.num_hosts == 1:
            _all_reduce(groups.everyone, op, buffer)
            return
        is_divided = two_level and groups.num_local > 1
        num_shards = groups.num_local if is_divided else 1
        peers = groups.peers if is_divided else groups.everyone
        between: Callable[[Tensor], None]
        if isinstance(wire, TopK):
            between = partial(self._sparse, peers, buffer.numel(), num_shards, wire)
        elif wire != DENSE and buffer.dtype == torch.float32:
            between = partial(_all_reduce_as, peers, _TYPES[wire.format])
        else:
            between = partial(_all_reduce, peers, op)
        if not is_divided:
            between(buffer)
            return
        self._reduce_by_shards(buffer, op, between, is_whole=wire != DENSE)

    def close(self) -> None:
        """Ends the groups."""
        self._groups.abort()

    def _reduce_by_shards(
        self, buffer: Tensor, op: str, between: Callable[[Tensor], None], *, is_whole: bool
    ) -> None:
        """Reduce-scatter in the host, `between` for this rank's shard, and all-gather."""
        local, size = self._groups.local, self._groups.num_local
        row = -(-buffer.numel() // size)
        padded = buffer
        if row * size != buffer.numel():
            padded = torch.cat([buffer, buffer.new_zeros(row * size - buffer.numel())])
        chunk = row if is_whole else max(1, self._chunk_bytes // buffer.element_size() // size)
        rows = padded.view(size, row)
        starts = range(0, row, chunk)
        # All are queued at once: a group computes in order, beside the groups of the other level.
        pieces = [rows[:, start : start + chunk].contiguous().view(-1) for start in starts]
        shards = [piece.new_empty(piece.numel() // size) for piece in pieces]
        options = ReduceScatterOptions()
        options.reduceOp = _OPS[op]
        scattered = [
            local._reduce_scatter_base(shard, piece, options)
            for shard, piece in zip(shards, pieces, strict=True)
        ]
        gathered = []
        for shard, piece, work in zip(shards, pieces, scattered, strict=True):
            work.wait()
            between(shard)
            gathered.append(local._allgather_base(piece, shard, AllgatherOptions()))
        for start, piece, work in zip(starts, pieces, gathered, strict=True):
            work.wait()
            rows[:, start : start + chunk] = piece.view(size, -1)
        if padded is not buffer:
            buffer.copy_(padded[: buffer.numel()])

    def _sparse(self, peers: Group, count: int, num_shards: int, wire: TopK, shard: Tensor) -> None:
        """Sends the largest values of residual + gradient to the peers; the rest stays."""
        index = self._groups.local_index if num_shards > 1 else 0
        begin = min(count, shard.numel() * index)
        end = min(count, begin + shard.numel())
        has_momentum = wire.momentum > 0
        residual = self._residuals.of(
            wire.key, count, begin, end, has_momentum=has_momentum, device=shard.device
        )
        selected = max(1, round(wire.ratio_at(residual.step) * shard.numel()))
        residual.step += 1
        waiting = shard.new_zeros(shard.numel())  # the padding of the last shard is zero
        own = slice(0, end - begin)
        if residual.momentum is not None and has_momentum:
            residual.momentum.mul_(wire.momentum).add_(shard[own])
            waiting[own] = residual.values + residual.momentum
        else:
            waiting[own] = residual.values + shard[own]
        as_float16 = wire.values == "float16"
        indices = sparse.select(waiting, selected)
        message, sent = sparse.encode(waiting, indices, as_float16=as_float16)
        left = waiting[indices] - sent
        waiting[indices] = left.where(left.isfinite(), torch.zeros_like(left))
        residual.values.copy_(waiting[own])
        if residual.momentum is not None and has_momentum:
            kept = torch.ones_like(waiting)
            kept[indices] = 0
            residual.momentum.mul_(kept[own])
        messages = message.new_empty(peers.size(), message.numel())
        peers._allgather_base(messages.view(-1), message, AllgatherOptions()).wait()
        shard.zero_()
        for one in messages:
            sparse.add_decoded(one, selected, shard, as_float16=as_float16)


def _all_reduce(group: Group, op: str, buffer: Tensor) -> None:
    options = AllreduceOptions()
    options.reduceOp = _OPS[op]
    group.allreduce([buffer], options).wait()


def _all_reduce_as(group: Group, kind: torch.dtype, shard: Tensor) -> None:
    """Sums float32 values that travel in 16 bits: they are added in float32, in rank order."""
    size = group.size()
    part = -(-shard.numel() // size)
    sent = shard.new_zeros(size * part, dtype=kind)
    sent[: shard.numel()] = shard
    received = torch.empty_like(sent)
    group.alltoall_base(received, sent, [], [], AllToAllOptions()).wait()
    total = torch.zeros(part, device=shard.device)
    for one in received.view(size, part):
        total += one
    group._allgather_base(sent, total.to(kind), AllgatherOptions()).wait()
    shard.copy_(sent[: shard.numel()])
