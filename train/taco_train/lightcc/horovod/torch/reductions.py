"""All-reduce: blocking, in the background, in place, grouped, differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from taco_train.lightcc.horovod.ops import ReduceOp, choose_op
from taco_train.lightcc.horovod.process_sets import ProcessSet, global_process_set
from taco_train.lightcc.horovod.torch.compression import Compression, Compressor
from taco_train.lightcc.horovod.torch.handles import synchronize
from taco_train.lightcc.horovod.torch.reduction_requests import reduce_async
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
    chosen = choose_op(op, average)
    return reduce_async(
        Kind.ALL_REDUCE, [tensor], name, chosen, process_set, prescale_factor, postscale_factor
    )


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
    return reduce_async(
        Kind.ALL_REDUCE,
        [tensor],
        name,
        choose_op(op, average),
        process_set,
        prescale_factor,
        postscale_factor,
        in_place=True,
    )


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
    compressed, context = compression.compress(tensor)
    (reduced,) = _Reduction.apply(
        name,
        choose_op(op, average),
        prescale_factor,
        postscale_factor,
        process_set,
        False,
        compressed,
    )
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
    chosen = choose_op(op, average)
    return reduce_async(
        Kind.ALL_REDUCE,
        check_group(tensors),
        name,
        chosen,
        process_set,
        prescale_factor,
        postscale_factor,
        is_group=True,
    )


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
    return reduce_async(
        Kind.ALL_REDUCE,
        check_group(tensors),
        name,
        choose_op(op, average),
        process_set,
        prescale_factor,
        postscale_factor,
        in_place=True,
        is_group=True,
    )


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
    pairs = [compression.compress(tensor) for tensor in check_group(tensors)]
    reduced = _Reduction.apply(
        name,
        choose_op(op, average),
        prescale_factor,
        postscale_factor,
        process_set,
        True,
        *(compressed for compressed, _ in pairs),
    )
    return [
        compression.decompress(one, context)
        for one, (_, context) in zip(reduced, pairs, strict=True)
    ]


class _Reduction(torch.autograd.Function):
    """Gradients of an all-reduce are combined in the same way."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: ReduceOp,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        is_group: bool,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.settings = op, prescale, postscale, process_set, is_group
        handle = reduce_async(
            Kind.ALL_REDUCE, tensors, name, op, process_set, prescale, postscale, is_group=is_group
        )
        result = synchronize(handle)
        return tuple(result) if is_group else (result,)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        op, prescale, postscale, process_set, is_group = ctx.settings
        handle = reduce_async(
            Kind.ALL_REDUCE,
            gradients,
            None,
            op,
            process_set,
            prescale,
            postscale,
            is_group=is_group,
        )
        result = synchronize(handle)
        return *[None] * 6, *(result if is_group else [result])
