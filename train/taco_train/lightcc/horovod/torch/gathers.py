"""All-gather, broadcast and all-to-all: blocking, in the background, differentiable."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from taco_train.lightcc.horovod.ops import Average
from taco_train.lightcc.horovod.process_sets import ProcessSet, global_process_set, group_of
from taco_train.lightcc.horovod.state import current
from taco_train.lightcc.horovod.torch.handles import make_handle, synchronize
from taco_train.lightcc.horovod.torch.reduction_requests import Reduction
from taco_train.lightcc.horovod.torch.submit import check_group, check_root, check_tensor, submit
from taco_train.lightcc.negotiation.requests import Kind


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start to concatenate the ranks' tensors along the first dimension, which may differ."""
    works = submit(Kind.ALL_GATHER, [tensor], name, process_set)
    return make_handle(works, lambda outputs: outputs[0])


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
    works = submit(Kind.ALL_GATHER, check_group(tensors), name, process_set, is_group=True)
    return make_handle(works, lambda outputs: outputs)


def grouped_allgather(
    tensors: Sequence[Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """As `allgather` for several tensors, which run together."""
    return list(_Gather.apply(name, process_set, True, *check_group(tensors)))


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
    given = _splits(tensor, splits, name, process_set)
    works = submit(Kind.ALL_TO_ALL, [tensor], name, process_set, splits=given)
    if splits is None:
        return make_handle(works, lambda outputs: outputs[0][0])
    return make_handle(
        works, lambda outputs: (outputs[0][0], torch.tensor(outputs[0][1], dtype=torch.int32))
    )


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor | tuple[Tensor, Tensor]:
    """As `alltoall_async`, blocking; gradients flow through it."""
    given = torch.tensor(_splits(tensor, splits, name, process_set), dtype=torch.int32)
    received, counts = _AllToAll.apply(tensor, given, name, process_set)
    return received if splits is None else (received, counts)


def _broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet, *, in_place: bool
) -> int:
    root = check_root(root_rank)
    works = submit(Kind.BROADCAST, [tensor], name, process_set, root=root, in_place=in_place)
    return make_handle(works, lambda outputs: outputs[0])


def _splits(
    tensor: Tensor, splits: Tensor | Sequence[int] | None, name: str | None, process_set: ProcessSet
) -> list[int]:
    group_of(process_set)
    check_tensor(Kind.ALL_TO_ALL, tensor, name)
    size, rows = process_set.size() or 1, tensor.shape[0]
    if splits is None:
        if rows % size:
            raise ValueError(f"{rows} rows cannot be divided among {size} ranks: give splits")
        return [rows // size] * size
    try:
        given = [operator.index(one) for one in splits]
    except TypeError:
        given = []
    if len(given) != size or min(given) < 0 or sum(given) != rows:
        raise ValueError(f"splits are {splits}: {size} integers with the sum {rows} are needed")
    return given


class _Gather(torch.autograd.Function):
    """Gradients of an all-gather are averaged over the ranks, as in Horovod."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, is_group: bool, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.process_set = process_set
        works = submit(Kind.ALL_GATHER, tensors, name, process_set, is_group=is_group)
        ctx.rows = [tensor.shape[0] for tensor in tensors]
        return tuple(synchronize(make_handle(works, lambda outputs: outputs)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        rows = allgather(torch.tensor([ctx.rows]), process_set=ctx.process_set)
        start = rows[: ctx.process_set.rank()].sum(0).tolist()
        average = _average(ctx.process_set)
        averaged = [synchronize(average.start([gradient], None)) for gradient in gradients]
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
        averaged = synchronize(_average(ctx.process_set).start([gradient], None))
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


def _average(process_set: ProcessSet) -> Reduction:
    return Reduction(Kind.ALL_REDUCE, Average, 1.0, 1.0, process_set)
