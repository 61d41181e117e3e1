"""Reduce-scatter: blocking, in the background, grouped, differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from taco_train.lightcc.horovod.ops import Average, ReduceOp, choose_op
from taco_train.lightcc.horovod.process_sets import ProcessSet, global_process_set
from taco_train.lightcc.horovod.torch.compression import Compression, Compressor
from taco_train.lightcc.horovod.torch.gathers import allgather
from taco_train.lightcc.horovod.torch.handles import synchronize
from taco_train.lightcc.horovod.torch.reduction_requests import reduce_async
from taco_train.lightcc.horovod.torch.submit import check_group
from taco_train.lightcc.negotiation.requests import Kind


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start to combine the ranks' tensors; each rank gets its rows of the result.

    The first ranks have one row more where the rows cannot be divided evenly.
    """
    return reduce_async(
        Kind.REDUCE_SCATTER,
        [_with_rows(tensor)],
        name,
        _scatter_op(op),
        process_set,
        prescale_factor,
        postscale_factor,
    )


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Combine the ranks' tensors and return this rank's rows; gradients flow through it."""
    compressed, context = compression.compress(_with_rows(tensor))
    (part,) = _Scatter.apply(
        name, _scatter_op(op), prescale_factor, postscale_factor, process_set, False, compressed
    )
    return compression.decompress(part, context)


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """As `reducescatter_async` for several tensors, which run together."""
    return reduce_async(
        Kind.REDUCE_SCATTER,
        [_with_rows(tensor) for tensor in check_group(tensors)],
        name,
        _scatter_op(op),
        process_set,
        prescale_factor,
        postscale_factor,
        is_group=True,
    )


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """As `reducescatter` for several tensors, which run together."""
    pairs = [compression.compress(_with_rows(tensor)) for tensor in check_group(tensors)]
    parts = _Scatter.apply(
        name,
        _scatter_op(op),
        prescale_factor,
        postscale_factor,
        process_set,
        True,
        *(compressed for compressed, _ in pairs),
    )
    return [
        compression.decompress(one, context) for one, (_, context) in zip(parts, pairs, strict=True)
    ]


class _Scatter(torch.autograd.Function):
    """Gradients of a reduce-scatter are gathered; Horovod scales those of sums by the ranks."""

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
        num_ranks = process_set.size() or 1
        ctx.factor = prescale * postscale * (1 if op is Average else num_ranks)
        ctx.process_set = process_set
        handle = reduce_async(
            Kind.REDUCE_SCATTER,
            tensors,
            name,
            op,
            process_set,
            prescale,
            postscale,
            is_group=is_group,
        )
        result = synchronize(handle)
        return tuple(result) if is_group else (result,)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        gathered = [
            allgather(gradient * ctx.factor, process_set=ctx.process_set) for gradient in gradients
        ]
        return *[None] * 6, *gathered


def _with_rows(tensor: Tensor) -> Tensor:
    if tensor.ndim == 0:
        raise ValueError("reducescatter needs a tensor with a first dimension")
    return tensor


def _scatter_op(op: int) -> ReduceOp:
    chosen = choose_op(op, None)
    if chosen is ReduceOp.ADASUM:
        raise ValueError("reducescatter does not support Adasum")
    return chosen
