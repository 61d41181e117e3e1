"""All-gather, broadcast and all-to-all: blocking, in the background, differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from taco_train.lightcc.horovod.ops import Average
from taco_train.lightcc.horovod.process_sets import ProcessSet, global_process_set
from taco_train.lightcc.horovod.state import current
from taco_train.lightcc.horovod.torch.handles import make_handle, synchronize
from taco_train.lightcc.horovod.torch.submit import check_group, name_of, submit
from taco_train.lightcc.negotiation.requests import Kind


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to concatenate the ranks' tensors along the first dimension, which may differ."""
    work = submit(Kind.ALL_GATHER, tensor, name_of(Kind.ALL_GATHER, name), process_set)
    return make_handle([work], lambda outputs: outputs[0])


def allgather(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Concatenate the ranks' tensors along the first dimension; gradients flow through it."""
    (gathered,) = _Gather.apply(name, process_set, False, tensor)
    result: Tensor = gathered
    return result


def grouped_allgather_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As `allgather_async` for several tensors, which run together; the result is a list."""
    check_group(tensors)
    base = name_of(Kind.ALL_GATHER, name)
    works = [
        submit(Kind.ALL_GATHER, tensor, f"{base}.{i}", process_set, together=(base, len(tensors)))
        for i, tensor in enumerate(tensors)
    ]
    return make_handle(works, lambda outputs: outputs)


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """As `allgather` for several tensors, which run together."""
    return list(_Gather.apply(name, process_set, True, *tensors))


def broadcast_async(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to copy the root's tensor to all ranks.

    Args:
        root_rank: its number among all ranks, also with a process set.
    """
    return _broadcast_async(tensor, root_rank, name, process_set, in_place=False)


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As `broadcast_async`, with the result in `tensor`."""
    return _broadcast_async(tensor, root_rank, name, process_set, in_place=True)


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """The root's tensor, on every rank; gradients flow to the root."""
    result: Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)
    return result


def broadcast_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Copy the root's tensor into every rank's."""
    result: Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return result


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to send rows of the tensor to each rank.

    Args:
        splits: rows for each rank of the set, in order; None: the same number for each.

    Returns:
        A handle, whose result is the received rows; with `splits`, also how many came from each.

    Raises:
        ValueError: the splits do not fit the tensor.
    """
    given = _splits(tensor, splits, process_set)
    work = submit(
        Kind.ALL_TO_ALL, tensor, name_of(Kind.ALL_TO_ALL, name), process_set, splits=given
    )
    if splits is None:
        return make_handle([work], lambda outputs: outputs[0][0])
    return make_handle(
        [work], lambda outputs: (outputs[0][0], torch.tensor(outputs[0][1], dtype=torch.int32))
    )


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor | tuple[Tensor, Tensor]:
    """As `alltoall_async`, blocking; gradients flow through it."""
    given = torch.tensor(_splits(tensor, splits, process_set), dtype=torch.int32)
    received, counts = _AllToAll.apply(tensor, given, name, process_set)
    return received if splits is None else (received, counts)


def _broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet, *, in_place: bool
) -> int:
    size = current().placement.size
    if not 0 <= root_rank < size:
        raise ValueError(f"root_rank is {root_rank}; it must be from 0 to {size - 1}")
    work = submit(
        Kind.BROADCAST,
        tensor,
        name_of(Kind.BROADCAST, name),
        process_set,
        root=root_rank,
        in_place=in_place,
    )
    return make_handle([work], lambda outputs: outputs[0])


def _splits(
    tensor: Tensor, splits: Tensor | Sequence[int] | None, process_set: ProcessSet
) -> list[int]:
    if tensor.ndim == 0:
        raise ValueError("alltoall needs a tensor with a first dimension")
    size, rows = process_set.size() or 1, tensor.shape[0]
    if splits is None:
        if rows % size:
            raise ValueError(f"{rows} rows cannot be divided among {size} ranks: give splits")
        return [rows // size] * size
    given = [int(one) for one in splits]
    if len(given) != size or min(given) < 0 or sum(given) != rows:
        raise ValueError(f"splits are {given}: {size} numbers with the sum {rows} are needed")
    return given


class _Gather(torch.autograd.Function):
    """Gradients of an all-gather are averaged over the ranks, as in Horovod."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, is_group: bool, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.process_set, ctx.rows = process_set, [tensor.shape[0] for tensor in tensors]
        if is_group:
            return tuple(synchronize(grouped_allgather_async(tensors, name, process_set)))
        return (synchronize(allgather_async(tensors[0], name, process_set)),)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        rows = allgather(torch.tensor([ctx.rows]), process_set=ctx.process_set)
        start = rows[: ctx.process_set.rank()].sum(0).tolist()
        averaged = [_average(gradient, ctx.process_set) for gradient in gradients]
        own = [
            one.narrow(0, first, count)
            for one, first, count in zip(averaged, start, ctx.rows, strict=True)
        ]
        return None, None, None, *own


class _Broadcast(torch.autograd.Function):
    """The root's gradient is the average over the ranks, as in Horovod; others have none."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> Tensor:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        result: Tensor = synchronize(broadcast_async(tensor, root_rank, name, process_set))
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        averaged = _average(gradient, ctx.process_set)
        is_root = current().placement.rank == ctx.root_rank
        return averaged if is_root else torch.zeros_like(averaged), None, None, None


class _AllToAll(torch.autograd.Function):
    """Gradients return to the ranks that the rows came from."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, splits: Tensor, name: str | None, process_set: ProcessSet
    ) -> tuple[Tensor, Tensor]:
        received, counts = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.process_set, ctx.counts = process_set, counts
        ctx.mark_non_differentiable(counts)
        return received, counts

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Any, ...]:
        handle = alltoall_async(gradient, ctx.counts, process_set=ctx.process_set)
        returned, _ = synchronize(handle)
        return returned, None, None, None


def _average(gradient: Tensor, process_set: ProcessSet) -> Tensor:
    work = submit(
        Kind.ALL_REDUCE,
        gradient,
        name_of(Kind.ALL_REDUCE, None),
        process_set,
        op=Average,
    )
    result: Tensor = synchronize(make_handle([work], lambda outputs: outputs[0]))
    return result
