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
from taco_train.lightcc.horovod.torch.reduction_requests import Reduction, make_reduction
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
    reduction = _reduction(op, prescale_factor, postscale_factor, process_set)
    return reduction.start([tensor], name)


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
    reduction = _reduction(op, prescale_factor, postscale_factor, process_set)
    compressed, context = compression.compress(tensor)
    (part,) = _Scatter.apply(reduction, name, False, compressed)
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
    reduction = _reduction(op, prescale_factor, postscale_factor, process_set)
    return reduction.start(check_group(tensors), name, is_group=True)


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
    reduction = _reduction(op, prescale_factor, postscale_factor, process_set)
    pairs = [compression.compress(tensor) for tensor in check_group(tensors)]
    parts = _Scatter.apply(reduction, name, True, *(compressed for compressed, _ in pairs))
    return [
        compression.decompress(one, context) for one, (_, context) in zip(parts, pairs, strict=True)
    ]


def _reduction(op: int, prescale: float, postscale: float, process_set: ProcessSet) -> Reduction:
    chosen = choose_op(op, None)
    if chosen is ReduceOp.ADASUM:
        raise ValueError("reducescatter does not support Adasum")
    return make_reduction(Kind.REDUCE_SCATTER, chosen, prescale, postscale, process_set)


class _Scatter(torch.autograd.Function):
    """Gradients of a reduce-scatter are gathered; Horovod scales those of sums by the ranks."""

    @staticmethod
    def forward(
        ctx: Any, reduction: Reduction, name: str | None, is_group: bool, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.reduction = reduction
        result = synchronize(reduction.start(tensors, name, is_group=is_group))
        return tuple(result) if is_group else (result,)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        reduction = ctx.reduction
        num_ranks = 1 if reduction.op is Average else reduction.process_set.size() or 1
        factor = reduction.prescale * reduction.postscale * num_ranks
        gathered = [
            allgather(gradient * factor, process_set=reduction.process_set)
            for gradient in gradients
        ]
        return None, None, None, *gathered
