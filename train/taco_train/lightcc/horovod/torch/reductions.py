"""All-reduce: blocking, in the background, in place, grouped, differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from taco_train.lightcc.horovod.ops import choose_op
from taco_train.lightcc.horovod.process_sets import ProcessSet, global_process_set
from taco_train.lightcc.horovod.torch.compression import Compression, Compressor
from taco_train.lightcc.horovod.torch.handles import synchronize
from taco_train.lightcc.horovod.torch.reduction_requests import Reduction, make_reduction
from taco_train.lightcc.horovod.torch.submit import check_group
from taco_train.lightcc.negotiation.requests import Kind


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to combine the ranks' tensors of this name.

    Args:
        tensor: of the same shape and dtype on all ranks; it must not change until the end.
        average: deprecated, see `op`.
        name: equal on all ranks; None: numbered by the order of calls.
        op: Average (default), Sum, Adasum, Min, Max or Product.
        prescale_factor, postscale_factor: multiply the tensor before and after.

    Returns:
        A handle for `poll` and `synchronize`.
    """
    reduction = _reduction(op, average, prescale_factor, postscale_factor, process_set)
    return reduction.start([tensor], name)


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As `allreduce_async`, with the result in `tensor`."""
    reduction = _reduction(op, average, prescale_factor, postscale_factor, process_set)
    return reduction.start([tensor], name, in_place=True)


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Combine the ranks' tensors in place and return `tensor`."""
    handle = allreduce_async_(
        tensor, average, name, op, prescale_factor, postscale_factor, process_set
    )
    result: Tensor = synchronize(handle)
    return result


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Combine the ranks' tensors; gradients flow through it."""
    reduction = _reduction(op, average, prescale_factor, postscale_factor, process_set)
    compressed, context = compression.compress(tensor)
    (reduced,) = _Reduction.apply(reduction, name, False, compressed)
    return compression.decompress(reduced, context)


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As `allreduce_async` for several tensors, which run as one; the result is a list."""
    reduction = _reduction(op, average, prescale_factor, postscale_factor, process_set)
    return reduction.start(check_group(tensors), name, is_group=True)


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As `grouped_allreduce_async`, with the results in `tensors`."""
    reduction = _reduction(op, average, prescale_factor, postscale_factor, process_set)
    return reduction.start(check_group(tensors), name, in_place=True, is_group=True)


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Combine several tensors in place."""
    handle = grouped_allreduce_async_(
        tensors, average, name, op, prescale_factor, postscale_factor, process_set
    )
    result: list[Tensor] = synchronize(handle)
    return result


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Combine several tensors, which run as one; gradients flow through it."""
    reduction = _reduction(op, average, prescale_factor, postscale_factor, process_set)
    pairs = [compression.compress(tensor) for tensor in check_group(tensors)]
    reduced = _Reduction.apply(reduction, name, True, *(compressed for compressed, _ in pairs))
    return [
        compression.decompress(one, context)
        for one, (_, context) in zip(reduced, pairs, strict=True)
    ]


def _reduction(
    op: int | None,
    average: bool | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Reduction:
    return make_reduction(Kind.ALL_REDUCE, choose_op(op, average), prescale, postscale, process_set)


class _Reduction(torch.autograd.Function):
    """Gradients of an all-reduce are combined in the same way."""

    @staticmethod
    def forward(
        ctx: Any, reduction: Reduction, name: str | None, is_group: bool, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.reduction, ctx.is_group = reduction, is_group
        result = synchronize(reduction.start(tensors, name, is_group=is_group))
        return tuple(result) if is_group else (result,)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        handle = ctx.reduction.start(gradients, None, is_group=ctx.is_group)
        result = synchronize(handle)
        return None, None, None, *(result if ctx.is_group else [result])
